"""Private extension module (C++): request state machine, FlatKV, scheduler.

Use it through `tokenspeed.scheduler`. Single-threaded: one thread per Scheduler. No clock and no
entropy inside: `now_us` is an argument.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__version__: str

class GroupSpec:
    """A cache group as the control plane sees it."""

    def __init__(
        self, *, name: str, kind: str = "full", packing: int = 1, share_tokens: int = 1
    ) -> None: ...
    name: str
    kind: str
    packing: int
    share_tokens: int

class SchedulerConfig:
    """Fixed at construction; ValueError names the field that is out of range."""

    def __init__(
        self,
        *,
        block_tokens: int,
        groups: Sequence[GroupSpec],
        num_physical_blocks: int,
        max_running: int,
        max_waiting: int,
        max_step_tokens: int,
        max_context_tokens: int,
        depth: int = 0,
        prefix_cache: bool = True,
        hash_seed: int = 0,
    ) -> None: ...

class StepPlan:
    """See `tokenspeed.contracts.step.StepPlan`. Arrays are read-only views owned by the plan."""

    step_id: int
    num_rows: int
    num_decode_rows: int
    num_tokens: int
    request_ids: NDArray[np.int64]
    slots: NDArray[np.int32]
    query_start: NDArray[np.int32]
    context_tokens: NDArray[np.int32]
    output_index: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    admitted: NDArray[np.int32]
    block_updates: NDArray[np.int32]
    copies: NDArray[np.int32]

class CommitResult:
    """What became final, one entry per request that got a token or ended. Read-only views."""

    request_ids: NDArray[np.int64]
    tokens: NDArray[np.int32]
    """The committed token, -1 where the request ended without a new one."""
    finish_reasons: NDArray[np.uint8]
    """Index into FINISH_REASONS; 0 while it goes on."""
    cached_tokens: NDArray[np.int32]
    """Prompt tokens taken from the cache, with the request's first token; -1 otherwise."""
    rows: NDArray[np.int32]
    """Row of the plan that the entry comes from, -1 for none."""

FINISH_REASONS: tuple[str, ...]
"""("", "stop", "length", "abort", "timeout", "error")"""

class Scheduler:
    def __init__(self, config: SchedulerConfig) -> None: ...
    def submit(
        self,
        request_id: int,
        prompt_ids: NDArray[np.int32],
        *,
        output_ids: NDArray[np.int32] | None = None,
        max_new_tokens: int = 0,
        min_new_tokens: int = 0,
        stop_token_ids: NDArray[np.int32] | None = None,
        priority: int = 0,
        salt: bytes = b"",
        match_prefix: bool = True,
        deadline_us: int = 0,
        now_us: int,
    ) -> None:
        """Queue a request.

        Args:
            output_ids: tokens generated before (resume); they count as output.
            max_new_tokens: output tokens in all, output_ids included; 0: what fits the context.
            min_new_tokens: stop ids are ignored before this many output tokens.
            match_prefix: False computes the whole prompt (prompt logprobs); its blocks are still
                stored.
            deadline_us: absolute; 0: none. Checked in `plan` and `commit`.
        Raises:
            RequestError: empty prompt, duplicate id, prompt + 1 beyond max_context_tokens.
            CapacityError: prompt + max_new_tokens can never fit the pool (names the numbers), or
                the queue is full (retry_after_s is then set).
        """

    def abort(self, request_id: int, *, now_us: int) -> bool:
        """End a request in any state. Its blocks are free, or drain with the uncommitted step.
        Returns False when the id is not known or has ended."""

    def stop(self, request_id: int, *, now_us: int) -> bool:
        """End a request as finished ("stop"): a stop string was found outside."""

    def plan(self, *, now_us: int) -> StepPlan | None:
        """Plan one step, or None when there is nothing to run or `depth` + 1 plans are out."""

    def commit(
        self,
        step_id: int,
        tokens: NDArray[np.int32],
        *,
        failed: NDArray[np.bool_] | None = None,
        now_us: int,
    ) -> CommitResult:
        """Make a step's results final; steps are committed in order.

        Args:
            tokens: (R,) sampled token per row of the plan, -1 for rows that sampled none.
            failed: (R,) rows to end with "error".
        Raises:
            ValueError: not the oldest uncommitted step, or a wrong number of rows.
        """

    def take_ended(self) -> CommitResult:
        """Return requests that ended outside a commit (timeouts, aborts) since the last call."""

    def has_work(self) -> bool:
        """Say whether any request is waiting or running, or a plan is uncommitted."""

    def next_deadline_us(self) -> int:
        """Earliest deadline of a live request, 0 for none: how long an idle engine may sleep."""

    def stats(self) -> Mapping[str, int]:
        """Counts: waiting, prefilling, decoding, retracted, draining, blocks_total, blocks_used
        (held by requests), blocks_cached (evictable), blocks_free, prompt_tokens, cached_tokens,
        output_tokens, retractions, evictions, submitted, finished."""

    def state(self) -> Mapping[str, Any]:
        """Everything about every request, for explanation and tests: id, state, priority, slot,
        computed_tokens, blocks per group; and per physical block its group and reference count."""

    def check_invariants(self) -> None:
        """Recount everything from scratch; RuntimeError names the first broken invariant."""

def transition_table() -> Sequence[tuple[str, str, str]]:
    """(state, event, cell) for every cell of law 3's table; cell is "To<...>", "Ignore", "Refuse",
    with the handle dispositions. The documentation diagram is generated from it."""
