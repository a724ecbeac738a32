"""Streams: merging for slow readers, resuming from what was delivered, and suspicion."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tokenspeed.engine.messages import Delta, Refused, Submit
from tokenspeed.engine.streams import Stream, error_of
from tokenspeed.errors import CapacityError, EngineError, RequestError
from tokenspeed.sampling import SamplingParams


def make_stream(aborted: list[str] | None = None, **fields: Any) -> Stream:
    """A stream of request `r`."""
    submit = Submit(
        request_id="r",
        epoch=0,
        prompt_ids=b"",
        stop_token_ids=(),
        **{"params": SamplingParams(), **fields},
    )
    return Stream(submit, on_close=(aborted if aborted is not None else []).append)


def delta(*tokens: int, **fields: Any) -> Delta:
    """A delta of request `r`."""
    return Delta(request_id="r", tokens=tokens, **fields)


def test_a_slow_reader_gets_one_merged_delta() -> None:
    async def scenario() -> Delta:
        stream = make_stream()
        stream.deliver(delta(1, cached_tokens=7))
        stream.deliver(delta(2))
        stream.deliver(delta(3, finish_reason="length"))
        merged = await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        return merged

    assert asyncio.run(scenario()) == delta(1, 2, 3, cached_tokens=7, finish_reason="length")


def test_a_resubmission_carries_the_delivered_tokens_and_the_time_left() -> None:
    async def scenario() -> Submit:
        stream = make_stream(timeout_s=100.0, params=SamplingParams(prompt_logprobs=1))
        stream.deliver(delta(5, 6))
        return stream.message(epoch=3)

    message = asyncio.run(scenario())
    assert message.epoch == 3
    assert np.frombuffer(message.output_ids, dtype="<i4").tolist() == [5, 6]
    assert message.timeout_s is not None
    assert 0 < message.timeout_s < 100.0
    assert message.params.prompt_logprobs is None


def test_progress_past_the_fatal_step_clears_a_suspect() -> None:
    async def scenario() -> tuple[bool, bool, bool]:
        stream = make_stream()
        first = stream.suspect(position=1)
        stream.deliver(delta(1))
        second = stream.suspect(position=1)
        cleared = make_stream()
        cleared.suspect(position=1)
        cleared.deliver(delta(1))
        cleared.deliver(delta(2))
        return first, second, cleared.suspect(position=2)

    assert asyncio.run(scenario()) == (False, True, False)


def test_leaving_early_aborts_and_leaving_after_the_end_does_not() -> None:
    aborted: list[str] = []

    async def scenario() -> None:
        async with make_stream(aborted) as stream:
            stream.deliver(delta(1, finish_reason="stop"))
        assert aborted == []
        async with make_stream(aborted):
            pass

    asyncio.run(scenario())
    assert aborted == ["r"]


def test_an_engine_failure_is_raised_after_what_was_delivered() -> None:
    async def scenario() -> Delta:
        stream = make_stream()
        stream.deliver(delta(1))
        stream.deliver(delta(finish_reason="error", error="it broke"))
        first = await anext(stream)
        with pytest.raises(EngineError, match="it broke"):
            await anext(stream)
        return first

    assert asyncio.run(scenario()) == delta(1)


def test_a_refusal_becomes_the_error_it_names() -> None:
    def refused(kind: str, **fields: Any) -> Refused:
        return Refused(request_id="r", epoch=1, kind=kind, message="no", **fields)

    capacity = error_of(refused("CapacityError", retry_after_s=3))
    assert isinstance(capacity, CapacityError)
    assert capacity.retry_after_s == 3
    request = error_of(refused("RequestError", param="prompt", code="context_length_exceeded"))
    assert isinstance(request, RequestError)
    assert (request.param, request.code) == ("prompt", "context_length_exceeded")
    assert isinstance(error_of(refused("Unheard")), EngineError)
