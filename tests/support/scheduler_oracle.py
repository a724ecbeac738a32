"""A naive model of what any schedule must keep true, driven beside the real scheduler.

It executes every plan on a fake device (`device_memory.py`) and checks each row against the
request's own tokens. It predicts tokens and finish reasons, not schedules: which requests run is
the scheduler's choice inside the rules of order, budget and progress checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support.device_memory import DeviceMemory, OracleError, PrefixTrie, require

PLAN_ARRAYS = (
    "request_ids", "slots", "query_start", "context_tokens", "output_index", "token_ids",
    "admitted", "block_updates", "copies",
)  # fmt: skip
RESULT_ARRAYS = ("request_ids", "tokens", "finish_reasons", "cached_tokens", "rows")
REASONS = ("", "stop", "length", "abort", "timeout", "error")


@dataclass(slots=True)
class PlanCopy:
    """A plan's arrays, copied: the scheduler may reuse its buffers."""

    step_id: int
    num_rows: int
    num_decode_rows: int
    num_tokens: int
    arrays: dict[str, NDArray[Any]]
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    failed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

    @staticmethod
    def of(plan: Any) -> PlanCopy:
        """Copy a StepPlan."""
        arrays = {name: np.array(getattr(plan, name)) for name in PLAN_ARRAYS}
        return PlanCopy(plan.step_id, plan.num_rows, plan.num_decode_rows, plan.num_tokens, arrays)

    def admitted_ids(self) -> list[int]:
        """Return whom this plan admits."""
        rows = self.arrays["request_ids"][self.arrays["admitted"][:, 0]]
        return [int(request_id) for request_id in rows]


@dataclass(slots=True)
class ModelRequest:
    """A request as the oracle knows it.

    Args:
        tokens: prompt and outputs, sampled but uncommitted ones included.
        nodes: the prefix after each of `tokens`.
        num_committed: tokens that a commit made final.
        written: tokens whose keys and values executed steps have written (or matched).
        damage: how another request overwrote what this one reads; "" for not.
    """

    id: int
    root: int
    tokens: list[int]
    nodes: list[int]
    num_prompt: int
    max_outputs: int
    min_outputs: int
    stop_ids: frozenset[int]
    priority: int
    arrival: int
    deadline_us: int
    match_prefix: bool
    num_committed: int = 0
    slot: int = -1
    written: int = 0
    num_uncommitted: int = 0
    was_admitted: bool = False
    has_failed: bool = False
    first_cached: int = -1
    damage: str = ""
    ended: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """Place in the queue: less is earlier."""
        return -self.priority, self.arrival

    @property
    def num_outputs(self) -> int:
        """Output tokens, the uncommitted ones included."""
        return len(self.tokens) - self.num_prompt


