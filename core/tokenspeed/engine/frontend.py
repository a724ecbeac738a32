"""The engine as an API process sees it: submit, abort, stop, and streams that outlive a crash.

Runs in one asyncio loop and loads no torch. When the engine dies, live requests wait here; the
restarted engine says Welcome with a new epoch, and each request is submitted again from the tokens
already delivered, suspects last.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tokenspeed.engine.engine_socket import EngineSocket
from tokenspeed.engine.messages import (
    NO_POSITION,
    WIRE_VERSION,
    Abort,
    EngineStats,
    FromEngine,
    Hello,
    KvChanges,
    KvWatch,
    ModelInfo,
    Refused,
    SessionReply,
    StateReply,
    Stop,
    TenantFigures,
    TenantsReply,
    TenantState,
    ToEngine,
    TokensOut,
    Unhealthy,
    Welcome,
)
from tokenspeed.engine.questions import RELEASE_TIMEOUT_S, STATE_TIMEOUT_S, Questions
from tokenspeed.engine.streams import Stream, error_of
from tokenspeed.engine.submits import make_submit
from tokenspeed.errors import EngineAwayError, EngineError, EngineGoneError, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tokenspeed.engine.messages import Submit, Terms
    from tokenspeed.sampling.params import SamplingParams

HEARTBEAT_S = 1.0
MAX_UNTAKEN_BYTES = 256 << 20
"""Of messages on their way to an engine that is silent: sockets keep them without a bound."""


class Listener(Protocol):
    """Who is told what becomes of one engine of several; called in the frontend's loop."""

    def welcomed(self) -> None:
        """A started engine has answered: nothing that an earlier one had is left."""
        ...

    def counted(self, stats: EngineStats) -> None:
        """Statistics have come."""
        ...

    def changed(self, changes: KvChanges) -> None:
        """The prefix cache has changed."""
        ...

    def vanished(self) -> None:
        """The engine's end of the connection is gone: it has died, or is about to."""
        ...

    def given_up(self) -> None:
        """The engine is not started again; what is live fails unless it is handed over now."""
        ...


