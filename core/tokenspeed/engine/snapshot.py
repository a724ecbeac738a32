"""A picture of the engine's inside: requests, queue, blocks, last plan, counters.

Plain data for `GET /v1/engine/state` and `tokenspeed top`. What the scheduler says of itself is
passed on as it is; names of requests, tenants and sessions are added, which only Python knows.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from tokenspeed.engine.picture import (
    blocks_of,
    picked,
    running_rows,
    step_model_of,
    transfers_of,
    waiting_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenspeed.engine.activity import Activity
    from tokenspeed.engine.cache_tally import CacheTally
    from tokenspeed.engine.engine import Engine
    from tokenspeed.engine.meter import StepMeter
    from tokenspeed.engine.requests import RequestTable

MIN_AGE_S = 0.1
"""A picture younger than this is sent again: many watchers cost no more than one."""
MAX_SHARE = 0.05
"""Share of the engine's time that pictures may take, however large they are."""
PLAIN = (
    "state", "reason", "priority", "slot", "prompt_tokens", "output_tokens", "computed_tokens",
    "planned_tokens", "pieces", "arrived",
)  # fmt: skip
"""What is passed on of a request as the scheduler says it."""


class Snapshot:
    """Builds the picture, not more often than it is worth. Thread: the engine's only."""

    def __init__(
        self,
        engine: Engine,
        requests: RequestTable,
        meter: StepMeter,
        activity: Activity,
        tally: CacheTally,
        *,
        epoch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._meter = meter
        self._activity = activity
        self._tally = tally
        self._epoch = epoch
        self._clock = clock
        self._encoder = msgspec.msgpack.Encoder()
        self._packed = b""
        self._fresh_until_s = 0.0

    def packed(self) -> bytes:
        """Return the picture as msgpack; the last one again while it is fresh enough."""
        started_s = self._clock()
        if not self._packed or started_s >= self._fresh_until_s:
            self._packed = self._encoder.encode(self.build())
            ended_s = self._clock()
            pause_s = max(MIN_AGE_S, (ended_s - started_s) / MAX_SHARE)
            self._fresh_until_s = ended_s + pause_s
        return self._packed

    def build(self) -> dict[str, Any]:
        """Return the picture as of now, its requests and queue as columns (see `spelled_out`)."""
        state: dict[str, Any] = dict(self._engine.scheduler.state())
        counters = self._engine.scheduler.stats()
        columns = self._columns(state["requests"])
        return {
            "time": round(time.time(), 3),
            "epoch": self._epoch,
            "uptime_s": round(self._activity.uptime_s, 1),
            "model": self._engine.info.name,
            "limits": self._limits(),
            "rates": self._activity.rates(),
            "steps": {
                "count": self._meter.num_steps,
                "step_us_p50": round(self._meter.step_us_p50, 1),
                "overhead_us_p50": round(self._meter.overhead_us_p50, 1),
            },
            "last_plan": self._activity.last_plan(),
            "step_model": step_model_of(state["step_model"]),
            "counters": counters,
            "cache": self._tally.total.shown(),
            "match_ends": dict(self._tally.match_ends),
            "sessions": self._tally.sessions.shown(),
            "roots": self._tally.roots.shown(),
            "tenants": self._tally.tenants.shown(),
            "speculation": self._speculation(counters),
            "experts": self._engine.expert_loads and self._engine.expert_loads.shown(),
            "blocks": blocks_of(counters, state["groups"]),
            **{name: state[name] for name in ("partitions",) if name in state},
            "tiers": self._tiers(state, counters),
            "alerts": self._alerts(),
            "transfers": transfers_of(state["transfers"]),
            "states": dict(Counter(columns["state"])),
            "requests": picked(columns, running_rows(columns)),
            "queue": picked(columns, waiting_rows(columns)),
        }

    def _speculation(self, counters: Mapping[str, int]) -> dict[str, Any] | None:
        """Return what the drafts are and were; None where there is no speculator."""
        if self._engine.drafting is None:
            return None
        shown = self._engine.drafting.shown()
        return {**shown, "drafted": counters["drafted"], "accepted": counters["accepted"]}

    def _alerts(self) -> list[dict[str, Any]]:
        """Return what an administrator should act on."""
        degradable = (self._engine.store, self._engine.drafting)
        return [alert for one in degradable if one is not None for alert in one.alerts()]

    def _limits(self) -> dict[str, Any]:
        report = self._engine.report
        return {
            "max_running": report.max_running,
            "max_step_tokens": report.max_step_tokens,
            "max_context_tokens": report.max_context_tokens,
            "block_tokens": report.block_tokens,
            "depth": report.depth,
        }

    def _columns(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the scheduler's columns with the names that only Python knows."""
        lives = [self._requests.by_key(key) for key in columns["id"]]
        now_s = time.monotonic()
        names = {
            key: live.request_id for key, live in zip(columns["id"], lives, strict=True) if live
        }
        return {
            "id": [live and live.request_id for live in lives],
            "key": columns["id"],
            "tenant": [(live and live.tenant) or None for live in lives],
            "session": [(live and live.session) or None for live in lives],
            "age_s": [live and now_s - live.arrived_s for live in lives],
            **{name: columns[name] for name in PLAIN},
            **{name: columns[name] for name in ("partition",) if name in columns},
            "waits_for": [names.get(key) for key in columns["waits_for"]],
            "position": [None if at < 0 else at for at in columns["position"]],
            "cached_tokens": [None if count < 0 else count for count in columns["cached_tokens"]],
            "cache": [
                live.cache and msgspec.structs.asdict(live.cache) if live else None
                for live in lives
            ],
            "blocks": dict(zip(self._engine.cache_groups, columns["blocks"], strict=True)),
        }

    def _tiers(self, state: Mapping[str, Any], counters: Mapping[str, int]) -> list[dict[str, Any]]:
        """Return what each tier behind the device holds."""
        host, records = state["host"], state["store_records"]
        tiers = []
        if host is not None:
            block_bytes = self._engine.report.kv_bytes // (counters["blocks_total"] + 1)
            tiers.append({"name": "host", **host, "bytes": host["total"] * block_bytes})
        if records is not None:
            tiers.append({"name": "store", "records": records})
        return tiers
