"""Replays a trace through a real scheduler in virtual time.

Two clocks. ORDER: requests arrive as in the recording and each is answered at once, one output
token, alone; only hits are measured. STEPS: a step takes what the step model says, requests run
together, and a conversation goes on when its answer has ended.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.contracts.policy import Arrival, Policy
from tokenspeed.errors import CapacityError, ConfigError
from tokenspeed.scheduler import GroupSpec, Scheduler, SchedulerConfig
from tokenspeed.simulator.figures import Figures, Tally, percentile
from tokenspeed.simulator.limits import MAX_POOL_BLOCKS, MAX_TIME_S
from tokenspeed.simulator.trace import Arrivals, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenspeed.scheduler import StepPlan
    from tokenspeed.simulator.step_model import StepModel

ORDER_STEP_TOKENS = 1 << 20
"""With the clock ORDER a chunk's size changes nothing: few, large ones."""

LONGEST_WAIT_S, SHORTEST_WAIT_S = 1e-3, 1e-6
"""Bounds of how far time moves when there are requests and none can run."""


class Clock(enum.Enum):
    """What makes time pass."""

    ORDER = "order"
    STEPS = "steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings:
    """One engine that is simulated.

    Args:
        pool_tokens: size of the KV cache; 0: all of the trace fits.
        places: conversations without a start time that run at once.
        max_pause_s: longer pauses of a client are cut to this.
        scheduler: further fields of `SchedulerConfig`.
    """

    pool_tokens: int = 0
    places: int = 64
    max_pause_s: float = 60.0
    block_tokens: int = 128
    max_running: int = 64
    max_step_tokens: int = 8192
    scheduler: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class _Live:
    conversation: int
    turn: int
    session: int
    arrived_s: float
    first_s: float = 0.0
    outputs: int = 0


def replay(
    trace: Trace,
    settings: SimulatorSettings,
    policy: Policy,
    *,
    step_model: StepModel | None,
    progress: Callable[[int], None] | None = None,
) -> Figures:
    """Run a trace to its end; without a step model with the clock ORDER.

    Args:
        progress: told how many requests have ended, after each.
    Raises:
        ConfigError: the engine is out of range, or so slow that its time is.
    """
    run = _Replay(trace, settings, policy, step_model, progress or (lambda _: None))
    run.run()
    return run.figures()


