"""Carries out plans on a simulated memory and checks every row before it runs.

Three questions in one check: is a block read after it was freed, has it two owners, was anything
matched before its commit? Each would show a row another prefix than its request's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tests.support.naive_requests import NaiveRequest, NaiveRequests
from tests.support.plan_copies import PlanCopy, Row
from tests.support.simulated_memory import (
    Group,
    OracleError,
    PrefixTrie,
    SimulatedMemory,
    require,
)
from tests.support.simulated_tiers import SimulatedTiers


class SimulatedDevice:
    """The execution plane's side of one scheduler.

    Args:
        is_ample: the pool is never short and every full block is found again.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        groups: Sequence[Mapping[str, Any]],
        requests: NaiveRequests,
        trie: PrefixTrie,
        *,
        is_ample: bool,
    ) -> None:
        self._config = config
        self._requests = requests
        self._trie = trie
        self._is_ample = is_ample
        kinds = [Group(g["kind"], g["packing"], g.get("window", 0)) for g in groups]
        self._tabled = [index for index, group in enumerate(kinds) if group.kind != "state"]
        self._stateful = [index for index, group in enumerate(kinds) if group.kind == "state"]
        self._share_tokens = max(groups[index]["share_tokens"] for index in self._tabled)
        self.memory = SimulatedMemory(
            kinds,
            num_physical_blocks=config["num_physical_blocks"],
            block_tokens=config["block_tokens"],
            max_running=config["max_running"],
            max_context_tokens=config["max_context_tokens"],
        )
        self.tiers = SimulatedTiers(self.memory, trie)
        self._owner_of_slot: dict[int, NaiveRequest] = {}
        self._readers: dict[tuple[int, int], dict[int, int]] = {}
        self._writers: dict[tuple[int, int], tuple[int, int]] = {}
        self.num_readmitted = 0

    def execute(self, plan: PlanCopy) -> None:
        """Check a plan and run it; `plan.sampled` and `plan.drafts` are what its rows bring."""
        rows = plan.rows()
        self._check_shape(plan, rows)
        self.tiers.start(plan.arrays)
        admitted = self._admit(plan, rows)
        self._update_tables(plan)
        self._copy(plan)
        self._check_state_rows(plan, rows)
        plan.places = [self._check_row(row, is_admitted=row.index in admitted) for row in rows]
        for row in rows:
            self._run_row(plan, row)

    def committed(self, plan: PlanCopy) -> None:
        """Note that a step is final: what it wrote may be written by others."""
        for place in [at for at, (_, step) in self._writers.items() if step == plan.step_id]:
            del self._writers[place]

    # Rows

    def _check_shape(self, plan: PlanCopy, rows: Sequence[Row]) -> None:
        start, where = plan.arrays["query_start"], f"step {plan.step_id}"
        ids = {row.request_id for row in rows}
        ended = ids - self._requests.live.keys()
        require(not ended, f"{where} runs {ended}, which ended")
        require(len(ids) == len(rows), f"{where} has a request twice")
        has_moves = len(plan.arrays["transfers"]) + len(plan.arrays["store_moves"]) > 0
        require(rows or has_moves, f"{where} is empty")
        require(start[0] == 0 and (np.diff(start) > 0).all(), f"{where}: query_start falls")
        require(start[-1] == plan.num_tokens == len(plan.arrays["token_ids"]), f"{where}: tokens")
        most = self._config["max_step_tokens"]
        require(plan.num_tokens <= most, f"{where} has {plan.num_tokens} tokens")

    def _admit(self, plan: PlanCopy, rows: Sequence[Row]) -> set[int]:
        admitted = set()
        for index, slot in plan.arrays["admitted"].tolist():
            request = self._requests.live[rows[index].request_id]
            require(0 <= slot < self._config["max_running"], f"slot {slot}")
            for previous in (request, self._owner_of_slot.get(slot)):
                if previous is not None and previous.slot >= 0:
                    self._leave(previous, f"slot {slot} is given to {request.id}")
            self._enter(request, slot, rows[index].context)
            admitted.add(index)
        return admitted

    def _leave(self, request: NaiveRequest, where: str) -> None:
        """Whoever loses its slot while it lives was retracted."""
        require(request.num_uncommitted == 0, f"{where} while {request.id} has steps under way")
        self.num_readmitted += not request.ended
        for group in self._tabled:
            for block in self.memory.tables[group][request.slot].tolist():
                self._readers.get((group, block), {}).pop(request.id, None)
        del self._owner_of_slot[request.slot]
        request.slot = -1

    def _enter(self, request: NaiveRequest, slot: int, matched: int) -> None:
        self._owner_of_slot[slot] = request
        self.memory.reset_slot(slot)
        request.slot, request.written, request.damage = slot, matched, ""
        ideal, size = self._requests.ideal_match(request), self._config["block_tokens"]
        where = f"request {request.id} is admitted with {matched} cached tokens"
        require(matched <= ideal, f"{where}; {ideal} are committed")
        require(matched % size % self._share_tokens == 0, f"{where}: not on the sharing grain")
        sure = self._requests.sure_match(request) // size * size
        require(not self._is_ample or matched >= sure, f"{where} of {ideal}")
        if not request.was_admitted:
            request.was_admitted = True
            request.matched, request.ideal = matched, ideal

    def _update_tables(self, plan: PlanCopy) -> None:
        for slot, group, index, block in plan.arrays["block_updates"].tolist():
            request = self._owner_of_slot.get(slot)
            if request is None:
                raise OracleError(f"block update of slot {slot}, which is free")
            old = int(self.memory.tables[group][slot, index])
            self.memory.set_block(slot, group, index, block)
            self._readers.get((group, old), {}).pop(request.id, None)
            self._readers.setdefault((group, block), {})[request.id] = index

    def _copy(self, plan: PlanCopy) -> None:
        copies = plan.arrays["copies"].tolist()
        admitted = set(plan.arrays["request_ids"][plan.arrays["admitted"][:, 0]].tolist())
        targets = {(group, target) for group, _, target, _ in copies}
        require(len(targets) == len(copies), f"step {plan.step_id} copies twice into a block")
        for group, source, target, num_tokens in copies:
            require((group, source) not in targets, f"block {source} is copied and copied into")
            owners = admitted & self._readers.get((group, target), {}).keys()
            require(len(owners) == 1, f"block {target}, a copy's target, belongs to {owners}")
            self._note_damage(group, target, 0, self._requests.live[owners.pop()])
            self.memory.copy(group, source, target, num_tokens)

    def _check_row(self, row: Row, *, is_admitted: bool) -> int:
        """Check a row against its request; return the position where the device runs it."""
        request = self._requests.live[row.request_id]
        where = f"row {row.index}, request {request.id}"
        place = request.written
        # Drafts that are still on the device make the planned position an upper bound.
        is_bound = request.device_drafts and request.num_uncommitted > 0
        require(request.slot == row.slot, f"{where}: slot {row.slot}, not {request.slot}")
        require(not request.damage, f"{where}: {request.damage}")
        is_there = row.context == place or (is_bound and row.context > place)
        require(is_there, f"{where}: context {row.context}, cache {place}")
        require(not (row.is_decode and is_admitted), f"{where}: decodes as it is admitted")
        end = place + len(row.token_ids) - row.num_drafts
        wanted = request.tokens[place : min(end, request.num_committed)]
        wanted += [-1] * (end - place - len(wanted))
        require(end <= len(request.tokens), f"{where}: {end} of {len(request.tokens)} tokens")
        seen = row.token_ids[: end - place]
        require(seen == wanted, f"{where}: query tokens {seen}, expected {wanted}")
        self._check_output(row, request, where, samples=end == len(request.tokens))
        for group in self._tabled:
            self._check_context(row, request, group, place)
        return place

    def _check_output(self, row: Row, request: NaiveRequest, where: str, *, samples: bool) -> None:
        index = request.num_outputs if samples else -1
        is_bound = request.device_drafts and request.num_uncommitted > 0 and samples
        is_right = row.output_index >= index if is_bound else row.output_index == index
        require(is_right, f"{where}: output index {row.output_index}, expected {index}")
        require(samples or not row.is_decode, f"{where}: decodes and samples nothing")
        most = request.max_outputs
        after = row.output_index + 1 + row.num_drafts
        require(most is None or after <= most, f"{where}: samples beyond its {most} tokens")
        drafts = row.token_ids[len(row.token_ids) - row.num_drafts :]
        known = request.proposed[: row.num_drafts]
        if request.device_drafts:
            known = [-1] * min(row.num_drafts, request.max_drafts)
        require(drafts == known, f"{where}: drafts {drafts}, proposed {known}")

    def _check_context(self, row: Row, request: NaiveRequest, group: int, place: int) -> None:
        first = self.memory.groups[group].first_seen(place)
        own = np.array(request.nodes[first:place], np.int32)
        seen = self.memory.read(group, request.slot, first, place)
        if not np.array_equal(seen, own):
            position = first + int((seen != own).argmax())
            block = self.memory.tables[group][request.slot][position // self.memory.block_tokens]
            raise OracleError(
                f"row {row.index}, request {request.id}: group {group} shows another token at "
                f"position {position} of {place}, in block {block}"
            )

    # State rows

    def _check_state_rows(self, plan: PlanCopy, rows: Sequence[Row]) -> None:
        """No row writes what another row of the step reads or writes; none reads a wrong state."""
        state_rows = plan.arrays["state_rows"]
        require(state_rows.shape == (len(rows), len(self._stateful), 2), "state_rows' shape")
        for k, group in enumerate(self._stateful):
            reads, writes = state_rows[:, k].T.tolist()
            require(len(set(writes)) == len(writes), f"group {group}: a state is written twice")
            for row, read in zip(rows, reads, strict=True):
                self._check_state(row, group, read)
                is_own = read not in writes or writes.index(read) == row.index
                require(is_own, f"group {group}: state {read} is read and written by another row")

    def _check_state(self, row: Row, group: int, read: int) -> None:
        request = self._requests.live[row.request_id]
        where = f"row {row.index}, request {request.id}, state group {group}"
        if row.context == 0:
            require(read == -1, f"{where}: starts from state {read}")
            return
        require(read > 0, f"{where}: starts from nothing at {row.context}")
        node = int(self.memory.block(group, read)[0])
        own = request.nodes[row.context - 1]
        require(node == own, f"{where}: state {read} is not that of position {row.context}")

    # Writes

    def _run_row(self, plan: PlanCopy, row: Row) -> None:
        request = self._requests.live[row.request_id]
        place, drafts, sampled = plan.places[row.index], plan.drafts[row.index], []
        end = place + len(row.token_ids) - len(drafts)
        nodes = request.nodes[place:end]
        nodes += self._trie.chain(nodes[-1], drafts)
        for group in self._tabled:
            self._write_cells(plan.step_id, group, request, place, nodes)
        for k, group in enumerate(self._stateful):
            block = int(plan.arrays["state_rows"][row.index, k, 1])
            self._claim(plan.step_id, group, block, request)
            self.memory.write(group, block, 0, nodes[-1:])
        sampled = plan.sampled[row.index]
        request.written = end + max(0, len(sampled) - 1)
        request.num_uncommitted += 1
        self._requests.append(request, sampled)
        if drafts:
            request.proposed = []

    def _write_cells(
        self, step_id: int, group: int, request: NaiveRequest, place: int, nodes: list[int]
    ) -> None:
        size, end = self.memory.block_tokens, place + len(nodes)
        for index in range(place // size, -(-end // size)):
            low, high = max(place, index * size), min(end, (index + 1) * size)
            block = int(self.memory.tables[group][request.slot, index])
            self._claim(step_id, group, block, request)
            self._note_damage(group, block, low - index * size, request)
            cells = nodes[low - place : high - place]
            self.memory.write(group, block, low - index * size, cells)

    def _claim(self, step_id: int, group: int, block: int, request: NaiveRequest) -> None:
        """Two requests never write one block in steps that are both under way."""
        other, _ = self._writers.get((group, block), (request.id, step_id))
        where = f"step {step_id}: requests {other} and {request.id}"
        require(other == request.id, f"{where} write block {block} of group {group}")
        self._writers[group, block] = request.id, step_id

    def _note_damage(self, group: int, block: int, offset: int, writer: NaiveRequest) -> None:
        """Whoever still reads this cell must be admitted anew before its next row."""
        size, kind = self.memory.block_tokens, self.memory.groups[group]
        for request_id, index in self._readers.get((group, block), {}).items():
            reader = self._requests.all[request_id]
            is_seen = index * size + offset < reader.written
            is_seen &= (index + 1) * size > kind.first_seen(reader.written)
            # An id may be used again: what its first owner read says nothing of the second.
            is_its = reader.slot >= 0 and self.memory.tables[group][reader.slot][index] == block
            if reader is not writer and is_seen and is_its:
                reader.damage = f"{writer.id} wrote block {block} of group {group}, which it reads"
