"""What the routes of every API do alike: read a body, make a prompt, run a generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.parser import TOOL_CALLS
from tokenspeed.errors import RequestError
from tokenspeed.server.answer import Answerer
from tokenspeed.server.conversation.tools import check_tools
from tokenspeed.server.generation import Generation
from tokenspeed.server.http.body import read_body
from tokenspeed.server.http.field_limits import FieldLimits
from tokenspeed.server.http.fields import shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from tokenspeed.contracts.conversation import Conversation
    from tokenspeed.engine.messages import Terms
    from tokenspeed.sampling.params import SamplingParams
    from tokenspeed.server.answer import Reply
    from tokenspeed.server.conversation.prompts import Prompt
    from tokenspeed.server.http.schema import Schema
    from tokenspeed.server.parts import ApiParts


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
            request, schema, max_bytes=self.parts.max_body_bytes, limits=self.limits
        )
        name = getattr(body, "model", None)
        if name is not None:
            self.check_model(name)
        return body

    async def prompt(self, conversation: Conversation) -> Prompt:
        """Return the prompt of a conversation whose tools can be called as asked."""
        parser = self.parts.reasoning_parser
        can_parse = parser is not None and TOOL_CALLS in parser.parses
        check_tools(conversation, can_parse=can_parse)
        return await self.parts.prompts.chat(conversation)

    def generation(
        self,
        request_id: str,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        terms: Terms,
        *,
        n: int = 1,
        conversation: Conversation | None = None,
    ) -> Generation:
        """Return what will answer the prompts; answers of a conversation are parsed."""
        return Generation(
            self.parts.frontend,
            self.parts.tokenizer,
            request_id=request_id,
            prompts=prompts,
            params=params,
            n=n,
            terms=terms,
            timer=self.parts.metrics.timer(len(prompts) * n),
            parser=self.parts.reasoning_parser if conversation is not None else None,
            conversation=conversation,
        )

    async def respond(
        self, request: Request, generation: Generation, reply: Reply, *, streams: bool
    ) -> Response:
        """Run a generation to its response."""
        return await self._answerer.respond(request.receive, generation, reply, streams=streams)

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