class _Replay:
    def __init__(
        self,
        trace: Trace,
        settings: SimulatorSettings,
        policy: Policy,
        step_model: StepModel | None,
        progress: Callable[[int], None],
    ) -> None:
        self._trace = trace
        self._settings = settings
        self._policy = policy
        self._step_model = step_model
        self._progress = progress
        self._scheduler = Scheduler(_scheduler_config(trace, settings, step_model is None))
        self._arrivals = Arrivals(
            trace, num_places=settings.places, max_pause_s=settings.max_pause_s
        )
        self._live: dict[int, _Live] = {}
        self._tally = Tally()
        self._now_s = 0.0
        self._next_key = 1

    @property
    def _now_us(self) -> int:
        return round(self._now_s * 1e6) + 1  # 0 means "none" in many a field

    def run(self) -> None:
        """Until every request has ended."""
        while self._arrivals or self._live:
            if not self._live:
                self._now_s = max(self._now_s, self._arrivals.next_s)
            self._take_due()
            if self._live:
                self._step()

    def _take_due(self) -> None:
        """Submit what has arrived; with the clock ORDER one request at a time."""
        for at_s, number, turn in self._arrivals.due(self._now_s):
            self._submit(at_s, number, turn)
            if self._step_model is None and self._live:
                return

    def _submit(self, arrived_s: float, number: int, index: int) -> None:
        conversation = self._trace.conversations[number]
        turn = conversation.turns[index]
        key, now_us = self._next_key, self._now_us
        self._next_key += 1
        session = number + 1 if conversation.is_named else 0
        arrival = Arrival(session, 0, 0, turn.prompt_tokens, now_us)
        keys = self._policy.keys(arrival)
        try:
            self._scheduler.submit(
                key,
                self._trace.prompt_ids(turn, key),
                session=session,
                max_new_tokens=1 if self._step_model is None else turn.output_tokens,
                gap_us=keys.gap_us,
                queue_key=keys.queue_key,
                victim_key=keys.victim_key,
                now_us=now_us,
            )
        except CapacityError:
            self._tally.refused += 1
            self._policy.turn_ended(session, now_us)
            self._arrivals.ended(number, index, self._now_s + turn.service_s)
            return
        self._tally.requests += 1
        self._tally.prompt_tokens += turn.prompt_tokens
        self._live[key] = _Live(number, index, session, arrived_s)

    def _step(self) -> None:
        plan = self._scheduler.plan(now_us=self._now_us)
        if plan is None:
            self._wait()
            return
        if self._step_model is not None:
            time_us = self._step_model.step_time_us(plan)
            self._now_s += time_us * 1e-6
            _check_time(self._now_s)
            waiting = len(self._live) - plan.num_rows
            self._tally.note_step(time_us, plan.num_rows, max(0, waiting))
        else:
            self._tally.note_step(0.0, plan.num_rows, 0)
        self._commit(plan)

    def _wait(self) -> None:
        """Nothing can run: let the next arrival, or a little time, come."""
        soon_s = self._now_s + LONGEST_WAIT_S
        if self._arrivals:
            soon_s = min(soon_s, self._arrivals.next_s)
        self._now_s = max(soon_s, self._now_s + SHORTEST_WAIT_S)
        self._take_due()
        self._end_all(self._scheduler.take_ended())

    def _commit(self, plan: StepPlan) -> None:
        tokens = np.where(plan.output_index >= 0, plan.request_ids & 0x3FFFFFFF, -1)
        self._end_all(
            self._scheduler.commit(plan.step_id, tokens.astype(np.int32), now_us=self._now_us)
        )

    def _end_all(self, result: object) -> None:
        entries = zip(
            result.request_ids.tolist(),  # type: ignore[attr-defined]
            result.tokens.tolist(),  # type: ignore[attr-defined]
            result.cached_tokens.tolist(),  # type: ignore[attr-defined]
            result.finish_reasons.tolist(),  # type: ignore[attr-defined]
            strict=True,
        )
        for key, token, cached, reason in entries:
            live = self._live[key]
            if token >= 0:
                self._note_token(live, cached)
            if reason:
                self._end(key, live)

    def _note_token(self, live: _Live, cached: int) -> None:
        if not live.outputs:
            live.first_s = self._now_s
            self._tally.cached_tokens += cached
            self._tally.ttft_s.append(self._now_s - live.arrived_s)
        live.outputs += 1
        self._tally.output_tokens += 1

    def _end(self, key: int, live: _Live) -> None:
        del self._live[key]
        self._policy.turn_ended(live.session, self._now_us)
        self._tally.note_end(live.first_s, self._now_s, live.outputs)
        end_s = self._now_s
        if self._step_model is None:
            end_s += self._trace.conversations[live.conversation].turns[live.turn].service_s
        self._arrivals.ended(live.conversation, live.turn, end_s)
        self._progress(self._tally.requests - len(self._live))

    def figures(self) -> Figures:
        """Sum up."""
        tally, stats = self._tally, self._scheduler.stats()
        is_timed = self._step_model is not None
        duration_s = self._now_s
        rate = duration_s if is_timed and duration_s > 0 else float("nan")
        steps = max(1, tally.steps)
        nan = float("nan")
        return Figures(
            trace=self._trace.name,
            pool_tokens=self._settings.pool_tokens,
            places=self._settings.places,
            requests=tally.requests,
            refused=tally.refused,
            steps=tally.steps,
            duration_s=duration_s,
            hit_rate=tally.cached_tokens / max(1, tally.prompt_tokens),
            ttft_ms_p50=percentile(tally.ttft_s, 50) * 1e3 if is_timed else nan,
            ttft_ms_p99=percentile(tally.ttft_s, 99) * 1e3 if is_timed else nan,
            tps_per_user_p50=percentile(tally.stream_tps, 50),
            tps_per_user_p1=percentile(tally.stream_tps, 1),
            output_tok_s=tally.output_tokens / rate,
            prompt_tok_s=tally.prompt_tokens / rate,
            utilisation=tally.busy_us * 1e-6 / rate,
            mean_running=tally.running / steps,
            mean_waiting=tally.waiting / steps,
            max_waiting=tally.max_waiting,
            retractions=stats["retractions"],
            evictions=stats["evictions"],
        )


def _check_time(now_s: float) -> None:
    if now_s > 2 * MAX_TIME_S:  # twice: the last arrival's own time is within it
        raise ConfigError(
            f"the trace takes {now_s:.3g} s, allowed are {2 * MAX_TIME_S:.3g}; correct the times "
            "of the step model"
        )


def _pool_blocks(trace: Trace, settings: SimulatorSettings, beside: int) -> int:
    pool_tokens = settings.pool_tokens or trace.unique_tokens + beside
    num_blocks = pool_tokens // settings.block_tokens
    if not 0 < num_blocks < MAX_POOL_BLOCKS:
        raise ConfigError(
            f"a pool of {pool_tokens} tokens has {num_blocks} blocks, allowed are 1 to "
            f"{MAX_POOL_BLOCKS - 1} of {settings.block_tokens} tokens; change --pool-tokens"
        )
    return num_blocks


def _scheduler_config(trace: Trace, settings: SimulatorSettings, is_order: bool) -> SchedulerConfig:
    turns = [turn for item in trace.conversations for turn in item.turns]
    longest = max(turn.prompt_tokens + turn.output_tokens for turn in turns)
    # Outputs, and two blocks a request that are not full, come on top of the prompts.
    beside = sum(turn.output_tokens + 2 * settings.block_tokens for turn in turns)
    return SchedulerConfig(
        block_tokens=settings.block_tokens,
        groups=[GroupSpec(name="full")],
        num_physical_blocks=_pool_blocks(trace, settings, beside) + 1,
        max_running=settings.max_running,
        max_waiting=1_000_000,
        max_step_tokens=ORDER_STEP_TOKENS if is_order else settings.max_step_tokens,
        max_context_tokens=longest + 1,
        **settings.scheduler,  # type: ignore[arg-type]
    )
