"""What the routes of every API do alike: read a body, make a prompt, run a generation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import RequestError
from tokenspeed.server.answer import Answerer
from tokenspeed.server.conversation.terms import read_terms
from tokenspeed.server.conversation.thinking import Thinking
from tokenspeed.server.conversation.tools import check_tools
from tokenspeed.server.generation import Generation
from tokenspeed.server.http.body import read_body
from tokenspeed.server.http.field_limits import FieldLimits
from tokenspeed.server.http.fields import shorten

if TYPE_CHECKING:
    from array import array
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from tokenspeed.contracts.conversation import Conversation
    from tokenspeed.engine.messages import Terms
    from tokenspeed.sampling.params import SamplingParams
    from tokenspeed.server.answer import Reply
    from tokenspeed.server.conversation.prompts import Prompt
    from tokenspeed.server.conversation.term_fields import TermFields
    from tokenspeed.server.http.schema import Schema
    from tokenspeed.server.parts import ApiParts
    from tokenspeed.server.pieces import Piece

TOOL_TYPES = frozenset(
    {
        "apply_patch",
        "bash",
        "code_execution",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "custom",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "memory",
        "namespace",
        "shell",
        "text_editor",
        "tool_search",
        "web_fetch",
        "web_search",
        "web_search_preview",
    }
)
"""Types of tools that are counted by name: whatever clients send cannot grow the metrics."""
_DATE = re.compile(r"_\d{8}$")
"""What one of the vendors ends its types with."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """The next turn of a chat, before it is generated."""

    conversation: Conversation
    terms: Terms
    prompt: Prompt


class Service:
    """One for all routes of an API process."""

    def __init__(self, parts: ApiParts) -> None:
        self.parts = parts
        self.info = parts.frontend.model
        self.limits = FieldLimits(self.info.max_prompt_tokens, self.info.max_context_tokens)
        self._answerer = Answerer(parts.metrics, keep_alive_s=parts.keep_alive_s)

    async def read(self, request: Request, schema: type[Schema]) -> Schema:
        """Read and check a body; the model that it names must be the served one."""
        body = await read_body(
            request,
            schema,
            max_bytes=self.parts.max_body_bytes,
            limits=self.limits,
            bodies=self.parts.bodies,
        )
        name = getattr(body, "model", None)
        if name is not None:
            self.check_model(name)
        return body

    async def turn(self, body: TermFields, request: Request, said: Conversation) -> ChatTurn:
        """Return what a chat asks for next: cleaned, on its terms, with its prompt.

        Raises:
            RequestError: a tool cannot be called as asked, or the prompt does not fit.
        """
        check_tools(said, refusal=self.parts.parsers.refusal)
        chat = await self.parts.chats.clean(said)
        terms = read_terms(body, request, self.parts.sessions, chat)
        return ChatTurn(chat.conversation, terms, await self.parts.chats.read(chat, terms))

    async def token_ids(
        self, said: Conversation, *, add_generation_prompt: bool = True
    ) -> array[int]:
        """Return the tokens of a conversation's prompt as a stranger's, more than fits too."""
        prompts = self.parts.prompts
        chat = await self.parts.chats.clean(said)
        text = await prompts.render(chat.conversation, add_generation_prompt=add_generation_prompt)
        return await prompts.encode(text, add_special_tokens=False)

    def generation(
        self,
        request_id: str,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        terms: Terms,
        *,
        n: int = 1,
        conversation: Conversation | None = None,
        thinking: Thinking | None = None,
    ) -> Generation:
        """Return what will answer the prompts; answers of a conversation are parsed.

        Raises:
            RequestError: there is a budget of thinking that cannot be kept.
        """
        form = self.parts.parsers.form if conversation is not None else None
        asked = thinking or Thinking()
        can_bound = form is not None and form.thinking is not None
        return Generation(
            self.parts.frontend,
            self.parts.tokenizer,
            request_id=request_id,
            prompts=prompts,
            params=params,
            n=n,
            terms=terms,
            timer=self.parts.metrics.timer(len(prompts) * n),
            parser=form,
            conversation=conversation,
            unread=self.parts.unread,
            note_answer=partial(self.parts.sessions.note_answer, terms.owner, terms.session),
            thinking_tokens=asked.tokens(self.parts.prompts.template_reads, can_bound=can_bound),
        )

    async def respond(
        self, request: Request, generation: Generation, reply: Reply, *, streams: bool
    ) -> Response:
        """Run a generation to its response."""
        return await self._answerer.respond(request.receive, generation, reply, streams=streams)

    async def respond_whole(
        self,
        request: Request,
        generation: Generation,
        write: Callable[[Sequence[Piece]], Awaitable[Response]],
    ) -> Response:
        """Run a generation to its end, and write the response from its pieces."""
        return await self._answerer.whole(request.receive, generation, write)

    def count_tools(self, api: str, kinds: Iterable[str | None]) -> None:
        """Count tools that are no plain functions, by their types."""
        for kind in kinds:
            plain = _DATE.sub("", kind or "")
            name = plain if plain in TOOL_TYPES else "other"
            self.parts.metrics.special_tools.labels(api, name).inc()

    def check_model(self, name: str) -> None:
        """Refuse the name of a model that is not served."""
        if name != self.info.name:
            raise RequestError(
                f"model {shorten(name)} is not served here; use {self.info.name!r}",
                param="model",
                code="model_not_found",
            )

    def check_choices(self, count: int) -> None:
        """Refuse what the queue can never hold, for which "try again later" would be no advice."""
        most = self.parts.max_waiting
        if count > most:
            raise RequestError(
                f"n asks for {count} choices over all prompts, at most {most} can wait in the "
                "queue; ask for fewer, or start the server with a larger --max-waiting",
                param="n",
            )

    def model_card(self) -> dict[str, Any]:
        """Return the served model as clients list it."""
        return {
            "id": self.info.name,
            "object": "model",
            "created": 0,
            "owned_by": "tokenspeed",
            "max_model_len": self.info.max_context_tokens,
        }
