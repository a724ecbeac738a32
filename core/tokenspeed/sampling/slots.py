"""Sampling parameters on the device, by slot, for steps that gather them there.

What a request asks for beyond them (penalties, bias, log probabilities, masks) is not here: the
`SamplingTable` knows who does. Legend: S slots, R rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from tokenspeed.contracts.sampler import SamplingBatch


class SlotParameters(NamedTuple):
    """What a slot's tokens are drawn with, neutral values spelled out."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


NEUTRAL = SlotParameters(0.0, 0, 1.0, 0.0, 0)
DTYPES = (torch.float32, torch.int32, torch.float32, torch.float32, torch.int64)


class DeviceParameters:
    """The parameters of `num_slots` slots, neutral at first."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self._tensors = [
            torch.full((num_slots,), value, dtype=dtype, device=device)
            for value, dtype in zip(NEUTRAL, DTYPES, strict=True)
        ]

    def admit(self, slot: int, parameters: SlotParameters) -> None:
        """Write a slot's; steps launched before still see the former ones."""
        for tensor_S, value in zip(self._tensors, parameters, strict=True):
            tensor_S[slot] = value

    def batch(
        self, slots_R: torch.Tensor, output_index_R: torch.Tensor, *, is_drawn: bool
    ) -> SamplingBatch:
        """Gather what rows are sampled with, on the device.

        Args:
            slots_R: (R,) int32.
            output_index_R: (R,) int64.
            is_drawn: some row may be; otherwise all are greedy.
        """
        *drawn_with, seeds_S = self._tensors
        temperature_R, top_k_R, top_p_R, min_p_R = (
            tensor_S.index_select(0, slots_R) if is_drawn else None for tensor_S in drawn_with
        )
        return SamplingBatch(
            temperature_R=temperature_R,
            top_k_R=top_k_R,
            top_p_R=top_p_R,
            min_p_R=min_p_R,
            seeds_R=seeds_S.index_select(0, slots_R),
            output_index_R=output_index_R,
            penalties=None,
            bias=None,
            num_logprobs_R=None,
        )
