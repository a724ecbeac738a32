"""Several replicas as an API process sees them: one front end, which has one for each engine.

    submit -> router: which replica -> that replica's Frontend -> its stream

A replica whose engine dies gets no new requests until the next one has answered. Its streams go on
elsewhere at once, but for those that were in the fatal step: they wait for the next engine, and go
elsewhere on trial if none comes. Loads no torch. Thread: its asyncio loop's only.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING

from tokenspeed.engine.flight_record import read_suspects
from tokenspeed.engine.frontend import Frontend
from tokenspeed.engine.messages import NO_POSITION
from tokenspeed.engine.replicas.desk import FleetDesk
from tokenspeed.engine.replicas.router import Limits, Routed, Router
from tokenspeed.engine.replicas.stats import summed_stats
from tokenspeed.engine.submits import make_submit
from tokenspeed.errors import EngineError, EngineGoneError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from tokenspeed.engine.messages import EngineStats, KvChanges, ModelInfo, Terms
    from tokenspeed.engine.streams import Stream
    from tokenspeed.sampling.params import SamplingParams

PATIENCE_S = 15.0
"""How long the suspects of a fatal step wait for their replica's next engine."""
WATCH_S = 0.25


class Replica:
    """One engine of a fleet: its front end, and whether it can be asked.

    Args:
        number: from 0.
        record: its flight record, which tells who was in the step in which it died.
    """

    frontend: Frontend

    def __init__(self, fleet: Fleet, number: int, record: Path) -> None:
        self.number = number
        self.record = record
        self.away_since_s: float | None = None
        self.suspects: Mapping[str, int] = {}
        self._fleet = fleet
        self._taken_bytes = 0
        self._is_welcome = False

    @property
    def is_here(self) -> bool:
        """Whether requests may be sent there."""
        return self.away_since_s is None and self.frontend.unhealthy_reason is None

    @property
    def away_s(self) -> float:
        """Seconds since its engine vanished; 0.0: it did not."""
        return 0.0 if self.away_since_s is None else time.monotonic() - self.away_since_s

    def welcomed(self) -> None:
        """Begin anew: the engine has nothing cached."""
        self.away_since_s = None
        self.suspects = {}
        self._is_welcome = True
        self._ask_for_all()

    def counted(self, stats: EngineStats) -> None:
        """Hand statistics to the router, and say how many changes were taken."""
        if self._fleet.router is None:
            return
        if self._fleet.router.counted(self.number, stats):
            self._ask_for_all()
        else:
            self.frontend.watch(is_lost=False, taken_bytes=self._taken_bytes)

    def changed(self, changes: KvChanges) -> None:
        """Hand changes of the cache to the router."""
        if self._fleet.router is None:
            return
        self._taken_bytes = 0 if changes.is_all else self._taken_bytes + len(changes.blocks)
        if not self._fleet.router.changed(self.number, changes):
            LOGGER.debug("replica %d: a change of its cache was missed", self.number)
            self._ask_for_all()

    def vanished(self) -> None:
        """Send nothing there until the next engine answers; let the innocent go on elsewhere."""
        if self.away_since_s is not None or not self._is_welcome:
            return
        self.away_since_s = time.monotonic()
        self.suspects = read_suspects(self.record)
        self._fleet.lost(self)

    def given_up(self) -> None:
        """Let all go on elsewhere."""
        self._fleet.given_up(self)

    def _ask_for_all(self) -> None:
        if self._fleet.router is not None:
            self._fleet.router.forget(self.number)
            self.frontend.watch(is_lost=True)


