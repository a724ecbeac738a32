"""Tiny random checkpoints with a byte tokenizer: real folders that the engine serves in a second.

Two shapes: Llama, and Qwen3-MoE with routed experts in each layer. Weights are random and fixed by
the seed; answers mean nothing, and are the same on every machine up to rounding.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch

LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, FEATURES = 2, 4, 2, 16, 64, 96
EXPERTS, EXPERT_FEATURES, TOP_K = 4, 48, 2
CONTEXT = 4096
SPECIALS = ("<|end|>",)


def write_tiny_model(
    folder: Path,
    *,
    architecture: str = "LlamaForCausalLM",
    experts: bool = False,
    weights: str = "model.safetensors",
    seed: int = 0,
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
    config = _config(architecture, vocab_size, experts=experts)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(_tensors(config, seed, experts=experts), folder / weights)
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


def _config(architecture: str, vocab_size: int, *, experts: bool) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["Qwen3MoeForCausalLM" if experts else architecture],
        "model_type": "qwen3_moe" if experts else "llama",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": FEATURES,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
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
            "num_experts": EXPERTS,
            "num_experts_per_tok": TOP_K,
            "moe_intermediate_size": EXPERT_FEATURES,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return config


def _tensors(config: dict[str, Any], seed: int, *, experts: bool) -> dict[str, torch.Tensor]:
    import torch

    random = torch.Generator().manual_seed(seed)

    def noise(rows: int, columns: int) -> torch.Tensor:
        result: torch.Tensor = torch.randn(rows, columns, generator=random) * columns**-0.5 * 1.5
        return result

    vocab_size = config["vocab_size"]
    tensors = {
        "model.embed_tokens.weight": torch.randn(vocab_size, HIDDEN, generator=random),
        "lm_head.weight": noise(vocab_size, HIDDEN) * 2,
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = torch.ones(HIDDEN)
        for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{name}.self_attn.{part}_proj.weight"] = noise(heads * HEAD_DIM, HIDDEN)
        tensors[f"{name}.self_attn.o_proj.weight"] = noise(HIDDEN, HEADS * HEAD_DIM)
        if experts:
            for part in ("q", "k"):
                tensors[f"{name}.self_attn.{part}_norm.weight"] = torch.ones(HEAD_DIM)
            tensors[f"{name}.mlp.gate.weight"] = noise(EXPERTS, HIDDEN)
        mlps = [f"mlp.experts.{e}" for e in range(EXPERTS)] if experts else ["mlp"]
        features = EXPERT_FEATURES if experts else FEATURES
        for mlp in mlps:
            for part in ("gate", "up"):
                tensors[f"{name}.{mlp}.{part}_proj.weight"] = noise(features, HIDDEN)
            tensors[f"{name}.{mlp}.down_proj.weight"] = noise(HIDDEN, features)
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
