"""OLMo 2 (Olmo2ForCausalLM): norms after each block alone, and over all of q and of k.

Legend: T tokens, D hidden, N query heads, K kv heads, H head dim, R rows, V words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tokenspeed_sdk import ParallelGroup, layers, model_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from tokenspeed_sdk import ForwardContext, ModelContext

    Slots = Iterator[tuple[str, layers.WeightSlot]]


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

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Config:
        """Read and check config.json.

        Raises:
            ConfigError: a field is missing or unsupported; names field and value.
        """
        num_layers = model_fields.count(config, "num_hidden_layers")
        model_fields.refuse_unsupported(config, num_layers=num_layers)
        hidden_size = model_fields.count(config, "hidden_size")
        num_heads = model_fields.count(config, "num_attention_heads")
        num_kv_heads = model_fields.count(config, "num_key_value_heads", num_heads)
        head_dim = model_fields.count(config, "head_dim", hidden_size // num_heads)
        model_fields.check_heads(num_heads, num_kv_heads, head_dim)
        return cls(
            vocab_size=model_fields.count(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=model_fields.count(config, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            bias=model_fields.flag(config, "attention_bias"),
            norm_eps=model_fields.number(config, "rms_norm_eps", 1e-5),
            tie_embeddings=model_fields.flag(config, "tie_word_embeddings"),
            rope=layers.RopeParameters.read(config, default_theta=500000.0),
        )


class Attention:
    """Projects to q, k, v, normalises q and k whole, rotates, attends, projects back."""

    def __init__(self, config: Config, context: ModelContext, rotary: Any, layer: int) -> None:
        self._head_dim = config.head_dim
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self._sizes = tuple(number * config.head_dim for number in heads)
        self._qkv = layers.Linear(
            context,
            config.hidden_size,
            self._sizes,
            bias=config.bias,
            spread=layers.column_parallel(ParallelGroup.ATTN_TP),
            units={"O": heads},
        )
        self._q_norm = layers.RMSNorm(context, self._sizes[0], eps=config.norm_eps)
        self._k_norm = layers.RMSNorm(context, self._sizes[1], eps=config.norm_eps)
        self._rotary = rotary
        self._attend = layers.PagedAttention(
            context, layer=layer, group=layers.CACHE_GROUP, head_dim=config.head_dim
        )
        self._output = layers.Linear(
            context,
            self._sizes[0],
            (config.hidden_size,),
            bias=config.bias,
            spread=layers.row_parallel(ParallelGroup.ATTN_TP),
            units={"I": (config.num_heads,)},
        )

    def weight_slots(self, name: str) -> Slots:
        """Yield the slots of the checkpoint's tensors below module `name`."""
        yield from self._qkv.weight_slots(f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        yield from self._q_norm.weight_slots(f"{name}.q_norm")
        yield from self._k_norm.weight_slots(f"{name}.k_norm")
        yield from self._output.weight_slots(f"{name}.o_proj")

    def __call__(self, x_TD: torch.Tensor, step: ForwardContext, angles: Any) -> torch.Tensor:
        """Return (T, D)."""
        q, k, v = self._qkv(x_TD).split_with_sizes(self._sizes, 1)
        q_TNH, k_TKH, v_TKH = (
            part.view(x_TD.shape[0], -1, self._head_dim)
            for part in (self._q_norm(q), self._k_norm(k), v)
        )
        q_TNH, k_TKH = self._rotary(q_TNH, angles), self._rotary(k_TKH, angles)
        return self._output(self._attend(q_TNH, k_TKH, v_TKH, step).flatten(-2))


class PostNormLayer:
    """Attention and MLP read the stream as it is, and are normalised before they are added."""

    def __init__(self, make_norm: Callable[[], layers.RMSNorm], attention: Any, mlp: Any) -> None:
        self._attention, self._attention_norm = attention, make_norm()
        self._mlp, self._mlp_norm = mlp, make_norm()

    def weight_slots(self, name: str) -> Slots:
        """Yield the slots below module `name`."""
        yield from self._attention.weight_slots(f"{name}.self_attn")
        yield from self._attention_norm.weight_slots(f"{name}.post_attention_layernorm")
        yield from self._mlp.weight_slots(f"{name}.mlp")
        yield from self._mlp_norm.weight_slots(f"{name}.post_feedforward_layernorm")

    def __call__(
        self,
        x_TD: torch.Tensor,
        residual_TD: torch.Tensor | None,
        step: ForwardContext,
        angles: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (what is still to be added to the residual stream, the residual stream)."""
        stream_TD = x_TD if residual_TD is None else x_TD + residual_TD
        stream_TD = stream_TD + self._attention_norm(self._attention(stream_TD, step, angles))
        return self._mlp_norm(self._mlp(stream_TD)), stream_TD


class Olmo2ForCausalLM(layers.DecoderForCausalLM[Config]):
    """CausalLM; embedding, final norm, head and MLP are those of every decoder."""

    architectures: ClassVar[tuple[str, ...]] = ("Olmo2ForCausalLM",)
    config_class = Config

    def make_layer(self, layer: int) -> PostNormLayer:
        """Build one layer."""
        return PostNormLayer(self.make_norm, self.make_attention(layer), self.make_mlp(layer))

    def make_attention(self, layer: int) -> Attention:
        """Build the attention of one layer."""
        return Attention(self.config, self.context, self.rotary, layer)


EntryClass = Olmo2ForCausalLM
