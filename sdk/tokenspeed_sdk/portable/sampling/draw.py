# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Last pass: one program a row filters what is left and draws.

Masses are float64. The token drawn is the first one, by id, whose cumulated mass is above the
target; where sums in another order leave none, the last one that has mass.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_sdk import PURPOSE_SAMPLE
from tokenspeed_sdk.portable.sampling.filters import filtered_position
from tokenspeed_sdk.portable.sampling.narrow import candidates_of_row, mass_of_row
from tokenspeed_sdk.portable.sampling.scan import NOWHERE, best_of_row
from tokenspeed_sdk.portable.sampling.weigh import filters_of, scaled_logits

PURPOSE = tl.constexpr(PURPOSE_SAMPLE)


@triton.jit
def uniform(seed, index):
    """Return the Philox number of a seed (int64) and an output position (int64), in [0, 1)."""
    low, high = (index & 0xFFFFFFFF).to(tl.uint32), ((index >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = low ^ low
    w0, w1, _w2, _w3 = tl.philox(seed, low, high, zero + PURPOSE, zero)
    # The sum is below 2^53: exact.
    bits = (w0 >> 5).to(tl.int64) * 67108864 + (w1 >> 6).to(tl.int64)
    return bits.to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def plain_position(
    logits_ptr,
    mass,
    best,
    temperature,
    number,
    vocab_size,
    CHUNK: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Return the id that a number stands for in a row without filters: its chunk, then its place.

    Args:
        mass: (SPAN,) of the chunks.
    """
    chunks, offsets = tl.arange(0, SPAN), tl.arange(0, CHUNK)
    target = number * tl.sum(mass)
    hit = (mass > 0) & (tl.cumsum(mass) > target)
    chunk = tl.min(tl.where(hit, chunks, NOWHERE))
    chunk = tl.minimum(chunk, tl.max(tl.where(mass > 0, chunks, 0)))
    before = tl.sum(tl.where(chunks < chunk, mass, 0.0))
    ids = chunk * CHUNK + offsets
    scaled = scaled_logits(logits_ptr, ids, ids < vocab_size, temperature)
    weights = tl.exp(scaled - best).to(tl.float64)
    hit = (weights > 0) & (before + tl.cumsum(weights) > target)
    place = tl.min(tl.where(hit, offsets, NOWHERE))
    return chunk * CHUNK + tl.minimum(place, tl.max(tl.where(weights > 0, offsets, 0)))


@triton.jit
def draw_rows(
    logits_ptr,
    row_stride,
    best_ptr,
    best_id_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seeds_ptr,
    index_ptr,
    mass_ptr,
    histogram_ptr,
    kept_ptr,
    kept_id_ptr,
    tokens_ptr,
    failed_ptr,
    vocab_size,
    num_chunks,
    FILTERED: tl.constexpr,
    ROOM: tl.constexpr,
    CHUNK: tl.constexpr,
    SPAN: tl.constexpr,
    TILE: tl.constexpr,
    WAYS: tl.constexpr,
):
    """Finish one row: its best token, or the one that its number stands for."""
    row = tl.program_id(0).to(tl.int64)
    best, token, failed = best_of_row(best_ptr, best_id_ptr, row, num_chunks, SPAN)
    temperature = tl.load(temperature_ptr + row).to(tl.float32)
    if (temperature > 0) & (failed == 0):
        number = uniform(tl.load(seeds_ptr + row), tl.load(index_ptr + row))
        best = tl.div_rn(best, temperature)
        mass = mass_of_row(mass_ptr, row, num_chunks, SPAN)
        own = logits_ptr + row * row_stride
        is_on = 0
        if FILTERED:
            top_k, top_p, min_p, is_on = filters_of(
                row, top_k_ptr, top_p_ptr, min_p_ptr, vocab_size
            )
            if is_on != 0:
                total = tl.sum(mass)
                _last, _before, kept = candidates_of_row(
                    histogram_ptr,
                    row,
                    0,
                    num_chunks,
                    total,
                    top_k,
                    top_p,
                    min_p,
                    vocab_size,
                    ROOM,
                    SPAN,
                )
                place = filtered_position(
                    own,
                    kept_ptr + row * ROOM,
                    kept,
                    best,
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    total,
                    number,
                    vocab_size,
                    TILE,
                    WAYS,
                )
                token = place
                if kept >= 0:
                    token = tl.load(kept_id_ptr + row * ROOM + place)
        if is_on == 0:
            token = plain_position(own, mass, best, temperature, number, vocab_size, CHUNK, SPAN)
    tl.store(tokens_ptr + row, tl.where(failed == 0, token, 0).to(tl.int64))
    tl.store(failed_ptr + row, failed.to(tl.uint8))
