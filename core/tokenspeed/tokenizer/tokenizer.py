"""One model's tokenizer: text to ids, ids to text, special ids, chat template source.

A thin face over the `tokenizers` library, loaded from a Hugging Face folder (`hf_folder.py`) or a
GGUF file (`gguf_tokenizer.py`). Streaming and chat are elsewhere; nothing here knows a request.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

# Its thread pool would gain nothing on single texts, and warns whenever the process forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tokenizers

from tokenspeed.errors import ConfigError, RequestError
from tokenspeed.tokenizer.pieces import piece_bytes


class Tokenizer:
    """Immutable after loading but for what it has looked up; safe to share between threads.

    Args:
        backend: the library's tokenizer, special tokens already added.
        name: folder or file name, for messages.
        bos_token_id: beginning of sequence, or None.
        eos_token_ids: every id that ends an answer, most specific source first.
        chat_template: Jinja source, or None.
        special_tokens: texts by role such as "bos_token", which chat templates read.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        name: str,
        bos_token_id: int | None = None,
        eos_token_ids: tuple[int, ...] = (),
        chat_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.name = name
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens or {})
        self._spelled: dict[int, bytes] = {}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`; special tokens spelled in it become their ids.

        Raises:
            RequestError: `text` holds a lone surrogate, which no UTF-8 text can.
        """
        try:
            # Of the library's ways to encode only the batch ones release the interpreter.
            encodings = self.backend.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
            ids: list[int] = encodings[0].ids
            return ids
        except (UnicodeError, TypeError) as error:
            raise RequestError(
                f"cannot encode the text: it holds a lone surrogate ({_surrogate(text)}); only "
                "valid Unicode is allowed; send the character itself or its full surrogate pair"
            ) from error

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; ids outside the vocabulary spell nothing."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_text(self, token_id: int) -> str:
        """Return what one token spells alone; bytes that are no character become U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes one token spells inside a text."""
        spelled = self._spelled.get(token_id)
        if spelled is None:
            piece = self.backend.id_to_token(token_id)
            spelled = b"" if piece is None else piece_bytes(piece, self.decoder_kind)
            if piece is not None:
                self._spelled[token_id] = spelled
        return spelled

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return int(max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)) + 1

    @cached_property
    def added_tokens(self) -> dict[int, str]:
        """Id -> text of the tokens that are matched whole, special or not."""
        added = self.backend.get_added_tokens_decoder()
        return {int(token_id): str(token.content) for token_id, token in added.items()}

    def ids_from(self, first_id: int) -> list[int]:
        """Return the ids from `first_id` on that a text can get, in order."""
        vocabulary = self.backend.get_vocab(with_added_tokens=True).values()
        return sorted({int(token_id) for token_id in vocabulary if token_id >= first_id})

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` leaves out."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def affixes(self) -> tuple[list[int], list[int]]:
        """Ids that `add_special_tokens` puts before and behind every text."""
        bare = self.encode("a", add_special_tokens=False)
        full = self.encode("a", add_special_tokens=True)
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
        raise ConfigError(
            f"cannot use the tokenizer of {self.name}: its post-processor turns {bare} into {full};"
            " only tokens before and behind the text are supported; fix tokenizer.json"
        )

    @cached_property
    def decoder_kind(self) -> str:
        """How tokens spell text: "bytes" (byte-level), "spm" (byte fallback) or "other"."""
        steps = self._decoder_steps
        kinds = [step["type"] for step in steps]
        if kinds == ["ByteLevel"]:
            return "bytes"
        return "spm" if _is_spm(steps, kinds) else "other"

    @cached_property
    def decoder_strips_space(self) -> bool:
        """Whether decoding takes one space off the head of a text ("spm" only)."""
        return any(step["type"] == "Strip" for step in self._decoder_steps)

    @cached_property
    def _decoder_steps(self) -> list[dict[str, Any]]:
        decoder = self.backend.decoder
        state = json.loads(decoder.__getstate__()) if decoder is not None else {"type": "none"}
        return list(state.get("decoders", [state]))


def _surrogate(text: str) -> str:
    found = next((char for char in text if "\ud800" <= char <= "\udfff"), "")
    return ascii(found)


def _is_spm(steps: list[dict[str, Any]], kinds: list[str]) -> bool:
    """Say whether the decoder is Replace, ByteFallback, Fuse and at most one left Strip(" ")."""
    if kinds[:3] != ["Replace", "ByteFallback", "Fuse"]:
        return False
    replace = steps[0]
    if replace["pattern"] != {"String": "\u2581"} or replace["content"] != " ":
        return False
    strips = [(step.get("content"), step.get("start"), step.get("stop")) for step in steps[3:]]
    return kinds[3:] in ([], ["Strip"]) and strips in ([], [(" ", 1, 0)])
