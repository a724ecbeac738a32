"""DeepSeek-V2 (DeepseekV2ForCausalLM): latent attention, shared and routed experts.

The layers before `first_k_dense_replace` have dense MLPs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tokenspeed.contracts.model import CacheGroup, latent_fields
from tokenspeed.contracts.moe import ExpertGroup, Routing
from tokenspeed.layers import (
    CACHE_GROUP,
    EXPERT_GROUP,
    DecoderForCausalLM,
    Experts,
    GatedMLP,
    LatentAttention,
    LatentShape,
    MoE,
    RopeParameters,
)
from tokenspeed.models import fields

if TYPE_CHECKING:
    from collections.abc import Mapping

LATENT_NORM_EPS = 1e-6
GREEDY, GROUP_LIMITED = "greedy", "group_limited_greedy"


@dataclass(frozen=True, slots=True)
class DeepseekConfig:
    """The fields of config.json that the family reads.

    Args:
        head_dim: dims of a head that rotate.
        shared_features: of all shared experts together, which are one MLP.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    tie_embeddings: bool
    rope: RopeParameters
    attention: LatentShape
    experts: ExpertGroup | None
    shared_features: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> DeepseekConfig:
        """Read and check config.json.

        Raises:
            ConfigError: a field is missing or unsupported; names field and value.
        """
        fields.only(config, "scoring_func", ("softmax",), default="softmax")
        fields.only(config, "topk_method", (GREEDY, GROUP_LIMITED), default=GREEDY)
        fields.refuse_flag(config, "norm_topk_prob")
        fields.refuse_flag(config, "mlp_bias")
        is_grouped = config.get("topk_method") == GROUP_LIMITED
        routing = read_routing(config, "softmax", is_grouped=is_grouped, normalise=False)
        return cls(**read_common(config, routing, is_woven=True))


