"""A picture of the engine's inside: requests, queue, blocks, last plan, counters.

Plain data for `GET /v1/engine/state` and `tokenspeed top`. What the scheduler says of itself is
passed on as it is; names of requests, tenants and sessions are added, which only Python knows.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tokenspeed.engine.activity import Activity
    from tokenspeed.engine.cache_tally import CacheTally
    from tokenspeed.engine.engine import Engine
    from tokenspeed.engine.meter import StepMeter
    from tokenspeed.engine.requests import LiveRequest, RequestTable

MIN_AGE_S = 0.1
"""A picture younger than this is sent again: many watchers cost no more than one."""
MAX_SHARE = 0.05
"""Share of the engine's time that pictures may take, however large they are."""
RUNNING_STATES = frozenset({"Prefilling", "Decoding", "Loading", "Draining", "Retracting"})
"""States that are not in the queue."""


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
        """Return the picture as of now."""
        state: dict[str, Any] = dict(self._engine.scheduler.state())
        counters = self._engine.scheduler.stats()
        physical = state.pop("physical_blocks", [])
        requests = [self._request(item) for item in state.pop("requests", [])]
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
            "counters": counters,
            "cache": self._tally.total.shown(),
            "match_ends": dict(self._tally.match_ends),
            "sessions": self._tally.sessions(),
            "blocks": _blocks(counters, physical, self._engine.cache_groups),
            "states": dict(Counter(item["state"] for item in requests)),
            "requests": [item for item in requests if item["state"] in RUNNING_STATES],
            "queue": _queue(requests),
            **state,
        }

    def _limits(self) -> dict[str, Any]:
        report = self._engine.report
        return {
            "max_running": report.max_running,
            "max_step_tokens": report.max_step_tokens,
            "max_context_tokens": report.max_context_tokens,
            "block_tokens": report.block_tokens,
            "depth": report.depth,
        }

    def _request(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return one request with its names, and its blocks counted by group."""
        shown = {name: value for name, value in item.items() if name not in ("id", "blocks")}
        blocks = _counted(item.get("blocks", ()), self._engine.cache_groups)
        live = self._requests.by_key(item["id"])
        if live is None:  # it has ended; its blocks drain with the step that still uses them
            return {"id": None, "key": item["id"], **shown, "blocks": blocks}
        return {**self._names(live), "key": live.key, **shown, "blocks": blocks}

    def _names(self, live: LiveRequest) -> dict[str, Any]:
        return {
            "id": live.request_id,
            "tenant": live.tenant or None,
            "session": live.session or None,
            "age_s": round(time.monotonic() - live.arrived_s, 3),
            "prompt_tokens": live.num_prompt,
            "cached_tokens": live.cached_tokens,
            "output_tokens": live.num_outputs,
            "cache": None if live.cache is None else msgspec.structs.asdict(live.cache),
        }


def _counted(blocks: Any, groups: tuple[str, ...]) -> dict[str, int]:
    """Return how many blocks of each group a request holds, from lists of ids or from counts."""
    if isinstance(blocks, dict):
        return {name: _count(held) for name, held in blocks.items()}
    return {name: _count(held) for name, held in zip(groups, blocks, strict=False)}


def _count(held: Any) -> int:
    return held if isinstance(held, int) else len(held)


def _queue(requests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what waits; in the scheduler's order where it gives one, else by rank and arrival."""
    waiting = [item for item in requests if item["state"] not in RUNNING_STATES]
    waiting.sort(key=lambda item: (item.get("position", 0), -item["priority"], item["key"]))
    return [{**item, "position": index} for index, item in enumerate(waiting)]


def _blocks(
    counters: Mapping[str, int], physical: Iterable[Mapping[str, int]], groups: tuple[str, ...]
) -> dict[str, Any]:
    """Return physical blocks by group and by who holds them."""
    used: Counter[int] = Counter()
    cached: Counter[int] = Counter()
    for block in physical:
        if block["group"] >= 0:
            (used if block["refs"] else cached)[block["group"]] += 1
    return {
        "total": counters["blocks_total"],
        "used": counters["blocks_used"],
        "cached": counters["blocks_cached"],
        "free": counters["blocks_free"],
        "groups": [
            {"name": name, "used": used[index], "cached": cached[index]}
            for index, name in enumerate(groups)
        ],
    }
