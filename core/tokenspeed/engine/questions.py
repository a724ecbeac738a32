"""What an API process asks its engine beside requests: its picture, tenants, sessions.

Each question has a number, which comes back with the reply. Knows no sockets: `Frontend` sends what
is asked and hands over what is answered. Thread: the frontend's asyncio loop only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from tokenspeed.engine.messages import (
    SessionQuery,
    SessionRelease,
    SessionReply,
    StateQuery,
    StateReply,
    TenantChange,
    TenantFigures,
    TenantsQuery,
    TenantsReply,
    TenantState,
    ToEngine,
)
from tokenspeed.engine.picture import spelled_out
from tokenspeed.engine.streams import error_of
from tokenspeed.errors import EngineAwayError, EngineError, EngineGoneError

if TYPE_CHECKING:
    from collections.abc import Callable

STATE_TIMEOUT_S = 5.0
RELEASE_TIMEOUT_S = 30.0


class Questions:
    """Asks one engine.

    Args:
        send: sends a message to it.
    """

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._gone_reason: str | None = None
        self._query_id = 0
        self._state_id = 0
        self._asked: asyncio.Future[bytes] | None = None
        self._open: dict[int, asyncio.Future[TenantsReply | SessionReply]] = {}

    async def state(self, timeout_s: float) -> dict[str, Any]:
        """Ask for a picture of the inside; those who ask at once share one.

        Raises:
            EngineError: it does not answer in `timeout_s`, or could not draw it.
        """
        self._check_there()
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
            self._check_there()
            raise EngineError("the engine could not tell its state; its log has the reason")
        return spelled_out(msgspec.msgpack.decode(packed))

    async def tenants(self, timeout_s: float) -> tuple[TenantState, ...]:
        """Ask what tenants with a floor or a cap have.

        Raises:
            EngineError: it does not answer in `timeout_s`.
        """
        return await self._ask_tenants(TenantsQuery(self._next_query()), timeout_s)

    async def change_tenant(
        self, epoch: int, name: str, figures: TenantFigures, timeout_s: float
    ) -> tuple[TenantState, ...]:
        """Give a tenant other figures; return all tenants that have some then.

        Args:
            epoch: of the engine that is meant.
        Raises:
            RequestError: a figure is not as needed.
            EngineError: it does not answer in `timeout_s`; whether it did it is not known.
        """
        question = TenantChange(self._next_query(), epoch, name, figures)
        return await self._ask_tenants(question, timeout_s)

    async def session(self, owner: str, session: str, timeout_s: float) -> SessionReply:
        """Ask for a session's family and sums.

        Raises:
            EngineError: it does not answer in `timeout_s`, or is gone.
        """
        query = SessionQuery(query_id=self._next_query(), owner=owner, session=session)
        return await self._ask_session(query, timeout_s)

    async def release_session(
        self, owner: str, session: str, timeout_s: float, *, group: bool, abort: bool
    ) -> SessionReply:
        """Ask that what a session alone left in the cache be dropped.

        Raises:
            EngineError: it does not answer in `timeout_s`, or is gone.
        """
        release = SessionRelease(
            query_id=self._next_query(), owner=owner, session=session, group=group, abort=abort
        )
        return await self._ask_session(release, timeout_s)

    def take(self, reply: StateReply | TenantsReply | SessionReply) -> None:
        """Hand a reply to who waits for it; nobody may, by now."""
        if isinstance(reply, StateReply):
            if reply.query_id == self._state_id and self._asked and not self._asked.done():
                self._asked.set_result(reply.state)
            return
        answer = self._open.get(reply.query_id)
        if answer is not None and not answer.done():
            answer.set_result(reply)

    def give_up(self, reason: str) -> None:
        """End every open question, and refuse those to come: nobody is there to answer."""
        self._gone_reason = reason
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(b"")
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(EngineGoneError(reason))

    def _check_there(self) -> None:
        if self._gone_reason is not None:
            raise EngineGoneError(self._gone_reason)

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
        self._check_there()
        answer: asyncio.Future[TenantsReply | SessionReply] = self._loop.create_future()
        self._open[question.query_id] = answer
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
            self._open.pop(question.query_id, None)
        return reply
