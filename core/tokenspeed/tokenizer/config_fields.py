"""The fields of a tokenizer's JSON files, each checked before the library sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenspeed.checkpoint.json_file import shown
from tokenspeed.errors import CheckpointError

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
MAX_TOKEN_ID = 2**31 - 1
"""Token ids are int32 wherever they travel."""

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class AddedEntry:
    """One token of added_tokens_decoder."""

    token_id: int
    content: str
    flags: dict[str, bool]


def added_entries(config: dict[str, Any], file: Path) -> list[AddedEntry]:
    """Return the tokens of added_tokens_decoder by id.

    Raises:
        CheckpointError: not an object of id -> {"content": text}.
    """
    value = _given(config, "added_tokens_decoder", {})
    if not isinstance(value, dict):
        raise _wrong(file, "added_tokens_decoder", value, "an object of id -> token")
    entries = [_entry(key, item, file) for key, item in value.items()]
    return sorted(entries, key=lambda entry: entry.token_id)


def token_text(config: dict[str, Any], key: str, file: Path) -> str | None:
    """Return the text of a token that the config names, None where it names none.

    Raises:
        CheckpointError: neither text nor an object with text in "content".
    """
    value = config.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise _wrong(file, key, value, 'text, or an object with text in "content"')
    return _checked_text(file, key, text) or None


def end_ids(config: dict[str, Any], file: Path) -> list[int]:
    """Return eos_token_id: none, one or several.

    Raises:
        CheckpointError: something else than token ids.
    """
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id <= MAX_TOKEN_ID:
            raise _wrong(file, "eos_token_id", value, f"token ids from 0 to {MAX_TOKEN_ID}")
    return list(ids)


def chat_template(config: dict[str, Any], file: Path) -> str | None:
    """Return the config's chat template; of several named ones the default.

    Raises:
        CheckpointError: neither text nor a list of named texts.
    """
    value = config.get("chat_template")
    if isinstance(value, list):
        if not all(isinstance(entry, dict) for entry in value):
            raise _wrong(file, "chat_template", value, "text, or a list of objects")
        value = next(
            (item.get("template") for item in value if item.get("name") == "default"), None
        )
    if value is not None and not isinstance(value, str):
        raise _wrong(file, "chat_template", value, "text, or a list of named texts")
    return _checked_text(file, "chat_template", value)


def _entry(key: str, item: Any, file: Path) -> AddedEntry:
    place = f"added_tokens_decoder[{shown(key)}]"
    if not (key.isascii() and key.isdecimal() and len(key) <= 10 and int(key) <= MAX_TOKEN_ID):
        raise _wrong(file, "added_tokens_decoder", key, f"token ids from 0 to {MAX_TOKEN_ID}")
    content = item.get("content") if isinstance(item, dict) else None
    if not isinstance(content, str) or not content:
        raise _wrong(file, place, item, 'an object with text in "content"')
    _checked_text(file, place, content)
    flags = {flag: bool(item[flag]) for flag in _FLAGS if flag in item}
    return AddedEntry(int(key), content, flags)


def _checked_text(file: Path, key: str, text: str | None) -> str | None:
    if text is not None and any("\ud800" <= char <= "\udfff" for char in text):
        raise _wrong(file, key, text, "text without lone surrogates")
    return text


def _given(config: dict[str, Any], key: str, default: Any) -> Any:
    value = config.get(key)
    return default if value is None else value


def _wrong(file: Path, key: str, value: object, allowed: str) -> CheckpointError:
    return CheckpointError(
        f"cannot use {file}: {key} is {shown(value)}, expected: {allowed}; correct the file or "
        "fetch it again"
    )