class Fleet(FleetDesk):
    """A client of several engines, with the methods of `Frontend`.

    Args:
        records: flight record of each engine.
    """

    on_routed: Callable[[Routed], None] | None = None
    """Told of each request and its replica."""

    def __init__(self, records: Sequence[Path]) -> None:
        self.router: Router | None = None
        self.replicas = [Replica(self, number, record) for number, record in enumerate(records)]
        super().__init__(self.replicas)
        self._routed: dict[str, Routed] = {}
        self._is_closing = False
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        addresses: Sequence[str],
        records: Sequence[Path],
        limits: Limits,
        *,
        timeout_s: float | None = None,
    ) -> Fleet:
        """Connect to all engines and wait for each one's Welcome.

        Raises:
            EngineError: one does not answer, or is given up.
        """
        fleet = cls(records)
        for replica, address in zip(fleet.replicas, addresses, strict=True):
            replica.frontend = await Frontend.connect(
                address, timeout_s=timeout_s, listener=replica
            )
        fleet.router = Router(fleet.model, limits, len(addresses))
        for replica in fleet.replicas:
            replica.frontend.watch(is_lost=True)
        fleet._watch = asyncio.get_running_loop().create_task(fleet._keep_watch())
        return fleet

    @property
    def model(self) -> ModelInfo:
        """The served model: all replicas serve the same."""
        return self.replicas[0].frontend.model

    @property
    def plan_digests(self) -> tuple[str, ...]:
        """Digest of each replica's binding plan."""
        return tuple(replica.frontend.plan_digest for replica in self.replicas)

    @property
    def frontends(self) -> tuple[Frontend, ...]:
        """The front end of each replica."""
        return tuple(replica.frontend for replica in self.replicas)

    @property
    def stats(self) -> EngineStats | None:
        """The sums of the replicas' latest figures; None before the first."""
        return summed_stats([one.stats for one in self.frontends if one.stats is not None])

    @property
    def unhealthy_reason(self) -> str | None:
        """Why no replica is started again; None: one is, or all are well."""
        reasons = [one.unhealthy_reason for one in self.frontends]
        return "; ".join(filter(None, reasons)) if all(reasons) else None

    @property
    def live_requests(self) -> int:
        """Number of requests that have not ended."""
        return sum(frontend.live_requests for frontend in self.frontends)

    def submit(
        self,
        prompt_ids: Sequence[int] | NDArray[np.int32],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        terms: Terms | None = None,
    ) -> Stream:
        """Send a request where its first token is expected soonest; see `Frontend.submit`.

        Raises:
            RequestError, EngineGoneError, EngineAwayError: as there.
        """
        assert self.router is not None
        here = self._askable()
        message = make_submit(
            self.model, prompt_ids, params, request_id or secrets.token_hex(12), terms=terms
        )
        routed = self.router.route(message, here)
        try:
            frontend = self.replicas[routed.replica].frontend
            frontend.check_open()
            stream = frontend.start(message)
        except Exception:
            self.router.displaced(routed)
            raise
        self._routed[stream.request_id] = routed
        if self.on_routed is not None:
            self.on_routed(routed)
        stream.on_change = self._note
        return stream

    def abort(self, request_id: str) -> None:
        """Give a request up, wherever it is."""
        for frontend in self.frontends:
            frontend.abort(request_id)

    def stop(self, request_id: str) -> None:
        """End a request as finished, wherever it is."""
        for frontend in self.frontends:
            frontend.stop(request_id)

    def give_up(self, reason: str) -> None:
        """End every live request with an EngineError, after what was delivered; take no more."""
        self._is_closing = True
        for frontend in self.frontends:
            frontend.give_up(reason)

    async def close(self) -> None:
        """Abort what is live and release the sockets."""
        self._is_closing = True
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        for frontend in self.frontends:
            await frontend.close()

    def lost(self, replica: Replica) -> None:
        """Let a vanished engine's requests go on elsewhere, but for its suspects."""
        assert self.router is not None
        self.router.lost(replica.number)
        LOGGER.warning(
            "replica %d: its engine is gone; %d requests of this process go on elsewhere, %d that "
            "were in its last step wait for its next one",
            replica.number,
            len(set(replica.frontend.request_ids) - replica.suspects.keys()),
            len(replica.suspects.keys() & set(replica.frontend.request_ids)),
        )
        self._move(replica, is_patient=True)

    def given_up(self, replica: Replica) -> None:
        """Let all of an engine's requests go on elsewhere: it will not be started again."""
        if not self._is_closing and self.router is not None:
            self.router.lost(replica.number)
            self._move(replica, is_patient=False)

    def _move(self, replica: Replica, *, is_patient: bool) -> None:
        """Move a replica's requests; where no other one is left they stay.

        Args:
            is_patient: suspects wait for the next engine.
        """
        for request_id in replica.frontend.request_ids:
            if is_patient and request_id in replica.suspects:
                continue
            target = self._other_than(replica)
            if target is None:
                return
            (stream,) = replica.frontend.hand_over((request_id,))
            self._adopt(stream, target, replica.suspects.get(request_id, NO_POSITION))

    def _other_than(self, replica: Replica) -> Replica | None:
        """Return the replica with the least to do, else one that is to come back."""
        assert self.router is not None
        loads = self.router.loads
        others = [
            other
            for other in self.replicas
            if other is not replica and other.frontend.unhealthy_reason is None
        ]
        return min(
            others,
            key=lambda other: (not other.is_here, loads[other.number].live, other.number),
            default=None,
        )

    def _adopt(self, stream: Stream, target: Replica, position: int) -> None:
        assert self.router is not None
        routed = self._routed.get(stream.request_id)
        if position != NO_POSITION and stream.suspect(position):
            stream.fail(
                EngineError(
                    f"request {stream.request_id} was running in two crashes of engines and is not "
                    "tried again; change the request, or see the engines' log"
                )
            )
            return
        if routed is not None:
            self.router.displaced(routed)
            routed.queued_tokens = routed.num_tokens
            self.router.placed(routed, target.number)
        target.frontend.adopt(stream, fatal_position=position)

    def _note(self, stream: Stream) -> None:
        """Tell the router of first tokens and ends."""
        routed = self._routed.get(stream.request_id)
        if routed is None or self.router is None:
            return
        if routed.queued_tokens and stream.has_tokens:
            self.router.first_token(routed)
        if stream.is_done:
            del self._routed[stream.request_id]
            self.router.ended(routed)

    def _askable(self) -> list[bool]:
        """Return which replicas can be asked: those that are here, else those to come back.

        Raises:
            EngineGoneError: none of them is started again.
        """
        here = [replica.is_here for replica in self.replicas]
        if any(here):
            return here
        here = [frontend.unhealthy_reason is None for frontend in self.frontends]
        if not any(here):
            raise EngineGoneError(self.frontends[0].unhealthy_reason or "")
        return here

    async def _keep_watch(self) -> None:
        """Let suspects go on elsewhere whose replica stays down."""
        while True:
            await asyncio.sleep(WATCH_S)
            for replica in self.replicas:
                if replica.away_s > PATIENCE_S and replica.frontend.live_requests:
                    self._move(replica, is_patient=False)
