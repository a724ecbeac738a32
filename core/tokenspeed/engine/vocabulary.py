"""Whether a tokenizer and a model belong together, and what its tokens spell for grammars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from tokenspeed.contracts.grammar import GrammarVocabulary
from tokenspeed.errors import CheckpointError
from tokenspeed.log import LOGGER
from tokenspeed.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.tokenizer import Tokenizer


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    """Check the tokenizer's ids against the model's vocabulary; return those that end an answer.

    Some models name an added token, for padding, that they never trained: a warning. An id that
    plain text, the chat template or the end of an answer needs must be there.

    Raises:
        CheckpointError: it is not; names the ids.
    """
    for name, ids in (
        ("eos_token_id", tokenizer.eos_token_ids),
        ("what surrounds every text", (*tokenizer.affixes[0], *tokenizer.affixes[1])),
    ):
        wrong = [token_id for token_id in ids if token_id >= vocab_size]
        if wrong:
            raise _misfit(tokenizer, f"{name} has id {wrong[0]}", vocab_size)
    if tokenizer.vocab_size <= vocab_size:
        return tokenizer.eos_token_ids
    added = tokenizer.added_tokens
    beyond = tokenizer.ids_from(vocab_size)
    for token_id in beyond:
        if token_id not in added:
            raise _misfit(
                tokenizer, f"it makes id {token_id} and {len(beyond) - 1} more", vocab_size
            )
        if added[token_id] in (tokenizer.chat_template or ""):
            said = f"the chat template needs {added[token_id]!r} with id {token_id}"
            raise _misfit(tokenizer, said, vocab_size)
    LOGGER.warning(
        "the tokenizer of %s has tokens that the model lacks (%d ids, vocab_size is %d): %s; texts "
        "that spell them are refused",
        tokenizer.name, len(beyond), vocab_size, ", ".join(added[i] for i in beyond[:5]),
    )  # fmt: skip
    return tokenizer.eos_token_ids


def grammar_vocabulary(path: Path, tokenizer: Tokenizer, vocab_size: int) -> GrammarVocabulary:
    """Return what a grammar engine reads; the tokenizer is loaded again when it does."""
    special = frozenset(token for token in tokenizer.special_token_ids if token < vocab_size)
    return GrammarVocabulary(
        token_bytes=_TokenBytes(path, vocab_size),
        stop_token_ids=tokenizer.eos_token_ids,
        special_token_ids=special,
        special_texts={token: tokenizer.token_text(token) for token in special},
        backend_json=lambda: load_tokenizer(path).backend.to_str(),
    )


class _TokenBytes(Sequence[bytes]):
    """What each id adds to a text. Spelled at the first look, so that a start does not wait."""

    def __init__(self, path: Path, vocab_size: int) -> None:
        self._path = path
        self._size = vocab_size
        self._spelled: list[bytes] = []

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if not self._spelled:
            self._spelled = _spell(load_tokenizer(self._path), self._size)
        return self._spelled[index]


def _spell(tokenizer: Tokenizer, size: int) -> list[bytes]:
    silent = tokenizer.special_token_ids | set(tokenizer.eos_token_ids)
    return [b"" if token in silent else tokenizer.token_bytes(token) for token in range(size)]


def _misfit(tokenizer: Tokenizer, said: str, vocab_size: int) -> CheckpointError:
    return CheckpointError(
        f"the tokenizer of {tokenizer.name} does not fit the model: {said}; the model's vocab_size "
        f"is {vocab_size}, so that ids from 0 to {vocab_size - 1} are allowed; use tokenizer files "
        "and config.json of one checkpoint"
    )
