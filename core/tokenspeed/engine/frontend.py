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
import zmq
from zmq.utils.monitor import recv_monitor_message

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
    SessionQuery,
    SessionRelease,
    SessionReply,
    StateQuery,
    StateReply,
    Stop,
    TenantChange,
    TenantFigures,
    TenantsQuery,
    TenantsReply,
    TenantState,
    ToEngine,
    TokensOut,
    Unhealthy,
    Welcome,
)
from tokenspeed.engine.picture import spelled_out
from tokenspeed.engine.streams import Stream, error_of
from tokenspeed.engine.submits import make_submit
from tokenspeed.errors import EngineAwayError, EngineError, EngineGoneError, RequestError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tokenspeed.engine.messages import Submit, Terms
    from tokenspeed.sampling.params import SamplingParams

HEARTBEAT_S = 1.0
MAX_DRAINED = 32
"""Messages taken in one go: an engine that is faster than this process must not keep its loop from
seeing that clients went away."""
STATE_TIMEOUT_S = 5.0
MAX_UNTAKEN_BYTES = 256 << 20
"""Of messages on their way to an engine that is silent: sockets keep them without a bound."""
RELEASE_TIMEOUT_S = 30.0


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
        self._query_id = 0
        self._state_id = 0
        self._asked: asyncio.Future[bytes] | None = None
        self._questions: dict[int, asyncio.Future[TenantsReply | SessionReply]] = {}
        self._last_heard = time.monotonic()
        self._unhealthy_since: float | None = None
        self._untaken_bytes = 0
        self._welcomed = asyncio.Event()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._context = zmq.Context()
        self._socket = _dealer(self._context)
        self._loop = asyncio.get_running_loop()
        self._monitor: zmq.Socket[bytes] | None = None
        if listener is not None:
            self._watch_connection()
        self._socket.connect(address)
        self._loop.add_reader(self._socket.fileno(), self._drain)
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
        return time.monotonic() - self._last_heard

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
        if self._untaken_bytes > MAX_UNTAKEN_BYTES:
            raise EngineAwayError(
                f"the engine has taken no message for {self.silent_s:.0f} s and "
                f"{self._untaken_bytes} bytes of requests wait for it, at most {MAX_UNTAKEN_BYTES} "
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
        if self.unhealthy_reason is not None:
            raise EngineGoneError(self.unhealthy_reason)
        if self._asked is None or self._asked.done():
            self._state_id = self._next_query()
            self._asked = self._loop.create_future()
            self._send(StateQuery(self._state_id))
        try:
            async with asyncio.timeout(timeout_s):
                packed = await asyncio.shield(self._asked)
        except TimeoutError:
            self._asked = None
            raise EngineAwayError(
                f"the engine did not tell its state in {timeout_s} s: it is in a long step, or is "
                "being restarted; ask again"
            ) from None
        if not packed:
            if self.unhealthy_reason is not None:
                raise EngineGoneError(self.unhealthy_reason)
            raise EngineError("the engine could not tell its state; its log has the reason")
        return spelled_out(msgspec.msgpack.decode(packed))

    async def tenants(self, *, timeout_s: float = STATE_TIMEOUT_S) -> tuple[TenantState, ...]:
        """Ask what tenants with a floor or a cap have.

        Raises:
            EngineError: it does not answer in `timeout_s`.
        """
        return await self._ask_tenants(TenantsQuery(self._next_query()), timeout_s)

    async def change_tenant(
        self, name: str, figures: TenantFigures, *, timeout_s: float = STATE_TIMEOUT_S
    ) -> tuple[TenantState, ...]:
        """Give a tenant other figures; return all tenants that have some then.

        Raises:
            RequestError: a figure is not as needed, or the model's cache cannot be counted by
                tenant.
            EngineError: it does not answer in `timeout_s`; whether it did it is not known.
        """
        question = TenantChange(self._next_query(), self.epoch, name, figures)
        return await self._ask_tenants(question, timeout_s)

    async def session(
        self, owner: str, session: str, *, timeout_s: float = STATE_TIMEOUT_S
    ) -> SessionReply:
        """Ask for a session's family and sums.

        Raises:
            EngineError: the engine does not answer in `timeout_s`, or is gone.
        """
        query = SessionQuery(query_id=self._next_query(), owner=owner, session=session)
        return await self._ask_session(query, timeout_s)

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
        release = SessionRelease(
            query_id=self._next_query(), owner=owner, session=session, group=group, abort=abort
        )
        return await self._ask_session(release, timeout_s)

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
        self._loop.remove_reader(self._socket.fileno())
        if self._monitor is not None:
            self._loop.remove_reader(self._monitor.fileno())
            self._socket.disable_monitor()
            self._monitor.close()
        self._socket.close()
        self._context.term()

    def _next_query(self) -> int:
        self._query_id += 1
        return self._query_id

    async def _ask_tenants(
        self, question: TenantsQuery | TenantChange, timeout_s: float
    ) -> tuple[TenantState, ...]:
        hint = "look at GET /tenants and ask again"
        reply = await self._ask(question, timeout_s, f"about tenants in {timeout_s} s", hint)
        assert isinstance(reply, TenantsReply)
        if reply.refused is not None:
            raise error_of(reply.refused)
        return reply.tenants

    async def _ask_session(
        self, question: SessionQuery | SessionRelease, timeout_s: float
    ) -> SessionReply:
        about = f"about session {question.session!r} in {timeout_s} s"
        reply = await self._ask(question, timeout_s, about, "ask again")
        assert isinstance(reply, SessionReply)
        return reply

    async def _ask(
        self,
        question: TenantsQuery | TenantChange | SessionQuery | SessionRelease,
        timeout_s: float,
        about: str,
        hint: str,
    ) -> TenantsReply | SessionReply:
        if self.unhealthy_reason is not None:
            raise EngineGoneError(self.unhealthy_reason)
        answer: asyncio.Future[TenantsReply | SessionReply] = self._loop.create_future()
        self._questions[question.query_id] = answer
        self._send(question)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await answer
        except TimeoutError:
            raise EngineAwayError(
                f"the engine did not answer {about}: it is in a long step, or is being restarted; "
                f"{hint}"
            ) from None
        finally:
            self._questions.pop(question.query_id, None)
        return reply

    def _end(self, request_id: str, message: ToEngine) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self._send(message)
            stream.finish()

    def _send(self, message: ToEngine) -> None:
        payload = self._encoder.encode(message)
        self._untaken_bytes += len(payload)
        self._socket.send(payload, zmq.NOBLOCK)
        # Sending may eat the edge that says a message has arrived: look for one.
        self._loop.call_soon(self._drain)

    def _watch_connection(self) -> None:
        """Have the socket say when the engine's end goes: heartbeats would tell seconds later."""
        monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._monitor = monitor
        self._loop.add_reader(monitor.fileno(), self._drain_monitor)
        self._loop.call_soon(self._drain_monitor)  # its descriptor tells of edges only

    def _drain_monitor(self) -> None:
        assert self._monitor is not None
        assert self._listener is not None
        has_vanished = False
        while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            has_vanished = has_vanished or event["event"] == zmq.EVENT_DISCONNECTED
        if has_vanished:
            self._drain()  # what it still said comes first
            self._listener.vanished()

    async def _beat(self) -> None:
        while True:
            self._send(Hello(wire_version=WIRE_VERSION, seen_epoch=self.epoch))
            await asyncio.sleep(HEARTBEAT_S)

    def _drain(self) -> None:
        for _ in range(MAX_DRAINED):
            if self._socket.closed:
                return
            try:
                payload = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._last_heard = time.monotonic()
            self._untaken_bytes = 0  # it turns, and takes what has come before it computes
            try:
                self._take(self._decoder.decode(payload))
            except Exception as error:  # nothing may leave a stream, or a start, waiting for ever
                LOGGER.debug("a message of the engine could not be taken", exc_info=error)
                self._give_up(
                    Unhealthy(
                        f"this process cannot read a message of the engine: {error}; both must be "
                        "of one version; restart the server"
                    )
                )
        self._loop.call_soon(self._drain)  # there may be more, and no edge will say so

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
        elif isinstance(message, StateReply):
            if message.query_id == self._state_id and self._asked and not self._asked.done():
                self._asked.set_result(message.state)
        elif isinstance(message, TenantsReply | SessionReply):
            answer = self._questions.get(message.query_id)
            if answer is not None and not answer.done():
                answer.set_result(message)
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

    def _give_up(self, message: Unhealthy) -> None:
        if self.unhealthy_reason is None:
            self._unhealthy_since = time.monotonic()
        self.unhealthy_reason = message.reason
        self._welcomed.set()
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(b"")
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(EngineGoneError(message.reason))
        if self._listener is not None:
            self._listener.given_up()  # which takes the streams that another one can go on with
        for stream in tuple(self._streams.values()):
            stream.fail(EngineGoneError(message.reason))
        self._streams.clear()


def _dealer(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """Open the socket; queued messages wait for a restarted engine to listen again."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 200)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    return socket
