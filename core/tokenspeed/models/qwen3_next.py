"""Qwen3-Next (Qwen3NextForCausalLM): gated delta rule layers, every fourth with gated attention.

Legend: T tokens, D hidden, N query heads, K kv heads, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tokenspeed.contracts.model import CacheGroup, gqa_fields
from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.errors import CheckpointError
from tokenspeed.layers import (
    CACHE_GROUP,
    DecoderForCausalLM,
    DeltaShape,
    Experts,
    GatedDeltaNet,
    GatedMLP,
    Linear,
    MoE,
    PagedAttention,
    RMSNorm,
    RopeParameters,
    RotaryEmbedding,
    WeightSlot,
    column_parallel,
    row_parallel,
)
from tokenspeed.models import fields
from tokenspeed.models.experts import read_experts, sparse_layers
from tokenspeed.ops import activation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from tokenspeed.contracts.model import ForwardContext, ModelContext
    from tokenspeed.contracts.moe import ExpertGroup
    from tokenspeed.layers.rotary import Angles

STATE_GROUP = "state"
LINEAR, FULL = "linear_attention", "full_attention"
ROTATED = 0.25
"""Share of a head that is rotated, where the config has none."""


def read_delta(config: Mapping[str, Any]) -> DeltaShape:
    """Read and check the geometry of the linear attention layers."""
    key_heads = fields.count(config, "linear_num_key_heads")
    value_heads = fields.count(config, "linear_num_value_heads")
    fields.check_multiple("linear_num_value_heads", value_heads, "linear_num_key_heads", key_heads)
    return DeltaShape(
        key_heads=key_heads,
        key_dim=fields.count(config, "linear_key_head_dim"),
        value_heads=value_heads,
        value_dim=fields.count(config, "linear_value_head_dim"),
        taps=fields.count(config, "linear_conv_kernel_dim", 4),
    )


def read_layer_types(config: Mapping[str, Any], num_layers: int) -> tuple[str, ...]:
    """Read the kind of each layer: listed, or full attention at an interval."""
    interval = fields.count(config, "full_attention_interval", 4)
    pattern = (LINEAR,) * (interval - 1) + (FULL,)
    return fields.layer_types(config, num_layers, kinds=(LINEAR, FULL), pattern=pattern)


@dataclass(frozen=True, slots=True)
class Qwen3NextConfig:
    """The fields of config.json that this architecture reads."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    attention_bias: bool
    tie_embeddings: bool
    rope: RopeParameters
    layer_types: tuple[str, ...]
    delta: DeltaShape
    experts: ExpertGroup | None
    shared_features: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Qwen3NextConfig:
        """Read and check config.json.

        Raises:
            ConfigError: a field is missing or unsupported; names field and value.
        """
        common = read_common(config)
        return cls(
            **common,
            intermediate_size=fields.count(config, "intermediate_size"),
            experts=read_experts(
                config,
                sparse_layers(config, common["num_layers"]),
                hidden_size=common["hidden_size"],
                normalise=fields.flag(config, "norm_topk_prob", True),
            ),
            shared_features=fields.count(config, "shared_expert_intermediate_size"),
        )


