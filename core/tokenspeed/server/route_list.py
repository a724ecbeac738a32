"""The routes of the server: one table, from which the application and its document are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.routing import compile_path

from tokenspeed.engine.reports import StartReport
from tokenspeed.server.anthropic.answers import Message, MessageEvent, TokenCount
from tokenspeed.server.anthropic.schemas import MessagesRequest, PromptFields
from tokenspeed.server.engine_answers import EngineState, Health, Released, Session, Tenants
from tokenspeed.server.http.answers import ErrorBody
from tokenspeed.server.openai.answers import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Embeddings,
    Model,
    ModelList,
    Text,
    Tokens,
)
from tokenspeed.server.openai.embeddings import EmbeddingsRequest
from tokenspeed.server.openai.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from tokenspeed.server.responses.answers import Deleted, InputItems, ResponseBody, ResponseEvent
from tokenspeed.server.responses.schemas import ResponsesRequest
from tokenspeed.server.tenant_routes import TenantBody

if TYPE_CHECKING:
    from tokenspeed.server.http.schema import Body


class Route(NamedTuple):
    """One route.

    Args:
        handler: CLASS.METHOD of a room.
        body: schema of what is sent; None: nothing is.
        answer: type of the JSON body; None: it answers in text.
        events: types of what a stream's events hold; (): it does not stream.
        errors: statuses beside those that every route has.
        also: statuses beside 200 that come with the answer itself.
    """

    method: str
    path: str
    handler: str
    body: type[Body] | None = None
    answer: Any = None
    events: tuple[Any, ...] = ()
    errors: tuple[int, ...] = ()
    also: tuple[int, ...] = ()


_SENT = (400, 404, 408, 413)
_RULED = (403, 503)
_GENERATED = (*_SENT, 422, 429, 503, 504)
_STORED = (400, 404)
_TOLD = (*_STORED, 503)
_CHAT = (ChatRequest, ChatCompletion, (ChatCompletionChunk, ErrorBody), _GENERATED)
_COMPLETION = (CompletionRequest, Completion, (Completion, ErrorBody), _GENERATED)
_MESSAGE = (MessagesRequest, Message, (MessageEvent,), _GENERATED)
_RESPONSE = (ResponsesRequest, ResponseBody, (ResponseEvent,), _GENERATED)

ROUTES = (
    Route("POST", "/v1/chat/completions", "openai.chat", *_CHAT),
    Route("POST", "/v1/completions", "openai.completions", *_COMPLETION),
    Route(
        "POST",
        "/v1/embeddings",
        "openai.embeddings",
        EmbeddingsRequest,
        Embeddings,
        errors=_GENERATED,
    ),
    Route("POST", "/v1/messages", "anthropic.messages", *_MESSAGE),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        "anthropic.count_tokens",
        PromptFields,
        TokenCount,
        errors=_SENT,
    ),
    Route("POST", "/v1/responses", "responses.create", *_RESPONSE),
    Route(
        "GET", "/v1/responses/{response_id}", "responses.read", answer=ResponseBody, errors=_STORED
    ),
    Route(
        "GET",
        "/v1/responses/{response_id}/input_items",
        "responses.input_items",
        answer=InputItems,
        errors=_STORED,
    ),
    Route(
        "DELETE", "/v1/responses/{response_id}", "responses.delete", answer=Deleted, errors=_STORED
    ),
    Route("GET", "/v1/models", "openai.models", answer=ModelList),
    Route("GET", "/v1/models/{name:path}", "openai.model", answer=Model, errors=(404,)),
    Route("POST", "/tokenize", "openai.tokenize", TokenizeRequest, Tokens, errors=_SENT),
    Route("POST", "/detokenize", "openai.detokenize", DetokenizeRequest, Text, errors=_SENT),
    Route("GET", "/v1/sessions/{name:path}", "sessions.read", answer=Session, errors=_TOLD),
    Route(
        "DELETE",
        "/v1/sessions/{name:path}",
        "sessions.release",
        answer=Released,
        errors=(*_TOLD, 409),
    ),
    Route("GET", "/v1/engine/plan", "engine.plan", answer=StartReport),
    Route("GET", "/v1/engine/state", "engine.state", answer=EngineState, errors=(503,)),
    Route("GET", "/tenants", "tenants.list", answer=Tenants, errors=_RULED),
    Route(
        "PUT",
        "/tenants/{name:path}",
        "tenants.change",
        TenantBody,
        Tenants,
        errors=(*_SENT, *_RULED),
    ),
    Route("GET", "/health", "engine.health", answer=Health, also=(503,)),
    Route("GET", "/metrics", "engine.metrics"),
    Route("GET", "/openapi.json", "engine.document", answer=dict[str, Any]),
)
_PATTERNS = {route.path: compile_path(route.path)[0] for route in ROUTES}
PATHS = tuple(dict.fromkeys(route.path for route in ROUTES))


def methods_of(path: str) -> list[str]:
    """Return the methods of the routes that a request's path belongs to, sorted."""
    return sorted({route.method for route in ROUTES if _PATTERNS[route.path].match(path)})
