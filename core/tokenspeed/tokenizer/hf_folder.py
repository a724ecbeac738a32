"""The tokenizer files of a Hugging Face folder, read as transformers reads them.

tokenizer.json is the tokenizer and alone decides whether bos or eos surround a text (add_bos_token
of the config is older than it); tokenizer_config.json adds tokens and names bos and eos; the chat
template is chat_template.jinja or lies in the config.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers

from tokenspeed.checkpoint.json_file import read_optional_json_object, read_text
from tokenspeed.errors import ConfigError
from tokenspeed.tokenizer.config_fields import (
    NAMED_TOKENS,
    AddedEntry,
    added_entries,
    chat_template,
    end_ids,
    token_text,
)
from tokenspeed.tokenizer.library import library_errors
from tokenspeed.tokenizer.tokenizer import Tokenizer

CONFIG_FILE = "tokenizer_config.json"
_EXPECTED = "a tokenizer.json of the tokenizers library was expected; fetch it again"


def load(folder: Path, *, name: str) -> Tokenizer:
    """Build the tokenizer of `folder`.

    Raises:
        ConfigError: no tokenizer.json.
        CheckpointError: a file is not what its name says.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(
            f"cannot load a tokenizer from {folder}: tokenizer.json is missing; it is the only "
            "tokenizer file that is read; write it with transformers' save_pretrained()"
        )
    ends: list[int] = []
    for source in (folder / "generation_config.json", folder / "config.json"):
        ends += end_ids(read_optional_json_object(source), source)
    return assemble(
        read_text(file),
        read_optional_json_object(folder / CONFIG_FILE),
        file=file,
        name=name,
        ends=ends,
        template=_template_file(folder),
    )


def assemble(
    definition: str,
    config: dict[str, Any],
    *,
    file: Path,
    name: str,
    ends: list[int],
    template: str | None = None,
) -> Tokenizer:
    """Put a tokenizer together and try it once.

    Args:
        definition: content of tokenizer.json.
        config: content of tokenizer_config.json.
        file: where the definition comes from, for messages.
        ends: ids that end an answer, beside the config's eos_token.
        template: chat template that wins over the config's.
    Raises:
        CheckpointError: damaged; names the file.
    """
    config_file = file.with_name(CONFIG_FILE)
    entries = added_entries(config, config_file)
    named = {key: text for key in NAMED_TOKENS if (text := token_text(config, key, config_file))}
    template = chat_template(config, config_file) if template is None else template
    with library_errors(file, _EXPECTED):
        backend = tokenizers.Tokenizer.from_str(definition)
        _add_tokens(backend, entries, named)
        own_end = _token_id(backend, named.get("eos_token"))
        tokenizer = Tokenizer(
            backend,
            name=name,
            bos_token_id=_token_id(backend, named.get("bos_token")),
            eos_token_ids=tuple(dict.fromkeys(ends + ([] if own_end is None else [own_end]))),
            chat_template=template,
            special_tokens=named,
        )
        _try(tokenizer)
    return tokenizer


def _add_tokens(
    backend: tokenizers.Tokenizer, entries: list[AddedEntry], named: dict[str, str]
) -> None:
    """Add the config's tokens by id, then the named ones, where the backend lacks them."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    for entry in entries:
        if entry.content not in present:
            _add_token(backend, entry)
            present.add(entry.content)
    for content in named.values():
        if content not in present:
            backend.add_special_tokens([content])
            present.add(content)


def _add_token(backend: tokenizers.Tokenizer, entry: AddedEntry) -> None:
    token = tokenizers.AddedToken(entry.content, **entry.flags)
    if token.special:
        backend.add_special_tokens([token])
    else:
        backend.add_tokens([token])


def _token_id(backend: tokenizers.Tokenizer, content: str | None) -> int | None:
    token_id = backend.token_to_id(content) if content is not None else None
    return None if token_id is None else int(token_id)


def _try(tokenizer: Tokenizer) -> None:
    """Use every part once: what a damaged file breaks shall break here, not in a request."""
    ids = tokenizer.encode("Try 1, 2:\n caf\u00e9", add_special_tokens=False)
    tokenizer.decode(ids)
    _ = (tokenizer.affixes, tokenizer.decoder_kind, tokenizer.vocab_size)


def _template_file(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    return read_text(file) if file.exists() else None
