"""TokenSpeed's published C++ scheduler through its wheel, unpacked at $TS_SITE.

One full-attention cache group of TS_BLOCK (64) tokens, no host tier.
"""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path.insert(0, os.environ["TS_SITE"])
import tokenspeed_scheduler as ts

BLOCK_TOKENS = int(os.environ.get("TS_BLOCK", "64"))
NAME = f"tokenspeed/b{BLOCK_TOKENS}"
VERSION = "0.1.42"


class Plan:
    """What an executor reads for a batch."""

    __slots__ = ("ids", "lens", "op", "plan", "slots", "tables")


class Engine:
    """The six calls of an adapter."""

    name, block_size = NAME, BLOCK_TOKENS

    def __init__(self, pool_tokens: int, max_running: int, token_budget: int) -> None:
        config = ts.SchedulerConfig()
        pages = pool_tokens // BLOCK_TOKENS + 1
        config.prefix_granularity = BLOCK_TOKENS
        config.max_scheduled_tokens = token_budget
        config.max_batch_size = max_running
        config.num_device_pages = pages
        config.num_host_pages = 1
        config.num_snapshot_pages = 1
        config.disable_l2_cache = True
        config.cache_groups = [
            ts.CacheGroupConfig(
                group_id="full_attention",
                block_granularity=BLOCK_TOKENS,
                total_pages=pages,
                attn_kind=ts.AttnKind.Full,
            )
        ]
        self._scheduler = ts.Scheduler(config)
        self._prompt_tokens: dict[str, int] = {}

    def submit(self, rid: str, tokens: list[int], max_new: int) -> None:
        """Queue a request."""
        self._prompt_tokens[rid] = len(tokens)
        spec = ts.RequestSpec()
        spec.request_id, spec.tokens, spec.max_new_tokens = rid, tokens, max_new
        self._scheduler.submit_requests([spec])

    def plan(self) -> Plan:
        """Plan a step and read what an executor reads."""
        plan = Plan()
        plan.plan = self._scheduler.next_execution_plan()
        forward = plan.plan.forward
        if forward:
            op = plan.op = forward[0]
            plan.ids, plan.lens, plan.slots = (
                op.request_ids,
                op.input_lengths,
                op.request_pool_indices,
            )
            plan.tables = op.block_tables_arrays()
        else:
            plan.op, plan.ids = None, []
        return plan

    def rows(self, plan: Plan) -> list[tuple[str, int, int, bool, bool]]:
        """Rows of a plan for the driver; never timed."""
        if plan.op is None:
            return []
        starts, num_chunks, rows = list(plan.op.extend_prefix_lens), plan.op.num_extends(), []
        for i, (rid, count) in enumerate(zip(list(plan.ids), list(plan.lens), strict=True)):
            if i < num_chunks:
                done = starts[i] + count >= self._prompt_tokens[rid]
                rows.append((rid, starts[i], count, True, done))
            else:
                rows.append((rid, -1, count, False, True))
        return rows

    def commit(self, plan: Plan, sampled: dict[str, int], finished: set[str]) -> None:
        """Give back the sampled tokens."""
        event = ts.ExecutionEvent()
        for rid in plan.ids:
            result: Any = ts.ForwardEvent.ExtendResult()
            result.request_id = rid
            result.tokens = [sampled[rid]] if rid in sampled else []
            event.add_event(result)
            if rid in finished:
                result = ts.ForwardEvent.Finish()
                result.request_id = rid
                event.add_event(result)
        self._scheduler.advance(event)

    def idle(self) -> None:
        """Reap what ended."""
        self._scheduler.next_execution_plan()


def make(pool_tokens: int, max_running: int, token_budget: int, max_len: int) -> Engine:
    """Build an engine of one cache group."""
    return Engine(pool_tokens, max_running, token_budget)
