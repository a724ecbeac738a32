"""Routes of the OpenAI API: chat, plain completions, models, tokens."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from starlette.responses import Response

from tokenspeed.engine.vectors import EMBED
from tokenspeed.errors import RequestError
from tokenspeed.server.conversation.prompts import check_token_ids
from tokenspeed.server.conversation.terms import read_terms
from tokenspeed.server.http.errors import JsonResponse
from tokenspeed.server.openai.chat_reply import ChatReply
from tokenspeed.server.openai.chunks import ChunkReply
from tokenspeed.server.openai.completion_reply import CompletionReply
from tokenspeed.server.openai.conversation import conversation_of, messages_of
from tokenspeed.server.openai.embeddings import MAX_INPUTS, EmbeddingsRequest, embeddings_body
from tokenspeed.server.openai.prompt_forms import num_prompts, split_prompts
from tokenspeed.server.openai.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from tokenspeed.server.sampling import chat_params, completion_params

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from tokenspeed.server.pieces import Piece
    from tokenspeed.server.service import Service


class OpenAiRoutes:
    """Answers the routes by their methods."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._parts = service.parts
        self._info = service.info

    async def chat(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions."""
        body = await self._service.read(request, ChatRequest)
        params = chat_params(body, self._info.vocab_size)
        self._service.check_choices(body.n)
        said = await asyncio.to_thread(conversation_of, body)
        turn = await self._service.turn(body, request, said)
        generation = self._service.generation(
            _new_id("chatcmpl"),
            [turn.prompt],
            params,
            turn.terms,
            n=body.n,
            conversation=turn.conversation,
            thinking=body.thinking,
        )
        bodies = ChatReply(body, generation, self._parts.tokenizer)
        reply = ChunkReply(body, generation, bodies)
        return await self._service.respond(request, generation, reply, streams=body.stream)

    async def completions(self, request: Request) -> Response:
        """Answer POST /v1/completions."""
        body = await self._service.read(request, CompletionRequest)
        params = completion_params(body, self._info.vocab_size)
        terms = read_terms(body, request, self._parts.sessions)
        self._service.check_choices(num_prompts(body.prompt) * body.n)
        forms = await asyncio.to_thread(split_prompts, body.prompt, self._service.limits)
        prompts = await self._parts.prompts.plain(forms)
        generation = self._service.generation(_new_id("cmpl"), prompts, params, terms, n=body.n)
        bodies = CompletionReply(body, generation, self._parts.tokenizer)
        reply = ChunkReply(body, generation, bodies)
        return await self._service.respond(request, generation, reply, streams=body.stream)

    async def embeddings(self, request: Request) -> Response:
        """Answer POST /v1/embeddings."""
        body = await self._service.read(request, EmbeddingsRequest)
        terms = read_terms(body, request, self._parts.sessions)
        self._service.check_choices(num_prompts(body.input))
        forms = await asyncio.to_thread(
            split_prompts, body.input, self._service.limits, param="input", most=MAX_INPUTS
        )
        prompts = await self._parts.prompts.plain(forms, param="input")
        generation = self._service.generation(_new_id("embd"), prompts, EMBED, terms)

        async def write(pieces: Sequence[Piece]) -> Response:
            # Thousands of vectors must not hold the loop.
            return await asyncio.to_thread(
                lambda: JsonResponse(embeddings_body(body, prompts, pieces))
            )

        return await self._service.respond_whole(request, generation, write)

    async def models(self, request: Request) -> Response:
        """Answer GET /v1/models."""
        return JsonResponse({"object": "list", "data": [self._service.model_card()]})

    async def model(self, request: Request) -> Response:
        """Answer GET /v1/models/NAME."""
        self._service.check_model(request.path_params["name"])
        return JsonResponse(self._service.model_card())

    async def tokenize(self, request: Request) -> Response:
        """Answer POST /tokenize: text, or messages as the chat template renders them."""
        body = await self._service.read(request, TokenizeRequest)
        if (body.prompt is None) == (body.messages is None):
            given = "neither is" if body.prompt is None else "both are"
            raise RequestError(
                f"prompt and messages: {given} given, exactly one is needed; give one of them",
                param="prompt",
            )
        if body.messages is not None:
            said = messages_of(body.messages, tools=body.tools)
            ids = await self._service.token_ids(
                said, add_generation_prompt=body.add_generation_prompt
            )
        else:
            ids = await self._parts.prompts.encode(
                body.prompt or "", add_special_tokens=body.add_special_tokens
            )
        limit = self._info.max_context_tokens
        return JsonResponse({"tokens": list(ids), "count": len(ids), "max_model_len": limit})

    async def detokenize(self, request: Request) -> Response:
        """Answer POST /detokenize."""
        body = await self._service.read(request, DetokenizeRequest)
        check_token_ids(body.tokens, self._info.vocab_size, "tokens")
        text = await asyncio.to_thread(
            self._parts.tokenizer.decode,
            body.tokens,
            skip_special_tokens=body.skip_special_tokens,
        )
        return JsonResponse({"prompt": text})


def _new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"
