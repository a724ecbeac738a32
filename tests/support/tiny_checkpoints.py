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


def make_checkpoint(name: str, folder: Path) -> Path:
    """Write the checkpoint `name` of SPECS below `folder`, once; return its folder."""
    path = folder / name
    if path.exists():
        return path
    spec = SPECS[name]
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
            mean = 1.0 if "norm" in parameter_name else 0.0
            parameter.normal_(mean, 0.25)
    return model


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
