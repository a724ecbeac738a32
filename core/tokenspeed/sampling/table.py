"""Sampling parameters of the running requests, by slot, and the `SamplingBatch` of each step.

Owned by the executor. Scalars live in host arrays; tokens are counted (`counts.py`) only for
requests with penalties. What a slot holds is a function of its request's tokens: a request that was
retracted is admitted again with its output so far. Legend: R rows, K bias entries, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.contracts.sampler import Penalties, SamplingBatch
from tokenspeed.sampling.counts import TokenCounts
from tokenspeed.sampling.params import MIN_TEMPERATURE
from tokenspeed.sampling.slots import SlotParameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from tokenspeed.sampling.counts import Uploads
    from tokenspeed.sampling.params import SamplingParams

    Bias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


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

    def __init__(self, max_running: int, vocab_size: int, link: Uploads) -> None:
        self._vocab_size = vocab_size
        self._link = link
        self._temperature = np.zeros(max_running, np.float32)
        self._top_k = np.zeros(max_running, np.int32)
        self._top_p = np.ones(max_running, np.float32)
        self._min_p = np.zeros(max_running, np.float32)
        self._seed = np.zeros(max_running, np.int64)
        self._num_logprobs = np.full(max_running, -1, np.int32)
        self._penalties = np.tile(np.array([1, 0, 0], np.float32), (max_running, 1))
        self._counts = TokenCounts(vocab_size, link)
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
        """Count sampled tokens that the host knows; call before the slot's next `batch`."""
        self._counts.note(slot, tokens)

    def append_on_device(self, slots_R: NDArray[np.int32], tokens_R: torch.Tensor) -> None:
        """Count one sampled token a row that only the device knows.

        Args:
            tokens_R: (R,) int64 device.
        """
        if self._counts:
            self._counts.count(slots_R.tolist(), tokens_R)

    def release(self, slot: int) -> None:
        """Drop what the slot holds beyond its scalars."""
        self._counts.release(slot)
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
        num_logprobs = self._num_logprobs[slots_R]
        fields: dict[str, NDArray[np.generic]] = {
            "seeds_R": self._seed[slots_R],
            "output_index_R": output_index_R.astype(np.int64),
        }
        if temperature.any():
            fields["temperature_R"] = temperature
        filters = (("top_k_R", 0, self._top_k), ("top_p_R", 1, self._top_p))
        for name, neutral, by_slot in (*filters, ("min_p_R", 0, self._min_p)):
            values = by_slot[slots_R]
            if (values != neutral).any():
                fields[name] = values
        tensors = dict(zip(fields, self._link.upload(*fields.values()), strict=True))
        return SamplingBatch(
            temperature_R=tensors.get("temperature_R"),
            top_k_R=tensors.get("top_k_R"),
            top_p_R=tensors.get("top_p_R"),
            min_p_R=tensors.get("min_p_R"),
            seeds_R=tensors["seeds_R"],
            output_index_R=tensors["output_index_R"],
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
        if values != (1, 0, 0):
            self._counts.admit(slot, prompt_ids, output_ids)

    def _penalties_of(
        self, slots_R: NDArray[np.int32], ahead_R: Sequence[Sequence[int]] | None
    ) -> Penalties | None:
        slots: list[int] = slots_R.tolist()
        if not any(slot in self._counts for slot in slots):
            return None
        (values_3R,) = self._link.upload(self._penalties[slots_R].T.copy())
        repetition_R, frequency_R, presence_R = values_3R
        output_RV, prompt_RV = self._counts.of(slots, ahead_R)
        return Penalties(repetition_R, frequency_R, presence_R, output_RV, prompt_RV)

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
        return self._link.upload(  # type: ignore[return-value]
            np.array(rows), np.array(ids), np.array(values, dtype=np.float32)
        )


def _signed(seed: int) -> int:
    """Reinterpret the low 64 bits as a signed integer."""
    return (seed + 2**63) % 2**64 - 2**63
