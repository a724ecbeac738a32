"""From a request's messages or prompt to token ids, checked against the model's limits.

Rendering and encoding run off the event loop; text seen before is not encoded again
(`tokenizer/incremental.py`).
"""

from __future__ import annotations

import asyncio
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed.errors import RequestError
from tokenspeed.server.conversation.rendering import template_messages, template_tools
from tokenspeed.server.http.field_limits import FieldLimits
from tokenspeed.server.http.fields import shorten
from tokenspeed.tokenizer.id_arrays import extend_ids
from tokenspeed.tokenizer.lengths import max_token_chars
from tokenspeed.tokenizer.reuse_points import reuse_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.contracts.conversation import Conversation
    from tokenspeed.engine.messages import ModelInfo
    from tokenspeed.server.conversation.next_turn import NextTurn
    from tokenspeed.tokenizer.chat import ChatTemplate
    from tokenspeed.tokenizer.incremental import EncodeCache
    from tokenspeed.tokenizer.tokenizer import Tokenizer

MAX_TOKENIZED_CHARS = 1 << 20
"""What /tokenize takes at least, however small the context is."""
RENDER_THREADS = 2
_INLINE_IDS = 4096
"""More are checked in a thread."""
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine takes it.

    Args:
        token_ids: int32 array; at least one token.
        text: the prompt as the client gave it; None when it came as token ids.
        reuse_points: positions where a later turn may start again; for models with snapshots.
        next_turn: where its answers are remembered; None: nowhere.
    """

    token_ids: array[int]
    text: str | None
    reuse_points: tuple[int, ...] = ()
    next_turn: NextTurn | None = None


class PromptReader:
    """Turns requests into Prompts for one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        template: ChatTemplate | None,
        cache: EncodeCache,
        model: ModelInfo,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._cache = cache
        self._model = model
        self._limits = FieldLimits(model.max_prompt_tokens, model.max_context_tokens)
        self._max_chars = model.max_prompt_tokens * max_token_chars(tokenizer.backend)
        # Threads of their own: a template that works for seconds keeps no other work waiting.
        self._renderers = ThreadPoolExecutor(RENDER_THREADS, "render")

    @property
    def template_reads(self) -> frozenset[str]:
        """Return the names of the variables that the chat template uses."""
        return self._template.reads if self._template is not None else frozenset()

    async def chat(self, conversation: Conversation) -> Prompt:
        """Render the conversation and encode it."""
        text = await self.render(conversation)
        self._check_chars(text, "messages", self._max_chars)
        ids = self._checked(await self._encode(text, add_special_tokens=False), "messages")
        if not self._model.has_snapshots:
            return Prompt(ids, text)
        offsets = await self.reuse_offsets(conversation, text)
        return Prompt(ids, text, self._cache.token_positions(text, offsets))

    async def reuse_offsets(self, conversation: Conversation, text: str) -> tuple[int, ...]:
        """Return where later turns may start in what a conversation was rendered to."""
        assert self._template is not None, "the text was rendered by it"
        find = partial(_reuse_offsets, self._template, conversation, text)
        return await asyncio.get_running_loop().run_in_executor(self._renderers, find)

    def token_positions(self, text: str, offsets: Sequence[int]) -> tuple[int, ...]:
        """Return how many tokens stand before each offset of a text that was encoded."""
        return self._cache.token_positions(text, offsets)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a few tokens, special ones included."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def begins_special(self, text: str) -> bool:
        """Say whether a text begins with a token before which it may be cut and encoded apart."""
        return self._cache.begins_piece(text)

    async def render(
        self, conversation: Conversation, *, add_generation_prompt: bool = True
    ) -> str:
        """Return the text that the chat template makes of a conversation."""
        if self._template is None:
            raise RequestError(
                f"model {self._model.name} has no chat template, so messages cannot be rendered; "
                "use /v1/completions with a prompt",
                param="messages",
            )
        for name in sorted(_RESERVED & conversation.template_kwargs.keys()):
            raise RequestError(
                f"chat_template_kwargs holds {name!r}, which the server sets itself; remove it",
                param="chat_template_kwargs",
            )
        render = partial(
            _rendered, self._template, conversation, add_generation_prompt=add_generation_prompt
        )
        return await asyncio.get_running_loop().run_in_executor(self._renderers, render)

    async def plain(
        self, prompts: Sequence[str | list[int] | array[int]], *, param: str = "prompt"
    ) -> list[Prompt]:
        """Return the prompts of a plain completion, in order.

        Args:
            param: the field that holds them.
        """
        taken = []
        for item in prompts:
            taken.append(await self._one(item, param))
            await asyncio.sleep(0)  # many prompts of many ids must not hold the loop
        return taken

    async def encode(self, text: str, *, add_special_tokens: bool) -> array[int]:
        """Encode plain text for /tokenize; an empty result is fine."""
        self._check_chars(text, "prompt", max(self._max_chars, MAX_TOKENIZED_CHARS))
        return await self._encode(text, add_special_tokens=add_special_tokens)

    async def _one(self, item: str | list[int] | array[int], param: str) -> Prompt:
        if isinstance(item, str):
            # "" is empty even where a tokenizer would put a token before it.
            self._check_chars(item, param, self._max_chars)
            ids = await self._encode(item, add_special_tokens=True) if item else array("i")
            return Prompt(self._checked(ids, param), item)
        self._limits.check_prompt_tokens(len(item), param)
        if len(item) <= _INLINE_IDS:
            ids = token_array(item, self._model.vocab_size, param)
        else:
            ids = await asyncio.to_thread(token_array, item, self._model.vocab_size, param)
        return Prompt(self._checked(ids, param), None)

    async def _encode(self, text: str, *, add_special_tokens: bool) -> array[int]:
        return await self._cache.encode_async(text, add_special_tokens=add_special_tokens)

    def _checked(self, ids: array[int], param: str) -> array[int]:
        if not ids:
            raise RequestError(
                f"{param} is empty: 0 tokens, at least 1 is needed; send some text", param=param
            )
        self._limits.check_prompt_tokens(len(ids), param)
        return ids

    def _check_chars(self, text: str, param: str, most: int) -> None:
        """Refuse by arithmetic what would take seconds to encode and could never fit."""
        if len(text) > most:
            # No text of n characters has fewer tokens than this.
            least = -(-len(text) // max_token_chars(self._tokenizer.backend))
            self._limits.check_prompt_tokens(least, param)


def token_array(ids: list[int] | array[int], vocab_size: int, param: str) -> array[int]:
    """Return ids as an int32 array; refuse those outside the vocabulary."""
    check_token_ids(ids, vocab_size, param)
    if isinstance(ids, array):
        return ids
    taken = array("i")
    extend_ids(taken, ids)
    return taken


def check_token_ids(ids: list[int] | array[int], vocab_size: int, param: str) -> None:
    """Refuse token ids outside the vocabulary."""
    if isinstance(ids, array):
        # Without their signs, negative ids are larger than any vocabulary.
        outside = np.flatnonzero(np.frombuffer(ids, np.uint32) >= vocab_size)
        bad = ids[outside[0]] if len(outside) else None
    else:
        bad = next((token for token in ids if not 0 <= token < vocab_size), None)
    if bad is not None:
        raise RequestError(
            f"{param} holds token id {shorten(bad)}, allowed is [0, {vocab_size - 1}]; change it",
            param=param,
        )


def _rendered(
    template: ChatTemplate, conversation: Conversation, *, add_generation_prompt: bool
) -> str:
    messages, variables = _inputs(template, conversation)
    return template.render(messages, add_generation_prompt=add_generation_prompt, **variables)


def _reuse_offsets(
    template: ChatTemplate, conversation: Conversation, text: str
) -> tuple[int, ...]:
    messages, variables = _inputs(template, conversation)
    return reuse_offsets(template, messages, text, **variables)


def _inputs(
    template: ChatTemplate, conversation: Conversation
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return what a template is given of a conversation: its messages, and its variables."""
    messages = template_messages(conversation.messages, argument_text=template.reads_argument_text)
    tools = template_tools(conversation.tools)
    return messages, {"tools": tools, **conversation.template_kwargs}
