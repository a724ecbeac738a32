"""The tokenizer files of a Hugging Face folder, read as transformers reads them.

tokenizer.json is the tokenizer and alone decides whether bos or eos surround a text (add_bos_token
of the config is older than it); tokenizer_config.json adds tokens and names bos and eos; the chat
template is chat_template.jinja or lies in the config.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from tokenspeed.errors import CheckpointError, ConfigError
from tokenspeed.tokenizer.tokenizer import Tokenizer

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def load(folder: Path, *, name: str) -> Tokenizer:
    """Build the tokenizer of `folder`.

    Raises:
        ConfigError: no tokenizer.json.
        CheckpointError: a file is not what its name says.
    """
    backend = _read_backend(folder)
    config = _read_json(folder / "tokenizer_config.json")
    _add_tokens(backend, config)
    return Tokenizer(
        backend,
        name=name,
        bos_token_id=_token_id(backend, config, "bos_token"),
        eos_token_ids=_eos_token_ids(folder, backend, config),
        chat_template=_chat_template(folder, config),
        special_tokens={key: text for key in _NAMED_TOKENS if (text := _content(config, key))},
    )


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(
            f"cannot load a tokenizer from {folder}: tokenizer.json is missing; it is the only "
            "tokenizer file that is read; write it with transformers' save_pretrained()"
        )
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # The library raises bare Exception for any damage.
        raise CheckpointError(
            f"cannot load {file}: {error}; a tokenizer.json of the tokenizers library was expected;"
            " fetch it again"
        ) from error


def _read_json(file: Path) -> dict[str, Any]:
    """Return the object in `file`; a missing file is an empty object."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"cannot read {file}: {error}; a JSON object was expected; fetch it again"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"cannot read {file}: it holds a {type(content).__name__}; a JSON object was expected; "
            "fetch it again"
        )
    return content


def _add_tokens(backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Add the config's tokens by id, then the named ones, where the backend lacks them."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    entries = sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0]))
    for _, entry in entries:
        if entry["content"] not in present:
            _add_token(backend, entry)
            present.add(entry["content"])
    for key in _NAMED_TOKENS:
        content = _content(config, key)
        if content is not None and content not in present:
            backend.add_special_tokens([content])
            present.add(content)


def _add_token(backend: tokenizers.Tokenizer, entry: dict[str, Any]) -> None:
    flags = {flag: bool(entry[flag]) for flag in _FLAGS if flag in entry}
    token = tokenizers.AddedToken(entry["content"], **flags)
    if token.special:
        backend.add_special_tokens([token])
    else:
        backend.add_tokens([token])


def _content(config: dict[str, Any], key: str) -> str | None:
    value = config.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _token_id(backend: tokenizers.Tokenizer, config: dict[str, Any], key: str) -> int | None:
    content = _content(config, key)
    token_id = backend.token_to_id(content) if content is not None else None
    return None if token_id is None else int(token_id)


def _eos_token_ids(
    folder: Path, backend: tokenizers.Tokenizer, config: dict[str, Any]
) -> tuple[int, ...]:
    """Collect from generation_config.json, config.json and the tokenizer, in that order."""
    found: list[int] = []
    for file in ("generation_config.json", "config.json"):
        value = _read_json(folder / file).get("eos_token_id")
        found += value if isinstance(value, list) else [value] if isinstance(value, int) else []
    own = _token_id(backend, config, "eos_token")
    return tuple(dict.fromkeys(found + ([own] if own is not None else [])))


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    value = config.get("chat_template")
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value}
        value = named.get("default")
    return value if isinstance(value, str) else None
