"""gpt-oss (GptOssForCausalLM): windows and full attention in turn, sinks, experts in every layer.

Legend: T tokens, D hidden, N query heads, K kv heads, H head dim, E experts, F expert features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tokenspeed.contracts.model import CacheGroup, gqa_fields
from tokenspeed.contracts.moe import ClampedSwiGLU, ExpertGroup, Routing
from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.layers import (
    CACHE_GROUP,
    EXPERT_GROUP,
    DecoderForCausalLM,
    Experts,
    Linear,
    MoE,
    PagedAttention,
    RopeParameters,
    RotaryEmbedding,
    WeightSlot,
    column_parallel,
    plain_expert,
    row_parallel,
)
from tokenspeed.models import fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from tokenspeed.contracts.model import ForwardContext, ModelContext
    from tokenspeed.contracts.weights import LinearWeight
    from tokenspeed.layers.rotary import Angles

WINDOW_GROUP = "window"
SLIDING, FULL = "sliding_attention", "full_attention"
_THETA = 150_000.0


@dataclass(frozen=True, slots=True)
class GptOssConfig:
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
    window: int
    num_experts: int
    top_k: int
    swiglu: ClampedSwiGLU

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> GptOssConfig:
        """Read and check config.json.

        Raises:
            ConfigError: a field is missing or unsupported; names field and value.
        """
        fields.only(config, "hidden_act", ("silu", "swish"), default="silu")
        fields.refuse_quantized(config)
        num_layers = fields.count(config, "num_hidden_layers")
        hidden_size = fields.count(config, "hidden_size")
        num_heads = fields.count(config, "num_attention_heads")
        num_kv_heads = fields.count(config, "num_key_value_heads", num_heads)
        head_dim = fields.count(config, "head_dim", hidden_size // num_heads)
        fields.check_heads(num_heads, num_kv_heads, head_dim)
        num_experts = fields.count(config, "num_local_experts")
        return cls(
            vocab_size=fields.count(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.count(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            norm_eps=fields.number(config, "rms_norm_eps", 1e-5),
            attention_bias=fields.flag(config, "attention_bias", True),
            tie_embeddings=fields.flag(config, "tie_word_embeddings"),
            rope=RopeParameters.read(config, default_theta=_THETA),
            layer_types=fields.layer_types(
                config, num_layers, kinds=(SLIDING, FULL), pattern=(SLIDING, FULL)
            ),
            window=fields.count(config, "sliding_window", 128),
            num_experts=num_experts,
            top_k=fields.count(config, "num_experts_per_tok", high=num_experts),
            swiglu=ClampedSwiGLU(
                alpha=fields.number(config, "swiglu_alpha", 1.702),
                limit=fields.number(config, "swiglu_limit", 7.0),
            ),
        )

    def expert_group(self) -> ExpertGroup:
        """Return what the experts are like."""
        return ExpertGroup(
            EXPERT_GROUP,
            layers=tuple(range(self.num_layers)),
            num_experts=self.num_experts,
            hidden_size=self.hidden_size,
            features=self.intermediate_size,
            routing=Routing(self.top_k),
            clamped=self.swiglu,
            bias=True,
        )

    def group_of(self, layer: int) -> str:
        """Return the cache group of a layer."""
        return CACHE_GROUP if self.layer_types[layer] == FULL else WINDOW_GROUP


class GptOssAttention:
    """Projects to q, k, v, rotates, attends with sinks, projects back; biases throughout."""

    def __init__(
        self, config: GptOssConfig, context: ModelContext, rotary: RotaryEmbedding, layer: int
    ) -> None:
        self.head_dim = config.head_dim
        q_features = config.num_heads * config.head_dim
        kv_features = config.num_kv_heads * config.head_dim
        self.qk_heads = (config.num_heads, config.num_kv_heads)
        self.turned_heads = (sum(self.qk_heads), config.num_kv_heads)
        group = ParallelGroup.ATTN_TP
        self.qkv = Linear(
            context,
            config.hidden_size,
            (q_features, kv_features, kv_features),
            bias=config.attention_bias,
            spread=column_parallel(group),
            units={"O": (config.num_heads, config.num_kv_heads, config.num_kv_heads)},
        )
        self.rotary = rotary
        self.attend = PagedAttention(
            context,
            layer=layer,
            group=config.group_of(layer),
            head_dim=config.head_dim,
            num_sinks=config.num_heads,
        )
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
        yield from self.attend.weight_slots(name)
        yield from self.output.weight_slots(f"{name}.o_proj")

    def __call__(self, x_TD: torch.Tensor, step: ForwardContext, angles: Angles) -> torch.Tensor:
        """Return (T, D)."""
        qkv = self.qkv(x_TD).view(x_TD.shape[0], -1, self.head_dim)
        qk, v_TKH = qkv.split_with_sizes(self.turned_heads, 1)
        q_TNH, k_TKH = self.rotary(qk, angles).split_with_sizes(self.qk_heads, 1)
        return self.output(self.attend(q_TNH, k_TKH, v_TKH, step).flatten(-2))


class GptOssExperts(Experts):
    """Experts stored in four tensors, inputs before outputs, gate and up features in turn."""

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the four slots below module `name`."""
        group = self.group
        experts, hidden, features = group.num_experts, group.hidden_size, group.features
        shapes = {
            "gate_up_proj": ("E D F", (experts, hidden, 2 * features)),
            "gate_up_proj_bias": ("E F", (experts, 2 * features)),
            "down_proj": ("E F D", (experts, features, hidden)),
            "down_proj_bias": ("E D", (experts, hidden)),
        }
        for part, (letters, shape) in shapes.items():
            accept = partial(self._accept_stacked, part)
            added = "F" if part == "down_proj_bias" else ""
            units = {"F": (features,)}  # gate and up of a feature stand side by side
            slot = WeightSlot(shape, accept, letters, self.spread, units=units, added=added)
            yield f"{name}.{part}", slot

    def _accept_stacked(self, part: str, weight: LinearWeight) -> None:
        stored = plain_expert(weight)
        if part == "gate_up_proj":
            self.take(gate_up_EFD=_unwoven(stored).mT)
        elif part == "gate_up_proj_bias":
            self.take(gate_up_bias_EF=_unwoven(stored))
        elif part == "down_proj":
            self.take(down_EDF=stored.mT)
        else:
            self.take(down_bias_ED=stored)


