"""The tiers of a simulated device: host slots and store records hold the cells of blocks.

A move ends when it is acknowledged, as late as that: until then its target holds nothing, and its
source must stay as it was. Whoever reads a block too early, or gives a slot away too soon, meets
other cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support.simulated_memory import EMPTY, Cells, PrefixTrie, SimulatedMemory, require

from tokenspeed.contracts.step import LOAD, PUT, STORE


@dataclass(frozen=True, slots=True)
class Move:
    """A move under way; `cells` are those of its source when it began."""

    transfer_id: int
    kind: str
    group: int
    block: int
    slot: int
    cells: Cells
    key: bytes = b""
    tag: tuple[int, ...] = ()


class SimulatedTiers:
    """Host slots by (group, slot), records by key, and what is under way."""

    def __init__(self, memory: SimulatedMemory, trie: PrefixTrie) -> None:
        self._memory = memory
        self._trie = trie
        self._host: dict[tuple[int, int], Cells] = {}
        self._node_of_key: dict[tuple[int, bytes], int] = {}
        self._parts: dict[tuple[int, int], tuple[int, bool]] = {}
        self.records: dict[bytes, tuple[tuple[int, ...], Cells]] = {}
        self.pending: list[Move] = []

    def start(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Begin the moves of a plan; stores read the device before the step's writes."""
        rows = arrays["transfers"].tolist()
        for transfer_id, way, group, block, slot, _ in rows:
            if way == STORE:
                cells = self._memory.block(group, block)
                self._begin(Move(transfer_id, "store", group, block, slot, cells))
                self._host[group, slot] = np.full_like(cells, EMPTY)
        for transfer_id, way, group, block, slot, _ in rows:
            if way == LOAD:
                self._start_load(transfer_id, group, block, slot)
        for row, (transfer_id, way, group, slot) in enumerate(arrays["store_moves"].tolist()):
            key = arrays["store_keys"][row].tobytes()
            tag = tuple(arrays["store_tokens"][row].tolist())
            kind = "put" if way == PUT else "get"
            cells = self._slot(group, slot)
            if kind == "put":
                self._check_record(group, key, tag, cells)
            else:
                self._host[group, slot] = np.full_like(cells, EMPTY)
            self._begin(Move(transfer_id, kind, group, 0, slot, cells, key, tag))

    def end(self, move: Move, *, ok: bool) -> bool:
        """End a move, well or not; return whether it did: a record may be missing."""
        self.pending.remove(move)
        now = self._slot(move.group, move.slot)
        kept = move.cells if np.array_equal(now, move.cells) else np.full_like(now, EMPTY)
        if move.kind == "store":
            self._host[move.group, move.slot] = move.cells if ok else np.full_like(now, EMPTY)
        elif move.kind == "load":
            self._end_load(move, kept, ok=ok)
        elif move.kind == "put":
            if ok:
                self.records[move.key] = move.tag, kept
        else:
            tag, cells = self.records.get(move.key, ((), now))
            ok = ok and tag == move.tag
            self._host[move.group, move.slot] = cells if ok else np.full_like(now, EMPTY)
        return ok

    def _begin(self, move: Move) -> None:
        known = {other.transfer_id for other in self.pending}
        require(move.transfer_id not in known, f"transfer {move.transfer_id} is under way already")
        self.pending.append(move)

    def _start_load(self, transfer_id: int, group: int, block: int, slot: int) -> None:
        cells = self._slot(group, slot)
        self._memory.write(group, block, 0, np.full_like(cells, EMPTY))
        parts, ok = self._parts.get((group, block), (0, True))
        self._parts[group, block] = parts + 1, ok
        self._begin(Move(transfer_id, "load", group, block, slot, cells))

    def _end_load(self, move: Move, cells: Cells, *, ok: bool) -> None:
        """A block has its content when the last of its layer ranges arrived."""
        parts, all_ok = self._parts.pop((move.group, move.block))
        all_ok &= ok
        is_whole = parts == 1 and all_ok
        if parts > 1:
            self._parts[move.group, move.block] = parts - 1, all_ok
        content = cells if is_whole else np.full_like(cells, EMPTY)
        self._memory.write(move.group, move.block, 0, content)

    def _slot(self, group: int, slot: int) -> Cells:
        size = 1 if self._memory.groups[group].kind == "state" else self._memory.block_tokens
        return self._host.get((group, slot), np.zeros(size, np.int32))

    def _check_record(self, group: int, key: bytes, tag: tuple[int, ...], cells: Cells) -> None:
        """A record's tag is what its content stands for, and its key stands for one prefix."""
        tokens = [token for token in tag if token >= 0]
        require(tokens, f"record {key.hex()} of group {group} has no tokens")
        is_state = self._memory.groups[group].kind == "state"
        node = int(cells[0 if is_state else len(tokens) - 1])
        held = self._trie.last_tokens(node, len(tokens))
        require(held == tokens, f"record {key.hex()} of group {group} holds {held}, says {tokens}")
        other = self._node_of_key.setdefault((group, key), node)
        require(other == node, f"key {key.hex()} of group {group} names two prefixes")
