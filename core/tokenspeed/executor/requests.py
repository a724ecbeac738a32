"""What the executor keeps of each live request: enough to sample, resume and score its prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tokenspeed.contracts.grammar import CompiledGrammar
    from tokenspeed.sampling import SamplingParams


@dataclass(slots=True)
class ExecutorRequest:
    """One request, from `add_request` until its slot goes to another.

    Args:
        prompt_ids: (P,) int32 host.
        output_ids: tokens sampled so far; those given at the start included.
        params, stop_token_ids: as submitted.
        grammar: the language of `params.grammar`, ready for use.
        is_fresh: its sampling state must be rebuilt before it samples in its slot.
        num_scored: prompt positions whose log probabilities were returned; the first has none.
    """

    prompt_ids: NDArray[np.int32]
    output_ids: list[int]
    params: SamplingParams
    stop_token_ids: tuple[int, ...]
    grammar: CompiledGrammar | None = None
    is_fresh: bool = True
    num_scored: int = 1

    def record(self, output_index: int, tokens: Sequence[int]) -> None:
        """Note the tokens from `output_index` on; later ones there are a dropped lookahead."""
        self.output_ids[output_index:] = tokens
