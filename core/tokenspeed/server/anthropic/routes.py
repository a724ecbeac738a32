"""Routes of the Anthropic API: messages, and how many tokens they have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tokenspeed.sampling.params import SamplingParams
from tokenspeed.server.anthropic.conversation import CUSTOM, conversation_of
from tokenspeed.server.anthropic.reply import MessagesReply
from tokenspeed.server.anthropic.schemas import MessagesRequest, PromptFields
from tokenspeed.server.call_ids import new_id
from tokenspeed.server.http.errors import JsonResponse

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from tokenspeed.server.service import Service


class AnthropicRoutes:
    """Answers the routes by their methods."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def messages(self, request: Request) -> Response:
        """Answer POST /v1/messages."""
        body = await self._service.read(request, MessagesRequest)
        params = _params(body, self._service.info.vocab_size)
        special = (tool.type for tool in body.tools if tool.type not in CUSTOM)
        self._service.count_tools("anthropic", special)
        said = await asyncio.to_thread(conversation_of, body)
        turn = await self._service.turn(body, request, said)
        generation = self._service.generation(
            new_id("msg"),
            [turn.prompt],
            params,
            turn.terms,
            conversation=turn.conversation,
            thinking=body.asked_thinking,
        )
        reply = MessagesReply(body, generation)
        return await self._service.respond(request, generation, reply, streams=body.stream)

    async def count_tokens(self, request: Request) -> Response:
        """Answer POST /v1/messages/count_tokens; more than fits is counted too."""
        body = await self._service.read(request, PromptFields)
        said = await asyncio.to_thread(conversation_of, body)
        return JsonResponse({"input_tokens": len(await self._service.token_ids(said))})


def _params(body: MessagesRequest, vocab_size: int) -> SamplingParams:
    params = SamplingParams(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        max_tokens=body.max_tokens,
        stop=tuple(body.stop_sequences),
        grammar=body.grammar,
    )
    params.validate(vocab_size)
    return params
