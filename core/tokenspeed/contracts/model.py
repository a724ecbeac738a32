"""Model slot: what an architecture file offers and what it is built with.

A model file ends in `EntryClass`, a class that satisfies `CausalLM`. Inputs are packed:
(total_tokens, hidden), no padding. Legend: T tokens, D hidden, R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from tokenspeed.contracts.attention import AttentionBackend, KVView
    from tokenspeed.contracts.kernel import KernelBinder
    from tokenspeed.contracts.weights import LinearWeight


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """What a set of layers keeps per token; all the core knows of attention.

    Args:
        name: unique in the model, such as "full".
        kind: "full"; "window" and "state" come with hybrid models.
        layers: indices of the layers that share the group's block tables.
        num_kv_heads, head_dim: geometry of one layer's K and V on this rank.
        share_tokens: grain in tokens at which written bytes are final (1: every token).
    """

    name: str
    kind: str
    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    share_tokens: int = 1


@dataclass(frozen=True, slots=True)
class ModelContext:
    """What a model is built with; everything in it was chosen once, before this.

    Args:
        kernels: binds operators to kernels, `kernels.bind(ops.norm.rms_norm, head_dim=...)`.
        attention: cache group name -> backend chosen for it.
        dtype, device: of weights and activations.
        max_context_tokens: longest sequence the rotary tables must cover.
    """

    kernels: KernelBinder
    attention: Mapping[str, AttentionBackend]
    dtype: torch.dtype
    device: torch.device
    max_context_tokens: int


@dataclass(slots=True)
class ForwardContext:
    """One step's inputs beside the token ids; passed down as an argument, never global.

    Args:
        positions_T: (T,) int64 device.
        kv: layer index -> its view of the arena.
        attention_metadata: cache group name -> what its backend's `plan` returned.
        output_index_R: (R,) int32 host; -1 for rows that sample nothing (see StepPlan).
        query_start: (R + 1,) int32 host.
    """

    positions_T: torch.Tensor
    kv: Sequence[KVView]
    attention_metadata: Mapping[str, object]
    output_index_R: Any
    query_start: Any


class CausalLM(Protocol):
    """A decoder that predicts the next token."""

    architectures: ClassVar[tuple[str, ...]]
    """Values of `architectures[0]` in config.json that this class serves."""

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        """Build with empty weights.

        Raises:
            ConfigError: a field is missing or unsupported; names field and value.
        """
        ...

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        """Declare the cache from config.json alone: no weights, no torch."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, LinearWeight]]) -> None:
        """Take every checkpoint tensor by its Hugging Face name.

        Raises:
            CheckpointError: an unknown, missing or wrongly shaped tensor, by name.
        """
        ...

    def forward(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Return hidden states (T, D) after the final norm."""
        ...

    def compute_logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Return logits (R, V) float32 for selected positions."""
        ...
