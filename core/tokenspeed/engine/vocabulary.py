"""Whether a tokenizer and a model belong together: every id it makes must have an embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import CheckpointError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
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


def _misfit(tokenizer: Tokenizer, said: str, vocab_size: int) -> CheckpointError:
    return CheckpointError(
        f"the tokenizer of {tokenizer.name} does not fit the model: {said}; the model's vocab_size "
        f"is {vocab_size}, so that ids from 0 to {vocab_size - 1} are allowed; use tokenizer files "
        "and config.json of one checkpoint"
    )
