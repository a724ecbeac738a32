"""How several replicas are: all well, some, or none, and each one for itself.

A server is of use while one replica is, so only "none" is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.server.engine_health import DEGRADED, OK, UNHEALTHY, EngineHealth

if TYPE_CHECKING:
    from tokenspeed.engine.replicas.fleet import Fleet, Replica

MOST = ("engine_epoch", "heard_s", "step_running_s", "no_step_completed_s")
"""Of these the whole server's figure is the largest."""


class FleetHealth:
    """The health of a fleet.

    Args:
        stall_s: as in `EngineHealth`.
    """

    def __init__(self, fleet: Fleet, *, stall_s: float) -> None:
        self._fleet = fleet
        self._engines = [
            EngineHealth(replica.frontend, replica.record, stall_s=stall_s)
            for replica in fleet.replicas
        ]

    def state(self) -> dict[str, Any]:
        """Return the body of `GET /health`."""
        pairs = zip(self._fleet.replicas, self._engines, strict=True)
        states = [_state(replica, engine) for replica, engine in pairs]
        num_well = sum(state["status"] == OK for state in states)
        status = OK if num_well == len(states) else DEGRADED if num_well else UNHEALTHY
        whole = {
            "status": status,
            "model": self._fleet.model.name,
            **{name: max(state[name] for state in states) for name in MOST},
            "replicas": states,
        }
        faults = [state for state in states if state["status"] != OK]
        if faults:
            whole["reason"] = "; ".join(
                f"replica {state['replica']}: {state['reason']}" for state in faults
            )
            whole["since"] = min(state["since"] for state in faults)
        return whole


def _state(replica: Replica, engine: EngineHealth) -> dict[str, Any]:
    away = (
        "its engine is gone and is being started again; requests go to the others",
        replica.away_s,
    )
    state = engine.state(away if replica.away_since_s is not None else None)
    del state["model"]
    return {"replica": replica.number, **state}
