# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Second pass: what the tokens of a chunk weigh, and how far below the best they lie.

A token's weight is exp((logit - best) / temperature). For rows with filters, tokens are counted in
bins of that distance: enough to say below which bin no filter keeps anything.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_sdk.portable.sampling.scan import best_of_row

BINS = tl.constexpr(128)
BINS_A_NAT = tl.constexpr(4.0)
LAST_BIN = tl.constexpr(127)
"""Holds all that is 31.75 nats or more below the best."""


@triton.jit
def scaled_logits(logits_ptr, ids, inside, temperature):
    """Return logits over temperature, -inf outside; no zero is negative, so that zeros tie."""
    x = tl.load(logits_ptr + ids, mask=inside, other=float("-inf")).to(tl.float32)
    scaled = tl.div_rn(x, tl.zeros_like(x) + temperature)
    return tl.where(scaled == 0, 0.0, scaled)


@triton.jit
def filters_of(row, top_k_ptr, top_p_ptr, min_p_ptr, vocab_size):
    """Return a row's (top_k, top_p, min_p, 1 if any is on else 0); top_k off is the vocabulary."""
    top_k = tl.load(top_k_ptr + row).to(tl.int32)
    top_k = tl.where((top_k <= 0) | (top_k > vocab_size), vocab_size, top_k)
    top_p = tl.load(top_p_ptr + row).to(tl.float32)
    min_p = tl.load(min_p_ptr + row).to(tl.float32)
    is_on = tl.where((top_k < vocab_size) | (top_p < 1) | (min_p > 0), 1, 0)
    return top_k, top_p, min_p, is_on


@triton.jit
def bins_of(scaled, best):
    """Return the bins of scaled logits, the nearest to the best first."""
    return tl.minimum((best - scaled) * BINS_A_NAT, 127.0).to(tl.int32)


@triton.jit
def weigh_chunks(
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
    vocab_size,
    num_chunks,
    FILTERED: tl.constexpr,
    CHUNK: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Weigh one chunk of a row that is drawn."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    best, _best_id, failed = best_of_row(best_ptr, best_id_ptr, row, num_chunks, SPAN)
    temperature = tl.load(temperature_ptr + row).to(tl.float32)
    if (temperature > 0) & (failed == 0):
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        scaled = scaled_logits(logits_ptr + row * row_stride, ids, ids < vocab_size, temperature)
        best = tl.div_rn(best, temperature)
        place = row * num_chunks + chunk
        tl.store(mass_ptr + place, tl.sum(tl.exp(scaled - best).to(tl.float64)))
        if FILTERED:
            _top_k, _top_p, _min_p, is_on = filters_of(
                row, top_k_ptr, top_p_ptr, min_p_ptr, vocab_size
            )
            if is_on != 0:
                counts = tl.histogram(bins_of(scaled, best), BINS)
                tl.store(histogram_ptr + place * BINS + tl.arange(0, BINS), counts)
