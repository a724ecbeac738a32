"""The receiving half of the loop: turns messages into requests of scheduler and executor.

Whatever is wrong with one request ends that request and nothing else.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenspeed.contracts.policy import Arrival, Keys
from tokenspeed.engine.flight_record import MAX_REQUEST_ID_BYTES
from tokenspeed.engine.messages import (
    NO_POSITION,
    WIRE_VERSION,
    Abort,
    Hello,
    KvWatch,
    Refused,
    SessionQuery,
    SessionRelease,
    StateQuery,
    StateReply,
    Stop,
    Submit,
    TenantChange,
    TenantsQuery,
    TenantsReply,
    ToEngine,
    Welcome,
)
from tokenspeed.engine.requests import LiveRequest, RequestTable, number_of
from tokenspeed.engine.session_book import SessionBook
from tokenspeed.engine.session_desk import SessionDesk
from tokenspeed.engine.submits import resumed
from tokenspeed.errors import CapacityError, RequestError, TokenSpeedError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenspeed.contracts.grammar import CompiledGrammar
    from tokenspeed.engine.channel import Client, EngineChannel
    from tokenspeed.engine.engine import Engine
    from tokenspeed.engine.flight_record import FlightRecord
    from tokenspeed.engine.grammars import PendingGrammar
    from tokenspeed.engine.messages import EngineStats
    from tokenspeed.engine.replicas.feed import KvFeed
    from tokenspeed.engine.snapshot import Snapshot
    from tokenspeed.engine.suspects import SuspectGate

CLIENT_SILENCE_S = 60.0
"""An API process not heard of for so long is gone, though its socket is still there."""
MAX_HELD = 1024
"""Requests that wait for their grammar, at most."""
RETRY_S = 5


def now_us() -> int:
    """Return the engine's clock: the one input of time to the control plane."""
    return time.monotonic_ns() // 1000


@dataclass(frozen=True, slots=True)
class _Held:
    """A request that waits for its grammar."""

    client: Client
    message: Submit
    grammar: PendingGrammar
    arrived_us: int


