"""Which turn of a dialogue a prompt asks for: how often a marker token stands in it.

A tool's answer brings the next marker, so a client that calls tools walks through the answers of a
script. The count comes through the attention of the full layer, as in `prefix_hash.py`: a wrong
block or length gives another answer. Legend: T tokens, F features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenspeed_sdk import KVView
from tokenspeed_sdk.testkit.prefix_hash import FULL, NUM_FEATURES

if TYPE_CHECKING:
    from tokenspeed_sdk import ForwardContext, ModelContext


class Dialogue:
    """Counts a marker in each token's prefix, through the cache of layer 0.

    Args:
        marker: token id.
        answers: token ids of each answer, by the number of markers in its prompt; the last one
            answers prompts with more.
        end: follows each answer.
    """

    def __init__(
        self, context: ModelContext, marker: int, answers: tuple[tuple[int, ...], ...], end: int
    ) -> None:
        self._context = context
        self._marker = marker
        self._answers = [(*answer, end) for answer in answers]

    def counts(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Store the step's tokens and return (T,) int64: markers up to and including each."""
        metadata, kv = context.attention_metadata[FULL], context.kv[0]
        backend = self._context.attention[FULL]
        assert isinstance(kv, KVView)
        is_marker_T = (token_ids_T == self._marker).to(torch.float32)
        value = is_marker_T.view(-1, 1, 1).repeat(1, 1, NUM_FEATURES)
        zero = torch.zeros_like(value)
        backend.write(zero, value, kv, metadata)
        mean_T = backend.attend(zero, kv, metadata, scale=1.0)[:, 0, 0]
        return torch.round(mean_T.double() * (context.positions_T + 1)).long()

    def token(self, count: int, output_index: int) -> int:
        """Return a token of the answer to a prompt with so many markers."""
        answer = self._answers[min(count, len(self._answers) - 1)]
        return answer[min(output_index, len(answer) - 1)]
