"""Philox4x32-10 (Salmon et al. 2011): a random number as a pure function of key and counter."""

from __future__ import annotations

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def uniform(seed: int, position: int, purpose: int) -> float:
    """Return a number in [0, 1) of 53 bits for this place of this request."""
    seed, position = seed & ((1 << 64) - 1), position & ((1 << 64) - 1)
    counter = (position & _MASK, position >> 32, purpose, 0)
    words = _philox((seed & _MASK, seed >> 32), counter)
    return ((words[0] >> 5) * 2**26 + (words[1] >> 6)) * 2.0**-53


def _philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, ...]:
    for _ in range(10):
        high0, low0 = divmod(_MULTIPLIERS[0] * counter[0], 1 << 32)
        high1, low1 = divmod(_MULTIPLIERS[1] * counter[2], 1 << 32)
        counter = (high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0)
        key = ((key[0] + _WEYL[0]) & _MASK, (key[1] + _WEYL[1]) & _MASK)
    return counter
