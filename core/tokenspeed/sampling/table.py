"""Sampling parameters of the running requests, by slot, and the `SamplingBatch` of each step.

Owned by the executor. Scalars live in host arrays; token counts are kept only for requests with
penalties. What a slot holds is a function of its request's tokens: a request that was retracted
is admitted again with its output so far. Legend: R rows, K bias entries, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed.contracts.sampler import Penalties, SamplingBatch
from tokenspeed.sampling.params import MIN_TEMPERATURE
from tokenspeed.sampling.slots import SlotParameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tokenspeed.sampling.params import SamplingParams

    Bias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Counts:
    """Token statistics of one request with penalties: (V,) int32 and (V,) bool, device."""

    output_V: torch.Tensor
    prompt_V: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Bias:
    """Logit bias of one request; `stop_ids` are forbidden below `min_tokens` output tokens."""

    values: dict[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()

    def entries(
        self, output_index: int, *, must_end: bool = False
    ) -> tuple[list[int], list[float]]:
        """Return token ids and what is added to their logits at this output position."""
        ids, values = list(self.values), list(self.values.values())
        if output_index < self.min_tokens and not must_end:
            ids += self.stop_ids
            values += [-np.inf] * len(self.stop_ids)
        return ids, values


class SamplingTable:
    """Parameters of up to `max_running` requests."""

    def __init__(self, max_running: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._temperature = np.zeros(max_running, np.float32)
        self._top_k = np.zeros(max_running, np.int32)
        self._top_p = np.ones(max_running, np.float32)
        self._min_p = np.zeros(max_running, np.float32)
        self._seed = np.zeros(max_running, np.int64)
        self._num_logprobs = np.full(max_running, -1, np.int32)
        self._penalties = np.tile(np.array([1, 0, 0], np.float32), (max_running, 1))
        self._counts: dict[int, _Counts] = {}
        self._bias: dict[int, _Bias] = {}

    def admit(
        self,
        slot: int,
        params: SamplingParams,
        stop_token_ids: Sequence[int],
        prompt_ids: NDArray[np.int32],
        output_ids: NDArray[np.int32],
    ) -> None:
        """Fill a slot for a request that starts, or goes on after `output_ids`.

        Args:
            params: validated; `seed` is set unless temperature is 0.
            stop_token_ids: every id that ends the request, the model's own included.
        """
        is_greedy = params.temperature < MIN_TEMPERATURE
        assert is_greedy or params.seed is not None, "the engine gives every request a seed"
        self.release(slot)
        self._temperature[slot] = 0.0 if is_greedy else params.temperature
        self._top_k[slot] = 0 if is_greedy or params.top_k >= self._vocab_size else params.top_k
        self._top_p[slot] = 1 if is_greedy else params.top_p
        self._min_p[slot] = 0 if is_greedy else params.min_p
        self._seed[slot] = _signed(params.seed or 0)
        self._num_logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        self._admit_penalties(slot, params, prompt_ids, output_ids)
        stop_ids = tuple(stop_token_ids) if params.min_tokens else ()
        if params.logit_bias or stop_ids:
            self._bias[slot] = _Bias(params.logit_bias or {}, params.min_tokens, stop_ids)

    def parameters(self, slot: int) -> SlotParameters:
        """Return what a slot's tokens are drawn with."""
        return SlotParameters(
            float(self._temperature[slot]),
            int(self._top_k[slot]),
            float(self._top_p[slot]),
            float(self._min_p[slot]),
            int(self._seed[slot]),
        )

    def are_plain(self, slots_R: NDArray[np.int32]) -> bool:
        """Say whether these slots ask for nothing beyond their `parameters`."""
        if (self._num_logprobs[slots_R] >= 0).any():
            return False
        if not (self._counts or self._bias):
            return True
        return not any(slot in self._counts or slot in self._bias for slot in slots_R.tolist())

    def are_greedy(self, slots_R: NDArray[np.int32]) -> bool:
        """Say whether these slots draw nothing."""
        return not self._temperature[slots_R].any()

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        """Count sampled tokens; call before the slot's next `batch`."""
        counts = self._counts.get(slot)
        if counts is not None:
            for token in tokens:
                counts.output_V[token] += 1

    def release(self, slot: int) -> None:
        """Drop what the slot holds beyond its scalars."""
        self._counts.pop(slot, None)
        self._bias.pop(slot, None)

    def batch(
        self,
        slots_R: NDArray[np.int32],
        output_index_R: NDArray[np.int32],
        ahead_R: Sequence[Sequence[int]] | None = None,
        ending: Sequence[int] = (),
    ) -> SamplingBatch:
        """Build one step's batch; row r samples output token `output_index_R[r]` of its slot.

        Args:
            ahead_R: tokens of each row that count as its output here, beside the appended ones:
                the drafts before its position. None: no row has any.
            ending: rows where nothing but a stop token may come, whatever `min_tokens` says.
        """
        temperature = self._temperature[slots_R]
        is_drawn = bool(temperature.any())
        num_logprobs = self._num_logprobs[slots_R]
        return SamplingBatch(
            temperature_R=self._tensor(temperature) if is_drawn else None,
            top_k_R=self._unless(0, self._top_k[slots_R]),
            top_p_R=self._unless(1, self._top_p[slots_R]),
            min_p_R=self._unless(0, self._min_p[slots_R]),
            seeds_R=self._tensor(self._seed[slots_R]),
            output_index_R=self._tensor(output_index_R.astype(np.int64)),
            penalties=self._penalties_of(slots_R, ahead_R) if self._counts else None,
            bias=self._bias_of(slots_R, output_index_R, ending) if self._bias else None,
            num_logprobs_R=tuple(num_logprobs.tolist()) if (num_logprobs >= 0).any() else None,
        )

    def _admit_penalties(
        self,
        slot: int,
        params: SamplingParams,
        prompt_ids: NDArray[np.int32],
        output_ids: NDArray[np.int32],
    ) -> None:
        values = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        self._penalties[slot] = values
        if values == (1, 0, 0):
            return
        output = np.bincount(output_ids, minlength=self._vocab_size).astype(np.int32)
        prompt = np.zeros(self._vocab_size, np.bool_)
        prompt[prompt_ids] = True
        self._counts[slot] = _Counts(self._tensor(output), self._tensor(prompt))

    def _penalties_of(
        self, slots_R: NDArray[np.int32], ahead_R: Sequence[Sequence[int]] | None
    ) -> Penalties | None:
        slots: list[int] = slots_R.tolist()
        if not any(slot in self._counts for slot in slots):
            return None
        shape = (len(slots), self._vocab_size)
        output_RV = torch.zeros(shape, dtype=torch.int32, device=self._device)
        prompt_RV = torch.zeros(shape, dtype=torch.bool, device=self._device)
        for row, slot in enumerate(slots):
            counts = self._counts.get(slot)
            if counts is not None:
                output_RV[row], prompt_RV[row] = counts.output_V, counts.prompt_V
                for token in ahead_R[row] if ahead_R is not None else ():
                    output_RV[row, min(token, self._vocab_size - 1)] += 1
        repetition, frequency, presence = self._tensor(self._penalties[slots_R].T.copy())
        return Penalties(repetition, frequency, presence, output_RV, prompt_RV)

    def _bias_of(
        self,
        slots_R: NDArray[np.int32],
        output_index_R: NDArray[np.int32],
        ending: Sequence[int],
    ) -> Bias | None:
        rows: list[int] = []
        ids: list[int] = []
        values: list[float] = []
        for row, (slot, index) in enumerate(
            zip(slots_R.tolist(), output_index_R.tolist(), strict=True)
        ):
            if slot in self._bias:
                row_ids, row_values = self._bias[slot].entries(index, must_end=row in ending)
                rows += [row] * len(row_ids)
                ids += row_ids
                values += row_values
        if not rows:
            return None
        return (
            torch.tensor(rows, device=self._device),
            torch.tensor(ids, device=self._device),
            torch.tensor(values, device=self._device),
        )

    def _unless(self, neutral: int, values_R: NDArray[np.generic]) -> torch.Tensor | None:
        return None if (values_R == neutral).all() else self._tensor(values_R)

    def _tensor(self, values: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def _signed(seed: int) -> int:
    """Reinterpret the low 64 bits as a signed integer."""
    return (seed + 2**63) % 2**64 - 2**63
