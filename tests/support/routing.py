"""A router over replicas that are only told of, for tests of its choices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tests.support.schedulers import make_scheduler

from tokenspeed.engine.messages import EngineStats, KvChanges, ModelInfo, Submit
from tokenspeed.engine.replicas.router import Limits, Routed, Router
from tokenspeed.sampling.params import SamplingParams
from tokenspeed.scheduler import KV_MEDIUMS, PrefixView

BLOCK_TOKENS = 16
MODEL = ModelInfo(
    name="m",
    path="",
    architecture="",
    vocab_size=100_000,
    max_context_tokens=200_000,
    max_prompt_tokens=199_999,
    eos_token_ids=(),
    block_tokens=BLOCK_TOKENS,
)


class Routing:
    """A router on a clock of its own."""

    def __init__(self, num_replicas: int = 4, *, max_running: int = 64) -> None:
        self.now_s = 0.0
        limits = Limits(max_running=max_running, max_step_tokens=512)
        self.router = Router(MODEL, limits, num_replicas, clock=lambda: self.now_s)
        self.here = [True] * num_replicas
        self._numbers = [0] * num_replicas
        self._known = [b""] * num_replicas

    def ask(self, tokens: Sequence[int], session: str = "", *, parent: str = "") -> Routed:
        """Route a request."""
        message = Submit(
            request_id="r",
            epoch=1,
            prompt_ids=np.asarray(tokens, "<i4").tobytes(),
            params=SamplingParams(),
            stop_token_ids=(),
            session=session,
            parent=parent,
            root=parent,
            owner="o",
        )
        return self.router.route(message, self.here)

    def end(self, routed: Routed, tokens: Sequence[int]) -> None:
        """End a request; what it computed is cached from now on."""
        self.router.first_token(routed)
        self.router.ended(routed)
        self.store(routed.replica, tokens)

    def store(self, replica: int, tokens: Sequence[int], medium: str = "device") -> None:
        """Have a replica tell that it cached a prompt."""
        self._known[replica] += known_blocks(tokens, medium)
        self._numbers[replica] += 1
        told = KvChanges(
            epoch=1, number=self._numbers[replica], is_all=True, blocks=self._known[replica]
        )
        self.router.changed(replica, told)

    def count(self, replica: int, *, queued: int = 0, running: int = 0) -> None:
        """Have a replica tell what it has to do."""
        self.router.counted(replica, EngineStats(epoch=1, queued_tokens=queued, running=running))


def known_blocks(tokens: Sequence[int], medium: str) -> bytes:
    """Return a prompt's blocks as a view saves them: computed by a real scheduler, moved."""
    scheduler = make_scheduler(
        {"name": "full"},
        num_physical_blocks=len(tokens) // BLOCK_TOKENS + 8,
        max_context_tokens=len(tokens) + 8,
        max_step_tokens=4096,
        kv_events=True,
    )
    scheduler.submit(1, np.asarray(tokens, np.int32), max_new_tokens=1, now_us=1)
    while (plan := scheduler.plan(now_us=1)) is not None:
        scheduler.commit(plan.step_id, np.full(plan.num_rows, 7, np.int32), now_us=1)
    batch = scheduler.drain_events()
    if batch is None or medium not in KV_MEDIUMS:
        return b""
    view = PrefixView(1, block_tokens=BLOCK_TOKENS, groups=[("full", 0)])
    view.apply(0, batch.packed())
    known = bytearray(view.save(0))
    known[8::9] = bytes([1 << KV_MEDIUMS.index(medium)]) * (len(known) // 9)
    return bytes(known)
