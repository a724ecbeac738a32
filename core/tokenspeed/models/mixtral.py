"""Mixtral (MixtralForCausalLM): Llama's attention, with routed experts in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tokenspeed.contracts.moe import ExpertGroup, Routing
from tokenspeed.layers import EXPERT_GROUP, DecoderForCausalLM, Experts, MoE
from tokenspeed.models import fields
from tokenspeed.models.llama import LlamaAttention, LlamaConfig, read_common

if TYPE_CHECKING:
    from collections.abc import Mapping

_THETA = 1e6


@dataclass(frozen=True, slots=True)
class MixtralConfig(LlamaConfig):
    """The fields of config.json that this architecture reads."""

    num_experts: int
    top_k: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> MixtralConfig:
        """Read and check config.json.

        Raises:
            ConfigError: a field is missing or unsupported; names field and value.
        """
        fields.refuse_quantized(config)
        fields.only(config, "hidden_act", ("silu", "swish"), default="silu")
        fields.absent(config, "sliding_window")
        num_experts = fields.count(config, "num_local_experts", 8)
        top_k = fields.count(config, "num_experts_per_tok", 2, high=num_experts)
        common = read_common(config, norm_eps=1e-5, theta=_THETA)
        return cls(**common, num_experts=num_experts, top_k=top_k)

    def expert_group(self) -> ExpertGroup:
        """Return what the experts of all layers are like."""
        return ExpertGroup(
            EXPERT_GROUP,
            layers=tuple(range(self.num_layers)),
            num_experts=self.num_experts,
            hidden_size=self.hidden_size,
            features=self.intermediate_size,
            routing=Routing(self.top_k),
        )


class MixtralForCausalLM(DecoderForCausalLM[MixtralConfig]):
    """Mixtral with its output head."""

    architectures: ClassVar[tuple[str, ...]] = ("MixtralForCausalLM",)
    config_class = MixtralConfig
    mlp_name = "block_sparse_moe"

    def make_attention(self, layer: int) -> LlamaAttention:
        """Build the attention of one layer."""
        return LlamaAttention(self.config, self.context, self.rotary, layer)

    def make_mlp(self, layer: int) -> MoE:
        """Build the experts of one layer."""
        group = self.config.expert_group()
        return MoE(self.context, Experts(self.context, group, names=("w1", "w3", "w2")))

    @classmethod
    def expert_groups(cls, config: Mapping[str, Any]) -> tuple[ExpertGroup, ...]:
        """Declare experts in every layer."""
        return (MixtralConfig.read(config).expert_group(),)


EntryClass = MixtralForCausalLM
