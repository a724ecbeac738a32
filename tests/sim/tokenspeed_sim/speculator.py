"""Drafts for the next tokens, until it fails as planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed_reference.ngram import NgramSpeculator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed_sdk import Draft


class Drafter(NgramSpeculator):
    """Speculator.

    Args:
        error_step: from this call of `propose` on it raises; 0: never.
    """

    def __init__(self, *, error_step: int, **options: Any) -> None:
        super().__init__(**options)
        self._error_step = error_step
        self._num_calls = 0

    def propose(self, wanted: Mapping[int, int]) -> dict[int, Draft]:
        """Propose, or fail as planned."""
        self._num_calls += 1
        if self._error_step and self._num_calls >= self._error_step:
            raise RuntimeError(f"planned failure of call {self._num_calls}")
        return super().propose(wanted)
