"""How the engine is, told by an API process: the engine itself cannot answer while it hangs.

Read from what it was last heard of, and from its flight record, which says since when a step is
running and since when work has been there without a step being completed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tokenspeed.engine.flight_record import read_doing

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.engine.flight_record import Doing
    from tokenspeed.engine.frontend import Frontend

OK, DEGRADED, UNHEALTHY = "ok", "degraded", "unhealthy"
HEARTBEATS_S = 2.0
"""A silence begins up to a heartbeat before the step that keeps the engine from answering."""


class EngineHealth:
    """The health of one engine.

    Args:
        record: flight record of the engine.
        stall_s: longest time without a completed step while work is there. A silence may last
            HEARTBEATS_S longer.
    """

    def __init__(self, frontend: Frontend, record: Path, *, stall_s: float) -> None:
        self._frontend = frontend
        self._record = record
        self._stall_s = stall_s

    def state(self, known_fault: tuple[str, float] | None = None) -> dict[str, Any]:
        """Return the body of `GET /health`.

        Args:
            known_fault: what is wrong for how many seconds, unless the engine was given up.
        """
        frontend, doing = self._frontend, read_doing(self._record)
        reason, for_s = self._fault(doing)
        if known_fault is not None and frontend.unhealthy_reason is None:
            reason, for_s = known_fault
        state: dict[str, Any] = {
            "status": UNHEALTHY if reason else OK,
            "model": frontend.model.name,
            "engine_epoch": frontend.epoch,
            "heard_s": round(frontend.silent_s, 3),
            "step_running_s": round(doing.step_s, 3),
            "no_step_completed_s": round(doing.work_s, 3),
        }
        if reason:
            since = datetime.now(UTC) - timedelta(seconds=for_s)
            state |= {"reason": reason, "since": since.isoformat(timespec="milliseconds")}
        return state

    def _fault(self, doing: Doing) -> tuple[str, float]:
        """Return what is wrong and for how many seconds; "": nothing is."""
        frontend = self._frontend
        if frontend.unhealthy_reason is not None:
            return frontend.unhealthy_reason, frontend.unhealthy_s
        if doing.work_s > self._stall_s:
            return self._stalled(doing), doing.work_s
        if frontend.silent_s > self._stall_s + HEARTBEATS_S:
            return (
                f"the engine was not heard of for {frontend.silent_s:.1f} s, it answers every "
                "second when it is well: it hangs or is being started again; see the server's log"
            ), frontend.silent_s
        return "", 0.0

    def _stalled(self, doing: Doing) -> str:
        what = "the engine is held up between two steps"
        if doing.step_s:
            what = f"the step that is running began {doing.step_s:.1f} s ago"
        elif not doing.turn_s:
            what = "requests wait and none is computed"
        return (
            f"no step was completed for {doing.work_s:.1f} s while requests are there, at most "
            f"{self._stall_s:g} s are allowed (--health-stall-s): {what}; see the server's log and "
            "GET /v1/engine/state"
        )
