"""Qwen2 (Qwen2ForCausalLM): the plain decoder with biases on the query, key and value projections.

Legend: T tokens, D hidden, N query heads, K kv heads, H head dim, R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.layers import (
    CACHE_GROUP,
    DecoderForCausalLM,
    Linear,
    PagedAttention,
    RopeParameters,
    RotaryEmbedding,
    WeightSlot,
    column_parallel,
    row_parallel,
)
from tokenspeed.models import fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from tokenspeed.contracts.model import ForwardContext, ModelContext
    from tokenspeed.layers.rotary import Angles


@dataclass(frozen=True, slots=True)
class Qwen2Config:
    """The fields of config.json that this architecture reads."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    tie_embeddings: bool
    rope: RopeParameters

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Qwen2Config:
        """Read and check config.json.

        Raises:
            ConfigError: a field is missing or unsupported; names field and value.
        """
        num_layers = fields.count(config, "num_hidden_layers")
        fields.refuse_unsupported(config, num_layers=num_layers)
        hidden_size = fields.count(config, "hidden_size")
        num_heads = fields.count(config, "num_attention_heads")
        num_kv_heads = fields.count(config, "num_key_value_heads", num_heads)
        head_dim = fields.count(config, "head_dim", hidden_size // num_heads)
        fields.check_heads(num_heads, num_kv_heads, head_dim)
        return cls(
            vocab_size=fields.count(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.count(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            norm_eps=fields.number(config, "rms_norm_eps", 1e-6),
            tie_embeddings=fields.flag(config, "tie_word_embeddings"),
            rope=RopeParameters.read(config),
        )


class Qwen2Attention:
    """Projects to q, k, v, rotates, attends, projects back."""

    def __init__(
        self, config: Qwen2Config, context: ModelContext, rotary: RotaryEmbedding, layer: int
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
            bias=True,
            spread=column_parallel(group),
            units={"O": (config.num_heads, config.num_kv_heads, config.num_kv_heads)},
        )
        self.rotary = rotary
        self.attend = PagedAttention(
            context, layer=layer, group=CACHE_GROUP, head_dim=config.head_dim
        )
        self.output = Linear(
            context,
            q_features,
            (config.hidden_size,),
            spread=row_parallel(group),
            units={"I": (config.num_heads,)},
        )

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots below module `name`."""
        yield from self.qkv.weight_slots(f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        yield from self.output.weight_slots(f"{name}.o_proj")

    def __call__(self, x_TD: torch.Tensor, step: ForwardContext, angles: Angles) -> torch.Tensor:
        """Return (T, D)."""
        qkv = self.qkv(x_TD).view(x_TD.shape[0], -1, self.head_dim)
        qk, v_TKH = qkv.split_with_sizes(self.turned_heads, 1)
        q_TNH, k_TKH = self.rotary(qk, angles).split_with_sizes(self.qk_heads, 1)
        return self.output(self.attend(q_TNH, k_TKH, v_TKH, step).flatten(-2))


class Qwen2ForCausalLM(DecoderForCausalLM[Qwen2Config]):
    """Qwen2 with its output head."""

    architectures: ClassVar[tuple[str, ...]] = ("Qwen2ForCausalLM",)
    config_class = Qwen2Config

    def make_attention(self, layer: int) -> Qwen2Attention:
        """Build the attention of one layer."""
        return Qwen2Attention(self.config, self.context, self.rotary, layer)


EntryClass = Qwen2ForCausalLM
