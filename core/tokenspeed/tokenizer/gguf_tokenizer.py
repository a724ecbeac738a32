"""A GGUF file's tokenizer as a Hugging Face folder would spell it, converted once and cached.

A GGUF names its tokenizer (`tokenizer.ggml.model`) and its way of splitting text
(`tokenizer.ggml.pre`) and carries the vocabulary; the rest is rebuilt here. The cache is keyed by
the header's bytes, so that a second start converts nothing.
Source: transformers' own conversion (integrations/gguf), to which the tokens are identical. It
splits `smollm` as GPT-2 does, although the published tokenizer isolates digits first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from tokenspeed.checkpoint.gguf import GgufHeader
from tokenspeed.checkpoint.json_file import shown
from tokenspeed.errors import CheckpointError, ConfigError
from tokenspeed.tokenizer import converted_cache, hf_folder
from tokenspeed.tokenizer.converted_cache import Converted
from tokenspeed.tokenizer.library import library_errors
from tokenspeed.tokenizer.pieces import BYTE_OF_CHAR, SPM_SPACE, byte_level_spelling
from tokenspeed.tokenizer.splits import SPLITS
from tokenspeed.tokenizer.tokenizer import Tokenizer

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
_NO_TOKEN = 0xFFFFFFFF
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def load(path: Path, *, name: str) -> Tokenizer:
    """Build the tokenizer of a .gguf file, converting it where the cache has no whole conversion.

    Raises:
        ConfigError: a tokenizer or pre-tokenizer name that is not supported.
        CheckpointError: the header is damaged, or has no vocabulary.
    """
    header = GgufHeader.read(path)
    file = converted_cache.cache_file(_digest(header))
    kept = converted_cache.read(file)
    converted = kept or _convert(header)
    tokenizer = hf_folder.assemble(
        converted.definition, converted.config, file=path, name=name, ends=converted.ends
    )
    if kept is None:
        converted_cache.write(file, converted)
    return tokenizer


def _convert(header: GgufHeader) -> Converted:
    with library_errors(
        header.path,
        "tokens, merges, scores and types that fit each other were expected; convert the model "
        "again",
    ):
        backend = build_backend(header)
        tokens = header.metadata[_KEY + "tokens"]
        ends = [_index_of(header, tokens, key) for key in _END_KEYS]
        return Converted(
            definition=backend.to_str(),
            config=_config(header, tokens),
            ends=list(dict.fromkeys(index for index in ends if index is not None)),
        )


def build_backend(header: GgufHeader) -> tokenizers.Tokenizer:
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
    _add_tokens(backend, header, tokens)
    _wrap_texts(backend, header, tokens, is_spm=kind == "llama")
    return backend


def _byte_level(header: GgufHeader, tokens: list[str]) -> tokenizers.Tokenizer:
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
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
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


def _spm(metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    stored = metadata.get(_KEY + "merges")
    scores = metadata.get(_KEY + "scores") or [0.0] * len(tokens)
    merges = [_pair(merge) for merge in stored] if stored else _merges_from_scores(vocab, scores)
    has_prefix = bool(metadata.get(_KEY + "add_space_prefix", True))
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True)
    )
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


def _add_tokens(backend: tokenizers.Tokenizer, header: GgufHeader, tokens: list[str]) -> None:
    """Keep control and user-defined tokens whole wherever they stand in a text."""
    metadata = header.metadata
    named = [_token_at(header, tokens, key) for key in _NAMED_TOKENS.values()]
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
    backend: tokenizers.Tokenizer, header: GgufHeader, tokens: list[str], *, is_spm: bool
) -> None:
    """Put bos before and eos behind every text where the file says so."""
    metadata = header.metadata
    # Files from before the flag: a SentencePiece vocabulary begins every text with bos.
    has_bos = metadata.get(_KEY + "add_bos_token", is_spm)
    bos = _token_at(header, tokens, "bos_token_id") if has_bos else None
    has_eos = metadata.get(_KEY + "add_eos_token", False)
    eos = _token_at(header, tokens, "eos_token_id") if has_eos else None
    parts = [bos and f"{bos}:0", "$A:0", eos and f"{eos}:0"]
    backend.post_processor = processors.TemplateProcessing(
        single=[part for part in parts if part],
        special_tokens=[(token, backend.token_to_id(token)) for token in (bos, eos) if token],
    )


def _of_type(metadata: Mapping[str, Any], tokens: list[str], token_type: int) -> set[str]:
    types = metadata.get(_KEY + "token_type") or ()
    return {token for token, own in zip(tokens, types, strict=False) if own == token_type}


def _token_at(header: GgufHeader, tokens: list[str], key: str) -> str | None:
    index = _index_of(header, tokens, key)
    return None if index is None else tokens[index]


def _index_of(header: GgufHeader, tokens: list[str], key: str) -> int | None:
    """Return a token id that the file names; None where it names none, also written as -1."""
    index = header.metadata.get(_KEY + key)
    if index is None or index in (-1, _NO_TOKEN):
        return None
    num_tokens = len(tokens)
    if type(index) is not int or not 0 <= index < num_tokens:
        raise CheckpointError(
            f"cannot use the tokenizer of {header.path}: {_KEY}{key} is {shown(index)}; a token id "
            f"from 0 to {num_tokens - 1} was expected; convert the model again"
        )
    return index


def _digest(header: GgufHeader) -> str:
    """Hash the bytes in front of the tensors: they hold all that the tokenizer depends on."""
    digest = hashlib.sha256(f"{CONVERSION}".encode())
    with header.path.open("rb") as file:
        digest.update(file.read(min(header.data_offset, header.file_bytes)))
    return digest.hexdigest()[:32]


def _config(header: GgufHeader, tokens: list[str]) -> dict[str, Any]:
    config = {name: _token_at(header, tokens, key) for name, key in _NAMED_TOKENS.items()}
    return {**config, "chat_template": header.metadata.get("tokenizer.chat_template")}
