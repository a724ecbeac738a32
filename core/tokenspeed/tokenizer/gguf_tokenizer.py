"""A GGUF file's tokenizer as the tokenizer files of a Hugging Face folder, made once and cached.

A GGUF names its tokenizer (`tokenizer.ggml.model`) and its way of splitting text
(`tokenizer.ggml.pre`) and carries the vocabulary; the rest is rebuilt here. The cache is keyed by
the header's bytes, so that a second start only reads tokenizer.json.
Source: transformers' own conversion (integrations/gguf), to which the tokens are identical. It
splits `smollm` as GPT-2 does, although the published tokenizer isolates digits first.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from tokenspeed.checkpoint.gguf import GgufHeader
from tokenspeed.env import cache_dir
from tokenspeed.errors import CheckpointError, ConfigError, TokenSpeedError
from tokenspeed.tokenizer.pieces import BYTE_OF_CHAR, SPM_SPACE, byte_level_spelling
from tokenspeed.tokenizer.splits import SPLITS

# Part of the cache key: raise it whenever the same header would be converted differently.
CONVERSION = 1

_CONTROL, _USER_DEFINED = 3, 4
_KEY = "tokenizer.ggml."
_NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def converted_folder(path: Path) -> Path:
    """Return the cached folder with the tokenizer files of a .gguf, converting it at first.

    Raises:
        ConfigError: a tokenizer or pre-tokenizer name that is not supported.
        CheckpointError: the header is damaged, or has no vocabulary.
    """
    header = GgufHeader.read(path)
    folder = cache_dir() / "tokenizers" / _digest(header)
    if not (folder / "tokenizer.json").is_file():
        _write(folder, _checked_backend(header), header.metadata)
    return folder


def _checked_backend(header: GgufHeader) -> Tokenizer:
    try:
        return build_backend(header)
    except TokenSpeedError:
        raise
    except Exception as error:  # The library raises bare Exception, wrong types raise anything.
        raise CheckpointError(
            f"cannot use the tokenizer of {header.path}: {error}; tokens, merges, scores and types "
            "that fit each other were expected; convert the model again"
        ) from error


def build_backend(header: GgufHeader) -> Tokenizer:
    """Build the library's tokenizer from a header's metadata."""
    metadata = header.metadata
    kind = metadata.get(_KEY + "model")
    tokens = metadata.get(_KEY + "tokens")
    if kind not in ("gpt2", "llama"):
        raise ConfigError(
            f'cannot use the tokenizer of {header.path}: its model is "{kind}"; supported are gpt2 '
            "and llama; use the model's Hugging Face folder with tokenizer.json"
        )
    if not tokens:
        raise CheckpointError(
            f"cannot use the tokenizer of {header.path}: {_KEY}tokens is missing or empty; a "
            "vocabulary was expected; convert the model again"
        )
    backend = _byte_level(header, tokens) if kind == "gpt2" else _spm(metadata, tokens)
    _add_tokens(backend, metadata, tokens)
    _wrap_texts(backend, metadata, tokens, is_spm=kind == "llama")
    return backend


def _byte_level(header: GgufHeader, tokens: list[str]) -> Tokenizer:
    metadata = header.metadata
    pre = metadata.get(_KEY + "pre", "default")
    if pre not in SPLITS:
        raise ConfigError(
            f'cannot use the tokenizer of {header.path}: its pre-tokenizer is "{pre}"; supported '
            f"are {', '.join(SPLITS)}; use the model's Hugging Face folder with tokenizer.json"
        )
    control = _of_type(metadata, tokens, _CONTROL)
    vocab = {_spelled(token, control): index for index, token in enumerate(tokens)}
    merges = [_pair(merge) for merge in metadata.get(_KEY + "merges", [])]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = _pre_tokenizer(SPLITS[pre])
    backend.decoder = decoders.ByteLevel()
    return backend


def _spelled(token: str, control: set[str]) -> str:
    """Return an entry in the byte alphabet; control tokens are matched as they stand."""
    if token in control or BYTE_OF_CHAR.keys() >= set(token):
        return token
    return byte_level_spelling(token)


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _pre_tokenizer(split: str | None) -> pre_tokenizers.PreTokenizer:
    if split is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _spm(metadata: Mapping[str, Any], tokens: list[str]) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    stored = metadata.get(_KEY + "merges")
    scores = metadata.get(_KEY + "scores") or [0.0] * len(tokens)
    merges = [_pair(merge) for merge in stored] if stored else _merges_from_scores(vocab, scores)
    has_prefix = bool(metadata.get(_KEY + "add_space_prefix", True))
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=SPM_SPACE, prepend_scheme="first" if has_prefix else "never", split=False
    )
    steps = [decoders.Replace(SPM_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges_from_scores(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Recover SentencePiece's merge order: a better score merges earlier, then longer parts."""
    found: list[tuple[float, str, str]] = []
    for piece, index in vocab.items():
        pairs = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab]
        known.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        found += [(scores[index], left, right) for left, right in known]
    found.sort(key=lambda entry: (entry[0], len(entry[1]), len(entry[2])), reverse=True)
    return [(left, right) for _, left, right in found]


