"""What the scripted model must answer: its hash, summed directly over the whole prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed.contracts.model import ModelContext
from tokenspeed_sdk.testkit.prefix_hash import PrefixHash, mix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


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
        v_TF = self._features(list(prompt), 0)
        powers = [np.zeros(v_TF.shape[1], dtype=np.int64) for _ in range(self._state_layers)]
        self._fold(powers, v_TF)
        ids: list[int] = []
        for place in range(len(prompt), len(prompt) + num_tokens):
            ids.append(self._next(v_TF, powers))
            new_TF = self._features(ids[-1:], place)
            self._fold(powers, new_TF)
            v_TF = np.concatenate([v_TF, new_TF])
        return ids

    def _features(self, ids: list[int], first: int) -> NDArray[np.int64]:
        positions = torch.arange(first, first + len(ids))
        features: NDArray[np.int64] = self._hash._features(torch.tensor(ids), positions).numpy()
        return features

    def _fold(self, powers: list[NDArray[np.int64]], v_TF: NDArray[np.int64]) -> None:
        for index, power in enumerate(powers):
            for features in v_TF:
                power[:] = (power * 31 + features + self._first_state + index) % 8191

    def _next(self, v_TF: NDArray[np.int64], powers: list[NDArray[np.int64]]) -> int:
        sums = [v_TF.sum(axis=0)]
        if self._window:
            sums.append(v_TF[-self._window :].sum(axis=0))
        sums += [power + 10_007 * v_TF[-3:].sum(axis=0) for power in powers]
        mixed = [
            mix(torch.from_numpy(sum_F) * mixer_F)
            for sum_F, mixer_F in zip(sums, self._hash._mixers_F, strict=True)
        ]
        return int(torch.stack(mixed).sum().abs()) % self._hash_tokens
