"""A simulated device memory: which prefix every cell of every cache block stands for.

A prefix is a node of a trie, so equal numbers mean equal namespace and equal tokens from the start.
Physical blocks are shared between groups, as on a device: writing one group's block destroys what
another group kept in the same physical block. A state block has one cell: the prefix whose state
it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EMPTY = 0
"""Content that nobody may read."""

Cells = NDArray[np.int32]


class OracleError(AssertionError):
    """The control plane did what the oracle forbids."""


def require(condition: object, text: str) -> None:
    """Fail with `text` unless `condition` holds."""
    if not condition:
        raise OracleError(text)


class PrefixTrie:
    """Numbers every (namespace, token prefix) that was ever seen; EMPTY is no prefix."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._roots: dict[bytes, int] = {}
        self._steps: list[tuple[int, int]] = [(EMPTY, -1)]

    def root(self, salt: bytes) -> int:
        """Return the empty prefix of a namespace."""
        if salt not in self._roots:
            self._roots[salt] = self._add(EMPTY, -1)
        return self._roots[salt]

    def child(self, node: int, token: int) -> int:
        """Return the prefix `node` followed by `token`."""
        found = self._children.get((node, token))
        if found is None:
            found = self._children[node, token] = self._add(node, token)
        return found

    def chain(self, node: int, tokens: Sequence[int]) -> list[int]:
        """Return the prefixes after each of `tokens`, which follow `node`."""
        nodes = []
        for token in tokens:
            node = self.child(node, token)
            nodes.append(node)
        return nodes

    def last_tokens(self, node: int, count: int) -> list[int]:
        """Return the last tokens of a prefix; fewer where it is shorter."""
        tokens: list[int] = []
        while len(tokens) < count and self._steps[node][1] >= 0:
            node, token = self._steps[node]
            tokens.append(token)
        return tokens[::-1]

    def _add(self, parent: int, token: int) -> int:
        self._steps.append((parent, token))
        return len(self._steps) - 1


@dataclass(frozen=True, slots=True)
class Group:
    """A cache group as the memory sees it."""

    kind: str
    packing: int
    window: int

    def first_seen(self, position: int) -> int:
        """Return the first position that a query at `position` sees."""
        return max(0, position - self.window + 1) if self.kind == "window" else 0


class SimulatedMemory:
    """Cells by [group][block][offset], and the executor's block tables."""

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        num_physical_blocks: int,
        block_tokens: int,
        max_running: int,
        max_context_tokens: int,
    ) -> None:
        self.groups = tuple(groups)
        self.block_tokens = block_tokens
        self._num_physical_blocks = num_physical_blocks
        max_blocks = -(-max_context_tokens // block_tokens) + 8
        self._cells = [
            np.zeros(
                (num_physical_blocks * group.packing, 1 if group.kind == "state" else block_tokens),
                np.int32,
            )
            for group in groups
        ]
        self.tables = [np.zeros((max_running, max_blocks), np.int32) for _ in groups]
        self._group_of = np.full(num_physical_blocks, -1)

    def reset_slot(self, slot: int) -> None:
        """Forget the block table of a slot."""
        for table in self.tables:
            table[slot] = 0

    def set_block(self, slot: int, group: int, index: int, block: int) -> None:
        """Write one block-table entry; refuses ids that no request may have."""
        require(0 <= group < len(self.groups), f"block update names group {group}")
        require(self.groups[group].kind != "state", f"state group {group} has no block table")
        table = self.tables[group]
        require(0 <= index < table.shape[1], f"block update of index {index}, slot {slot}")
        self._check_block(group, block)
        table[slot, index] = block

    def copy(self, group: int, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of a block."""
        require(0 < num_tokens <= self.block_tokens, f"copy of {num_tokens} tokens")
        require(source != target, f"block {source} is copied onto itself")
        self.write(group, target, 0, self.block(group, source)[:num_tokens])

    def write(self, group: int, block: int, first: int, nodes: Cells | Sequence[int]) -> None:
        """Write into a block from offset `first` on."""
        self._check_block(group, block)
        self._occupy(group, block)
        self._cells[group][block, first : first + len(nodes)] = nodes

    def block(self, group: int, block: int) -> Cells:
        """Return a copy of a block's cells, EMPTY where another group wrote since."""
        self._check_block(group, block)
        cells: Cells = self._cells[group][block].copy()
        if self._group_of[block // self.groups[group].packing] != group:
            cells[:] = EMPTY
        return cells

    def read(self, group: int, slot: int, first: int, end: int) -> Cells:
        """Return what a row of `slot` sees at positions [first, end)."""
        if first >= end:
            return np.zeros(0, np.int32)
        size = self.block_tokens
        blocks = self.tables[group][slot, first // size : -(-end // size)]
        cells: Cells = self._cells[group][blocks].reshape(-1)
        if (self._group_of[blocks // self.groups[group].packing] != group).any():
            cells = np.zeros_like(cells)
        return cells[first % size : first % size + end - first]

    def _check_block(self, group: int, block: int) -> None:
        packing = self.groups[group].packing
        require(
            packing <= block < packing * self._num_physical_blocks,
            f"block {block} of group {group} is the sentinel's or outside the pool of "
            f"{self._num_physical_blocks} physical blocks",
        )

    def _occupy(self, group: int, block: int) -> None:
        packing = self.groups[group].packing
        physical = block // packing
        if self._group_of[physical] != group:
            self._group_of[physical] = group
            self._cells[group][physical * packing : (physical + 1) * packing] = EMPTY
