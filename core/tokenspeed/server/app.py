"""The HTTP application: one method a route. Schemas and bodies are in the rooms of the APIs.

Runs in an API process: no torch, no scheduler; the engine is reached through a Frontend.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tokenspeed.errors import RequestError
from tokenspeed.server.answer import Answerer
from tokenspeed.server.conversation.prompts import check_fits, check_token_ids, num_prompts
from tokenspeed.server.conversation.terms import read_terms
from tokenspeed.server.generation import Generation
from tokenspeed.server.http.body import read_body
from tokenspeed.server.http.errors import JsonResponse, error_body, error_response
from tokenspeed.server.http.field_limits import FieldLimits
from tokenspeed.server.http.fields import shorten
from tokenspeed.server.http.guard import Guard
from tokenspeed.server.openai.chat_reply import ChatReply
from tokenspeed.server.openai.completion_reply import CompletionReply
from tokenspeed.server.openai.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from tokenspeed.server.sampling import chat_params, completion_params

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.types import ASGIApp

    from tokenspeed.engine.frontend import Frontend
    from tokenspeed.engine.messages import Terms
    from tokenspeed.engine.reports import StartReport
    from tokenspeed.sampling.params import SamplingParams
    from tokenspeed.server.conversation.prompts import Prompt, PromptReader
    from tokenspeed.server.http.api_keys import ApiKeys
    from tokenspeed.server.metrics import Metrics
    from tokenspeed.server.openai.schemas import Schema
    from tokenspeed.server.parsers import ReasoningParser
    from tokenspeed.tokenizer.tokenizer import Tokenizer

    Handler = Callable[[Request], Awaitable[Response]]

ROUTES: dict[str, tuple[str, str, Any]] = {
    "/v1/chat/completions": ("chat", "POST", ChatRequest),
    "/v1/completions": ("completions", "POST", CompletionRequest),
    "/v1/models": ("models", "GET", None),
    "/v1/models/{name:path}": ("model", "GET", None),
    "/tokenize": ("tokenize", "POST", TokenizeRequest),
    "/detokenize": ("detokenize", "POST", DetokenizeRequest),
    "/v1/engine/plan": ("plan", "GET", None),
    "/v1/engine/state": ("state", "GET", None),
    "/health": ("health", "GET", None),
    "/metrics": ("metrics", "GET", None),
}
"""Path -> (method of `_Api`, HTTP method, schema of the body)."""


@dataclass(frozen=True, slots=True)
class ApiParts:
    """What the routes need; made by `api_process.py`."""

    frontend: Frontend
    tokenizer: Tokenizer
    prompts: PromptReader
    metrics: Metrics
    report: StartReport
    keys: ApiKeys
    keep_alive_s: float = 10.0
    max_body_bytes: int = 64 << 20
    max_waiting: int = 4096
    reasoning_parser: ReasoningParser | None = None


def create_app(parts: ApiParts) -> ASGIApp:
    """Build the application around its parts."""
    api = _Api(parts)
    app = FastAPI(title="TokenSpeed", docs_url=None, redoc_url=None, redirect_slashes=False)
    for path, (name, method, schema) in ROUTES.items():
        app.add_api_route(
            path,
            _guarded(getattr(api, name)),
            methods=[method],
            response_model=None,
            openapi_extra=_body_of(schema) if schema else None,
        )
    app.add_exception_handler(HTTPException, _http_error)
    return Guard(app, keys=parts.keys, metrics=parts.metrics, paths=frozenset(ROUTES))


class _Api:
    """The routes."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self._info = parts.frontend.model
        self._limits = FieldLimits(self._info.max_prompt_tokens, self._info.max_context_tokens)
        self._answerer = Answerer(parts.metrics, keep_alive_s=parts.keep_alive_s)

    async def chat(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions."""
        body = await self._read(request, ChatRequest)
        params = chat_params(body, self._info.vocab_size)
        terms = read_terms(body, request)
        self._check_choices(body.n)
        prompt = await self._parts.prompts.chat(body)
        given = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
        check_fits(prompt, params.max_tokens, self._info, given)
        parser = self._parts.reasoning_parser
        generation = self._generation("chatcmpl", body, [prompt], params, terms, parser)
        reply = ChatReply(body, generation, self._parts.tokenizer)
        return await self._answerer.respond(request.receive, body, generation, reply)

    async def completions(self, request: Request) -> Response:
        """Answer POST /v1/completions."""
        body = await self._read(request, CompletionRequest)
        params = completion_params(body, self._info.vocab_size)
        terms = read_terms(body, request)
        self._check_choices(num_prompts(body.prompt) * body.n)
        prompts = await self._parts.prompts.completion(body)
        for prompt in prompts:
            check_fits(prompt, params.max_tokens, self._info, "max_tokens")
        generation = self._generation("cmpl", body, prompts, params, terms)
        reply = CompletionReply(body, generation, self._parts.tokenizer)
        return await self._answerer.respond(request.receive, body, generation, reply)

    async def models(self, request: Request) -> Response:
        """Answer GET /v1/models."""
        return JsonResponse({"object": "list", "data": [self._model_card()]})

    async def model(self, request: Request) -> Response:
        """Answer GET /v1/models/NAME."""
        self._check_model(request.path_params["name"])
        return JsonResponse(self._model_card())

    async def tokenize(self, request: Request) -> Response:
        """Answer POST /tokenize: text, or messages as the chat template renders them."""
        body = await self._read(request, TokenizeRequest)
        if (body.prompt is None) == (body.messages is None):
            given = "neither is" if body.prompt is None else "both are"
            raise RequestError(
                f"prompt and messages: {given} given, exactly one is needed; give one of them",
                param="prompt",
            )
        prompts = self._parts.prompts
        if body.messages is not None:
            text = await prompts.render(
                body.messages, {}, add_generation_prompt=body.add_generation_prompt
            )
            ids = await prompts.encode(text, add_special_tokens=False)
        else:
            text = body.prompt or ""
            ids = await prompts.encode(text, add_special_tokens=body.add_special_tokens)
        limit = self._info.max_context_tokens
        return JsonResponse({"tokens": list(ids), "count": len(ids), "max_model_len": limit})

    async def detokenize(self, request: Request) -> Response:
        """Answer POST /detokenize."""
        body = await self._read(request, DetokenizeRequest)
        check_token_ids(body.tokens, self._info.vocab_size, "tokens")
        text = await asyncio.to_thread(
            self._parts.tokenizer.decode,
            body.tokens,
            skip_special_tokens=body.skip_special_tokens,
        )
        return JsonResponse({"prompt": text})

    async def plan(self, request: Request) -> Response:
        """Answer GET /v1/engine/plan: what the engine was built from and what it chose."""
        return JsonResponse(self._parts.report)

    async def state(self, request: Request) -> Response:
        """Answer GET /v1/engine/state: requests, queue, blocks, last plan, counters as of now."""
        return JsonResponse(await self._parts.frontend.state())

    async def health(self, request: Request) -> Response:
        """Answer GET /health: 200 while the engine is heard of, 503 otherwise."""
        frontend = self._parts.frontend
        status = "ok" if frontend.is_alive else "unhealthy"
        body = {"status": status, "model": self._info.name, "engine_epoch": frontend.epoch}
        if frontend.unhealthy_reason is not None:
            body["reason"] = frontend.unhealthy_reason
        return JsonResponse(body, 200 if frontend.is_alive else 503)

    async def metrics(self, request: Request) -> Response:
        """Answer GET /metrics."""
        return Response(self._parts.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def _read(self, request: Request, schema: type[Schema]) -> Schema:
        body = await read_body(
            request, schema, max_bytes=self._parts.max_body_bytes, limits=self._limits
        )
        name = getattr(body, "model", None)
        if name is not None:
            self._check_model(name)
        return body

    def _check_model(self, name: str) -> None:
        if name != self._info.name:
            raise RequestError(
                f"model {shorten(name)} is not served here; use {self._info.name!r}",
                param="model",
                code="model_not_found",
            )

    def _check_choices(self, count: int) -> None:
        """Refuse what the queue can never hold, for which "try again later" would be no advice."""
        most = self._parts.max_waiting
        if count > most:
            raise RequestError(
                f"n asks for {count} choices over all prompts, at most {most} can wait in the "
                "queue; ask for fewer, or start the server with a larger --max-waiting",
                param="n",
            )

    def _model_card(self) -> dict[str, Any]:
        return {
            "id": self._info.name,
            "object": "model",
            "created": 0,
            "owned_by": "tokenspeed",
            "max_model_len": self._info.max_context_tokens,
        }

    def _generation(
        self,
        prefix: str,
        body: ChatRequest | CompletionRequest,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        terms: Terms,
        parser: ReasoningParser | None = None,
    ) -> Generation:
        return Generation(
            self._parts.frontend,
            self._parts.tokenizer,
            request_id=f"{prefix}-{secrets.token_hex(12)}",
            prompts=prompts,
            params=params,
            n=body.n,
            terms=terms,
            timer=self._parts.metrics.timer(len(prompts) * body.n),
            parser=parser,
        )


def _guarded(handler: Handler) -> Handler:
    """Answer a route's exceptions here, before a framework's plain-text 500 does."""

    async def route(request: Request) -> Response:
        try:
            return await handler(request)
        except HTTPException:
            raise
        except Exception as error:
            return error_response(error)

    return route


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer unknown paths and wrong methods in the OpenAI form."""
    assert isinstance(error, HTTPException)
    place = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        text = f"{place}: this method is not allowed here; use {allowed}"
    else:
        known = ", ".join(sorted(ROUTES))
        text = f"{place}: there is no such route; the routes are {known}"
    return JsonResponse(
        error_body(text, error.status_code), error.status_code, headers=error.headers
    )


def _body_of(schema: type[Schema]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
