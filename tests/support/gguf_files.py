"""Writes small GGUF files with the public writer, for tests of formats and models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, FFN, VOCAB = 8, 4, 32, 256, 512, 40


def weights(seed: int, *, arch: str = "llama") -> dict[str, NDArray[np.float32]]:
    """Return one layer's tensors under GGUF names, in the logical (outermost first) shape."""
    random = np.random.default_rng(seed)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (q, HIDDEN),
        "blk.0.attn_k.weight": (kv, HIDDEN),
        "blk.0.attn_v.weight": (kv, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, q),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (FFN, HIDDEN),
        "blk.0.ffn_up.weight": (FFN, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, FFN),
        "output_norm.weight": (HIDDEN,),
    }
    if arch == "qwen2":
        shapes |= {"blk.0.attn_q.bias": (q,), "blk.0.attn_k.bias": (kv,)}
        shapes |= {"blk.0.attn_v.bias": (kv,)}
    if arch == "qwen3":
        shapes |= {"blk.0.attn_q_norm.weight": (HEAD_DIM,), "output.weight": (VOCAB, HIDDEN)}
        shapes |= {"blk.0.attn_k_norm.weight": (HEAD_DIM,)}
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def stored_rows(values: NDArray[np.float32], type_name: str) -> NDArray[Any]:
    """Return the bytes in which GGUF stores `values`; K types get random blocks of sane scale."""
    kind = gguf.GGMLQuantizationType[type_name]
    if not type_name.endswith("_K"):
        return gguf.quants.quantize(values, kind)
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(values.size)
    num_blocks = values.shape[-1] // block_elements
    blocks = random.integers(0, 256, (*values.shape[:-1], num_blocks, block_bytes), np.uint8)
    scales = {"Q4_K": (0, 2), "Q6_K": (208,)}[type_name]
    for offset in scales:
        half = random.uniform(0.001, 0.01, blocks.shape[:-1]).astype(np.float16)
        blocks[..., offset : offset + 2] = half[..., None].view(np.uint8)
    return blocks.reshape(*values.shape[:-1], -1)


def write_gguf(
    path: Path,
    tensors: Mapping[str, NDArray[np.float32]],
    *,
    arch: str = "llama",
    type_name: str = "F32",
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, NDArray[Any]]:
    """Write a file whose matrices have the type `type_name`; returns what was stored."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(512)
    writer.add_block_count(1)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in (metadata or {}).items():
        writer.add_string(key, value) if isinstance(value, str) else writer.add_float32(key, value)
    stored = {}
    for name, values in tensors.items():
        kind = type_name if values.ndim == 2 else "F32"
        stored[name] = stored_rows(values, kind)
        writer.add_tensor(name, stored[name], raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored
