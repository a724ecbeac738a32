"""GGUF files for tests, written by the public `gguf` package. Owner: tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tests.support.texts import SPECIALS, spm_vocabulary, trained_bpe

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def write_gguf(
    path: Path,
    *,
    add: dict[str, tuple[str, Any]] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write metadata (`key -> (writer method suffix, value)`) and tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, (kind, value) in (add or {}).items():
        getattr(writer, f"add_{kind}")(key, value)
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_bpe_gguf(
    path: Path, pre: str | None, extra: dict[str, tuple[str, Any]] | None = None
) -> Path:
    """Write the trained byte-level vocabulary under the pre-tokenizer name `pre`."""
    model = json.loads(trained_bpe().to_str())["model"]
    vocab = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens = [*vocab, "<think>", "</think>"]
    types = [CONTROL if token in SPECIALS else NORMAL for token in vocab] + [USER_DEFINED] * 2
    merges = [" ".join(merge) for merge in model["merges"]]
    add: dict[str, tuple[str, Any]] = {
        "tokenizer.ggml.model": ("string", "gpt2"),
        "tokenizer.ggml.tokens": ("array", tokens),
        "tokenizer.ggml.token_type": ("array", types),
        "tokenizer.ggml.merges": ("array", merges),
        "tokenizer.ggml.bos_token_id": ("uint32", 1),
        "tokenizer.ggml.eos_token_id": ("uint32", 2),
        "tokenizer.ggml.eot_token_id": ("uint32", 0),
    }
    if pre is not None:
        add["tokenizer.ggml.pre"] = ("string", pre)
    return write_gguf(path, add={**add, **(extra or {})})


def write_spm_gguf(path: Path, extra: dict[str, tuple[str, Any]] | None = None) -> Path:
    """Write a small SentencePiece vocabulary with scores and byte pieces."""
    tokens, scores, types = spm_vocabulary()
    add: dict[str, tuple[str, Any]] = {
        "tokenizer.ggml.model": ("string", "llama"),
        "tokenizer.ggml.pre": ("string", "default"),
        "tokenizer.ggml.tokens": ("array", tokens),
        "tokenizer.ggml.scores": ("array", scores),
        "tokenizer.ggml.token_type": ("array", types),
        "tokenizer.ggml.bos_token_id": ("uint32", 1),
        "tokenizer.ggml.eos_token_id": ("uint32", 2),
        "tokenizer.ggml.unknown_token_id": ("uint32", 0),
    }
    return write_gguf(path, add={**add, **(extra or {})})