class Frontend:
    """A client of one engine. Thread: its asyncio loop's only."""

    model: ModelInfo

    def __init__(self, address: str, *, listener: Listener | None = None) -> None:
        self._listener = listener
        self.stats: EngineStats | None = None
        self.unhealthy_reason: str | None = None
        self.epoch = 0
        self.plan_digest = ""
        self._streams: dict[str, Stream] = {}
        self._unhealthy_since: float | None = None
        self._welcomed = asyncio.Event()
        self._socket = EngineSocket(
            address,
            take=self._take,
            misread=self._misread,
            vanished=listener.vanished if listener is not None else None,
        )
        self._send = self._socket.send
        self._questions = Questions(self._send)
        self._loop = asyncio.get_running_loop()
        self._heart = self._loop.create_task(self._beat())

    @classmethod
    async def connect(
        cls, address: str, *, timeout_s: float | None = None, listener: Listener | None = None
    ) -> Frontend:
        """Connect and wait for the engine's Welcome.

        Args:
            listener: told of what a fleet of engines must know; None: there is one engine only.
        Raises:
            EngineError: no Welcome in `timeout_s`, another wire version, or the engine is given up.
        """
        frontend = cls(address, listener=listener)
        try:
            async with asyncio.timeout(timeout_s):
                await frontend._welcomed.wait()
        except TimeoutError:
            await frontend.close()
            raise EngineError(
                f"no engine answered at {address} in {timeout_s} s; see its log for the reason"
            ) from None
        if frontend.unhealthy_reason is not None:
            await frontend.close()
            raise EngineError(frontend.unhealthy_reason)
        return frontend

    @property
    def unhealthy_s(self) -> float:
        """Seconds since the engine was given up; 0.0: it was not."""
        since = self._unhealthy_since
        return time.monotonic() - since if since is not None else 0.0

    @property
    def silent_s(self) -> float:
        """Seconds since the engine was last heard of; it answers heartbeats between steps."""
        return time.monotonic() - self._socket.last_heard_s

    @property
    def live_requests(self) -> int:
        """Number of requests that have not ended."""
        return len(self._streams)

    def submit(
        self,
        prompt_ids: Sequence[int] | NDArray[np.int32],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        terms: Terms | None = None,
    ) -> Stream:
        """Send a request and return its stream; while the engine is down it waits for the next.

        Args:
            request_id: unique over all API processes, at most 63 bytes; None: one is made.
            terms: priority, tenant, time limit, ...; None: the usual ones.
        Raises:
            RequestError: a parameter or token id is out of range.
            EngineGoneError: the engine died too often and is not restarted.
            EngineAwayError: it takes no messages, and too much waits for it already.
        """
        self.check_open()
        message = make_submit(
            self.model, prompt_ids, params, request_id or secrets.token_hex(12), terms=terms
        )
        return self.start(message)

    def check_open(self) -> None:
        """Check that requests are taken.

        Raises:
            EngineGoneError, EngineAwayError: as `submit`.
        """
        if self.unhealthy_reason is not None:
            raise EngineGoneError(self.unhealthy_reason)
        untaken_bytes = self._socket.untaken_bytes
        if untaken_bytes > MAX_UNTAKEN_BYTES:
            raise EngineAwayError(
                f"the engine has taken no message for {self.silent_s:.0f} s and "
                f"{untaken_bytes} bytes of requests wait for it, at most {MAX_UNTAKEN_BYTES} "
                "may; it is in a long step, or is being restarted; send the request again later"
            )

    def start(self, message: Submit) -> Stream:
        """Send a request that was checked.

        Raises:
            RequestError: its id is in use.
        """
        if message.request_id in self._streams:
            raise RequestError(
                f"request id {message.request_id!r} is in use; choose another", param="request_id"
            )
        stream = Stream(message, on_close=self.abort)
        self._streams[stream.request_id] = stream
        self._send(stream.message(self.epoch))
        return stream

    def adopt(self, stream: Stream, *, fatal_position: int = NO_POSITION) -> None:
        """Go on with a request of another engine, from the tokens delivered.

        Args:
            fatal_position: output index that the other's fatal step was to fill.
        """
        stream.move(self.abort)
        self._streams[stream.request_id] = stream
        message = stream.message(self.epoch)
        self._send(msgspec.structs.replace(message, fatal_position=fatal_position))

    def hand_over(self, request_ids: Sequence[str]) -> list[Stream]:
        """Give live requests away: another engine goes on with them."""
        for request_id in request_ids:
            self._send(Abort(request_id))
        return [self._streams.pop(request_id) for request_id in request_ids]

    def watch(self, *, is_lost: bool, taken_bytes: int = 0) -> None:
        """Ask for changes of the prefix cache, or say how many were taken."""
        self._send(KvWatch(self.epoch, is_lost, taken_bytes))

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Ids of the requests that have not ended."""
        return tuple(self._streams)

    def abort(self, request_id: str) -> None:
        """Give a request up: its blocks are free within one step, its stream ends."""
        self._end(request_id, Abort(request_id))

    def stop(self, request_id: str) -> None:
        """End a request as finished (a stop string was found); its cache stays matchable."""
        self._end(request_id, Stop(request_id))

    async def state(self, *, timeout_s: float = STATE_TIMEOUT_S) -> dict[str, Any]:
        """Ask the engine for a picture of its inside; those who ask at once share one.

        Raises:
            EngineError: it does not answer in `timeout_s`, or could not draw it.
        """
        return await self._questions.state(timeout_s)

    async def tenants(self, *, timeout_s: float = STATE_TIMEOUT_S) -> tuple[TenantState, ...]:
        """Ask what tenants with a floor or a cap have.

        Raises:
            EngineError: it does not answer in `timeout_s`.
        """
        return await self._questions.tenants(timeout_s)

    async def change_tenant(
        self, name: str, figures: TenantFigures, *, timeout_s: float = STATE_TIMEOUT_S
    ) -> tuple[TenantState, ...]:
        """Give a tenant other figures; return all tenants that have some then.

        Raises:
            RequestError: a figure is not as needed, or the model's cache cannot be counted by
                tenant.
            EngineError: it does not answer in `timeout_s`; whether it did it is not known.
        """
        return await self._questions.change_tenant(self.epoch, name, figures, timeout_s)

    async def session(
        self, owner: str, session: str, *, timeout_s: float = STATE_TIMEOUT_S
    ) -> SessionReply:
        """Ask for a session's family and sums.

        Raises:
            EngineError: the engine does not answer in `timeout_s`, or is gone.
        """
        return await self._questions.session(owner, session, timeout_s)

    async def release_session(
        self,
        owner: str,
        session: str,
        *,
        group: bool = False,
        abort: bool = False,
        timeout_s: float = RELEASE_TIMEOUT_S,
    ) -> SessionReply:
        """Ask that what a session alone left in the cache be dropped.

        Raises:
            EngineError: the engine does not answer in `timeout_s`, or is gone.
        """
        return await self._questions.release_session(
            owner, session, timeout_s, group=group, abort=abort
        )

    def give_up(self, reason: str) -> None:
        """End every live request with an EngineError, after what was delivered; take no more."""
        for request_id in self._streams:
            self._send(Abort(request_id))
        self._give_up(Unhealthy(reason))

    async def close(self) -> None:
        """Abort what is live and release the socket."""
        for request_id in tuple(self._streams):
            self.abort(request_id)
        self._heart.cancel()
        await asyncio.gather(self._heart, return_exceptions=True)
        self._socket.close()

    def _end(self, request_id: str, message: ToEngine) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self._send(message)
            stream.finish()

    async def _beat(self) -> None:
        while True:
            self._send(Hello(wire_version=WIRE_VERSION, seen_epoch=self.epoch))
            await asyncio.sleep(HEARTBEAT_S)

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, TokensOut):
            if message.epoch == self.epoch:
                self._deliver(message)
        elif isinstance(message, Welcome):
            if message.epoch != self.epoch:
                self._welcome(message)
        elif isinstance(message, Refused):
            if message.epoch == self.epoch:
                self._refuse(message)
        elif isinstance(message, EngineStats):
            self.stats = message
            if self._listener is not None:
                self._listener.counted(message)
        elif isinstance(message, KvChanges):
            if self._listener is not None and message.epoch == self.epoch:
                self._listener.changed(message)
        elif isinstance(message, StateReply | TenantsReply | SessionReply):
            self._questions.take(message)
        else:
            self._give_up(message)

    def _deliver(self, message: TokensOut) -> None:
        for delta in message.deltas:
            stream = self._streams.get(delta.request_id)
            if stream is None:
                continue
            stream.deliver(delta)
            if stream.is_done:
                del self._streams[delta.request_id]

    def _refuse(self, message: Refused) -> None:
        stream = self._streams.get(message.request_id)
        if stream is None:
            return
        if stream.is_resumed and message.retry_after_s is not None:
            # It had its place before the crash: a queue that is full for now must not end it.
            self._loop.call_later(message.retry_after_s, self._retry, message)
            return
        del self._streams[message.request_id]
        stream.fail(error_of(message))

    def _retry(self, message: Refused) -> None:
        if message.epoch == self.epoch:  # else the next engine's Welcome has sent it again
            self._resubmit((message.request_id,))

    def _welcome(self, welcome: Welcome) -> None:
        if welcome.wire_version != WIRE_VERSION:
            self._give_up(
                Unhealthy(
                    f"the engine speaks wire version {welcome.wire_version}, this process "
                    f"{WIRE_VERSION}; install one version of tokenspeed for both"
                )
            )
            return
        self.epoch = welcome.epoch
        self.plan_digest = welcome.plan_digest
        self.model = welcome.model
        self._welcomed.set()
        if self._listener is not None:
            self._listener.welcomed()
        suspects = dict(zip(welcome.suspects, welcome.suspect_positions, strict=True))
        self._resubmit([name for name in self._streams if name not in suspects])
        self._resubmit([name for name in suspects if self._may_try_again(name, suspects[name])])

    def _resubmit(self, request_ids: Sequence[str]) -> None:
        """Send live requests again, from the tokens delivered."""
        for request_id in request_ids:
            stream = self._streams.get(request_id)
            if stream is not None:
                stream.is_resumed = True
                self._send(stream.message(self.epoch))

    def _may_try_again(self, request_id: str, position: int) -> bool:
        """Note a suspicion; the second one ends the request."""
        stream = self._streams.get(request_id)
        if stream is None or not stream.suspect(position):
            return stream is not None
        del self._streams[request_id]
        stream.fail(
            EngineError(
                f"request {request_id} was running in two crashes of the engine and is not tried "
                "again; change the request, or see the engine's log"
            )
        )
        return False

    def _misread(self, error: Exception) -> None:
        self._give_up(
            Unhealthy(
                f"this process cannot read a message of the engine: {error}; both must be "
                "of one version; restart the server"
            )
        )

    def _give_up(self, message: Unhealthy) -> None:
        if self.unhealthy_reason is None:
            self._unhealthy_since = time.monotonic()
        self.unhealthy_reason = message.reason
        self._welcomed.set()
        self._questions.give_up(message.reason)
        if self._listener is not None:
            self._listener.given_up()  # which takes the streams that another one can go on with
        for stream in tuple(self._streams.values()):
            stream.fail(EngineGoneError(message.reason))
        self._streams.clear()
