# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Third pass, for rows with filters: the few tokens that the filters can keep, by id.

Where they are more than ROOM the last pass reads the whole row: slower, and as exact.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_sdk.portable.sampling.scan import best_of_row
from tokenspeed_sdk.portable.sampling.weigh import (
    BINS,
    BINS_A_NAT,
    LAST_BIN,
    bins_of,
    filters_of,
    scaled_logits,
)


@triton.jit
def mass_of_row(mass_ptr, row, num_chunks, SPAN: tl.constexpr):
    """Return the mass of each chunk of a row, (SPAN,) float64."""
    chunks = tl.arange(0, SPAN)
    return tl.load(mass_ptr + row * num_chunks + chunks, mask=chunks < num_chunks, other=0.0)


@triton.jit
def last_kept_bin(counts, total, top_k, top_p, min_p, vocab_size):
    """Return a bin such that everything which the filters keep lies in it or nearer to the best.

    Args:
        counts: (BINS,) tokens of a bin.
        total: mass of the row.
    """
    bins = tl.arange(0, BINS)
    by_count = tl.sum((tl.cumsum(counts) < top_k).to(tl.int32))
    # A bin's tokens weigh at most as its near end: the tail behind the bin that we look for is
    # then no more than top_p drops. The margins are far above what sums and exp are off by.
    upper = counts.to(tl.float64) * tl.exp(bins.to(tl.float32) / -BINS_A_NAT).to(tl.float64)
    most = tl.sum(upper)
    tail = (most - tl.cumsum(upper)) * 1.00001 + most * 1e-9
    by_mass = tl.sum((tail > (1.0 - top_p.to(tl.float64)) * total).to(tl.int32))
    by_mass = tl.where(top_p < 1, by_mass, LAST_BIN)
    floor = tl.maximum(min_p, 1e-30)
    by_share = (tl.minimum(-tl.log(floor) * BINS_A_NAT, 125.0) + 2.0).to(tl.int32)
    by_share = tl.where(min_p > 0, by_share, LAST_BIN)
    # What top_k keeps is needed whole: the shares of the others are of it.
    found = tl.where(top_k < vocab_size, by_count, tl.minimum(by_mass, by_share))
    return tl.minimum(found, LAST_BIN)


@triton.jit
def candidates_of_row(
    histogram_ptr,
    row,
    chunk,
    num_chunks,
    total,
    top_k,
    top_p,
    min_p,
    vocab_size,
    ROOM: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Return (last kept bin, candidates in the chunks before, in all); -1 in all: too many."""
    chunks, bins = tl.arange(0, SPAN)[:, None], tl.arange(0, BINS)[None, :]
    places = (row * num_chunks + chunks) * BINS + bins
    counts = tl.load(histogram_ptr + places, mask=(chunks < num_chunks) & (bins < BINS), other=0)
    last = last_kept_bin(tl.sum(counts, axis=0), total, top_k, top_p, min_p, vocab_size)
    kept = tl.sum(tl.where(bins <= last, counts, 0), axis=1)
    before = tl.sum(tl.where(tl.arange(0, SPAN) < chunk, kept, 0))
    number = tl.sum(kept)
    return last, before, tl.where((last < LAST_BIN) & (number <= ROOM), number, -1)


@triton.jit
def narrow_chunks(
    logits_ptr,
    row_stride,
    best_ptr,
    best_id_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    mass_ptr,
    histogram_ptr,
    kept_ptr,
    kept_id_ptr,
    vocab_size,
    num_chunks,
    ROOM: tl.constexpr,
    CHUNK: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Write one chunk's candidates behind those of the chunks before it."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    best, _best_id, failed = best_of_row(best_ptr, best_id_ptr, row, num_chunks, SPAN)
    temperature = tl.load(temperature_ptr + row).to(tl.float32)
    top_k, top_p, min_p, is_on = filters_of(row, top_k_ptr, top_p_ptr, min_p_ptr, vocab_size)
    if (temperature > 0) & (failed == 0) & (is_on != 0):
        total = tl.sum(mass_of_row(mass_ptr, row, num_chunks, SPAN))
        last, before, number = candidates_of_row(
            histogram_ptr,
            row,
            chunk,
            num_chunks,
            total,
            top_k,
            top_p,
            min_p,
            vocab_size,
            ROOM,
            SPAN,
        )
        if number >= 0:
            ids = chunk * CHUNK + tl.arange(0, CHUNK)
            inside = ids < vocab_size
            scaled = scaled_logits(logits_ptr + row * row_stride, ids, inside, temperature)
            kept = inside & (bins_of(scaled, tl.div_rn(best, temperature)) <= last)
            places = row * ROOM + before + tl.cumsum(kept.to(tl.int32)) - 1
            tl.store(kept_ptr + places, scaled, mask=kept)
            tl.store(kept_id_ptr + places, ids, mask=kept)
