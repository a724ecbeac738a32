"""Our scheduler behind the driver's calls: one full-attention group, blocks of 128 tokens.

`submit` and `submit_turn` include the default policy's Python, as in the engine. A plan is timed
until its rows and block-table writes are readable as arrays.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed.contracts.policy import Arrival
from tokenspeed.scheduler import GroupSpec, Scheduler, SchedulerConfig, StepPlan
from tokenspeed.scheduler.policies import ReturnTimePolicy

if TYPE_CHECKING:
    import array

    from numpy.typing import NDArray

BLOCK_TOKENS = 128
NAME = f"ours/b{BLOCK_TOKENS}"
VERSION = importlib.metadata.version("tokenspeed")


class Engine:
    """The six calls of an adapter, and the driver's optional ones."""

    name, block_size = NAME, BLOCK_TOKENS

    def __init__(self, config: SchedulerConfig, max_running: int) -> None:
        self._scheduler = Scheduler(config)
        self._keys: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._policy = ReturnTimePolicy()
        self._session = 0
        self._session_of: dict[str, int] = {}
        self._now_us = 1
        self._nothing = np.full(max_running, -1, dtype=np.int32)

    @staticmethod
    def native(tokens: list[int]) -> NDArray[np.int32]:
        """Tokens as the engine's front end holds them."""
        return np.array(tokens, dtype=np.int32)

    def context(self, *, session: int | None = None, now_us: int | None = None) -> None:
        """Take note of who submits next, and when."""
        self._session = 0 if session is None else session + 1
        if now_us is not None:
            self._now_us = now_us + 1

    def submit(self, rid: str, tokens: NDArray[np.int32], max_new: int) -> None:
        """Queue a request."""
        key = self._enter(rid, self._session)
        keys = self._policy.keys(Arrival(self._session, 0, 0, len(tokens), self._now_us))
        self._scheduler.submit(
            key,
            tokens,
            session=self._session,
            max_new_tokens=max_new,
            gap_us=keys.gap_us,
            queue_key=keys.queue_key,
            victim_key=keys.victim_key,
            now_us=self._now_us,
        )

    def turn_base(self, session: int) -> tuple[int, int]:
        """Return what the session's last turn left: its length and digest."""
        base = self._scheduler.session_base(session + 1)
        assert base is not None, f"session {session} has left no base"
        return base

    def submit_turn(
        self, rid: str, session: int, base: tuple[int, int], new_ids: Any, max_new: int
    ) -> None:
        """Queue a turn by what is new."""
        key = self._enter(rid, session + 1)
        length = base[0] + len(new_ids)
        keys = self._policy.keys(Arrival(session + 1, 0, 0, length, self._now_us))
        self._scheduler.submit_turn(
            key,
            session + 1,
            base[0],
            base[1],
            new_ids,
            max_new_tokens=max_new,
            gap_us=keys.gap_us,
            queue_key=keys.queue_key,
            victim_key=keys.victim_key,
            now_us=self._now_us,
        )

    def plan(self) -> tuple[StepPlan, Any, Any, Any, Any, Any] | None:
        """Plan a step and take the arrays that an executor reads."""
        plan = self._scheduler.plan(now_us=self._now_us)
        if plan is None:
            return None
        return (
            plan,
            plan.slots,
            plan.query_start,
            plan.context_tokens,
            plan.output_index,
            plan.block_updates,
        )

    def rows(self, planned: Any) -> list[tuple[str, int, int, bool, bool]]:
        """Rows of a plan for the driver; never timed."""
        if planned is None:
            return []
        plan, _, query_start, context_tokens, output_index, _ = planned
        counts = np.diff(query_start).tolist()
        keys, starts = plan.request_ids.tolist(), context_tokens.tolist()
        samples = (output_index >= 0).tolist()
        decodes = plan.num_decode_rows
        return [
            (
                self._names[key],
                start if row >= decodes else -1,
                count,
                row >= decodes,
                sampled,
            )
            for row, (key, start, count, sampled) in enumerate(
                zip(keys, starts, counts, samples, strict=True)
            )
        ]

    def commit_array(self, planned: Any, tokens: array.array[int], finished: set[str]) -> None:
        """Commit one token a sampling row, in plan order, and end the finished requests."""
        plan, *_, output_index, _ = planned
        if len(tokens) == plan.num_rows:
            self._scheduler.commit(plan.step_id, tokens, now_us=self._now_us)
        elif not tokens:
            self._scheduler.commit(
                plan.step_id, self._nothing[: plan.num_rows], now_us=self._now_us
            )
        else:
            spread = np.full(plan.num_rows, -1, dtype=np.int32)
            spread[output_index >= 0] = tokens
            self._scheduler.commit(plan.step_id, spread, now_us=self._now_us)
        for rid in finished:
            self._scheduler.stop(self._keys[rid], now_us=self._now_us)
            self._policy.turn_ended(self._session_of[rid], self._now_us)

    def idle(self) -> None:
        """Nothing is left over after a step."""

    def _enter(self, rid: str, session: int) -> int:
        key = len(self._keys) + 1
        self._keys[rid], self._names[key] = key, rid
        self._session_of[rid] = session
        return key


def make(pool_tokens: int, max_running: int, token_budget: int, max_len: int) -> Engine:
    """Build an engine of one cache group."""
    return Engine(
        SchedulerConfig(
            block_tokens=BLOCK_TOKENS,
            groups=[GroupSpec(name="full")],
            num_physical_blocks=pool_tokens // BLOCK_TOKENS + 1,
            max_running=max_running,
            max_waiting=1024,
            max_step_tokens=max(token_budget, max_running),
            max_context_tokens=max_len,
        ),
        max_running,
    )