def _unwoven(stored: torch.Tensor) -> torch.Tensor:
    """Return gate features, then up features; they are stored in turn."""
    import torch

    return torch.cat((stored[..., ::2], stored[..., 1::2]), dim=-1)


class GptOssForCausalLM(DecoderForCausalLM[GptOssConfig]):
    """gpt-oss with its output head."""

    architectures: ClassVar[tuple[str, ...]] = ("GptOssForCausalLM",)
    config_class = GptOssConfig

    def make_attention(self, layer: int) -> GptOssAttention:
        """Build the attention of one layer."""
        return GptOssAttention(self.config, self.context, self.rotary, layer)

    def make_mlp(self, layer: int) -> MoE:
        """Build the experts of one layer."""
        experts = GptOssExperts(self.context, self.config.expert_group())
        return MoE(self.context, experts, router=("router", True))

    @classmethod
    def expert_groups(cls, config: Mapping[str, Any]) -> tuple[ExpertGroup, ...]:
        """Declare experts in every layer."""
        return (GptOssConfig.read(config).expert_group(),)

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        """Declare the layers with full attention, and those with windows."""
        read = GptOssConfig.read(config)
        kv = gqa_fields(read.num_kv_heads, read.head_dim)
        full, sliding = (
            tuple(layer for layer, kind in enumerate(read.layer_types) if kind == wanted)
            for wanted in (FULL, SLIDING)
        )
        groups = (
            CacheGroup(CACHE_GROUP, "full", full, kv, sinks=True),
            CacheGroup(WINDOW_GROUP, "window", sliding, kv, window=read.window, sinks=True),
        )
        return groups if sliding else groups[:1]


EntryClass = GptOssForCausalLM
