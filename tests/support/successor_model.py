"""A model without weights for executor tests: it predicts token + 1, and records its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tokenspeed.contracts.attention import AttentionBatch
from tokenspeed.contracts.model import CacheGroup, gqa_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.contracts.model import ForwardContext

VOCAB_SIZE = 20
NAN_TOKEN = 13
GROUPS = (
    CacheGroup("full", "full", (0,), gqa_fields(1, 2)),
    CacheGroup("other", "full", (1,), gqa_fields(2, 4)),
)


class SuccessorModel:
    """Satisfies CausalLM; a row that reads NAN_TOKEN last has NaN logits."""

    architectures = ("SuccessorForCausalLM",)

    def __init__(self) -> None:
        self.token_ids: list[list[int]] = []
        self.contexts: list[ForwardContext] = []
        self.logit_rows: list[int] = []

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        """Declare two groups of one layer each."""
        return GROUPS

    def load_weights(self, weights: Iterable[Any]) -> None:
        """Take nothing."""

    def forward(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Return the ids as hidden states (T, 1)."""
        self.token_ids.append(token_ids_T.tolist())
        self.contexts.append(context)
        return token_ids_T[:, None].float()

    def compute_logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Return logits that peak at the next token id."""
        self.logit_rows.append(len(hidden_RD))
        logits = torch.zeros(len(hidden_RD), VOCAB_SIZE)
        successors = ((hidden_RD[:, 0] + 1) % VOCAB_SIZE).long()
        logits[torch.arange(len(hidden_RD)), successors] = 10.0
        logits[hidden_RD[:, 0] == NAN_TOKEN] = torch.nan
        return logits


class RecordingAttention:
    """A backend whose metadata is the batch itself."""

    def __init__(self) -> None:
        self.batches: list[AttentionBatch] = []

    def plan(self, batch: AttentionBatch) -> AttentionBatch:
        """Record and return the batch."""
        self.batches.append(batch)
        return batch

    def write(self, k_TKH: Any, v_TKH: Any, kv: Any, metadata: object) -> None:
        """Never called: the model has no attention."""
        raise NotImplementedError

    def attend(self, q_TNH: Any, kv: Any, metadata: object, **scoring: Any) -> Any:
        """Never called: the model has no attention."""
        raise NotImplementedError
