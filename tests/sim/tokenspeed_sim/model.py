"""SimForCausalLM: an architecture of its own name; as it stands, Llama's.

A model file ends in `EntryClass` and imports the sdk alone (docs/plugins/add-a-model.md).
Legend: T tokens, D hidden, N query heads, K kv heads, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tokenspeed_sdk import ParallelGroup, layers, model_fields


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
    norm_eps: float
    tie_embeddings: bool
    rope: layers.RopeParameters

    @classmethod
    def read(cls, config: Any) -> Config:
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
            norm_eps=model_fields.number(config, "rms_norm_eps", 1e-6),
            tie_embeddings=model_fields.flag(config, "tie_word_embeddings"),
            rope=layers.RopeParameters.read(config),
        )


class Attention:
    """Projects to q, k, v, rotates, attends, projects back."""

    def __init__(self, config: Config, context: Any, rotary: Any, layer: int) -> None:
        self._head_dim = config.head_dim
        self._heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self._qkv = layers.Linear(
            context,
            config.hidden_size,
            tuple(heads * config.head_dim for heads in self._heads),
            spread=layers.column_parallel(ParallelGroup.ATTN_TP),
            units={"O": self._heads},
        )
        self._rotary = rotary
        self._attend = layers.PagedAttention(
            context, layer=layer, group=layers.CACHE_GROUP, head_dim=config.head_dim
        )
        self._output = layers.Linear(
            context,
            config.num_heads * config.head_dim,
            (config.hidden_size,),
            spread=layers.row_parallel(ParallelGroup.ATTN_TP),
            units={"I": (config.num_heads,)},
        )

    def weight_slots(self, name: str) -> Any:
        """Yield the slots of the checkpoint's tensors below module `name`."""
        yield from self._qkv.weight_slots(f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        yield from self._output.weight_slots(f"{name}.o_proj")

    def __call__(self, x_TD: Any, step: Any, angles: Any) -> Any:
        """Return (T, D)."""
        qkv = self._qkv(x_TD).view(x_TD.shape[0], -1, self._head_dim)
        q_TNH, k_TKH, v_TKH = qkv.split_with_sizes(self._heads, 1)
        q_TNH, k_TKH = self._rotary(q_TNH, angles), self._rotary(k_TKH, angles)
        return self._output(self._attend(q_TNH, k_TKH, v_TKH, step).flatten(-2))


class SimForCausalLM(layers.DecoderForCausalLM[Config]):
    """CausalLM; embedding, norms, MLP, head and weight names are those of pre-norm decoders."""

    architectures: ClassVar[tuple[str, ...]] = ("SimForCausalLM",)
    config_class = Config

    def make_attention(self, layer: int) -> Attention:
        """Build the attention of one layer."""
        return Attention(self.config, self.context, self.rotary, layer)


EntryClass = SimForCausalLM
