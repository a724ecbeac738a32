"""Makes the equivalent of config.json from a GGUF file's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tokenspeed_reference.formats.gguf_names import ROPE_FACTORS
from tokenspeed_sdk import CheckpointError, GgufHeader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config_from_gguf(
    header: GgufHeader, rope_factors: NDArray[np.float32] | None
) -> dict[str, Any]:
    """Build the configuration.

    Args:
        rope_factors: content of the tensor `rope_freqs.weight`, None where there is none.
    Raises:
        CheckpointError: another architecture, a missing key, a rope scaling that has no name.
    """
    arch = header.metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        raise CheckpointError(
            f"cannot load {header.path}: its architecture is {arch!r}, supported are "
            f"{', '.join(ARCHITECTURES)}; use a model of one of these"
        )
    read = _Reader(header, arch)
    num_heads = read.count("attention.head_count")
    hidden_size = read.count("embedding_length")
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": read.count("feed_forward_length"),
        "num_hidden_layers": read.count("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": read.count("attention.head_count_kv", num_heads),
        "head_dim": _head_dim(read, hidden_size // num_heads),
        "max_position_embeddings": read.count("context_length"),
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": read.number("rope.freq_base", 10000.0),
        "vocab_size": _vocab_size(header),
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }
    if arch == "llama":
        config["mlp_bias"] = "blk.0.ffn_down.bias" in header.tensors
    if arch in ("llama", "qwen3"):
        config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    scaling = _rope_scaling(read, config, rope_factors)
    if scaling is not None:
        config["rope_scaling"] = scaling
    config.update(_token_ids(header.metadata))
    return config


class _Reader:
    """Looks up `<arch>.<key>`."""

    def __init__(self, header: GgufHeader, arch: str) -> None:
        self.header = header
        self.arch = arch

    def required(self, key: str) -> Any:
        full = f"{self.arch}.{key}"
        if full not in self.header.metadata:
            raise CheckpointError(
                f"cannot load {self.header.path}: metadata {full!r} is missing; every {self.arch} "
                "file must have it; convert the model again"
            )
        return self.optional(key, None)

    def count(self, key: str, default: int | None = None) -> int:
        """Return a positive whole number; required when there is no default."""
        value = self.required(key) if default is None else self.optional(key, default)
        if type(value) is not int or not 0 < value < 2**31:
            raise CheckpointError(
                f"cannot load {self.header.path}: metadata '{self.arch}.{key}' is {value!r}; a "
                f"whole number from 1 to {2**31 - 1} was expected; the file is damaged; convert "
                "the model again"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number; required when there is no default."""
        value = self.required(key) if default is None else self.optional(key, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise CheckpointError(
                f"cannot load {self.header.path}: metadata '{self.arch}.{key}' is {value!r}; a "
                "finite number was expected; the file is damaged; convert the model again"
            )
        return _shortest_float(value)

    def optional(self, key: str, default: Any) -> Any:
        value = self.header.metadata.get(f"{self.arch}.{key}", default)
        if isinstance(value, list):
            # Some converters write one value a layer; only equal ones fit these architectures.
            if not value or any(item != value[0] for item in value):
                raise CheckpointError(
                    f"cannot load {self.header.path}: {self.arch}.{key} differs by layer "
                    f"({value[:8]}); one value for all layers is supported; use another model"
                )
            return value[0]
        return value


def _head_dim(read: _Reader, default: int) -> int:
    rotary = "rope.dimension_count"
    head_dim = read.count("attention.key_length", read.count(rotary, max(default, 1)))
    for key in ("attention.value_length", rotary):
        other = read.count(key, head_dim)
        if other != head_dim:
            raise CheckpointError(
                f"cannot load {read.header.path}: {read.arch}.{key} is {other} with heads of "
                f"{head_dim}; equal sizes are supported; use another model"
            )
    return head_dim


def _vocab_size(header: GgufHeader) -> int:
    if "token_embd.weight" not in header.tensors:
        raise CheckpointError(
            f"cannot load {header.path}: it has {len(header.tensors)} tensors without "
            "'token_embd.weight'; a whole model was expected; merge a multi-part file first"
        )
    return header.tensors["token_embd.weight"].shape[0]


def _rope_scaling(
    read: _Reader, config: Mapping[str, Any], factors: NDArray[np.float32] | None
) -> dict[str, Any] | None:
    kind = read.optional("rope.scaling.type", "none")
    if factors is not None:
        return _llama3_scaling(read, config, factors)
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": read.number("rope.scaling.factor", 1.0)}
    original = "rope.scaling.original_context_length"
    if read.optional(original, None) is not None:
        scaling["original_max_position_embeddings"] = read.count(original)
    return scaling


def _llama3_scaling(
    read: _Reader, config: Mapping[str, Any], factors: NDArray[np.float32]
) -> dict[str, Any]:
    """Name the rope scaling whose divisors the file stores, and prove it by computing them."""
    import numpy as np

    scaling = {"rope_type": "llama3", "factor": _shortest_float(factors.max()), **_LLAMA3}
    expected = _llama3_factors(scaling, config["rope_theta"], config["head_dim"])
    if len(expected) != len(factors) or not np.allclose(factors, expected, rtol=1e-3):
        raise CheckpointError(
            f"cannot load {read.header.path}: {ROPE_FACTORS} holds {len(factors)} divisors up to "
            f"{factors.max():g}, which are not those of llama3 scaling ({_LLAMA3}); only these are "
            "supported; use the safetensors checkpoint"
        )
    return scaling


def _llama3_factors(scaling: Mapping[str, Any], theta: float, head_dim: int) -> list[float]:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    divisors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / head_dim)
        smooth = (original / wavelength - low) / (high - low)
        smooth = min(1.0, max(0.0, smooth))
        divisors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return divisors


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    values = {
        ours: metadata.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in names.items()
    }
    return {ours: value for ours, value in values.items() if isinstance(value, int)}


def _shortest_float(value: Any) -> float:
    """Undo the float32 storage of a decimal: 9.999999747378752e-06 becomes 1e-05."""
    return float(f"{float(value):.7g}")
