"""Philox4x32-10: random numbers as a pure function of (seed, output position, purpose).

Computed in int64 tensors; a 32 x 32 bit product wraps into the sign bit, which the masks undo.
Source: Parallel Random Numbers: As Easy as 1, 2, 3, Salmon et al. 2011, section 3.3.
"""

from __future__ import annotations

import functools

import torch

ROUNDS = 10
MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter_4R: torch.Tensor, key_2R: torch.Tensor) -> torch.Tensor:
    """Encrypt counters: four 32-bit words each.

    Args:
        counter_4R: (4, R) int64, each a 32-bit word.
        key_2R: (2, R) int64, the same.
    Returns:
        (4, R) int64, each a 32-bit word.
    """
    multipliers, weyl, steps = _constants(counter_4R.device)
    keys = (key_2R + steps * weyl) & MASK
    even, odd = counter_4R[0::2], counter_4R[1::2]
    for key in keys:
        product = even * multipliers
        high, low = (product >> 32) & MASK, product & MASK
        even, odd = high.flip(0) ^ odd ^ key, low.flip(0)
    return torch.stack((even[0], odd[0], even[1], odd[1]))


def uniform(seeds_R: torch.Tensor, output_index_R: torch.Tensor, purpose: int) -> torch.Tensor:
    """Return (R,) float64 in [0, 1) with 53 random bits, one for each seed and position."""
    position_low, position_high = output_index_R & MASK, (output_index_R >> 32) & MASK
    zero = torch.zeros_like(output_index_R)
    counter = torch.stack((position_low, position_high, zero + purpose, zero))
    key = torch.stack((seeds_R & MASK, (seeds_R >> 32) & MASK))
    words = philox4x32(counter, key)
    bits = (words[0] >> 5 << 26) | (words[1] >> 6)
    return bits.double() * 2.0**-53


@functools.cache
def _constants(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return multipliers, increments and numbers of the rounds: copied to a device once."""
    return (
        torch.tensor(MULTIPLIERS, device=device)[:, None],
        torch.tensor(WEYL, device=device)[:, None],
        torch.arange(ROUNDS, device=device)[:, None, None],
    )
