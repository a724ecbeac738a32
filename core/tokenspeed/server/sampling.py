"""From a request's fields to SamplingParams, each checked and each honoured."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.errors import RequestError
from tokenspeed.sampling.params import SamplingParams
from tokenspeed.server.http.fields import shorten
from tokenspeed.server.structured import grammar_of

if TYPE_CHECKING:
    from tokenspeed.server.openai.schemas import ChatRequest, CompletionRequest

LANGUAGE_FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


def chat_params(request: ChatRequest, vocab_size: int) -> SamplingParams:
    """Return the checked parameters of a chat request."""
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError(
            f"top_logprobs is {request.top_logprobs} but logprobs is false; set logprobs to true",
            param="top_logprobs",
        )
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return _params(request, vocab_size, _chat_max_tokens(request), logprobs)


def completion_params(request: CompletionRequest, vocab_size: int) -> SamplingParams:
    """Return the checked parameters of a plain completion; echoed logprobs need the prompt's."""
    params = _params(request, vocab_size, request.max_tokens, request.logprobs)
    if request.echo and request.logprobs is not None and request.prompt_logprobs is None:
        params = msgspec.structs.replace(params, prompt_logprobs=request.logprobs)
    return params


def choice_seed(seed: int | None, index: int) -> int | None:
    """Return the seed of choice `index`: the request's own for the first, derived for others."""
    if seed is None or index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _chat_max_tokens(request: ChatRequest) -> int | None:
    new, old = request.max_completion_tokens, request.max_tokens
    if new is not None and old is not None and new != old:
        raise RequestError(
            f"max_completion_tokens is {new} and max_tokens is {old}; give one, or equal values",
            param="max_completion_tokens",
        )
    return new if new is not None else old


def _params(
    request: ChatRequest | CompletionRequest,
    vocab_size: int,
    max_tokens: int | None,
    logprobs: int | None,
) -> SamplingParams:
    if request.stream and request.prompt_logprobs is not None:
        raise RequestError(
            f"prompt_logprobs is {request.prompt_logprobs}: not supported together with stream; "
            "set stream to false",
            param="prompt_logprobs",
        )
    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    params = SamplingParams(
        temperature=request.temperature,
        top_k=max(request.top_k, 0) if request.top_k == -1 else request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        seed=request.seed,
        repetition_penalty=request.repetition_penalty,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        logit_bias=_logit_bias(request.logit_bias) or None,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        stop=stop,
        stop_token_ids=tuple(request.stop_token_ids),
        include_stop_text=request.include_stop_str_in_output,
        ignore_eos=request.ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=request.prompt_logprobs,
        grammar=grammar_of({name: getattr(request, name) for name in LANGUAGE_FIELDS}),
    )
    params.validate(vocab_size)
    return params


def _logit_bias(given: dict[str, float]) -> dict[int, float]:
    bias = {}
    for key, value in given.items():
        if not key.isascii() or not key.isdigit() or len(key) > 10:
            raise RequestError(
                f"logit_bias has the key {shorten(key)}, token ids are allowed; change it",
                param="logit_bias",
            )
        bias[int(key)] = value
    return bias
