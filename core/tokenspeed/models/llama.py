"""Llama (LlamaForCausalLM): grouped-query attention, SwiGLU, rotary positions, RMS norms.

Also serves the many models that share its config, such as SmolLM2.
Legend: T tokens, D hidden, N query heads, K kv heads, H head dim, R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tokenspeed.contracts.model import CacheGroup
from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.layers import (
    GatedMLP,
    Linear,
    PagedAttention,
    RMSNorm,
    RopeParameters,
    RotaryEmbedding,
    TokenEmbedding,
    WeightSlot,
    column_parallel,
    fill_slots,
    row_parallel,
    shared_slot,
)
from tokenspeed.models import fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import torch

    from tokenspeed.contracts.model import ForwardContext, ModelContext
    from tokenspeed.contracts.weights import LinearWeight
    from tokenspeed.layers.rotary import Angles

CACHE_GROUP = "full"


@dataclass(frozen=True, slots=True)
class LlamaConfig:
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
    mlp_bias: bool
    tie_embeddings: bool
    rope: RopeParameters

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> LlamaConfig:
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
            attention_bias=fields.flag(config, "attention_bias"),
            mlp_bias=fields.flag(config, "mlp_bias"),
            tie_embeddings=fields.flag(config, "tie_word_embeddings"),
            rope=RopeParameters.read(config),
        )


class LlamaAttention:
    """Projects to q, k, v, rotates, attends, projects back."""

    def __init__(
        self, config: LlamaConfig, context: ModelContext, rotary: RotaryEmbedding, layer: int
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
            placement=column_parallel(group),
        )
        self.rotary = rotary
        self.attend = PagedAttention(
            context, layer=layer, group=CACHE_GROUP, head_dim=config.head_dim
        )
        self.output = Linear(
            context,
            q_features,
            (config.hidden_size,),
            bias=config.attention_bias,
            placement=row_parallel(group),
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


class LlamaLayer:
    """Attention and MLP, each normalised before and added to the residual stream after."""

    def __init__(
        self, config: LlamaConfig, context: ModelContext, rotary: RotaryEmbedding, layer: int
    ) -> None:
        self.attention_norm = RMSNorm(context, config.hidden_size, eps=config.norm_eps)
        self.attention = LlamaAttention(config, context, rotary, layer)
        self.mlp_norm = RMSNorm(context, config.hidden_size, eps=config.norm_eps)
        self.mlp = GatedMLP(
            context, config.hidden_size, config.intermediate_size, bias=config.mlp_bias
        )

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots below module `name`."""
        yield from self.attention_norm.weight_slots(f"{name}.input_layernorm")
        yield from self.attention.weight_slots(f"{name}.self_attn")
        yield from self.mlp_norm.weight_slots(f"{name}.post_attention_layernorm")
        yield from self.mlp.weight_slots(f"{name}.mlp")

    def __call__(
        self,
        x_TD: torch.Tensor,
        residual_TD: torch.Tensor | None,
        step: ForwardContext,
        angles: Angles,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (what is still to be added to the residual stream, the residual stream)."""
        if residual_TD is None:
            normed_TD, residual_TD = self.attention_norm(x_TD), x_TD
        else:
            normed_TD, residual_TD = self.attention_norm.add(x_TD, residual_TD)
        x_TD = self.attention(normed_TD, step, angles)
        normed_TD, residual_TD = self.mlp_norm.add(x_TD, residual_TD)
        return self.mlp(normed_TD), residual_TD


class LlamaModel:
    """Embedding, layers, final norm."""

    def __init__(self, config: LlamaConfig, context: ModelContext) -> None:
        self.rotary = RotaryEmbedding(context, config.rope, config.head_dim)
        self.embedding = TokenEmbedding(context, config.vocab_size, config.hidden_size)
        self.layers = [
            LlamaLayer(config, context, self.rotary, layer) for layer in range(config.num_layers)
        ]
        self.norm = RMSNorm(context, config.hidden_size, eps=config.norm_eps)

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots below module `name`."""
        yield from self.embedding.weight_slots(f"{name}.embed_tokens")
        for index, layer in enumerate(self.layers):
            yield from layer.weight_slots(f"{name}.layers.{index}")
        yield from self.norm.weight_slots(f"{name}.norm")

    def __call__(self, token_ids_T: torch.Tensor, step: ForwardContext) -> torch.Tensor:
        """Return hidden states (T, D) after the final norm."""
        angles = self.rotary.angles(step.positions_T)
        x_TD, residual_TD = self.layers[0](self.embedding(token_ids_T), None, step, angles)
        for layer in self.layers[1:]:
            x_TD, residual_TD = layer(x_TD, residual_TD, step, angles)
        return self.norm.add(x_TD, residual_TD)[0]


class LlamaForCausalLM:
    """Llama with its output head; satisfies contracts.model.CausalLM."""

    architectures: ClassVar[tuple[str, ...]] = ("LlamaForCausalLM",)

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        self.config = LlamaConfig.read(config)
        self.model = LlamaModel(self.config, context)
        self.head = Linear(
            context,
            self.config.hidden_size,
            (self.config.vocab_size,),
            placement=column_parallel(ParallelGroup.VOCAB_TP),
        )

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        """Declare one full group over all layers."""
        read = LlamaConfig.read(config)
        layers = tuple(range(read.num_layers))
        return (CacheGroup(CACHE_GROUP, "full", layers, read.num_kv_heads, read.head_dim),)

    def load_weights(self, weights: Iterable[tuple[str, LinearWeight]]) -> None:
        """Take every checkpoint tensor by its Hugging Face name."""
        slots, ignored = dict(self.model.weight_slots("model")), ["rotary_emb.inv_freq"]
        head = dict(self.head.weight_slots("lm_head"))["lm_head.weight"]
        if self.config.tie_embeddings:
            embedding = "model.embed_tokens.weight"
            slots[embedding] = shared_slot(slots[embedding], head)
            ignored.append("lm_head.weight")
        else:
            slots["lm_head.weight"] = head
        fill_slots(slots, weights, ignored=tuple(ignored))

    def forward(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Return hidden states (T, D) after the final norm."""
        return self.model(token_ids_T, context)

    def compute_logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Return logits (R, V) float32."""
        return self.head(hidden_RD).float()


EntryClass = LlamaForCausalLM
