"""Qwen3-MoE (Qwen3MoeForCausalLM): Qwen3 with routed experts in place of some or all of the MLPs.

`mlp_only_layers` and `decoder_sparse_step` say which layers are dense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tokenspeed.layers import DecoderForCausalLM, Experts, GatedMLP, MoE
from tokenspeed.models import fields
from tokenspeed.models.experts import read_experts, sparse_layers
from tokenspeed.models.qwen3 import Qwen3Attention, Qwen3Config, read_common

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.moe import ExpertGroup


@dataclass(frozen=True, slots=True)
class Qwen3MoeConfig(Qwen3Config):
    """The fields of config.json that this architecture reads."""

    experts: ExpertGroup | None

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Qwen3MoeConfig:
        """Read and check config.json.

        Raises:
            ConfigError: a field is missing or unsupported; names field and value.
        """
        fields.refuse_quantized(config)
        fields.only(config, "hidden_act", ("silu", "swish"), default="silu")
        fields.refuse_flag(config, "use_sliding_window")
        common = read_common(config)
        experts = read_experts(
            config,
            sparse_layers(config, common["num_layers"]),
            hidden_size=common["hidden_size"],
            normalise=fields.flag(config, "norm_topk_prob"),
        )
        return cls(**common, experts=experts)


class Qwen3MoeForCausalLM(DecoderForCausalLM[Qwen3MoeConfig]):
    """Qwen3-MoE with its output head."""

    architectures: ClassVar[tuple[str, ...]] = ("Qwen3MoeForCausalLM",)
    config_class = Qwen3MoeConfig

    def make_attention(self, layer: int) -> Qwen3Attention:
        """Build the attention of one layer."""
        return Qwen3Attention(self.config, self.context, self.rotary, layer)

    def make_mlp(self, layer: int) -> MoE | GatedMLP:
        """Build the experts of one layer, or its dense MLP."""
        group = self.config.experts
        if group is None or layer not in group.layers:
            return GatedMLP(self.context, self.config.hidden_size, self.config.intermediate_size)
        return MoE(self.context, Experts(self.context, group))

    @classmethod
    def expert_groups(cls, config: Mapping[str, Any]) -> tuple[ExpertGroup, ...]:
        """Declare the experts of the sparse layers."""
        group = Qwen3MoeConfig.read(config).experts
        return () if group is None else (group,)


EntryClass = Qwen3MoeForCausalLM
