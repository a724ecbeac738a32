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

from tokenspeed.engine import submits
from tokenspeed.errors import RequestError
from tokenspeed.server.http.field_limits import MAX_PROMPTS, FieldLimits
from tokenspeed.server.http.fields import shorten
from tokenspeed.tokenizer.lengths import max_token_chars
from tokenspeed.tokenizer.reuse_points import reuse_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.engine.messages import ModelInfo
    from tokenspeed.server.openai.schemas import ChatMessage, ChatRequest, CompletionRequest
    from tokenspeed.tokenizer.chat import ChatTemplate
    from tokenspeed.tokenizer.incremental import EncodeCache
    from tokenspeed.tokenizer.tokenizer import Tokenizer

MAX_TOKENIZED_CHARS = 1 << 20
"""What /tokenize takes at least, however small the context is."""
RENDER_THREADS = 2
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine takes it.

    Args:
        token_ids: int32 array; at least one token.
        text: the prompt as the client gave it; None when it came as token ids.
        reuse_points: positions where a later turn may start again; for models with snapshots.
    """

    token_ids: array[int]
    text: str | None
    reuse_points: tuple[int, ...] = ()


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

    async def chat(self, request: ChatRequest) -> Prompt:
        """Render the conversation and encode it."""
        text = await self.render(request.messages, request.chat_template_kwargs)
        self._check_chars(text, "messages", self._max_chars)
        ids = self._checked(await self._encode(text, add_special_tokens=False), "messages")
        if not self._model.has_snapshots:
            return Prompt(ids, text)
        assert self._template is not None, "the text was rendered by it"
        messages = [_message(item) for item in request.messages]
        find = partial(
            reuse_offsets, self._template, messages, text, **request.chat_template_kwargs
        )
        offsets = await asyncio.get_running_loop().run_in_executor(self._renderers, find)
        return Prompt(ids, text, self._cache.token_positions(text, offsets))

    async def render(
        self,
        messages: Sequence[ChatMessage],
        template_kwargs: dict[str, Any],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the text that the chat template makes of messages."""
        if self._template is None:
            raise RequestError(
                f"model {self._model.name} has no chat template, so messages cannot be rendered; "
                "use /v1/completions with a prompt",
                param="messages",
            )
        for name in sorted(_RESERVED & template_kwargs.keys()):
            raise RequestError(
                f"chat_template_kwargs holds {name!r}, which the server sets itself; remove it",
                param="chat_template_kwargs",
            )
        render = partial(
            self._template.render,
            [_message(item) for item in messages],
            add_generation_prompt=add_generation_prompt,
            **template_kwargs,
        )
        return await asyncio.get_running_loop().run_in_executor(self._renderers, render)

    async def completion(self, request: CompletionRequest) -> list[Prompt]:
        """Return the prompts of a plain completion, in order."""
        prompts = await asyncio.to_thread(split_prompts, request.prompt, self._limits)
        taken = []
        for item in prompts:
            taken.append(await self._one(item))
            await asyncio.sleep(0)  # many prompts of many ids must not hold the loop
        return taken

    async def encode(self, text: str, *, add_special_tokens: bool) -> array[int]:
        """Encode plain text for /tokenize; an empty result is fine."""
        self._check_chars(text, "prompt", max(self._max_chars, MAX_TOKENIZED_CHARS))
        return await self._encode(text, add_special_tokens=add_special_tokens)

    async def _one(self, item: str | list[int]) -> Prompt:
        if isinstance(item, str):
            # "" is empty even where a tokenizer would put a token before it.
            self._check_chars(item, "prompt", self._max_chars)
            ids = await self._encode(item, add_special_tokens=True) if item else array("i")
            return Prompt(self._checked(ids, "prompt"), item)
        self._limits.check_prompt_tokens(len(item))
        check_token_ids(item, self._model.vocab_size, "prompt")
        return Prompt(self._checked(array("i", item), "prompt"), None)

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
            raise RequestError(
                f"{param} has {len(text)} characters, at most {most} can fit (context "
                f"{self._model.max_context_tokens} tokens); shorten it",
                param=param,
                code="context_length_exceeded",
            )


def split_prompts(prompt: Any, limits: FieldLimits) -> list[str] | list[list[int]]:
    """Tell the four forms of `prompt` apart and return the prompts in it."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise _bad_prompt(prompt, "prompt")
    if prompt and type(prompt[0]) is int:
        limits.check_prompt_tokens(len(prompt))
        if all(type(item) is int for item in prompt):
            return [prompt]
    if not prompt or len(prompt) > MAX_PROMPTS:
        raise RequestError(
            f"prompt is a list of {len(prompt)}, 1 to {MAX_PROMPTS} prompts are allowed; change it",
            param="prompt",
        )
    if all(isinstance(item, str) for item in prompt):
        return prompt
    for index, item in enumerate(prompt):
        if not isinstance(item, list):
            raise _bad_prompt(item, f"prompt.{index}")
        limits.check_prompt_tokens(len(item))
        if not all(type(token) is int for token in item):
            raise _bad_prompt(item, f"prompt.{index}")
    return prompt


def num_prompts(prompt: Any) -> int:
    """Return how many prompts there are, if they are well-formed."""
    is_several = isinstance(prompt, list) and prompt and type(prompt[0]) is not int
    return len(prompt) if is_several else 1


def check_token_ids(ids: list[int], vocab_size: int, param: str) -> None:
    """Refuse token ids outside the vocabulary."""
    bad = next((token for token in ids if not 0 <= token < vocab_size), None)
    if bad is not None:
        raise RequestError(
            f"{param} holds token id {shorten(bad)}, allowed is [0, {vocab_size - 1}]; change it",
            param=param,
        )


def check_fits(prompt: Prompt, max_tokens: int | None, model: ModelInfo, param: str) -> None:
    """Refuse an answer length that cannot fit beside the prompt."""
    submits.check_fits(model, len(prompt.token_ids), max_tokens, param)


def _bad_prompt(value: Any, param: str) -> RequestError:
    return RequestError(
        f"{param} is {shorten(value)}: a string, a list of strings, a list of token ids or a list "
        "of lists of token ids is needed; change it",
        param=param,
    )


def _message(message: ChatMessage) -> dict[str, Any]:
    """Return a message as chat templates read it; they know no developer role."""
    role = "system" if message.role == "developer" else message.role
    content = message.content
    if not isinstance(content, str):
        return _named(message, role, [{"type": "text", "text": part.text} for part in content])
    return _named(message, role, content)


def _named(message: ChatMessage, role: str, content: Any) -> dict[str, Any]:
    named = {} if message.name is None else {"name": message.name}
    if message.reasoning_content:
        named["reasoning_content"] = message.reasoning_content
    return {"role": role, "content": content, **named}
