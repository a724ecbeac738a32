# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""The filters of one row, exactly: top_k, top_p, min_p keep whole ties.

Nothing is sorted. A cut is the largest value at which what lies at or above it is enough; the
values are the 2^32 float32 numbers in their order, and each round tries WAYS cuts at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_sdk.portable.sampling.scan import NOWHERE
from tokenspeed_sdk.portable.sampling.weigh import scaled_logits

LOWEST_KEY = tl.constexpr(-(2**31))


@triton.jit
def keys_of(scaled):
    """Return int64 numbers in [-2^31, 2^31) that are ordered as the scaled logits are."""
    bits = scaled.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def scaled_at(logits_ptr, kept_ptr, places, kept, temperature, vocab_size):
    """Return scaled logits: of the candidates, or, where they are too many, of the row."""
    if kept >= 0:
        scaled = tl.load(kept_ptr + places, mask=places < kept, other=float("-inf")).to(tl.float32)
    else:
        scaled = scaled_logits(logits_ptr, places, places < vocab_size, temperature)
    return scaled


@triton.jit
def largest_cut(
    logits_ptr,
    kept_ptr,
    kept,
    best,
    temperature,
    vocab_size,
    floor,
    wanted,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
    WAYS: tl.constexpr,
):
    """Return the largest key such that what is at or above it amounts to `wanted`.

    Args:
        floor: key below which nothing counts.
        wanted: mass, or a number of tokens; float64.
    """
    number = tl.where(kept >= 0, kept, vocab_size)
    # [low: enough] .. [high: too little, it is above the best]
    low = tl.full((), LOWEST_KEY, tl.int64)
    high = tl.max(keys_of(tl.full((1,), 0.0, tl.float32) + best)) + 1
    while high - low > 1:
        step = (high - low + WAYS - 1) // WAYS
        cuts = low + step * (1 + tl.arange(0, WAYS))
        amounts = tl.zeros((WAYS,), tl.float64)
        for start in range(0, number, TILE):
            places = start + tl.arange(0, TILE)
            scaled = scaled_at(logits_ptr, kept_ptr, places, kept, temperature, vocab_size)
            keys = keys_of(scaled)
            if BY_MASS:
                weights = tl.exp(scaled - best).to(tl.float64)
            else:
                weights = tl.full((TILE,), 1.0, tl.float64)
            weights = tl.where((keys >= floor) & (places < number), weights, 0.0)
            above = tl.where(keys[:, None] >= cuts[None, :], weights[:, None], 0.0)
            amounts += tl.sum(above, axis=0)
        low += step * tl.sum(((amounts >= wanted) & (cuts < high)).to(tl.int64))
        high = tl.minimum(high, low + step)
    return low


@triton.jit
def filtered_position(
    logits_ptr,
    kept_ptr,
    kept,
    best,
    temperature,
    top_k,
    top_p,
    min_p,
    total,
    number,
    vocab_size,
    TILE: tl.constexpr,
    WAYS: tl.constexpr,
):
    """Return the place, among the candidates or in the row, that a number in [0, 1) stands for."""
    length = tl.where(kept >= 0, kept, vocab_size)
    floor = tl.full((), LOWEST_KEY, tl.int64)
    if top_k < vocab_size:
        wanted = top_k.to(tl.float64)
        floor = largest_cut(
            logits_ptr,
            kept_ptr,
            kept,
            best,
            temperature,
            vocab_size,
            floor,
            wanted,
            False,
            TILE,
            WAYS,
        )
        total = mass_above(
            logits_ptr, kept_ptr, kept, best, temperature, vocab_size, floor, 0.0, TILE
        )
    if top_p < 1:
        wanted = top_p.to(tl.float64) * total
        cut = largest_cut(
            logits_ptr,
            kept_ptr,
            kept,
            best,
            temperature,
            vocab_size,
            floor,
            wanted,
            True,
            TILE,
            WAYS,
        )
        floor = tl.maximum(floor, cut)
    target = number * mass_above(
        logits_ptr, kept_ptr, kept, best, temperature, vocab_size, floor, min_p, TILE
    )
    before = tl.full((), 0.0, tl.float64)
    found = tl.full((), NOWHERE, tl.int32)
    last = tl.full((), 0, tl.int32)
    for start in range(0, length, TILE):
        places = start + tl.arange(0, TILE)
        scaled = scaled_at(logits_ptr, kept_ptr, places, kept, temperature, vocab_size)
        weights = weights_above(scaled, best, floor, min_p)
        hit = (weights > 0) & (before + tl.cumsum(weights) > target)
        found = tl.minimum(found, tl.min(tl.where(hit, places, NOWHERE)))
        last = tl.maximum(last, tl.max(tl.where(weights > 0, places, 0)))
        before += tl.sum(weights)
    return tl.minimum(found, last)


@triton.jit
def weights_above(scaled, best, floor, min_p):
    """Return the weights of what is kept, float64; the best weighs 1."""
    weights = tl.exp(scaled - best)
    is_kept = (keys_of(scaled) >= floor) & (weights >= min_p)
    return tl.where(is_kept, weights, 0.0).to(tl.float64)


@triton.jit
def mass_above(
    logits_ptr,
    kept_ptr,
    kept,
    best,
    temperature,
    vocab_size,
    floor,
    min_p,
    TILE: tl.constexpr,
):
    """Return the mass of what is kept."""
    length = tl.where(kept >= 0, kept, vocab_size)
    mass = tl.full((), 0.0, tl.float64)
    for start in range(0, length, TILE):
        places = start + tl.arange(0, TILE)
        scaled = scaled_at(logits_ptr, kept_ptr, places, kept, temperature, vocab_size)
        mass += tl.sum(weights_above(scaled, best, floor, min_p))
    return mass
