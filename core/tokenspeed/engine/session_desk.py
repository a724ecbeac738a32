"""Tells of sessions, and ends them: what only they left in the cache is dropped.

query -> the session's family and sums
release -> [abort its requests] -> wait until their last step is committed -> drop, one session
           after the other, a little in each turn of the loop -> what each one freed
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from operator import mul
from typing import TYPE_CHECKING, Any

import msgspec

from tokenspeed.engine.messages import SessionReply
from tokenspeed.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.engine.channel import Client, EngineChannel
    from tokenspeed.engine.engine import Engine
    from tokenspeed.engine.messages import SessionQuery, SessionRelease
    from tokenspeed.engine.requests import RequestTable
    from tokenspeed.engine.session_book import KnownSession, SessionBook

BUSY = "session_busy"
"""Code of the scheduler's refusal to release a session with live requests."""
TURN_S = 0.002
"""Time that releases may take in one turn of the loop, beside the one that is begun."""


@dataclass(slots=True)
class _Job:
    """A release under way.

    Args:
        left: sessions still to be released, in order.
    """

    client: Client
    asked: SessionRelease
    left: deque[KnownSession]
    released: list[dict[str, Any]] = field(default_factory=list)


class SessionDesk:
    """Answers what is asked about sessions. Thread: the engine's only.

    Args:
        abort: ends a live request by its key.
    """

    def __init__(
        self,
        engine: Engine,
        channel: EngineChannel,
        requests: RequestTable,
        book: SessionBook,
        *,
        abort: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._requests = requests
        self._book = book
        self._abort = abort
        self._jobs: deque[_Job] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether releases are under way."""
        return bool(self._jobs)

    def tell(self, client: Client, query: SessionQuery) -> None:
        """Answer with a session's family and sums."""
        session = self._book.find(query.owner, query.session)
        if session is None:
            self._reply(client, query.query_id, "unknown", {})
            return
        children = self._book.children(query.owner, session.name)
        shown = {
            "session": session.name,
            "parent": session.parent or None,
            "root": session.root,
            "children": [child.name for child in children],
            "live_requests": len(self._live(session)),
            **self._engine.scheduler.session_totals(session.number),
        }
        self._reply(client, query.query_id, "done", shown)

    def release(self, client: Client, asked: SessionRelease) -> None:
        """Begin to release a session, or say why not."""
        session = self._book.find(asked.owner, asked.session)
        if session is None:
            self._reply(client, asked.query_id, "unknown", {})
            return
        family = self._book.family(asked.owner, session.name) if asked.group else [session]
        live = {one.name: len(self._live(one)) for one in family}
        if any(live.values()) and not asked.abort:
            self._refuse(client, asked, live, [])
            return
        self._jobs.append(_Job(client, asked, deque(family)))

    def turn(self) -> None:
        """Go on with the releases under way."""
        until_s = time.perf_counter() + TURN_S
        for _ in range(len(self._jobs)):
            job = self._jobs.popleft()
            if self._goes_on(job, until_s):
                self._jobs.append(job)

    def drop_client(self, client: Client) -> None:
        """Forget what an API process waits for: it is gone. What is released stays released."""
        self._jobs = deque(job for job in self._jobs if job.client != client)

    def _goes_on(self, job: _Job, until_s: float) -> bool:
        """Release what can be; False: the job has been answered."""
        while job.left:
            session = job.left[0]
            live = self._live(session)
            if live and not job.asked.abort:
                self._refuse(job.client, job.asked, {session.name: len(live)}, job.released)
                return False
            for key in live:
                self._abort(key)
            if not self._release(job, session) or time.perf_counter() > until_s:
                return True
        self._reply(job.client, job.asked.query_id, "done", {"released": job.released})
        return False

    def _release(self, job: _Job, session: KnownSession) -> bool:
        """Release one session; False: a step that is not committed yet still uses it."""
        try:
            freed = self._engine.scheduler.release(
                session.number, now_us=time.monotonic_ns() // 1000
            )
        except RequestError as error:
            if error.code != BUSY:
                raise
            return False
        job.left.popleft()
        job.released.append({"session": session.name, **self._bytes_of(freed)})
        self._book.forget(job.asked.owner, session.name)
        return True

    def _bytes_of(self, freed: dict[str, Any] | None) -> dict[str, int]:
        """Return what was freed in tokens and bytes; a session long forgotten had nothing."""
        if freed is None:
            return {"tokens": 0, "bytes": 0, "host_bytes": 0}
        sizes = self._engine.cache_block_bytes
        return {
            "tokens": freed["tokens"],
            "bytes": sum(map(mul, freed["blocks"], sizes)),
            "host_bytes": sum(map(mul, freed["host_blocks"], sizes)),
        }

    def _live(self, session: KnownSession) -> list[int]:
        return self._requests.keys_of_session(session.number)

    def _refuse(
        self,
        client: Client,
        asked: SessionRelease,
        live: dict[str, int],
        released: list[dict[str, Any]],
    ) -> None:
        busy = {name: count for name, count in live.items() if count}
        body = {"live_requests": busy, "released": released}
        self._reply(client, asked.query_id, "busy", body)

    def _reply(self, client: Client, query_id: int, outcome: str, body: dict[str, Any]) -> None:
        packed = msgspec.msgpack.encode(body)
        self._channel.send(client, SessionReply(query_id=query_id, outcome=outcome, body=packed))
