"""Tiny and published configs of every architecture, and models of them with random weights."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from tests.support import tiny_checkpoints

from tokenspeed.contracts.weights import LinearWeight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MODULES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "MixtralForCausalLM": "mixtral",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GptOssForCausalLM": "gpt_oss",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5",
}
"""Architecture -> its file in `tokenspeed.models`."""
_EVEN = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_local_experts": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
}
"""Sizes that two and four ranks divide; kv heads that four ranks share."""


def _spec(name: str) -> tiny_checkpoints.TinySpec:
    tables = ("SPECS", "MOE_SPECS", "LATENT_SPECS", "HYBRID_SPECS", "EVEN_SPECS")
    return next(
        specs[name] for table in tables if name in (specs := getattr(tiny_checkpoints, table))
    )


def tiny(name: str) -> dict[str, Any]:
    """Return the config.json of a tiny checkpoint."""
    spec = _spec(name)
    shape = {"rms_norm_eps": 1e-5, **tiny_checkpoints._SHAPE}
    return {"architectures": [spec.architecture], **shape, **spec.fields}


def even(name: str) -> dict[str, Any]:
    """Return the config of a tiny checkpoint with sizes that several ranks divide."""
    config = tiny(name)
    return {**config, **{key: value for key, value in _EVEN.items() if key in config}}


TINY = (
    *("llama", "llama_tied_llama3_sharded", "llama_biases_linear", "qwen2", "qwen3_biases_tied"),
    *("qwen3_moe_every_second", "qwen3_moe_dense_layers", "mixtral", "deepseek_v2_lite"),
    *("deepseek_v2", "deepseek_v3", "deepseek_v3_straight", "gpt_oss", "gpt_oss_tied_clamped"),
    *("qwen3_next", "qwen3_next_dense_layers", "qwen3_5", "qwen3_5_moe"),
)
"""Every architecture, with and without what is optional in it."""


def model_class(config: Mapping[str, Any]) -> Any:
    """Return the class that serves a config."""
    module = MODULES[config["architectures"][0]]
    return import_module(f"tokenspeed.models.{module}").EntryClass


def random_weights(model: Any, *, seed: int = 0) -> Iterator[tuple[str, LinearWeight]]:
    """Yield a checkpoint for a model: random, the same for the same seed and shapes."""
    random = torch.Generator().manual_seed(seed)
    for name, slot in model.weight_map().items():
        scale = 0.3 if "norm" in name or len(slot.shape) == 1 else slot.shape[-1] ** -0.5
        tensor = torch.randn(slot.shape, generator=random) * scale + ("norm" in name)
        yield name, LinearWeight(slot.shape, tensor)


PUBLISHED: Mapping[str, dict[str, Any]] = {
    "llama-3.3-70b": {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen3-235b-a22b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 40960,
    },
    "deepseek-v3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "n_group": 8,
        "topk_group": 4,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 163840,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
    "gpt-oss-120b": {
        "architectures": ["GptOssForCausalLM"],
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "attention_bias": True,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"],
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 32768,
    },
    "qwen3-next-80b": {
        "architectures": ["Qwen3NextForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000000,
        "max_position_embeddings": 262144,
    },
}
"""The fields of published config.json files that say what is computed."""