class Intake:
    """Takes messages of all clients. Thread: the engine's only."""

    def __init__(
        self,
        engine: Engine,
        channel: EngineChannel,
        requests: RequestTable,
        gate: SuspectGate,
        *,
        epoch: int,
        stats: Callable[[], EngineStats],
        snapshot: Snapshot,
        record: FlightRecord | None = None,
        kv_feed: KvFeed | None = None,
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._requests = requests
        self._gate = gate
        self._epoch = epoch
        self._stats = stats
        self._snapshot = snapshot
        self._record = record
        self._kv_feed = kv_feed
        self._heard_s: dict[Client, float] = {}
        self._held: dict[str, _Held] = {}
        self._book = SessionBook()
        self._desk = SessionDesk(engine, channel, requests, self._book, abort=self._abort)

    @property
    def num_held(self) -> int:
        """Requests that wait for their grammar."""
        return len(self._held)

    @property
    def is_releasing(self) -> bool:
        """Whether sessions are being released."""
        return self._desk.is_busy

    def take(self, client: Client, message: ToEngine) -> None:
        """Act on one message."""
        if isinstance(message, Submit):
            if message.epoch == self._epoch:
                self._take_submit(client, message)
        elif isinstance(message, Hello):
            self._greet(client, message)
        elif isinstance(message, StateQuery):
            self._answer(client, message)
        elif isinstance(message, KvWatch):
            if self._kv_feed is not None:
                self._kv_feed.take(client, message)
        elif isinstance(message, SessionQuery):
            self._desk.tell(client, message)
        elif isinstance(message, SessionRelease):
            self._desk.release(client, message)
        elif isinstance(message, TenantsQuery | TenantChange):
            self._answer_tenants(client, message)
        else:
            self._end(client, message)

    def _take_submit(self, client: Client, message: Submit) -> None:
        if message.fatal_position != NO_POSITION:  # of another replica's last step
            self._gate.suspect(message.request_id, message.fatal_position)
            message = msgspec.structs.replace(message, fatal_position=NO_POSITION)
        if self._gate.admits(client, message):
            self._submit(client, message)

    def release_sessions(self) -> None:
        """Go on with the sessions that are being released."""
        self._desk.turn()

    def admit_held(self) -> None:
        """Let the next suspect in, when the one on trial has passed or ended."""
        for _ in range(self._gate.num_held):
            held = self._gate.next_held()
            if held is None:
                return
            self.take(*held)

    def try_again(self, request: LiveRequest) -> None:
        """Let a request of a step that failed go on from its last token, when its trial comes."""
        assert request.message is not None
        self._gate.suspect(request.request_id, request.num_outputs)
        waited_s = time.monotonic() - request.arrived_s
        self.take(request.client, resumed(request.message, request.outputs, waited_s=waited_s))

    def admit_compiled(self) -> None:
        """Let those in whose grammars are ready; refuse those whose never will be."""
        if not self._held:
            return
        now_s = time.monotonic()
        settled = [item for item in self._held.values() if item.grammar.is_settled(now_s)]
        for item in settled:
            self._release(item.message.request_id)
            self._submit(item.client, item.message, item)

    def drop_client(self, client: Client) -> None:
        """End everything an API process asked for: it is gone."""
        self._heard_s.pop(client, None)
        for item in [item for item in self._held.values() if item.client == client]:
            self._forget(item)
        for request in self._requests.of_client(client):
            self._abort(request.key)
        self._desk.drop_client(client)
        if self._kv_feed is not None:
            self._kv_feed.drop(client)

    def drop_silent_clients(self) -> None:
        """Drop clients that have sent no heartbeat for a long time."""
        limit = time.monotonic() - CLIENT_SILENCE_S
        for client in [name for name, heard in self._heard_s.items() if heard < limit]:
            LOGGER.warning("an API process is silent for %.0f s; dropped", CLIENT_SILENCE_S)
            self.drop_client(client)

    def _abort(self, key: int) -> None:
        self._engine.scheduler.abort(key, now_us=now_us())

    def _greet(self, client: Client, hello: Hello) -> None:
        self._heard_s[client] = time.monotonic()
        if hello.seen_epoch == self._epoch:
            self._channel.send(client, self._stats())
            return
        self._channel.send(
            client,
            Welcome(
                wire_version=WIRE_VERSION,
                epoch=self._epoch,
                model=self._engine.info,
                suspects=tuple(self._gate.positions),
                suspect_positions=tuple(self._gate.positions.values()),
                plan_digest=self._engine.report.plan_digest,
            ),
        )

    def _answer(self, client: Client, query: StateQuery) -> None:
        try:
            self._channel.send(client, StateReply(query.query_id, self._snapshot.packed()))
        except Exception:  # a picture that cannot be drawn must not cost a stream
            LOGGER.exception("the state of the engine could not be told")
            self._channel.send(client, StateReply(query.query_id, b""))

    def _answer_tenants(self, client: Client, query: TenantsQuery | TenantChange) -> None:
        refused = None
        try:
            if isinstance(query, TenantChange):
                if query.epoch != self._epoch:
                    return
                self._change_tenant(query)
        except TokenSpeedError as error:
            refused = refusal("", self._epoch, error)
        states = self._engine.tenants.states()
        self._channel.send(client, TenantsReply(query.query_id, states, refused))

    def _change_tenant(self, change: TenantChange) -> None:
        """Change figures; requests that they leave no room end with the reason."""
        tenants = self._engine.tenants
        for key in tenants.change(change.name, change.figures, now_us=now_us()):
            request = self._requests.by_key(key)
            if request is None:
                continue
            most = tenants.most_bytes(request.tenant)
            request.refusal = (
                f"the request was ended: floors and caps of tenants have changed, and its "
                f"{request.num_prompt} prompt tokens with what they ask for can never fit any "
                f"more; a request of its tenant may take {most} bytes of KV cache now; send a "
                "shorter one, or have the cap raised or others' floors lowered"
            )
        LOGGER.info("tenant %r: %s", change.name, change.figures)

    def _submit(self, client: Client, message: Submit, held: _Held | None = None) -> None:
        try:
            if message.params.grammar is None or held is not None:
                self._enter_noted(client, message, held)
            else:
                self._hold(client, message)
        except Exception as error:
            is_for_now = isinstance(error, CapacityError) and error.retry_after_s is not None
            if is_for_now and self._gate.is_suspect(message.request_id):
                self._gate.hold(client, message)  # it had its place before the fatal step
                return
            self._gate.note_end(message.request_id)
            if not isinstance(error, TokenSpeedError):
                LOGGER.exception("request %s could not be taken", message.request_id)
            self._channel.send(client, refusal(message.request_id, self._epoch, error))

    def _hold(self, client: Client, message: Submit) -> None:
        """Let a request wait for its grammar; one that is ready is let in this turn."""
        assert message.params.grammar is not None
        self._check_id(message.request_id)
        if self._engine.grammars is None:
            raise RequestError(
                "no grammar engine is loaded, so answers cannot be kept in a language; leave "
                f"{message.params.grammar.field} out, or load a plugin that offers one",
                param=message.params.grammar.field,
                code="unsupported_parameter",
            )
        if len(self._held) >= MAX_HELD:
            raise CapacityError(
                f"{len(self._held)} requests wait for their grammars, at most {MAX_HELD} may; send "
                f"the request again in {RETRY_S} s",
                retry_after_s=RETRY_S,
            )
        if self._record is not None:
            self._record.enter(message.request_id)
        pending = self._engine.grammars.ask(message.params.grammar)
        self._held[message.request_id] = _Held(client, message, pending, now_us())

    def _forget(self, held: _Held) -> None:
        assert self._engine.grammars is not None
        self._engine.grammars.drop(held.grammar)
        self._release(held.message.request_id)

    def _release(self, request_id: str) -> None:
        """Take a request out that waited for its grammar."""
        del self._held[request_id]
        if self._record is not None:
            self._record.leave(request_id)

    def _enter_noted(self, client: Client, message: Submit, held: _Held | None) -> None:
        """Enter a request; should that end the process, the next engine knows who did."""
        self._check_id(message.request_id)
        if self._record is not None:
            self._record.enter(message.request_id)
        try:
            self._enter(client, message, held)
        finally:
            if self._record is not None:
                self._record.leave(message.request_id)

    def _enter(self, client: Client, message: Submit, held: _Held | None) -> None:
        grammar = None
        if held is not None:
            assert self._engine.grammars is not None
            grammar = self._engine.grammars.take(held.grammar)
        prompt_ids = np.frombuffer(message.prompt_ids, dtype="<i4")
        output_ids = np.frombuffer(message.output_ids, dtype="<i4")
        now = now_us()
        session = number_of(message.session, owner=message.owner)
        tenant = number_of(message.tenant)
        arrival = Arrival(session, tenant, message.priority, prompt_ids.size, now)
        keys = self._engine.policy.keys(arrival)
        try:
            request = self._admit(
                client, message, prompt_ids, output_ids, arrival, keys, grammar, held
            )
        except Exception:
            self._engine.policy.turn_ended(session, now)
            raise
        self._requests.add(request)
        self._book.note(message)
        if self._kv_feed is not None:
            self._kv_feed.note_turn(session, prompt_ids.size)

    def _admit(
        self,
        client: Client,
        message: Submit,
        prompt_ids: NDArray[np.int32],
        output_ids: NDArray[np.int32],
        arrival: Arrival,
        keys: Keys,
        grammar: CompiledGrammar | None,
        held: _Held | None,
    ) -> LiveRequest:
        params, now = message.params, arrival.now_us
        arrived_us = now if held is None else held.arrived_us
        deadline_us = 0
        if message.timeout_s is not None:
            deadline_us = arrived_us + int(message.timeout_s * 1e6)
        key = self._requests.new_key()
        drafting = self._engine.drafting
        max_drafts = drafting.max_drafts if drafting is not None else 0
        self._engine.scheduler.submit(
            key,
            prompt_ids,
            session=arrival.session,
            output_ids=output_ids if output_ids.size else None,
            max_new_tokens=params.max_tokens or 0,
            # With a grammar, a stop token before min_tokens comes only where nothing else may.
            min_new_tokens=params.min_tokens if grammar is None else 0,
            stop_token_ids=np.array(message.stop_token_ids, dtype=np.int32),
            priority=message.priority,
            salt=message.salt,
            root=number_of(message.root or message.session, owner=message.owner),
            tenant=arrival.tenant,
            retain_us=int(message.retain_s * 1e6),
            match_prefix=params.prompt_logprobs is None,
            deadline_us=deadline_us,
            reuse_points=np.array(message.reuse_points, dtype=np.int32),
            gap_us=keys.gap_us,
            queue_key=keys.queue_key,
            victim_key=keys.victim_key,
            max_drafts=max_drafts,
            now_us=now,
        )
        try:
            self._engine.executor.add_request(
                key, prompt_ids, output_ids, params, message.stop_token_ids, grammar
            )
        except Exception:
            self._engine.scheduler.abort(key, now_us=now)
            raise
        if drafting is not None:
            drafting.add(key, prompt_ids, output_ids)
        return LiveRequest(
            key,
            message.request_id,
            client,
            array("i", message.output_ids),
            message,
            num_prompt=prompt_ids.size,
            arrived_s=arrived_us / 1e6,
            tenant=message.tenant,
            session=message.session,
            parent=message.parent,
            root=message.root,
            session_number=arrival.session,
            deadline_us=deadline_us,
            is_resumed=bool(output_ids.size),
        )

    def _check_id(self, request_id: str) -> None:
        if not 0 < len(request_id.encode()) <= MAX_REQUEST_ID_BYTES:
            raise RequestError(
                f"request id {request_id!r} has {len(request_id.encode())} bytes, allowed are 1 to "
                f"{MAX_REQUEST_ID_BYTES}; choose a shorter one",
                param="request_id",
            )
        if self._requests.by_id(request_id) is not None or request_id in self._held:
            raise RequestError(
                f"request id {request_id!r} is in use; choose another", param="request_id"
            )

    def _end(self, client: Client, message: Abort | Stop) -> None:
        self._gate.note_end(message.request_id)
        held = self._held.get(message.request_id)
        if held is not None and held.client == client:
            self._forget(held)
        request = self._requests.by_id(message.request_id)
        if request is None or request.client != client:
            return
        scheduler = self._engine.scheduler
        end = scheduler.stop if isinstance(message, Stop) else scheduler.abort
        end(request.key, now_us=now_us())


def refusal(request_id: str, epoch: int, error: Exception) -> Refused:
    """Return the message that carries an exception to the API process."""
    is_ours = isinstance(error, TokenSpeedError)
    return Refused(
        request_id=request_id,
        epoch=epoch,
        kind=type(error).__name__ if is_ours else "EngineError",
        message=str(error) if is_ours else f"the engine could not take the request: {error!r}",
        param=getattr(error, "param", None),
        code=getattr(error, "code", None),
        retry_after_s=getattr(error, "retry_after_s", None),
    )
