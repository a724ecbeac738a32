"""The random number of a draw, in plain Python: what every sampler computes.

Source: Parallel Random Numbers: As Easy as 1, 2, 3, Salmon et al. 2011, section 3.3.
"""

from __future__ import annotations

ROUNDS = 10
MASK = (1 << 32) - 1
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def uniform(seed: int, position: int, purpose: int) -> float:
    """Return the number in [0, 1) of a request's seed at a position of its output."""
    counter = (position & MASK, (position >> 32) & MASK, purpose, 0)
    first, second, *_ = philox4x32((seed & MASK, (seed >> 32) & MASK), counter)
    return ((first >> 5) * (1 << 26) + (second >> 6)) * 2.0**-53


def philox4x32(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Encrypt four words of 32 bits."""
    for _ in range(ROUNDS):
        high0, low0 = divmod(MULTIPLIERS[0] * counter[0], 1 << 32)
        high1, low1 = divmod(MULTIPLIERS[1] * counter[2], 1 << 32)
        counter = (high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0)
        key = ((key[0] + WEYL[0]) & MASK, (key[1] + WEYL[1]) & MASK)
    return counter
