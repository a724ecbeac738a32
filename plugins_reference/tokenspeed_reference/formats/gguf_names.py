"""Tensor names of GGUF files and what they are called in Hugging Face checkpoints."""

from __future__ import annotations

import re

from tokenspeed_sdk import CheckpointError

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")

ROPE_FACTORS = "rope_freqs.weight"
"""Not a weight: per-frequency divisors that `gguf_config` turns into rope_scaling."""


def hf_name(name: str) -> str:
    """Translate one GGUF tensor name.

    Raises:
        CheckpointError: a name that llama, qwen2 and qwen3 do not have.
    """
    if name in _WHOLE:
        return _WHOLE[name]
    match = _LAYER_NAME.fullmatch(name)
    if match and match[2] in _IN_LAYER:
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"
    raise CheckpointError(
        f"unknown GGUF tensor {name!r}: known are {', '.join(_WHOLE)} and blk.N.X.weight or .bias "
        f"with X of {', '.join(_IN_LAYER)}; this model needs an architecture that is not supported"
    )
