"""Damages model files and loads them: only errors of ours may come out, and in time."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.gguf_files import weights
from tests.support.scripted import CHAT_TEMPLATE, byte_tokenizer
from tests.support.texts import trained_bpe

from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.build import build_engine
from tokenspeed.errors import TokenSpeedError
from tokenspeed.tokenizer import ChatTemplate, load_tokenizer

CASE_S = 60
JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
)
_SNIPPETS = (
    b"-",
    b"9",
    b"99999999999",
    b'"',
    b"[",
    b"]",
    b"{",
    b"}",
    b"null",
    b"true",
    b",",
    b"\xff",
)


class TookTooLong(BaseException):
    """A case that would have hung."""


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Raise TookTooLong in the main thread when the block takes longer."""

    def ring(number: int, frame: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def load_all(model: Path) -> None:
    """Load tokenizer, chat template and engine as a start does."""
    tokenizer = load_tokenizer(model)
    ChatTemplate.of(tokenizer)
    settings: dict[str, Any] = {"plugins": ("reference",), "max_running": 2, "kv_gib": 0.01}
    build_engine(EngineConfig(model=str(model), **settings))


def flip(data: bytes, chance: random.Random, *, limit: int) -> bytes:
    """Return `data` with one to three bytes of its first `limit` changed, or a snippet put in."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(min(limit, len(data)))
        if chance.random() < 0.5:
            damaged[place] ^= 1 << chance.randrange(8)
        else:
            snippet = chance.choice(_SNIPPETS)
            damaged[place : place + chance.randint(0, len(snippet))] = snippet
    return bytes(damaged)


def check_damage(
    original: Path, copy: Path, name: str, load: Callable[[Path], None], chance: random.Random
) -> str:
    """Damage the file `name` of a model, load it, and say what came out.

    Returns:
        "" for success, else the error's class.
    Raises:
        AssertionError: another error than ours, or none in time; names the damage.
    """
    source = original / name if original.is_dir() else original
    target = copy / name if original.is_dir() else copy
    if original.is_dir() and not copy.exists():
        shutil.copytree(original, copy)
    data = source.read_bytes()
    limit = len(data)
    if name == "model.safetensors":
        limit = 8 + int.from_bytes(data[:8], "little")
    elif source.suffix == ".gguf":
        limit = min(limit, 6000)
    damaged = flip(data, chance, limit=limit)
    target.write_bytes(damaged)
    try:
        with alarm(CASE_S):
            load(copy)
    except TokenSpeedError as error:
        return type(error).__name__
    except BaseException as error:
        target.with_name(target.name + ".damaged").write_bytes(damaged)
        raise AssertionError(f"damaged {name}: {error!r}, kept as {target}.damaged") from error
    finally:
        if original.is_dir():
            target.write_bytes(data)
    return ""


def write_tiny_folder(folder: Path) -> Path:
    """Write a llama folder with all its files; the tokenizer has one token a byte."""
    import json

    from safetensors.numpy import save_file

    folder.mkdir()
    tokenizer = byte_tokenizer()
    vocab, hidden, ffn = tokenizer.get_vocab_size(), 16, 24
    chance = np.random.default_rng(3)
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    layer = "model.layers.0"
    shapes |= {f"{layer}.self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
    shapes |= {f"{layer}.mlp.{name}_proj.weight": (ffn, hidden) for name in ("gate", "up")}
    shapes |= {f"{layer}.mlp.down_proj.weight": (hidden, ffn)}
    norms = ("input_layernorm", "post_attention_layernorm")
    shapes |= {f"{layer}.{name}.weight": (hidden,) for name in norms}
    tensors = {name: chance.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        "layer_types": ["full_attention"],
        "tie_word_embeddings": True,
        "eos_token_id": [vocab - 1],
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": vocab - 1}))
    added = {str(vocab - 1): {"content": "<|im_end|>", "special": True}}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "eos_token": {"content": "<|im_end|>"},
                "added_tokens_decoder": added,
                "chat_template": CHAT_TEMPLATE,
            }
        )
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_tiny_gguf(path: Path) -> Path:
    """Write a llama file with weights and a byte-level tokenizer."""
    import json

    import gguf
    from tests.support import gguf_files

    model = json.loads(trained_bpe().to_str())["model"]
    vocab = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tensors = weights(1)
    tensors["token_embd.weight"] = np.zeros((len(vocab), gguf_files.HIDDEN), np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_block_count(1)
    writer.add_embedding_length(gguf_files.HIDDEN)
    writer.add_feed_forward_length(gguf_files.FFN)
    writer.add_head_count(gguf_files.HEADS)
    writer.add_head_count_kv(gguf_files.KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_token_list(vocab)
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
