"""Model contexts and models built on operator definitions, for tests without any plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tests.support.definitions import DefinitionBinder
from tests.support.moe_backends import DefinitionExperts

from tokenspeed.contracts.model import ModelContext
from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.layers import EXPERT_GROUP

if TYPE_CHECKING:
    from collections.abc import Mapping


class NoAttention:
    """Stands where a backend must be bound but no step is run."""

    def plan(self, batch: Any) -> object:
        """Never called."""
        raise NotImplementedError

    def write(self, k_TKH: Any, v_TKH: Any, kv: Any, metadata: object) -> None:
        """Never called."""
        raise NotImplementedError

    def attend(self, q_TNH: Any, kv: Any, metadata: object, **scoring: Any) -> Any:
        """Never called."""
        raise NotImplementedError


def definition_context(
    max_context_tokens: int = 64, groups: tuple[str, ...] = ("full",)
) -> ModelContext:
    """Return a float32 context whose operators are their definitions."""
    return ModelContext(
        kernels=DefinitionBinder(),
        attention={group: NoAttention() for group in groups},
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_context_tokens=max_context_tokens,
        moe={EXPERT_GROUP: DefinitionExperts()},
    )


def plain(tensor: torch.Tensor) -> LinearWeight:
    """Wrap a tensor as a plain checkpoint weight."""
    return LinearWeight(tuple(tensor.shape), tensor)


def tiny_config(**changes: Any) -> Mapping[str, Any]:
    """Return a config.json that every architecture here takes, with fields changed."""
    config: dict[str, Any] = {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
    }
    return config | changes


def layers_with_weights(module: Any) -> Any:
    """Walk a model and yield the leaves: what takes weights and contains nothing that does."""
    children = [
        child
        for value in vars(module).values()
        for child in (value if isinstance(value, list) else [value])
        if hasattr(child, "weight_slots") or hasattr(child, "load_weights")
    ]
    for child in children:
        yield from layers_with_weights(child)
    if not children:
        yield module
