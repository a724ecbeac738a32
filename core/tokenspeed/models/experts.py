"""Reads from config.json which layers have routed experts, and what those are like.

The fields are those of the Qwen family; newer writers of config.json call `num_experts`
`num_local_experts`. Knows no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.moe import ExpertGroup, Routing
from tokenspeed.layers import EXPERT_GROUP
from tokenspeed.models import fields

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_experts(
    config: Mapping[str, Any], layers: tuple[int, ...], *, hidden_size: int, normalise: bool
) -> ExpertGroup | None:
    """Return what the experts of these layers are like; None where there is no such layer.

    Args:
        normalise: the weights of a token's experts are divided by their sum.
    Raises:
        ConfigError: a field is missing or out of range; names field and value.
    """
    is_renamed = config.get("num_experts") is None and "num_local_experts" in config
    num_experts = fields.count(config, "num_local_experts" if is_renamed else "num_experts")
    group = ExpertGroup(
        EXPERT_GROUP,
        layers=layers,
        num_experts=num_experts,
        hidden_size=hidden_size,
        features=fields.count(config, "moe_intermediate_size"),
        routing=Routing(
            fields.count(config, "num_experts_per_tok", high=num_experts), normalise=normalise
        ),
    )
    return group if layers else None


def sparse_layers(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return every `decoder_sparse_step`-th layer that `mlp_only_layers` does not list."""
    step = fields.count(config, "decoder_sparse_step", 1)
    dense = fields.layer_indices(config, "mlp_only_layers", num_layers)
    return tuple(
        layer for layer in range(num_layers) if (layer + 1) % step == 0 and layer not in dense
    )