def read_common(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read and check the fields that all models of the family have.

    Raises:
        ConfigError: a field is missing or unsupported; names field and value.
    """
    fields.only(config, "hidden_act", ("silu", "swish"), default="silu")
    fields.refuse_quantized(config)
    num_layers = fields.count(config, "num_hidden_layers")
    num_heads = fields.count(config, "num_attention_heads")
    num_kv_heads = fields.count(config, "num_key_value_heads", num_heads)
    head_dim = fields.count(config, "head_dim", 256)
    fields.check_heads(num_heads, num_kv_heads, head_dim)
    rope = RopeParameters.read(config, default_partial=ROTATED)
    rope.rotated(head_dim)
    return {
        "vocab_size": fields.count(config, "vocab_size"),
        "hidden_size": fields.count(config, "hidden_size"),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "norm_eps": fields.number(config, "rms_norm_eps", 1e-6),
        "attention_bias": fields.flag(config, "attention_bias"),
        "tie_embeddings": fields.flag(config, "tie_word_embeddings"),
        "rope": rope,
        "layer_types": read_layer_types(config, num_layers),
        "delta": read_delta(config),
    }


class Qwen3NextAttention:
    """Full attention with normalised query and key heads, whose result is gated."""

    def __init__(
        self, config: Qwen3NextConfig, context: ModelContext, rotary: RotaryEmbedding, layer: int
    ) -> None:
        self.head_dim = config.head_dim
        q_features = config.num_heads * config.head_dim
        kv_features = config.num_kv_heads * config.head_dim
        self.heads = (2 * config.num_heads, config.num_kv_heads, config.num_kv_heads)
        group = ParallelGroup.ATTN_TP
        self.qkv = Linear(
            context,
            config.hidden_size,
            (2 * q_features, kv_features, kv_features),
            bias=config.attention_bias,
            spread=column_parallel(group),
            units={"O": (config.num_heads, config.num_kv_heads, config.num_kv_heads)},
        )
        self.q_norm, self.k_norm = (
            RMSNorm(context, config.head_dim, eps=config.norm_eps, centred=True) for _ in range(2)
        )
        self.rotary = rotary
        self.attend = PagedAttention(
            context, layer=layer, group=CACHE_GROUP, head_dim=config.head_dim
        )
        self._gate: Callable[..., torch.Tensor] = context.kernels.bind(activation.sigmoid_mul)
        self.output = Linear(
            context,
            q_features,
            (config.hidden_size,),
            bias=config.attention_bias,
            spread=row_parallel(group),
            units={"I": (config.num_heads,)},
        )

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots below module `name`."""
        yield from self.qkv.weight_slots(f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        yield from self.q_norm.weight_slots(f"{name}.q_norm")
        yield from self.k_norm.weight_slots(f"{name}.k_norm")
        yield from self.output.weight_slots(f"{name}.o_proj")

    def __call__(self, x_TD: torch.Tensor, step: ForwardContext, angles: Angles) -> torch.Tensor:
        """Return (T, D)."""
        qkv = self.qkv(x_TD).view(x_TD.shape[0], -1, self.head_dim)
        q_and_gate, k_TKH, v_TKH = qkv.split_with_sizes(self.heads, 1)
        q_TNH, gate_TNH = q_and_gate.view(x_TD.shape[0], -1, 2, self.head_dim).unbind(2)
        q_TNH = self.rotary(self.q_norm(q_TNH), angles)
        k_TKH = self.rotary(self.k_norm(k_TKH), angles)
        attended_TNH = self.attend(q_TNH, k_TKH, v_TKH, step)
        return self.output(self._gate(attended_TNH, gate_TNH).flatten(-2))


class Qwen3NextDeltaNet(GatedDeltaNet):
    """Stores the input projection in two tensors, key head by key head."""

    def input_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots of in_proj_qkvz (q, k, values, z of each head) and in_proj_ba (b, a)."""
        shape = self.shape
        values = shape.value_heads // shape.key_heads
        sizes = (shape.key_dim, shape.key_dim, *(2 * (values * shape.value_dim,)))
        parts = [slot for _, slot in self.inputs.weight_slots("qkv", "z", "b", "a")]
        for stored, heads, slots in (("qkvz", sizes, parts[:2]), ("ba", (values,) * 2, parts[2:])):
            rows = shape.key_heads * sum(heads)
            slot = replace(
                slots[0],
                shape=(rows, slots[0].shape[1]),
                accept=partial(_split_heads, heads=heads, slots=slots),
                parts={"O": (rows,)},
                units={"O": (shape.key_heads,)},
            )
            yield f"{name}.in_proj_{stored}.weight", slot


def _split_heads(weight: LinearWeight, *, heads: tuple[int, ...], slots: list[WeightSlot]) -> None:
    """Collect each head's rows by what they are; the last part goes to the second slot."""
    import torch

    if weight.plain is None:
        raise CheckpointError(
            f"an input projection {weight.shape} is packed as {weight.packing}, plain tensors are "
            "supported where heads are stored side by side; use an unquantised checkpoint"
        )
    by_head = weight.plain.view(-1, sum(heads), weight.shape[1])
    *first, last = by_head.split_with_sizes(heads, 1)
    for slot, parts in zip(slots, (first, [last]), strict=True):
        joined = torch.cat([part.flatten(0, 1) for part in parts])
        slot.accept(LinearWeight(tuple(joined.shape), joined))


class Qwen3NextForCausalLM(DecoderForCausalLM[Qwen3NextConfig]):
    """Qwen3-Next with its output head."""

    architectures: ClassVar[tuple[str, ...]] = ("Qwen3NextForCausalLM",)
    config_class: type[Qwen3NextConfig] = Qwen3NextConfig
    centred_norms: ClassVar[bool] = True
    delta_net: ClassVar[type[GatedDeltaNet]] = Qwen3NextDeltaNet
    ignored_prefixes = ("mtp.",)

    def make_attention(self, layer: int) -> Qwen3NextAttention | GatedDeltaNet:
        """Build the attention of one layer."""
        config = self.config
        if config.layer_types[layer] == FULL:
            return Qwen3NextAttention(config, self.context, self.rotary, layer)
        return self.delta_net(
            self.context, config.hidden_size, config.delta, layer=layer, eps=config.norm_eps
        )

    def attention_name(self, layer: int) -> str:
        """Return the name of a layer's attention module in the checkpoint."""
        return "self_attn" if self.config.layer_types[layer] == FULL else "linear_attn"

    def make_mlp(self, layer: int) -> MoE | GatedMLP:
        """Build the experts of one layer, or its dense MLP."""
        group = self.config.experts
        if group is None or layer not in group.layers:
            return GatedMLP(self.context, self.config.hidden_size, self.config.intermediate_size)
        experts = Experts(self.context, group)
        return MoE(self.context, experts, shared_features=self.config.shared_features)

    @classmethod
    def expert_groups(cls, config: Mapping[str, Any]) -> tuple[ExpertGroup, ...]:
        """Declare the experts of the sparse layers."""
        group = cls.config_class.read(config).experts
        return () if group is None else (group,)

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        """Declare the layers with full attention, and those with a state."""
        read = cls.config_class.read(config)
        full, linear = (
            tuple(layer for layer, kind in enumerate(read.layer_types) if kind == wanted)
            for wanted in (FULL, LINEAR)
        )
        groups = (
            CacheGroup(CACHE_GROUP, "full", full, gqa_fields(read.num_kv_heads, read.head_dim)),
            CacheGroup(
                STATE_GROUP,
                "state",
                linear,
                read.delta.state_fields(),
                speculation="rows_per_position",
            ),
        )
        return groups if linear else groups[:1]


EntryClass = Qwen3NextForCausalLM
