"""What the scripted model must answer: its hash, summed directly over the whole prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenspeed.contracts.model import ModelContext
from tokenspeed_sdk.testkit.prefix_hash import PrefixHash, mix

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrefixOracle:
    """Greedy answers without any cache: every token from its whole prefix.

    Args:
        hash_tokens: ids lie below it.
    """

    def __init__(self, *, window: int, state_layers: int, hash_tokens: int) -> None:
        context = ModelContext(
            kernels=None,  # type: ignore[arg-type]
            attention={},
            dtype=torch.float32,
            device=torch.device("cpu"),
            max_context_tokens=0,
        )
        self._hash = PrefixHash(context, window=window, state_layers=state_layers)
        self._window = window
        self._first_state = 1 + (window > 0)
        self._state_layers = state_layers
        self._hash_tokens = hash_tokens

    def answer(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """Return the next `num_tokens` ids."""
        ids = list(prompt)
        for _ in range(num_tokens):
            ids.append(self._next(ids))
        return ids[len(prompt) :]

    def _next(self, ids: list[int]) -> int:
        v_TF = self._hash._features(torch.tensor(ids), torch.arange(len(ids)))
        sums = [v_TF.sum(dim=0)]
        if self._window:
            sums.append(v_TF[-self._window :].sum(dim=0))
        for layer in range(self._first_state, self._first_state + self._state_layers):
            power = torch.zeros(v_TF.shape[1], dtype=torch.int64)
            for features in v_TF:
                power = (power * 31 + features + layer) % 8191
            sums.append(power + 10_007 * v_TF[-3:].sum(dim=0))
        mixed = [
            mix(sum_F * mixer_F) for sum_F, mixer_F in zip(sums, self._hash._mixers_F, strict=True)
        ]
        return int(torch.stack(mixed).sum().abs()) % self._hash_tokens
