"""Random tiny checkpoints of each architecture, made and greedily decoded by transformers.

Every parameter is random (norms and biases too), so that none can be left out unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

VOCAB_SIZE = 331
_SHAPE: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True, slots=True)
class TinySpec:
    """One checkpoint: transformers' class, fields beside the common shape, how it is stored."""

    architecture: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    shard_size: str = "1GB"


SPECS: Mapping[str, TinySpec] = {
    "llama": TinySpec("LlamaForCausalLM"),
    "llama_tied_llama3_sharded": TinySpec(
        "LlamaForCausalLM",
        {"tie_word_embeddings": True, "rope_parameters": _LLAMA3},
        shard_size="40KB",
    ),
    "llama_biases_linear": TinySpec(
        "LlamaForCausalLM",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 16,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        },
    ),
    "llama_yarn_multi_head": TinySpec(
        "LlamaForCausalLM", {"rope_parameters": _YARN, "num_key_value_heads": 4}
    ),
    "qwen2": TinySpec("Qwen2ForCausalLM"),
    "qwen2_tied": TinySpec("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": TinySpec("Qwen3ForCausalLM", {"head_dim": 20}),
    "qwen3_biases_tied": TinySpec(
        "Qwen3ForCausalLM",
        {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": True},
    ),
}

_QWEN3_MOE = {
    "head_dim": 16,
    "moe_intermediate_size": 24,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
MOE_SPECS: Mapping[str, TinySpec] = {
    "qwen3_moe": TinySpec("Qwen3MoeForCausalLM", {**_QWEN3_MOE, "norm_topk_prob": True}),
    "qwen3_moe_shares_of_all": TinySpec(
        "Qwen3MoeForCausalLM",
        {**_QWEN3_MOE, "norm_topk_prob": False, "num_experts_per_tok": 3, "attention_bias": True},
    ),
    "qwen3_moe_every_second": TinySpec(
        "Qwen3MoeForCausalLM",
        {
            **_QWEN3_MOE,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "norm_topk_prob": True,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_moe_dense_layers": TinySpec(
        "Qwen3MoeForCausalLM", {**_QWEN3_MOE, "mlp_only_layers": [0, 2], "norm_topk_prob": True}
    ),
    "qwen3_moe_no_experts_left": TinySpec(
        "Qwen3MoeForCausalLM", {**_QWEN3_MOE, "mlp_only_layers": [0, 1, 2]}
    ),
    "mixtral": TinySpec("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
"""Routed experts in all, some or no layers."""

_DEEPSEEK = {
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
    "routed_scaling_factor": 1.5,
}
_DEEPSEEK_YARN = {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 32, "beta_slow": 1}
LATENT_SPECS: Mapping[str, TinySpec] = {
    "deepseek_v2_lite": TinySpec(
        "DeepseekV2ForCausalLM",
        {**_DEEPSEEK, "q_lora_rank": None, "topk_method": "greedy", "attention_bias": True},
    ),
    "deepseek_v2": TinySpec(
        "DeepseekV2ForCausalLM",
        {
            **_DEEPSEEK,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": _DEEPSEEK_YARN,
        },
    ),
    "deepseek_v3": TinySpec(
        "DeepseekV3ForCausalLM",
        {**_DEEPSEEK, "n_group": 4, "topk_group": 2, "rope_parameters": _DEEPSEEK_YARN},
    ),
    "deepseek_v3_straight": TinySpec(
        "DeepseekV3ForCausalLM",
        {
            **_DEEPSEEK,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "q_lora_rank": None,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "num_hidden_layers": 2,
        },
    ),
}
"""Latent attention; Kimi-K2 is of the third kind."""

_GPT_OSS = {
    "head_dim": 16,
    "intermediate_size": 40,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 20,
    "num_hidden_layers": 4,
    "rope_parameters": {**_YARN, "rope_theta": 150000.0, "truncate": False},
}
_DELTA = {
    "head_dim": 32,
    "num_hidden_layers": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_EXPERTS = {
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
_EVEN_GPT_OSS = {**_GPT_OSS, "intermediate_size": 64}
_EVEN_DELTA = {
    **_DELTA,
    **_EXPERTS,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "linear_value_head_dim": 16,
}

_FOR_RANKS = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_experts": 8,
}
RANK_SPECS: Mapping[str, TinySpec] = {
    "llama_ranks": TinySpec("LlamaForCausalLM", _FOR_RANKS),
    "qwen3_moe_ranks": TinySpec(
        "Qwen3MoeForCausalLM", {**_QWEN3_MOE, "norm_topk_prob": True, **_FOR_RANKS}
    ),
    "deepseek_v3_ranks": TinySpec(
        "DeepseekV3ForCausalLM",
        {**_DEEPSEEK, "n_group": 4, "topk_group": 2, **_FOR_RANKS, "num_key_value_heads": 8},
    ),
    "qwen3_next_ranks": TinySpec("Qwen3NextForCausalLM", {**_EVEN_DELTA, **_FOR_RANKS}),
    "gpt_oss_ranks": TinySpec(
        "GptOssForCausalLM", {**_EVEN_GPT_OSS, **_FOR_RANKS, "num_local_experts": 8}
    ),
}
"""Sizes that two ranks divide."""
EVEN_SPECS: Mapping[str, TinySpec] = {
    "gpt_oss_even": TinySpec("GptOssForCausalLM", _EVEN_GPT_OSS),
    "qwen3_next_even": TinySpec("Qwen3NextForCausalLM", _EVEN_DELTA),
}
"""Features in multiples of 32, as all published models have them."""
HYBRID_SPECS: Mapping[str, TinySpec] = {
    "gpt_oss": TinySpec("GptOssForCausalLM", _GPT_OSS),
    "gpt_oss_tied_clamped": TinySpec(
        "GptOssForCausalLM",
        {
            **_GPT_OSS,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "sliding_window": 7,
            "swiglu_limit": 0.8,
            "swiglu_alpha": 1.3,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_next": TinySpec("Qwen3NextForCausalLM", {**_DELTA, **_EXPERTS}),
    "qwen3_next_dense_layers": TinySpec(
        "Qwen3NextForCausalLM",
        {
            **_DELTA,
            **_EXPERTS,
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
            "layer_types": ["full_attention", "linear_attention"] * 2,
            "linear_conv_kernel_dim": 3,
            "linear_num_value_heads": 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5000.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "qwen3_5": TinySpec("Qwen3_5ForCausalLM", {**_DELTA, "tie_word_embeddings": True}),
    "qwen3_5_moe": TinySpec("Qwen3_5MoeForCausalLM", {**_DELTA, **_EXPERTS}),
}
"""Models with windows or state beside full attention."""


def make_checkpoint(name: str, folder: Path) -> Path:
    """Write the checkpoint `name` below `folder`, once; return its folder."""
    path = folder / name
    if path.exists():
        return path
    spec = {**SPECS, **MOE_SPECS, **LATENT_SPECS, **HYBRID_SPECS, **EVEN_SPECS, **RANK_SPECS}[name]
    reference_model(spec).save_pretrained(path, max_shard_size=spec.shard_size)
    return path


def reference_model(spec: TinySpec) -> Any:
    """Return transformers' model with random parameters, float32."""
    import transformers

    model_class = getattr(transformers, spec.architecture)
    torch.manual_seed(spec.seed)
    model = model_class(model_class.config_class(**{**_SHAPE, **spec.fields})).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.normal_(_mean_of(parameter_name, spec), 0.25)
    return model


def _mean_of(parameter_name: str, spec: TinySpec) -> float:
    """Return 1 for norms, but 0 for those that store their weight less one."""
    is_centred = "linear_num_key_heads" in spec.fields and "linear_attn.norm" not in parameter_name
    return 1.0 if "norm" in parameter_name and not is_centred else 0.0


def make_prompts(lengths: Sequence[int], *, seed: int = 0, shared: int = 0) -> list[list[int]]:
    """Return random prompts of these lengths; the first `shared` tokens are common to all."""
    random = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        return torch.randint(0, VOCAB_SIZE, (count,), generator=random).tolist()

    prefix = draw(shared)
    return [prefix[:length] + draw(max(0, length - shared)) for length in lengths]


@dataclass(frozen=True, slots=True)
class Expected:
    """What transformers decodes greedily.

    Args:
        tokens: one list a prompt.
        median_gap: median difference between the best two logits over all positions.
    """

    tokens: list[list[int]]
    median_gap: float


def decode_greedily(folder: Path, prompts: Sequence[Sequence[int]], num_tokens: int) -> Expected:
    """Decode each prompt alone with transformers, float32."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens, gaps = [], []
    for prompt in prompts:
        with torch.inference_mode():
            output = model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=num_tokens,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
        tokens.append(output.sequences[0, len(prompt) :].tolist())
        best = torch.cat(output.logits).topk(2, dim=-1).values
        gaps += (best[:, 0] - best[:, 1]).tolist()
    return Expected(tokens, torch.tensor(gaps).median().item())
