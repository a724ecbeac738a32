"""One request as an API process sees it: deltas on their way to a client, and what resume needs.

Deltas that a slow reader has not taken are merged into one. Knows no sockets; `frontend.py` feeds
it and the HTTP layer reads it.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.engine.messages import Delta, Refused, Submit
from tokenspeed.engine.submits import resumed
from tokenspeed.errors import CapacityError, EngineError, RequestError, TokenSpeedError

if TYPE_CHECKING:
    from collections.abc import Callable


class Stream:
    """An async iterator of the request's deltas; leaving it early aborts the request.

    One reader at a time. The last delta carries `finish_reason`. A refusal or an engine failure is
    raised as the class of `errors.py` that it names. `aclose()` (or `async with`) ends the request
    when it is not done.
    """

    def __init__(self, submit: Submit, *, on_close: Callable[[str], None]) -> None:
        self.request_id = submit.request_id
        self.is_done = False
        self.is_resumed = False
        self._submit = submit
        self.on_change: Callable[[Stream], None] | None = None
        self._on_close = on_close
        self._arrived = time.monotonic()
        self._output_ids = array("i", submit.output_ids)
        self._pending: deque[Delta] = deque()
        self._error: TokenSpeedError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._times_suspected = 0
        self._cleared_at = -1

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        """Return everything that came since the last call, as one delta.

        Raises:
            RequestError, CapacityError: the engine refused the request.
            EngineError: the engine failed it.
        """
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self.is_done:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        merged = merge_deltas(tuple(self._pending))
        self._pending.clear()
        return merged

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Abort the request unless it has ended."""
        if not self.is_done:
            self._on_close(self.request_id)
            self.finish()

    @property
    def has_tokens(self) -> bool:
        """Whether any token was delivered."""
        return len(self._output_ids) * self._output_ids.itemsize > len(self._submit.output_ids)

    def move(self, on_close: Callable[[str], None]) -> None:
        """Note that another engine goes on with the request."""
        self.is_resumed = True
        self._on_close = on_close

    def message(self, epoch: int) -> Submit:
        """Return the Submit for an engine of this epoch: it goes on after the delivered tokens."""
        waited_s = time.monotonic() - self._arrived
        message = resumed(self._submit, self._output_ids, waited_s=waited_s)
        return msgspec.structs.replace(message, epoch=epoch)

    def deliver(self, delta: Delta) -> None:
        """Take one delta from the engine."""
        self._output_ids.extend(delta.tokens)
        if delta.tokens and len(self._output_ids) > self._cleared_at:
            self._times_suspected = 0
        if delta.finish_reason == "error":
            self.fail(EngineError(delta.error or "the engine failed this request; send it again"))
            return
        self._pending.append(delta)
        self.is_done = delta.finish_reason is not None
        self._wake()

    def suspect(self, position: int) -> bool:
        """Note that the request was in an engine's fatal step; True: for the second time."""
        self._times_suspected += 1
        self._cleared_at = max(self._cleared_at, position)
        return self._times_suspected >= 2

    def fail(self, error: TokenSpeedError) -> None:
        """End with an error, after what was delivered."""
        self._error = error
        self.finish()

    def finish(self) -> None:
        """End the iteration after what was delivered."""
        self.is_done = True
        self._wake()

    def _wake(self) -> None:
        if self.on_change is not None:
            self.on_change(self)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def merge_deltas(deltas: tuple[Delta, ...]) -> Delta:
    """Join consecutive deltas of one request into one."""
    if len(deltas) == 1:
        return deltas[0]
    logprobs = [entry for delta in deltas for entry in delta.logprobs or ()]
    prompt_logprobs = [entry for delta in deltas for entry in delta.prompt_logprobs or ()]
    return Delta(
        request_id=deltas[0].request_id,
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        logprobs=tuple(logprobs) or None,
        prompt_logprobs=tuple(prompt_logprobs) or None,
        cached_tokens=max(delta.cached_tokens for delta in deltas),
        cache=next((delta.cache for delta in deltas if delta.cache is not None), None),
        embedding=next((delta.embedding for delta in deltas if delta.embedding is not None), None),
        drafts=(sum(delta.drafts[0] for delta in deltas), sum(delta.drafts[1] for delta in deltas)),
        finish_reason=deltas[-1].finish_reason,
        error=deltas[-1].error,
    )


def error_of(refused: Refused) -> TokenSpeedError:
    """Return the exception that a Refused stands for."""
    if refused.kind == "CapacityError":
        return CapacityError(refused.message, retry_after_s=refused.retry_after_s)
    if refused.kind == "RequestError":
        return RequestError(refused.message, param=refused.param, code=refused.code)
    return EngineError(refused.message)
