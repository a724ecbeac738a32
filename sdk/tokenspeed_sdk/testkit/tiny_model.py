"""Tiny random checkpoints with a byte tokenizer: real folders that the engine serves in a second.

Two shapes: Llama, and Qwen3-MoE with routed experts in each layer. Weights are random and fixed by
the seed; answers mean nothing, and are the same on every machine up to rounding.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch

LAYERS, KV_HEADS, FEATURES = 2, 2, 96
CONTEXT = 4096
SPECIALS = ("<|end|>",)


@dataclass(frozen=True, slots=True)
class TinyShape:
    """What backends may ask to be of another size."""

    head_dim: int = 16
    gqa_ratio: int = 2
    hidden_size: int = 64
    num_experts: int = 4
    top_k: int = 2
    expert_features: int = 48

    @property
    def heads(self) -> int:
        """Query heads."""
        return KV_HEADS * self.gqa_ratio


TINY = TinyShape()


def write_tiny_model(
    folder: Path,
    *,
    architecture: str = "LlamaForCausalLM",
    experts: bool = False,
    weights: str = "model.safetensors",
    seed: int = 0,
    shape: TinyShape = TINY,
) -> Path:
    """Write config.json, tokenizer.json and weights; return the folder.

    Args:
        architecture: what config.json names; its tensors are Llama's, or Qwen3-MoE's.
        experts: the latter, under the architecture's own name Qwen3MoeForCausalLM.
        weights: name of the file of tensors, laid out as safetensors.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_tokenizer(folder / "tokenizer.json")
    config = _config(architecture, vocab_size, shape, experts=experts)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(_tensors(config, seed, shape, experts=experts), folder / weights)
    return folder


def _write_tokenizer(path: Path) -> int:
    """Write a tokenizer of 256 bytes and one special token; return its size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIALS])
    tokenizer.save(str(path))
    size: int = tokenizer.get_vocab_size()
    return size


def _config(
    architecture: str, vocab_size: int, shape: TinyShape, *, experts: bool
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["Qwen3MoeForCausalLM" if experts else architecture],
        "model_type": "qwen3_moe" if experts else "llama",
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": FEATURES,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": KV_HEADS,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": vocab_size - 1,
    }
    if experts:
        config |= {
            "num_experts": shape.num_experts,
            "num_experts_per_tok": shape.top_k,
            "moe_intermediate_size": shape.expert_features,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return config


def _tensors(
    config: dict[str, Any], seed: int, shape: TinyShape, *, experts: bool
) -> dict[str, torch.Tensor]:
    import torch

    random = torch.Generator().manual_seed(seed)

    def noise(rows: int, columns: int) -> torch.Tensor:
        result: torch.Tensor = torch.randn(rows, columns, generator=random) * columns**-0.5 * 1.5
        return result

    vocab_size, hidden, head_dim = config["vocab_size"], shape.hidden_size, shape.head_dim
    tensors = {
        "model.embed_tokens.weight": torch.randn(vocab_size, hidden, generator=random),
        "lm_head.weight": noise(vocab_size, hidden) * 2,
        "model.norm.weight": torch.ones(hidden),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = torch.ones(hidden)
        for part, heads in (("q", shape.heads), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{name}.self_attn.{part}_proj.weight"] = noise(heads * head_dim, hidden)
        tensors[f"{name}.self_attn.o_proj.weight"] = noise(hidden, shape.heads * head_dim)
        if experts:
            for part in ("q", "k"):
                tensors[f"{name}.self_attn.{part}_norm.weight"] = torch.ones(head_dim)
            tensors[f"{name}.mlp.gate.weight"] = noise(shape.num_experts, hidden)
        mlps = [f"mlp.experts.{e}" for e in range(shape.num_experts)] if experts else ["mlp"]
        features = shape.expert_features if experts else FEATURES
        for mlp in mlps:
            for part in ("gate", "up"):
                tensors[f"{name}.{mlp}.{part}_proj.weight"] = noise(features, hidden)
            tensors[f"{name}.{mlp}.down_proj.weight"] = noise(hidden, features)
    return tensors


def main() -> None:
    """Write a tiny model into the folder that the command line names."""
    import argparse
    from pathlib import Path

    parser = argparse.ArgumentParser(description="Write a tiny random model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--experts", action="store_true", help="Qwen3-MoE in place of Llama")
    args = parser.parse_args()
    print(write_tiny_model(args.folder, experts=args.experts))


if __name__ == "__main__":
    main()
