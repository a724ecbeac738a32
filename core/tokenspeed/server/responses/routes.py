"""Routes of the responses API."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tokenspeed.errors import RequestError
from tokenspeed.sampling.params import SamplingParams
from tokenspeed.server.call_ids import new_id
from tokenspeed.server.conversation.terms import owner_of
from tokenspeed.server.http.errors import JsonResponse
from tokenspeed.server.http.stream import EventStream
from tokenspeed.server.responses.body import BodyWriter
from tokenspeed.server.responses.conversation import conversation_of
from tokenspeed.server.responses.input_items import ITEMS, page_of, resolved, stored_items
from tokenspeed.server.responses.items import ItemWriter
from tokenspeed.server.responses.reply import EventWriter, ResponsesReply
from tokenspeed.server.responses.schemas import MessageItem, ResponsesRequest
from tokenspeed.server.responses.store import Record
from tokenspeed.server.responses.tools import ToolTable
from tokenspeed.server.structured import text_format

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from tokenspeed.server.responses.reply import Keep
    from tokenspeed.server.responses.schemas import Item
    from tokenspeed.server.responses.store import ResponseStore
    from tokenspeed.server.service import Service


class ResponsesRoutes:
    """Answers the routes by their methods.

    Args:
        store: None: nothing is stored.
    """

    def __init__(self, service: Service, store: ResponseStore | None) -> None:
        self._service = service
        self._store = store

    async def create(self, request: Request) -> Response:
        """Answer POST /v1/responses."""
        body = await self._service.read(request, ResponsesRequest)
        params = _params(body, self._service.info.vocab_size)
        response_id, owner = new_id("resp"), owner_of(request)
        own = await asyncio.to_thread(self._own, body, owner)
        keep = self._keep(body, own, response_id, owner)
        written = BodyWriter(body, response_id, is_stored=keep is not None)
        try:
            return await self._answer(request, body, own, params, written, keep)
        except RequestError as error:
            # Clients that stream look for this one in events only.
            if body.stream and error.code == "context_length_exceeded":
                return _failed_stream(EventWriter(written), error)
            raise

    async def _answer(
        self,
        request: Request,
        body: ResponsesRequest,
        own: list[Item],
        params: SamplingParams,
        written: BodyWriter,
        keep: Keep | None,
    ) -> Response:
        tools = ToolTable(body.tools)
        self._service.count_tools("responses", tools.special)
        earlier = await asyncio.to_thread(self._earlier, body, owner_of(request))
        said = await asyncio.to_thread(conversation_of, body, tools.tools, [*earlier, *own])
        turn = await self._service.turn(body, request, said)
        generation = self._service.generation(
            written.response_id,
            [turn.prompt],
            params,
            turn.terms,
            conversation=turn.conversation,
            thinking=body.thinking,
        )
        writer = ItemWriter(written.response_id, tools, packs_reasoning=body.wants_encrypted)
        reply = ResponsesReply(turn.prompt, written, writer, keep=keep)
        return await self._service.respond(request, generation, reply, streams=body.stream)

    async def read(self, request: Request) -> Response:
        """Answer GET /v1/responses/ID."""
        if request.query_params.get("stream", "false") != "false":
            raise RequestError(
                "stream: a stored response is not streamed again in this version; omit it",
                param="stream",
                code="unsupported_parameter",
            )
        record = self._stored().get(request.path_params["response_id"], owner_of(request))
        return JsonResponse(record.body)

    async def input_items(self, request: Request) -> Response:
        """Answer GET /v1/responses/ID/input_items: all that the answer was made from."""
        response_id, owner = request.path_params["response_id"], owner_of(request)
        record = self._stored().get(response_id, owner)
        earlier = await asyncio.to_thread(self._stored().chain, record.previous, owner)
        return JsonResponse(page_of([*earlier, *record.given], request.query_params))

    async def delete(self, request: Request) -> Response:
        """Answer DELETE /v1/responses/ID."""
        response_id = request.path_params["response_id"]
        self._stored().delete(response_id, owner_of(request))
        return JsonResponse({"id": response_id, "object": "response", "deleted": True})

    def _own(self, body: ResponsesRequest, owner: str) -> list[Item]:
        """Return the items of the input itself."""
        if isinstance(body.input, str):
            return [MessageItem(type="message", role="user", content=body.input)]
        return resolved(body.input, lambda named: self._stored("input").find(named, owner))

    def _earlier(self, body: ResponsesRequest, owner: str) -> list[Item]:
        """Return the items of what the request goes on from."""
        if body.previous_response_id is None:
            return []
        store = self._stored("previous_response_id")
        return ITEMS.validate_python(store.chain(body.previous_response_id, owner))

    def _keep(
        self, body: ResponsesRequest, own: list[Item], response_id: str, owner: str
    ) -> Keep | None:
        """Return what stores the finished body; None: it is not to be stored."""
        if body.store is False or (body.store is None and self._store is None):
            return None
        store = self._stored("store")
        previous = body.previous_response_id or ""
        return lambda done: store.put(
            Record(owner=owner, previous=previous, given=stored_items(own, response_id), body=done)
        )

    def _stored(self, param: str = "response_id") -> ResponseStore:
        if self._store is None:
            raise RequestError(
                f"{param}: this server stores no responses (--response-store-mib is 0); send the "
                "conversation itself as input, with store false",
                param=param,
                code="unsupported_parameter",
            )
        return self._store


def _params(body: ResponsesRequest, vocab_size: int) -> SamplingParams:
    params = SamplingParams(
        temperature=body.temperature,
        top_p=body.top_p,
        max_tokens=body.max_output_tokens,
        grammar=text_format(body.format) if body.format is not None else None,
    )
    params.validate(vocab_size)
    return params


def _failed_stream(events: EventWriter, error: RequestError) -> EventStream:
    async def all_of_it() -> AsyncIterator[bytes]:
        yield events.opening() + events.failure(error)

    async def nothing_runs() -> None:
        return None

    return EventStream(all_of_it(), on_close=nothing_runs)
