"""Makes folders with a scripted model: config.json, a byte-level tokenizer and a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BYTE_TOKENS = sorted(pre_tokenizers.ByteLevel.alphabet())
VOCAB_SIZE = len(BYTE_TOKENS) + len(SPECIAL_TOKENS)
END_OF_TEXT, IM_START, IM_END = range(len(BYTE_TOKENS), VOCAB_SIZE)
PRINTABLE_TOKENS = 94
"""Ids [0, 94) are the ASCII characters "!" to "~"."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def ids_of(text: str) -> list[int]:
    """Return the token ids of plain text: one a byte."""
    return list(byte_tokenizer().encode(text, add_special_tokens=False).ids)


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer with one token a byte, and the chat markers."""
    vocab = {token: index for index, token in enumerate(BYTE_TOKENS)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def write_scripted_model(
    folder: Path, *, tokenizer: tokenizers.Tokenizer | None = None, **fields: Any
) -> Path:
    """Write a model folder for `--plugins sdk` and return it.

    Args:
        tokenizer: the byte tokenizer above when left out.
        fields: of `ScriptedConfig`, or any of config.json; `script` may be text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or byte_tokenizer()
    if isinstance(fields.get("script"), str):
        fields["script"] = tokenizer.encode(fields["script"], add_special_tokens=False).ids
    config = {
        "architectures": ["ScriptedForCausalLM"],
        "weight_format": "none",
        "vocab_size": tokenizer.get_vocab_size(),
        "eos_token_id": IM_END,
        "num_attention_heads": 1,
        "max_position_embeddings": 4096,
        "mode": "script" if "script" in fields else "hash",
        "hash_tokens": PRINTABLE_TOKENS,
        **fields,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}), encoding="utf-8"
    )
    return folder