class SchedulerOracle:
    """Follows one scheduler.

    Args:
        is_ample: the pool can never be short, so that nobody may be kept from running.
    """

    def __init__(
        self, config: Mapping[str, Any], packing: Sequence[int], *, is_ample: bool
    ) -> None:
        self._config = config
        self._block_tokens: int = config["block_tokens"]
        self._share_tokens: int = config["share_tokens"]
        self._is_ample = is_ample
        self._trie = PrefixTrie()
        self.memory = DeviceMemory(
            packing=packing,
            num_physical_blocks=config["num_physical_blocks"],
            block_tokens=self._block_tokens,
            max_running=config["max_running"],
            max_context_tokens=config["max_context_tokens"],
        )
        self._capacity_tokens = self._solve_capacity()
        self.live: dict[int, ModelRequest] = {}
        self._all: dict[int, ModelRequest] = {}
        self._owner_of_slot: dict[int, ModelRequest] = {}
        self._readers: dict[tuple[int, int], dict[int, int]] = {}
        self._committed: set[int] = set()
        self._num_submitted = 0
        self.num_cached_tokens = 0
        self.num_evictions = 0
        """To be kept up to date by the driver: without any, every full block must be found."""

    # Requests

    def capacity_tokens(self) -> int:
        """Return the tokens of the longest request that fits an empty pool."""
        return self._capacity_tokens

    def _solve_capacity(self) -> int:
        usable = self._config["num_physical_blocks"] - 1
        count = 0
        while sum(-(-(count + 1) // size) for size in self.memory.packing) <= usable:
            count += 1
        return count * self._block_tokens

    def resolve_max_outputs(self, num_prompt: int, max_new_tokens: int) -> int | None:
        """Return the output tokens that a request may have; None: it must be refused."""
        in_context = self._config["max_context_tokens"] - num_prompt
        fits = self.capacity_tokens() - num_prompt
        if max_new_tokens == 0:
            wanted = min(max(fits, 1), in_context)
        else:
            wanted = min(max_new_tokens, in_context)
        return wanted if 1 <= wanted <= fits else None

    def submitted(
        self, request_id: int, prompt: Sequence[int], outputs: Sequence[int], **given: Any
    ) -> None:
        """Note an accepted request."""
        max_outputs = self.resolve_max_outputs(len(prompt), given["max_new_tokens"])
        require(max_outputs is not None, f"request {request_id} was accepted and can never fit")
        assert max_outputs is not None
        request = ModelRequest(
            id=request_id,
            root=self._trie.root(given["salt"]),
            tokens=[],
            nodes=[],
            num_prompt=len(prompt),
            max_outputs=max_outputs,
            min_outputs=given["min_new_tokens"],
            stop_ids=frozenset(given["stop_ids"]),
            priority=given["priority"],
            arrival=self._num_submitted,
            deadline_us=given["deadline_us"],
            match_prefix=given["match_prefix"],
        )
        self._num_submitted += 1
        for token in (*prompt, *outputs):
            self._append(request, token)
        request.num_committed = len(request.tokens)
        self.live[request_id] = self._all[request_id] = request

    def took_ended(self, result: Any, now_us: int, allowed: Mapping[int, str]) -> None:
        """Check what ended outside a commit: asked for in `allowed`, a timeout, or no room left."""
        for request_id, token, reason in _entries(result):
            request = self.live.get(request_id)
            require(request is not None, f"request {request_id} ended twice")
            assert request is not None
            require(token == -1, f"request {request_id} ended outside a commit with a token")
            if allowed.get(request_id) != reason:
                full = request.num_outputs >= request.max_outputs
                timed_out = 0 < request.deadline_us <= now_us
                require(
                    (reason == "timeout" and timed_out) or (reason == "length" and full),
                    f"request {request_id} ended with {reason!r} for no reason",
                )
            self._end(request, reason)
        for request_id, reason in allowed.items():
            require(request_id not in self.live, f"{reason} of {request_id} was not reported")

    def check_deadlines(self, now_us: int) -> None:
        """Nobody outlives a deadline after a plan or commit."""
        for request in self.live.values():
            late = 0 < request.deadline_us <= now_us
            require(not late, f"request {request.id} outlived its deadline")

    # Plans

    def execute(self, plan: PlanCopy) -> None:
        """Check a plan and run it on the fake device; `plan.tokens` are what it samples."""
        rows = self._rows(plan)
        self._check_shape(plan, rows)
        admitted = self._admit(plan, rows)
        self._update_tables(plan)
        self._copy(plan)
        for row, request in enumerate(rows):
            self._check_row(plan, row, request, is_admitted=row in admitted)
        self._write(plan, rows)
        self._check_order(plan, rows, admitted)
        for row, request in enumerate(rows):
            request.written += int(plan.arrays["query_start"][row + 1])
            request.written -= int(plan.arrays["query_start"][row])
            request.num_uncommitted += 1
            if plan.arrays["output_index"][row] >= 0:
                self._append(request, int(plan.tokens[row]))

    def retracted(
        self, states: Iterable[Mapping[str, Any]], num_retractions: int, plan: PlanCopy | None
    ) -> None:
        """Take note of retractions, before `execute` or after `committed`.

        Args:
            states: the scheduler's own report of its requests.
            num_retractions: since the last call.
            plan: the plan made just now: it may admit again whom it retracted.
        """
        running = [request for request in self.live.values() if request.slot >= 0]
        state_of = {state["id"]: state["state"] for state in states}
        again = set() if plan is None else set(plan.admitted_ids())
        out = [r for r in running if state_of[r.id] == "Retracted" or r.id in again]
        require(len(out) <= num_retractions, f"{num_retractions} retractions, seen {len(out)}")
        for request in out:
            others = [other for other in running if other is not request and other not in out]
            require(
                not others or request.rank > min(other.rank for other in others),
                f"request {request.id}, first of all running, was retracted before "
                f"{[other.id for other in others]}",
            )
            require(not self._is_ample, f"request {request.id} was retracted without shortage")
            require(request.num_uncommitted == 0, f"request {request.id} retracted in flight")
            self._leave(request)

    def check_idle(self, num_uncommitted: int, now_us: int) -> None:
        """After `plan` returned None: nothing can be waiting unless a step is out."""
        self.check_deadlines(now_us)
        require(
            num_uncommitted > 0 or not self.live,
            f"nothing was planned although {sorted(self.live)} wait and nothing is out",
        )

    def _rows(self, plan: PlanCopy) -> list[ModelRequest]:
        rows = []
        for request_id in plan.arrays["request_ids"].tolist():
            require(request_id in self.live, f"step {plan.step_id} runs ended {request_id}")
            rows.append(self.live[request_id])
        return rows

    def _check_shape(self, plan: PlanCopy, rows: list[ModelRequest]) -> None:
        start = plan.arrays["query_start"]
        where = f"step {plan.step_id}"
        require(len(rows) == plan.num_rows > 0, f"{where} has no rows")
        require(len({r.id for r in rows}) == len(rows), f"{where} has a request twice")
        require(len(start) == len(rows) + 1, f"{where}: query_start has another length")
        require(start[0] == 0 and (np.diff(start) > 0).all(), f"{where}: query_start falls")
        require(start[-1] == plan.num_tokens == len(plan.arrays["token_ids"]), f"{where}: tokens")
        require(
            plan.num_tokens <= self._config["max_step_tokens"],
            f"{where} has {plan.num_tokens} tokens",
        )

    def _admit(self, plan: PlanCopy, rows: list[ModelRequest]) -> set[int]:
        waiting = {r.id: r for r in self.live.values() if r.slot < 0}
        admitted = set()
        for row, slot in plan.arrays["admitted"].tolist():
            request = rows[row]
            require(request.slot < 0, f"request {request.id} is admitted while it runs")
            require(0 <= slot < self._config["max_running"], f"slot {slot}")
            require(
                slot not in self._owner_of_slot,
                f"slot {slot} is given to {request.id} while it is in use",
            )
            del waiting[request.id]
            self._enter(request, slot, int(plan.arrays["context_tokens"][row]))
            admitted.add(row)
        return admitted

    def _enter(self, request: ModelRequest, slot: int, matched: int) -> None:
        self._owner_of_slot[slot] = request
        self.memory.reset_slot(slot)
        request.slot, request.written, request.damage = slot, matched, ""
        ideal = 0
        while ideal < len(request.nodes) and request.nodes[ideal] in self._committed:
            ideal += 1
        ideal = min(ideal, len(request.tokens) - 1)
        if not self._config["prefix_cache"] or not request.match_prefix:
            ideal = 0
        require(
            matched <= ideal,
            f"request {request.id} claims {matched} cached tokens, {ideal} are committed",
        )
        require(matched % self._block_tokens % self._share_tokens == 0, f"match of {matched}")
        if self.num_evictions == 0:
            whole = ideal // self._block_tokens * self._block_tokens
            require(
                matched >= whole,
                f"request {request.id} matched {matched} tokens where {whole} lie in full blocks",
            )
        if not request.was_admitted:
            request.was_admitted = True
            request.first_cached = min(matched, request.num_prompt)
        self.num_cached_tokens += matched

    def _update_tables(self, plan: PlanCopy) -> None:
        for slot, group, index, block in plan.arrays["block_updates"].tolist():
            require(slot in self._owner_of_slot, f"block update of slot {slot}, which is free")
            request = self._owner_of_slot[slot]
            old = int(self.memory.tables[group][slot, index])
            self.memory.set_block(slot, group, index, block)
            self._readers.get((group, old), {}).pop(request.id, None)
            self._readers.setdefault((group, block), {})[request.id] = index

    def _copy(self, plan: PlanCopy) -> None:
        copies = plan.arrays["copies"].tolist()
        targets = {(group, target) for group, _, target, _ in copies}
        require(len(targets) == len(copies), f"step {plan.step_id} copies twice into a block")
        for group, source, target, num_tokens in copies:
            require((group, source) not in targets, f"block {source} is copied and copied into")
            readers = self._readers.get((group, target), {})
            require(len(readers) == 1, f"block {target} is a copy's target and read by {readers}")
            self.memory.copy(group, source, target, num_tokens)

    def _check_row(
        self, plan: PlanCopy, row: int, request: ModelRequest, *, is_admitted: bool
    ) -> None:
        where = f"step {plan.step_id}, row {row}, request {request.id}"
        context = int(plan.arrays["context_tokens"][row])
        begin, end = plan.arrays["query_start"][row : row + 2].tolist()
        require(request.slot == plan.arrays["slots"][row], f"{where}: slot {request.slot}")
        require(not request.damage, f"{where}: {request.damage}")
        require(context == request.written, f"{where}: context {context}, cache {request.written}")
        total = context + end - begin
        require(total <= len(request.tokens), f"{where}: {total} of {len(request.tokens)} tokens")
        samples = total == len(request.tokens)
        wanted_index = request.num_outputs if samples else -1
        require(
            plan.arrays["output_index"][row] == wanted_index,
            f"{where}: output index {plan.arrays['output_index'][row]}, expected {wanted_index}",
        )
        require(
            not samples or request.num_outputs < request.max_outputs,
            f"{where}: samples beyond its {request.max_outputs} tokens",
        )
        wanted = [
            request.tokens[i] if i < request.num_committed else -1 for i in range(context, total)
        ]
        seen = plan.arrays["token_ids"][begin:end].tolist()
        if seen != wanted:
            raise OracleError(f"{where}: query tokens {seen}, expected {wanted}")
        if row < plan.num_decode_rows:
            require(samples and end - begin == 1 and not is_admitted, f"{where}: not a decode")
        self._check_context(where, request, context)

    def _check_context(self, where: str, request: ModelRequest, context: int) -> None:
        own = np.array(request.nodes[:context], np.int32)
        for group in range(len(self.memory.packing)):
            seen = self.memory.read(group, request.slot, context)
            if not np.array_equal(seen, own):
                position = int((seen != own).argmax())
                table = self.memory.tables[group][request.slot]
                raise OracleError(
                    f"{where}: group {group} shows another token at position {position} of "
                    f"{context}, in block {table[position // self._block_tokens]}"
                )

    def _write(self, plan: PlanCopy, rows: list[ModelRequest]) -> None:
        written: dict[tuple[int, int], int] = {}
        for row, request in enumerate(rows):
            begin, end = plan.arrays["query_start"][row : row + 2].tolist()
            context = request.written
            nodes = np.array(request.nodes[context : context + end - begin], np.int32)
            for group in range(len(self.memory.packing)):
                self._write_row(group, request, context, nodes, written)

    def _write_row(
        self,
        group: int,
        request: ModelRequest,
        context: int,
        nodes: NDArray[np.int32],
        written: dict[tuple[int, int], int],
    ) -> None:
        size, end = self._block_tokens, context + len(nodes)
        for index in range(context // size, -(-end // size)):
            low, high = max(context, index * size), min(end, (index + 1) * size)
            block = int(self.memory.tables[group][request.slot, index])
            other = written.setdefault((group, block), request.id)
            require(
                other == request.id,
                f"requests {other} and {request.id} write block {block} of group {group}",
            )
            self._note_damage(group, block, low - index * size, request)
            self.memory.write(
                group, block, low - index * size, nodes[low - context : high - context]
            )

    def _note_damage(self, group: int, block: int, offset: int, writer: ModelRequest) -> None:
        """Whoever still reads this cell must be admitted anew before its next row."""
        for request_id, index in self._readers.get((group, block), {}).items():
            reader = self._all[request_id]
            if reader is not writer and index * self._block_tokens + offset < reader.written:
                reader.damage = (
                    f"request {writer.id} wrote into block {block} of group {group}, which this "
                    f"request reads"
                )

    def _check_order(self, plan: PlanCopy, rows: list[ModelRequest], admitted: set[int]) -> None:
        require(
            all(row >= plan.num_decode_rows for row in admitted),
            f"step {plan.step_id}: admissions stand before decodes",
        )
        if not self._is_ample:
            return
        begin = plan.arrays["query_start"]
        for row in range(plan.num_decode_rows, plan.num_rows):
            is_partial = plan.arrays["output_index"][row] < 0
            require(
                not is_partial or begin[-1] == self._config["max_step_tokens"],
                f"step {plan.step_id}: row {row} is cut although the budget is not used up",
            )
        present = {request.id for request in rows}
        for request in self.live.values():
            if request.slot < 0 or request.id in present:
                continue
            require(
                request.num_outputs >= request.max_outputs
                or plan.num_tokens == self._config["max_step_tokens"],
                f"step {plan.step_id}: running request {request.id} is left out",
            )
        limit = min(self._config["max_running"], self._config["max_step_tokens"])
        # Who waits for a block that is being computed may do so.
        has_prefill = plan.num_rows > plan.num_decode_rows or self._config["depth"] > 0
        require(
            has_prefill
            or len(self._owner_of_slot) >= limit
            or plan.num_tokens == self._config["max_step_tokens"]
            or all(request.slot >= 0 for request in self.live.values()),
            f"step {plan.step_id}: requests wait although slots and budget are free",
        )

    # Commits

    def committed(self, plan: PlanCopy, result: Any) -> None:
        """Check a commit's result and make its tokens final."""
        expected = []
        for row, request_id in enumerate(plan.arrays["request_ids"].tolist()):
            entry = self._commit_row(plan, row, self._all[request_id])
            if entry is not None:
                expected.append(entry)
        seen = list(
            zip(*(np.array(getattr(result, n)).tolist() for n in RESULT_ARRAYS), strict=True)
        )
        seen = [(i, token, REASONS[reason], cached, row) for i, token, reason, cached, row in seen]
        if seen != expected:
            raise OracleError(f"step {plan.step_id} committed {seen}, expected {expected}")
        for request_id, _, reason, _, _ in expected:
            if reason:
                self._end(self.live[request_id], reason)

    def _commit_row(
        self, plan: PlanCopy, row: int, request: ModelRequest
    ) -> tuple[int, int, str, int, int] | None:
        request.num_uncommitted -= 1
        request.has_failed |= bool(plan.failed[row])
        if not request.has_failed:
            begin, end = plan.arrays["query_start"][row : row + 2].tolist()
            first = int(plan.arrays["context_tokens"][row])
            self._committed.update(request.nodes[first : first + end - begin])
        if request.ended:
            self._release_if_drained(request)
            return None
        if plan.failed[row]:
            return request.id, -1, "error", -1, row
        if plan.arrays["output_index"][row] < 0:
            return None
        token = int(plan.tokens[row])
        request.num_committed += 1
        count = request.num_committed - request.num_prompt
        reason = "length" if count >= request.max_outputs else ""
        if count > request.min_outputs and token in request.stop_ids:
            reason = "stop"
        cached, request.first_cached = request.first_cached, -1
        return request.id, token, reason, cached, row

    # Helpers

    def _append(self, request: ModelRequest, token: int) -> None:
        parent = request.nodes[-1] if request.nodes else request.root
        request.tokens.append(token)
        request.nodes.append(self._trie.child(parent, token))

    def _end(self, request: ModelRequest, reason: str) -> None:
        request.ended = reason
        del self.live[request.id]
        self._release_if_drained(request)

    def _release_if_drained(self, request: ModelRequest) -> None:
        if request.num_uncommitted == 0 and request.slot >= 0:
            self._leave(request)

    def _leave(self, request: ModelRequest) -> None:
        for group, table in enumerate(self.memory.tables):
            for block in table[request.slot].tolist():
                self._readers.get((group, block), {}).pop(request.id, None)
        del self._owner_of_slot[request.slot]
        request.slot = -1


def _entries(result: Any) -> list[tuple[int, int, str]]:
    return [
        (int(request_id), int(token), REASONS[int(reason)])
        for request_id, token, reason in zip(
            result.request_ids, result.tokens, result.finish_reasons, strict=True
        )
    ]
