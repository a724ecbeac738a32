"""Hit rates, balance and waits of replicas behind the router, against other ways to choose.

Real schedulers, real views and the real router, on a clock of its own: a step takes a fixed time
and a time a token. Compared are one replica with the cache and the speed of all, round robin, and
sessions by their hash. Figures go to `benchmarks/results/`.

Usage: python -m benchmarks.control_plane.routing [--replicas 4] [--only-choice] [--dry]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from benchmarks.control_plane.agents_trace import Agents, Session
from benchmarks.results_file import Row, merge_rows

from tokenspeed.contracts.policy import Arrival
from tokenspeed.engine.messages import EngineStats, KvWatch, ModelInfo, Submit
from tokenspeed.engine.replicas.feed import KvFeed
from tokenspeed.engine.replicas.router import Limits, Routed, Router
from tokenspeed.engine.requests import number_of
from tokenspeed.sampling.params import SamplingParams
from tokenspeed.scheduler import GroupSpec, Scheduler, SchedulerConfig
from tokenspeed.scheduler.policies import ReturnTimePolicy

COMMAND = "python -m benchmarks.control_plane.routing"
BLOCK_TOKENS = 128
POOLS_TOKENS = (500_000, 250_000)
"""Of each replica: room for most of what is asked for again, and for less than half of it."""
STEP_TOKENS = 4096
MAX_RUNNING = 32
STEP_S, TOKEN_S = 0.012, 1 / 20_000
MODEL = ModelInfo(
    name="m",
    path="",
    architecture="",
    vocab_size=100_000,
    max_context_tokens=1_000_000,
    max_prompt_tokens=999_999,
    eos_token_ids=(),
    block_tokens=BLOCK_TOKENS,
)
CLIENT = b"api"


@dataclass(slots=True)
class Turn:
    """A request on its way."""

    session: Session
    arrived_s: float
    outputs: int = 0
    routed: Routed | None = None


class Replica:
    """A scheduler of its own, on the common clock; its feed tells the router.

    Args:
        size: how many replicas it is worth, in cache and speed.
    """

    def __init__(self, number: int, load: Load, size: int = 1) -> None:
        self.number, self.load, self.size = number, load, size
        self.scheduler = Scheduler(
            SchedulerConfig(
                block_tokens=BLOCK_TOKENS,
                groups=[GroupSpec(name="full")],
                num_physical_blocks=size * load.pool_tokens // BLOCK_TOKENS + 1,
                max_running=size * MAX_RUNNING,
                max_waiting=100_000,
                max_step_tokens=size * STEP_TOKENS,
                max_context_tokens=1_000_000,
                kv_events=True,
            )
        )
        self.policy = ReturnTimePolicy()
        self.feed = KvFeed(self, MODEL, epoch=1)
        self.feed.take(CLIENT, KvWatch(1, is_lost=True))
        self.live: dict[int, Turn] = {}
        self.is_stepping = False
        self.peak = 0

    def receive(self, wait_ms: int) -> Sequence[Any]:
        """As a channel: nothing comes this way."""
        return ()

    def send(self, client: bytes, message: Any) -> bool:
        """As a channel: hand changes to the router."""
        if self.load.router is not None:
            self.load.router.changed(self.number, message)
        return True

    def close(self) -> None:
        """As a channel: nothing is held."""

    def submit(self, key: int, turn: Turn, output_tokens: int, now_s: float) -> None:
        """Take a request."""
        now_us, session = round(now_s * 1e6) + 1, number_of(turn.session.name)
        keys = self.policy.keys(Arrival(session, 0, 0, turn.session.said.size, now_us))
        self.scheduler.submit(
            key,
            turn.session.said,
            session=session,
            max_new_tokens=output_tokens,
            gap_us=keys.gap_us,
            queue_key=keys.queue_key,
            victim_key=keys.victim_key,
            now_us=now_us,
        )
        self.live[key] = turn
        self.peak = max(self.peak, len(self.live))

    def begin_step(self, now_s: float) -> float | None:
        """Plan and commit a step; return when it is over, None: there is nothing to run."""
        plan = self.scheduler.plan(now_us=round(now_s * 1e6) + 1)
        if plan is None:
            return None
        over_s = now_s + STEP_S + plan.num_tokens * TOKEN_S / self.size
        tokens = np.where(plan.output_index >= 0, 1 + plan.request_ids % 90_000, -1)
        done = self.scheduler.commit(
            plan.step_id, tokens.astype(np.int32), now_us=round(over_s * 1e6) + 1
        )
        self.feed.publish(self.scheduler.drain_events())
        for key, token, cached, reason in zip(
            done.request_ids.tolist(),
            done.tokens.tolist(),
            done.cached_tokens.tolist(),
            done.finish_reasons.tolist(),
            strict=True,
        ):
            self.load.note(self, key, token, cached, bool(reason), over_s)
        return over_s


@dataclass(slots=True)
class Load:
    """The agents' load on some replicas, to its end.

    Args:
        choose: the replica of a request; None: the router.
        num_replicas, size: as many, each worth so many.
    """

    agents: Agents
    pool_tokens: int
    num_replicas: int
    size: int = 1
    choose: Callable[[Session, int], int] | None = None
    router: Router | None = None
    replicas: list[Replica] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    promised_tokens: int = 0
    requests: Counter[int] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)
    route_s: list[float] = field(default_factory=list)
    now_s: float = 0.0
    busy: list[tuple[int, int]] = field(default_factory=list)
    _events: list[tuple[float, int, str, Any]] = field(default_factory=list)
    _order: Any = field(default_factory=itertools.count)

    def run(self) -> Load:
        """Run all sessions to their end."""
        if self.choose is None:
            limits = Limits(max_running=MAX_RUNNING, max_step_tokens=STEP_TOKENS)
            self.router = Router(MODEL, limits, self.num_replicas, clock=lambda: self.now_s)
        self.replicas = [Replica(i, self, self.size) for i in range(self.num_replicas)]
        for at_s, session in self.agents.first():
            self._at(at_s, "turn", session)
        next_count_s = 0.0
        while self._events:
            self.now_s, _, what, subject = heapq.heappop(self._events)
            if self.now_s >= next_count_s:
                next_count_s = self.now_s + 1.0
                self._count()
            self._turn(subject) if what == "turn" else self._step(subject)
        return self

    def note(
        self, replica: Replica, key: int, token: int, cached: int, is_over: bool, now_s: float
    ) -> None:
        """Note what a step brought for a request."""
        turn = replica.live[key]
        if token >= 0:
            if not turn.outputs:
                self.cached_tokens += max(0, cached)
                self.waits_s.append(now_s - turn.arrived_s)
                if self.router is not None and turn.routed is not None:
                    self.router.first_token(turn.routed)
            turn.outputs += 1
        if is_over:
            self._end(replica, key, turn, now_s)

    def _end(self, replica: Replica, key: int, turn: Turn, now_s: float) -> None:
        del replica.live[key]
        replica.policy.turn_ended(number_of(turn.session.name), round(now_s * 1e6) + 1)
        if self.router is not None and turn.routed is not None:
            self.router.ended(turn.routed)
        session = turn.session
        output = np.full(turn.outputs, 1 + key % 90_000, np.int32)
        pause_s = self.agents.go_on(session, output)
        if pause_s is not None:
            self._at(now_s + pause_s, "turn", session)
            for child in self.agents.children(session):
                self._at(now_s + 0.2, "turn", child)
        elif not session.parent and (fresh := self.agents.next_session()) is not None:
            self._at(now_s + 1.0, "turn", fresh)

    def _turn(self, session: Session) -> None:
        key = next(self._order) + 1
        turn = Turn(session, self.now_s)
        replica = self.replicas[self._chosen(session, key, turn)]
        self.requests[replica.number] += 1
        self.prompt_tokens += session.said.size
        replica.submit(key, turn, self.agents.output_tokens(session), self.now_s)
        if not replica.is_stepping:
            replica.is_stepping = True
            self._at(self.now_s, "step", replica)

    def _chosen(self, session: Session, key: int, turn: Turn) -> int:
        if self.choose is not None:
            return self.choose(session, key)
        assert self.router is not None
        message = Submit(
            request_id=str(key),
            epoch=1,
            prompt_ids=session.said.tobytes(),
            params=SamplingParams(),
            stop_token_ids=(),
            session=session.name,
            parent=session.parent,
            root=session.parent,
        )
        started_s = time.perf_counter()
        turn.routed = self.router.route(message, [True] * self.num_replicas)
        self.route_s.append(time.perf_counter() - started_s)
        self.promised_tokens += turn.routed.cached_tokens
        return turn.routed.replica

    def _step(self, replica: Replica) -> None:
        over_s = replica.begin_step(self.now_s)
        if over_s is None:
            replica.is_stepping = False
            return
        self._at(over_s, "step", replica)

    def _count(self) -> None:
        """Tell the router what each replica has to do, as heartbeats do; sample the balance."""
        live = [len(replica.live) for replica in self.replicas]
        self.busy.append((max(live), sum(live)))
        if self.router is None:
            return
        for replica in self.replicas:
            stats = EngineStats(
                epoch=1,
                running=len(replica.live),
                queued_tokens=replica.scheduler.queued_tokens(),
                kv_number=replica.feed.number,
            )
            self.router.counted(replica.number, stats)

    def _at(self, at_s: float, what: str, subject: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), what, subject))

    @property
    def hit_percent(self) -> float:
        """Prompt tokens that came from the cache."""
        return 100 * self.cached_tokens / self.prompt_tokens

    @property
    def imbalance(self) -> float:
        """Requests of the busiest replica over the mean, over the samples with some to do."""
        some = [(most, total) for most, total in self.busy if total >= 2 * self.num_replicas]
        return sum(most for most, _ in some) * self.num_replicas / sum(t for _, t in some)

    def wait_ms(self, percent: float) -> float:
        """Time to the first token, a percentile."""
        return float(np.percentile(self.waits_s, percent)) * 1e3


def measure(replicas: int, pool_tokens: int) -> list[Row]:
    """Run every way and print it; return the rows."""
    ways: dict[str, Callable[[], Load]] = {
        "one, with the cache of all": lambda: Load(
            Agents(), pool_tokens, 1, replicas, choose=lambda *_: 0
        ),
        "router": lambda: Load(Agents(), pool_tokens, replicas),
        "session hash": lambda: Load(
            Agents(),
            pool_tokens,
            replicas,
            choose=lambda session, _: zlib.crc32(session.name.encode()) % replicas,
        ),
        "round robin": lambda: Load(
            Agents(), pool_tokens, replicas, choose=lambda _, key: key % replicas
        ),
    }
    loads = {name: make().run() for name, make in ways.items()}
    title = f"{replicas} x {pool_tokens:,} tokens"
    print(f"{title:<28}{'hit %':>8}{'TTFT p50':>10}{'p99 ms':>10}{'busiest':>9}  requests")
    for name, load in loads.items():
        print(
            f"{name:<28}{load.hit_percent:>8.2f}{load.wait_ms(50):>10.0f}{load.wait_ms(99):>10.0f}"
            f"{load.imbalance:>8.2f}x  {dict(sorted(load.requests.items()))}"
        )
    router, one = loads["router"], loads["one, with the cache of all"]
    print(f"route: median {np.median(router.route_s) * 1e6:.0f} us of "
          f"{router.prompt_tokens // len(router.route_s):,} tokens; promised "
          f"{100 * router.promised_tokens / router.prompt_tokens:.2f} % cached")  # fmt: skip
    return [
        _row(
            f"agents, {replicas} replicas x {pool_tokens // 1000}k tokens, {name}",
            load.hit_percent,
            "one replica with the cache of all",
            one.hit_percent,
            f">= {one.hit_percent - 2:.1f}" if name == "router" else "",
        )
        for name, load in loads.items()
        if load is not one
    ]


def measure_choice() -> Row:
    """Time choices for prompts of 100,000 tokens, their hashing included, among four replicas."""
    num_tokens, chance = 100_000, np.random.default_rng(3)
    router = Router(MODEL, Limits(max_running=MAX_RUNNING, max_step_tokens=STEP_TOKENS), 4)
    times_s = []
    for number in range(200):
        message = Submit(
            request_id=str(number),
            epoch=1,
            prompt_ids=chance.integers(0, 90_000, num_tokens).astype("<i4").tobytes(),
            params=SamplingParams(),
            stop_token_ids=(),
            session=f"s{number}",
        )
        router.route(message, [True] * 4)  # and what it computes stays expected
        for _ in range(10):
            started_s = time.perf_counter()
            router.route(message, [True] * 4)
            times_s.append(time.perf_counter() - started_s)
    least_us, median_us = min(times_s) * 1e6, float(np.median(times_s)) * 1e6
    print(f"a choice for {num_tokens:,} tokens: least {least_us:.0f} us, median {median_us:.0f} us")
    return Row(
        group="replicas choice",
        name="100k tokens, 4 replicas, hashed from the start; least of 2,000",
        value=round(least_us, 1),
        unit="us",
        better="lower",
        command=COMMAND,
        target="< 100",
    )


def _row(name: str, value: float, peer: str, peer_value: float, target: str) -> Row:
    return Row(
        group="replicas hit rate",
        name=name,
        value=round(value, 2),
        unit="%",
        better="higher",
        command=COMMAND,
        peer=peer,
        peer_value=round(peer_value, 2),
        peer_date="same run",
        ratio=value / peer_value,
        target=target,
    )


def main() -> None:
    """Measure, merge into the machine's file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--only-choice", action="store_true", help="time the choice alone")
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    rows = (
        []
        if arguments.only_choice
        else [row for pool in POOLS_TOKENS for row in measure(arguments.replicas, pool)]
    )
    rows.append(measure_choice())
    if not arguments.dry:
        print(f"written to {merge_rows(rows, {})}", file=sys.stderr)


if __name__ == "__main__":
    main()