def _add_tokens(backend: Tokenizer, metadata: Mapping[str, Any], tokens: list[str]) -> None:
    """Keep control and user-defined tokens whole wherever they stand in a text."""
    named = [_token_at(metadata, tokens, key) for key in _NAMED_TOKENS.values()]
    special = _of_type(metadata, tokens, _CONTROL) | {token for token in named if token is not None}
    user_defined = _of_type(metadata, tokens, _USER_DEFINED) - special
    order = {token: index for index, token in enumerate(tokens)}
    backend.add_special_tokens(
        [AddedToken(token, normalized=False) for token in sorted(special, key=order.__getitem__)]
    )
    # A respelled entry of a byte-level vocabulary is reached through merges only.
    whole = [token for token in tokens if token in user_defined]
    known = [token for token in whole if backend.token_to_id(token) is not None]
    backend.add_tokens([AddedToken(token, normalized=False) for token in known])


def _wrap_texts(
    backend: Tokenizer, metadata: Mapping[str, Any], tokens: list[str], *, is_spm: bool
) -> None:
    """Put bos before and eos behind every text where the file says so."""
    # Files from before the flag: a SentencePiece vocabulary begins every text with bos.
    has_bos = metadata.get(_KEY + "add_bos_token", is_spm)
    bos = _token_at(metadata, tokens, "bos_token_id") if has_bos else None
    has_eos = metadata.get(_KEY + "add_eos_token", False)
    eos = _token_at(metadata, tokens, "eos_token_id") if has_eos else None
    parts = [bos and f"{bos}:0", "$A:0", eos and f"{eos}:0"]
    backend.post_processor = processors.TemplateProcessing(
        single=[part for part in parts if part],
        special_tokens=[(token, backend.token_to_id(token)) for token in (bos, eos) if token],
    )


def _of_type(metadata: Mapping[str, Any], tokens: list[str], token_type: int) -> set[str]:
    types = metadata.get(_KEY + "token_type") or ()
    return {token for token, own in zip(tokens, types, strict=False) if own == token_type}


def _token_at(metadata: Mapping[str, Any], tokens: list[str], key: str) -> str | None:
    index = metadata.get(_KEY + key)
    return tokens[index] if index is not None and 0 <= index < len(tokens) else None


def _digest(header: GgufHeader) -> str:
    """Hash the bytes in front of the tensors: they hold all that the tokenizer depends on."""
    digest = hashlib.sha256(f"{CONVERSION}".encode())
    with header.path.open("rb") as file:
        digest.update(file.read(header.data_offset))
    return digest.hexdigest()[:32]


def _write(folder: Path, backend: Tokenizer, metadata: Mapping[str, Any]) -> None:
    """Write the files beside `folder` and move them there, so that no reader sees a half."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent))
    values = [metadata.get(_KEY + key) for key in _END_KEYS]
    ends = [value for value in values if isinstance(value, int)]
    _write_json(staging / "tokenizer_config.json", _config(metadata))
    _write_json(staging / "generation_config.json", {"eos_token_id": list(dict.fromkeys(ends))})
    backend.save(str(staging / "tokenizer.json"), pretty=False)
    try:
        staging.rename(folder)
    except OSError:
        # Another process was first: its folder holds the same bytes.
        shutil.rmtree(staging)
        if not (folder / "tokenizer.json").is_file():
            raise


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    tokens = metadata[_KEY + "tokens"]
    config = {name: _token_at(metadata, tokens, key) for name, key in _NAMED_TOKENS.items()}
    return {**config, "chat_template": metadata.get("tokenizer.chat_template")}


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")