def read_common(config: Mapping[str, Any], routing: Routing, *, is_woven: bool) -> dict[str, Any]:
    """Read and check the fields that all versions have.

    Args:
        is_woven: see LatentShape.
    Raises:
        ConfigError: a field is missing or unsupported; names field and value.
    """
    fields.refuse_quantized(config)
    fields.only(config, "hidden_act", ("silu", "swish"), default="silu")
    if config.get("moe_layer_freq") is not None:
        fields.count(config, "moe_layer_freq", high=1)
    num_layers = fields.count(config, "num_hidden_layers")
    hidden_size = fields.count(config, "hidden_size")
    rope = RopeParameters.read(config)
    shape = _read_shape(config, rope, hidden_size=hidden_size, is_woven=is_woven)
    first_sparse = config.get("first_k_dense_replace") or 0
    first_sparse = first_sparse and fields.count(config, "first_k_dense_replace")
    features = fields.count(config, "moe_intermediate_size")
    layers = tuple(range(first_sparse, num_layers))
    num_experts = fields.count(config, "n_routed_experts")
    group = ExpertGroup(EXPERT_GROUP, layers, num_experts, hidden_size, features, routing)
    return {
        "vocab_size": fields.count(config, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": fields.count(config, "intermediate_size"),
        "num_layers": num_layers,
        "num_kv_heads": 1,
        "head_dim": shape.rotary_dim,
        "norm_eps": fields.number(config, "rms_norm_eps", 1e-6),
        "tie_embeddings": fields.flag(config, "tie_word_embeddings"),
        "rope": rope,
        "attention": shape,
        "experts": group if layers else None,
        "shared_features": features * fields.count(config, "n_shared_experts", 1),
    }


def read_routing(
    config: Mapping[str, Any], score: str, *, is_grouped: bool, normalise: bool, group_best: int = 1
) -> Routing:
    """Read how experts are chosen.

    Raises:
        ConfigError: a field is missing or out of range; names field and value.
    """
    num_experts = fields.count(config, "n_routed_experts")
    groups = fields.count(config, "n_group") if is_grouped else 1
    fields.check_multiple("n_routed_experts", num_experts, "n_group", groups)
    return Routing(
        fields.count(config, "num_experts_per_tok", high=num_experts),
        score=score,
        normalise=normalise,
        groups=groups,
        top_groups=fields.count(config, "topk_group", high=groups) if is_grouped else 1,
        group_best=min(group_best, num_experts // groups),
        scale=fields.number(config, "routed_scaling_factor", 1.0),
    )


def _read_shape(
    config: Mapping[str, Any], rope: RopeParameters, *, hidden_size: int, is_woven: bool
) -> LatentShape:
    plain_dim = fields.count(config, "qk_nope_head_dim")
    rotary_dim = fields.count(config, "qk_rope_head_dim")
    fields.check_multiple("qk_rope_head_dim", rotary_dim, "2: dims rotate in pairs", 2)
    has_rank = config.get("q_lora_rank") is not None
    return LatentShape(
        hidden_size=hidden_size,
        num_heads=fields.count(config, "num_attention_heads"),
        query_rank=fields.count(config, "q_lora_rank") if has_rank else 0,
        latent_dim=fields.count(config, "kv_lora_rank"),
        plain_dim=plain_dim,
        rotary_dim=rotary_dim,
        value_dim=fields.count(config, "v_head_dim"),
        is_woven=is_woven,
        bias=fields.flag(config, "attention_bias"),
        norm_eps=LATENT_NORM_EPS,
        scale=(plain_dim + rotary_dim) ** -0.5 * _stretch(rope) ** 2,
    )


def _stretch(rope: RopeParameters) -> float:
    """Return what queries and keys are multiplied by where positions are stretched.

    Source: the release of DeepSeek-V2, whose config calls it mscale_all_dim.
    """
    factor, weight = rope.fields.get("factor", 1.0), rope.fields.get("mscale_all_dim") or 0.0
    if rope.kind == "default" or factor <= 1 or not weight:
        return 1.0
    return 0.1 * float(weight) * math.log(factor) + 1.0


Config = TypeVar("Config", bound=DeepseekConfig)


class DeepseekDecoder(DecoderForCausalLM[Config]):
    """What the versions share."""

    choice_bias: ClassVar[str] = ""
    """Name of the router's bias that takes part in the choice of experts alone."""

    def make_attention(self, layer: int) -> LatentAttention:
        """Build the attention of one layer."""
        shape = self.config.attention
        return LatentAttention(self.context, shape, self.rotary, layer=layer, group=CACHE_GROUP)

    def make_mlp(self, layer: int) -> MoE | GatedMLP:
        """Build the experts of one layer, or its dense MLP."""
        config, group = self.config, self.config.experts
        if group is None or layer not in group.layers:
            return GatedMLP(self.context, config.hidden_size, config.intermediate_size)
        return MoE(
            self.context,
            Experts(self.context, group),
            choice_bias=self.choice_bias,
            shared_features=config.shared_features,
            shared_name="shared_experts",
            shared_gated=False,
        )

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        """Declare one latent a token in every layer."""
        read = cls.config_class.read(config)
        shape, layers = read.attention, tuple(range(read.num_layers))
        latent = latent_fields(shape.cached_dim)
        return (CacheGroup(CACHE_GROUP, "full", layers, latent, value_dim=shape.latent_dim),)

    @classmethod
    def expert_groups(cls, config: Mapping[str, Any]) -> tuple[ExpertGroup, ...]:
        """Declare the experts of the sparse layers."""
        group = cls.config_class.read(config).experts
        return () if group is None else (group,)


class DeepseekV2ForCausalLM(DeepseekDecoder[DeepseekConfig]):
    """DeepSeek-V2 with its output head."""

    architectures: ClassVar[tuple[str, ...]] = ("DeepseekV2ForCausalLM",)
    config_class = DeepseekConfig


EntryClass = DeepseekV2ForCausalLM
