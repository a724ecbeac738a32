"""Reads fields of config.json; what an architecture does not support is refused by name.

Used by the config dataclass of each model file. Knows no architecture and no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.checkpoint.json_file import shown
from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


# Far above every published model, and low enough that products stay within 64 bits.
LIMITS: Mapping[str, int] = {
    "hidden_size": 1 << 18,
    "intermediate_size": 1 << 20,
    "num_hidden_layers": 1024,
    "num_attention_heads": 4096,
    "num_key_value_heads": 4096,
    "head_dim": 8192,
    "vocab_size": 1 << 22,
    "num_experts": 4096,
    "num_local_experts": 4096,
    "num_experts_per_tok": 4096,
    "moe_intermediate_size": 1 << 20,
    "shared_expert_intermediate_size": 1 << 20,
    "n_routed_experts": 4096,
    "n_shared_experts": 256,
    "kv_lora_rank": 1 << 16,
    "q_lora_rank": 1 << 18,
    "qk_nope_head_dim": 8192,
    "qk_rope_head_dim": 8192,
    "v_head_dim": 8192,
    "linear_conv_kernel_dim": 64,
    "linear_key_head_dim": 8192,
    "linear_value_head_dim": 8192,
    "linear_num_key_heads": 4096,
    "linear_num_value_heads": 4096,
}
_OTHER_LIMIT = 2**31 - 1
MAX_NUMBER = 1e30
"""Largest number taken; float32 arithmetic follows."""


def count(
    config: Mapping[str, Any], name: str, default: int | None = None, *, high: int | None = None
) -> int:
    """Return a positive integer field.

    Args:
        default: used where the field is absent or null; None: the field is required.
        high: its largest value; None: the field's limit.
    Raises:
        ConfigError: absent without default, or not an integer from 1 to its limit.
    """
    value = config.get(name)
    value = default if value is None else value
    high = high or LIMITS.get(name, _OTHER_LIMIT)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= high:
        raise ConfigError(
            f"config.json has {name} = {shown(value)}, an integer from 1 to {high} is needed; "
            "correct the model folder's config.json"
        )
    return value


def number(config: Mapping[str, Any], name: str, default: float) -> float:
    """Return a positive number field.

    Raises:
        ConfigError: not a positive, finite number.
    """
    value = config.get(name)
    value = default if value is None else value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= MAX_NUMBER:
        raise ConfigError(
            f"config.json has {name} = {shown(value)}, a positive number is needed; "
            "correct the model folder's config.json"
        )
    return float(value)


def flag(config: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Return a boolean field.

    Raises:
        ConfigError: neither true, false nor absent.
    """
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise ConfigError(
            f"config.json has {name} = {shown(value)}, true or false is needed; "
            "correct the model folder's config.json"
        )
    return value


def refuse_unsupported(config: Mapping[str, Any], *, num_layers: int) -> None:
    """Refuse what the plain decoder architectures cannot compute.

    Raises:
        ConfigError: another activation, sliding windows in use, or quantized tensors.
    """
    layer_types(config, num_layers, kinds=("full_attention",), pattern=("full_attention",))
    refuse_quantized(config)
    only(config, "hidden_act", ("silu", "swish"), default="silu")
    if config.get("use_sliding_window") and count(config, "max_window_layers", 1) < num_layers:
        raise _unsupported("use_sliding_window", True, "false")


def refuse_quantized(config: Mapping[str, Any]) -> None:
    """Refuse checkpoints with low-bit tensors that no weight format here unpacks.

    Raises:
        ConfigError: the config has a quantization_config; names its method.
    """
    quantization = config.get("quantization_config")
    if quantization is not None:
        is_object = isinstance(quantization, dict)
        method = quantization.get("quant_method") if is_object else quantization
        raise _unsupported("quantization_config", method, "unquantized tensors, or a GGUF file")


def layer_types(
    config: Mapping[str, Any],
    num_layers: int,
    *,
    kinds: tuple[str, ...],
    pattern: tuple[str, ...],
) -> tuple[str, ...]:
    """Return the kind of each layer.

    Args:
        kinds: those that the architecture has.
        pattern: repeated over the layers where the config names none.
    Raises:
        ConfigError: another kind, not one for each layer, or no full_attention.
    """
    named = config.get("layer_types")
    if named is None:
        named = [pattern[layer % len(pattern)] for layer in range(num_layers)]
    if not isinstance(named, list):
        raise _unsupported("layer_types", named, f"a list of {' and '.join(kinds)}")
    for kind in named:
        if kind not in kinds:
            raise _unsupported("layer_types", kind, " and ".join(kinds))
    if len(named) != num_layers:
        raise ConfigError(
            f"config.json has layer_types for {len(named)} layers, num_hidden_layers = "
            f"{num_layers} are needed; correct config.json"
        )
    if "full_attention" not in named:
        raise _unsupported("layer_types", named, "a list with at least one full_attention")
    return tuple(named)


def only(config: Mapping[str, Any], name: str, allowed: tuple[str, ...], *, default: str) -> None:
    """Refuse a field that has another value than those allowed.

    Raises:
        ConfigError: it does; names field and value.
    """
    value = config.get(name) or default
    if value not in allowed:
        raise _unsupported(name, value, " or ".join(allowed))


def refuse_flag(config: Mapping[str, Any], name: str) -> None:
    """Refuse a boolean field that is true.

    Raises:
        ConfigError: it is, or it is no boolean.
    """
    if flag(config, name):
        raise _unsupported(name, True, "false")


def absent(config: Mapping[str, Any], name: str) -> None:
    """Refuse a field that is given.

    Raises:
        ConfigError: it is neither absent nor null.
    """
    if config.get(name) is not None:
        raise _unsupported(name, config[name], "null")


def layer_indices(config: Mapping[str, Any], name: str, num_layers: int) -> frozenset[int]:
    """Return the layers that a field lists; none where it is absent.

    Raises:
        ConfigError: not a list of layer numbers.
    """
    listed = config.get(name) or []
    if not isinstance(listed, list) or any(layer not in range(num_layers) for layer in listed):
        raise _unsupported(name, listed, f"a list of layers below {num_layers}")
    return frozenset(listed)


def check_multiple(name: str, value: int, divisor_name: str, divisor: int) -> None:
    """Check that one count is a multiple of another.

    Raises:
        ConfigError: it is not.
    """
    if value % divisor:
        raise ConfigError(
            f"config.json has {name} = {value}, a multiple of {divisor_name} = {divisor} is "
            "needed; correct config.json"
        )


def check_heads(num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """Check that query heads share KV heads evenly and that head dims can be rotated.

    Raises:
        ConfigError: they do not.
    """
    check_multiple("num_attention_heads", num_heads, "num_key_value_heads", num_kv_heads)
    if head_dim % 2:
        raise ConfigError(
            f"config.json has head_dim = {head_dim}, an even number is needed; correct config.json"
        )


def _unsupported(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(
        f"config.json has {name} = {shown(value)}, supported is {allowed}; use another checkpoint"
    )
