"""Gemma 2 (Gemma2ForCausalLM): norms before and after each block, windows in every second layer.

Legend: T tokens, D hidden, F MLP features, N query heads, K kv heads, H head dim, R rows, V words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tokenspeed_sdk import CacheGroup, ParallelGroup, gqa_fields, layers, model_fields, ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tokenspeed_sdk import ForwardContext, ModelContext

    Slots = Iterator[tuple[str, layers.WeightSlot]]

FULL, WINDOW = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Config:
    """The fields of config.json that this architecture reads."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    bias: bool
    norm_eps: float
    tie_embeddings: bool
    rope: layers.RopeParameters
    layer_types: tuple[str, ...]
    window: int
    query_scale: float
    attention_cap: float
    logit_cap: float

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Config:
        """Read and check config.json.

        Raises:
            ConfigError: a field is missing or unsupported; names field and value.
        """
        model_fields.refuse_quantized(config)
        model_fields.refuse_flag(config, "use_bidirectional_attention")
        model_fields.only(
            config, "hidden_activation", ("gelu_pytorch_tanh",), default="gelu_pytorch_tanh"
        )
        num_layers = model_fields.count(config, "num_hidden_layers")
        num_heads = model_fields.count(config, "num_attention_heads")
        num_kv_heads = model_fields.count(config, "num_key_value_heads")
        head_dim = model_fields.count(config, "head_dim", 256)
        model_fields.check_heads(num_heads, num_kv_heads, head_dim)
        return cls(
            vocab_size=model_fields.count(config, "vocab_size"),
            hidden_size=model_fields.count(config, "hidden_size"),
            intermediate_size=model_fields.count(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            bias=model_fields.flag(config, "attention_bias"),
            norm_eps=model_fields.number(config, "rms_norm_eps", 1e-6),
            tie_embeddings=model_fields.flag(config, "tie_word_embeddings", True),
            rope=layers.RopeParameters.read(config),
            layer_types=model_fields.layer_types(
                config, num_layers, kinds=(WINDOW, FULL), pattern=(WINDOW, FULL)
            ),
            window=model_fields.count(config, "sliding_window"),
            query_scale=model_fields.number(config, "query_pre_attn_scalar", 256.0) ** -0.5,
            attention_cap=_cap(config, "attn_logit_softcapping"),
            logit_cap=_cap(config, "final_logit_softcapping"),
        )


def _cap(config: Mapping[str, Any], name: str) -> float:
    """Return a soft cap; 0 where the config has null."""
    return 0.0 if config.get(name) is None else model_fields.number(config, name, 1.0)


class Attention:
    """Projects to q, k, v, rotates, attends with capped scores, projects back."""

    def __init__(self, config: Config, context: ModelContext, rotary: Any, layer: int) -> None:
        self._head_dim = config.head_dim
        self._heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self._qkv = layers.Linear(
            context,
            config.hidden_size,
            tuple(heads * config.head_dim for heads in self._heads),
            bias=config.bias,
            spread=layers.column_parallel(ParallelGroup.ATTN_TP),
            units={"O": self._heads},
        )
        self._rotary = rotary
        self._attend = layers.PagedAttention(
            context,
            layer=layer,
            group=config.layer_types[layer],
            head_dim=config.head_dim,
            scale=config.query_scale,
            softcap=config.attention_cap,
        )
        self._output = layers.Linear(
            context,
            config.num_heads * config.head_dim,
            (config.hidden_size,),
            bias=config.bias,
            spread=layers.row_parallel(ParallelGroup.ATTN_TP),
            units={"I": (config.num_heads,)},
        )

    def weight_slots(self, name: str) -> Slots:
        """Yield the slots of the checkpoint's tensors below module `name`."""
        yield from self._qkv.weight_slots(f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        yield from self._output.weight_slots(f"{name}.o_proj")

    def __call__(self, x_TD: torch.Tensor, step: ForwardContext, angles: Any) -> torch.Tensor:
        """Return (T, D)."""
        qkv = self._qkv(x_TD).view(x_TD.shape[0], -1, self._head_dim)
        q_TNH, k_TKH, v_TKH = qkv.split_with_sizes(self._heads, 1)
        q_TNH, k_TKH = self._rotary(q_TNH, angles), self._rotary(k_TKH, angles)
        return self._output(self._attend(q_TNH, k_TKH, v_TKH, step).flatten(-2))


class SandwichLayer:
    """Attention and MLP, each normalised before, and after, when it is added to the stream."""

    def __init__(self, make_norm: Callable[[], layers.RMSNorm], attention: Any, mlp: Any) -> None:
        self._attention, self._mlp = attention, mlp
        self._before_attention, self._after_attention = make_norm(), make_norm()
        self._before_mlp, self._after_mlp = make_norm(), make_norm()

    def weight_slots(self, name: str) -> Slots:
        """Yield the slots below module `name`."""
        yield from self._before_attention.weight_slots(f"{name}.input_layernorm")
        yield from self._attention.weight_slots(f"{name}.self_attn")
        yield from self._after_attention.weight_slots(f"{name}.post_attention_layernorm")
        yield from self._before_mlp.weight_slots(f"{name}.pre_feedforward_layernorm")
        yield from self._mlp.weight_slots(f"{name}.mlp")
        yield from self._after_mlp.weight_slots(f"{name}.post_feedforward_layernorm")

    def __call__(
        self,
        x_TD: torch.Tensor,
        residual_TD: torch.Tensor | None,
        step: ForwardContext,
        angles: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (what is still to be added to the residual stream, the residual stream)."""
        if residual_TD is None:
            normed_TD, residual_TD = self._before_attention(x_TD), x_TD
        else:
            normed_TD, residual_TD = self._before_attention.add(x_TD, residual_TD)
        x_TD = self._after_attention(self._attention(normed_TD, step, angles))
        normed_TD, residual_TD = self._before_mlp.add(x_TD, residual_TD)
        return self._after_mlp(self._mlp(normed_TD)), residual_TD


class Gemma2ForCausalLM(layers.DecoderForCausalLM[Config]):
    """CausalLM; scales embeddings, caps logits."""

    architectures: ClassVar[tuple[str, ...]] = ("Gemma2ForCausalLM",)
    config_class = Config
    centred_norms: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        super().__init__(config, context)
        self._scale: Callable[..., torch.Tensor] = context.kernels.bind(ops.activation.scale)
        self._softcap: Callable[..., torch.Tensor] = context.kernels.bind(ops.activation.softcap)
        self._factor = torch.tensor(self.config.hidden_size**0.5, dtype=context.dtype).item()

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        """Declare the full layers, and those with a window."""
        read = Config.read(config)
        fields = gqa_fields(read.num_kv_heads, read.head_dim)
        return tuple(
            CacheGroup(name, kind, numbers, fields, window=window, softcap=read.attention_cap)
            for name, kind, window in ((FULL, "full", 0), (WINDOW, "window", read.window))
            if (numbers := tuple(i for i, own in enumerate(read.layer_types) if own == name))
        )

    def make_layer(self, layer: int) -> SandwichLayer:
        """Build one layer."""
        return SandwichLayer(self.make_norm, self.make_attention(layer), self.make_mlp(layer))

    def make_attention(self, layer: int) -> Attention:
        """Build the attention of one layer."""
        return Attention(self.config, self.context, self.rotary, layer)

    def make_mlp(self, layer: int) -> layers.GatedMLP:
        """Build the MLP of one layer."""
        sizes = self.config.hidden_size, self.config.intermediate_size
        gelu_mul = partial(self.context.kernels.bind(ops.activation.gelu_mul), tanh=True)
        return layers.GatedMLP(self.context, *sizes, activate=gelu_mul)

    def embed(self, token_ids_T: torch.Tensor) -> torch.Tensor:
        """Return embeddings times sqrt(D), which is rounded to their dtype first."""
        return self._scale(self.embedding(token_ids_T), factor=self._factor)

    def compute_logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Return logits (R, V) float32, capped."""
        logits_RV, cap = super().compute_logits(hidden_RD), self.config.logit_cap
        return self._softcap(logits_RV, cap=cap) if cap else logits_RV


EntryClass = Gemma2ForCausalLM
