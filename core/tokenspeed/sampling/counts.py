"""Token counts of the requests with penalties, on the device: one line of a table for each.

Line 0 is nobody's and stays zero: rows without penalties read it. The table grows with the requests
that are there at once. Legend: K entries, R rows, L lines, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FIRST_LINES = 4


class Uploads(Protocol):
    """The part of an executor's HostLink that is needed to fill a step's tensors."""

    device: torch.device

    def upload(self, *arrays: NDArray[Any]) -> tuple[torch.Tensor, ...]:
        """Return arrays as tensors on the device; nobody writes the arrays afterwards."""
        ...


class TokenCounts:
    """How often each token stands in the output of each slot's request, and which in its prompt."""

    def __init__(self, vocab_size: int, link: Uploads) -> None:
        self._vocab_size = vocab_size
        self._link = link
        self._line_of: dict[int, int] = {}
        self._free: list[int] = []
        self._pending: list[tuple[int, Sequence[int]]] = []
        self._output_LV = torch.zeros(0, vocab_size, dtype=torch.int32, device=link.device)
        self._prompt_LV = torch.zeros(0, vocab_size, dtype=torch.bool, device=link.device)

    def __contains__(self, slot: int) -> bool:
        return slot in self._line_of

    def __bool__(self) -> bool:
        return bool(self._line_of)

    def admit(
        self, slot: int, prompt_ids: NDArray[np.int32], output_ids: NDArray[np.int32]
    ) -> None:
        """Give a line to a slot that has none."""
        if not self._free:
            self._grow()
        line = self._line_of[slot] = self._free.pop()
        output = np.bincount(output_ids, minlength=self._vocab_size).astype(np.int32)
        prompt = np.zeros(self._vocab_size, np.bool_)
        prompt[prompt_ids] = True
        self._output_LV[line], self._prompt_LV[line] = self._link.upload(output, prompt)

    def release(self, slot: int) -> None:
        """Take a slot's line back, if it has one."""
        line = self._line_of.pop(slot, None)
        if line is not None:
            self._free.append(line)
            self._pending = [entry for entry in self._pending if entry[0] != slot]

    def note(self, slot: int, tokens: Sequence[int]) -> None:
        """Count tokens that the host knows; before the next step's `of`, in one go."""
        if slot in self._line_of:
            self._pending.append((slot, tokens))

    def count(self, slots_R: Sequence[int], tokens_R: torch.Tensor) -> None:
        """Count one token a slot, which the device alone knows: no wait for it.

        Args:
            tokens_R: (R,) int64 device, inside the vocabulary.
        """
        rows = [row for row, slot in enumerate(slots_R) if slot in self._line_of]
        if not rows:
            return
        lines = [self._line_of[slots_R[row]] for row in rows]
        lines_K, rows_K = self._link.upload(np.array(lines), np.array(rows))
        self._add(lines_K, tokens_R[rows_K])

    def of(
        self, slots_R: Sequence[int], ahead_R: Sequence[Sequence[int]] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (R, V) int32 counts and (R, V) bool prompt masks of slots, copies.

        Args:
            ahead_R: tokens of each row that count beside. None: no row has any.
        """
        self._add_pending()
        (lines_R,) = self._link.upload(
            np.array([self._line_of.get(slot, 0) for slot in slots_R], dtype=np.int64)
        )
        output_RV = self._output_LV.index_select(0, lines_R)
        ahead = [
            (row, min(token, self._vocab_size - 1))
            for row, tokens in enumerate(ahead_R or ())
            if slots_R[row] in self._line_of
            for token in tokens
        ]
        if ahead:
            rows_K, tokens_K = self._link.upload(*np.array(ahead, dtype=np.int64).T)
            output_RV.index_put_((rows_K, tokens_K), _ones(tokens_K), accumulate=True)
        return output_RV, self._prompt_LV.index_select(0, lines_R)

    def _add_pending(self) -> None:
        pairs = [(self._line_of[slot], token) for slot, tokens in self._pending for token in tokens]
        self._pending = []
        if pairs:
            self._add(*self._link.upload(*np.array(pairs, dtype=np.int64).T))

    def _add(self, lines_K: torch.Tensor, tokens_K: torch.Tensor) -> None:
        self._output_LV.index_put_((lines_K, tokens_K), _ones(tokens_K), accumulate=True)

    def _grow(self) -> None:
        """Double the table; its first line is nobody's."""
        old = len(self._output_LV)
        more = max(FIRST_LINES, old)
        self._output_LV = _longer(self._output_LV, more)
        self._prompt_LV = _longer(self._prompt_LV, more)
        self._free += range(max(1, old), old + more)


def _longer(table_LV: torch.Tensor, num_lines: int) -> torch.Tensor:
    return torch.cat((table_LV, table_LV.new_zeros(num_lines, table_LV.shape[1])))


def _ones(tokens_K: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(tokens_K, dtype=torch.int32)
