"""A fake device memory: which token, after which prefix, every cell of every cache block holds.

A prefix is a node of a trie, so equal numbers mean equal namespace and equal tokens from the start.
Physical blocks are shared between groups, as on a device: writing one group's block destroys what
another group kept in the same physical block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

EMPTY = 0


class OracleError(AssertionError):
    """The control plane did what the oracle forbids."""


def require(condition: object, text: str) -> None:
    """Fail with `text` unless `condition` holds."""
    if not condition:
        raise OracleError(text)


class PrefixTrie:
    """Numbers every (namespace, token prefix) that was ever seen; 0 is no prefix."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._roots: dict[bytes, int] = {}
        self._count = 0

    def root(self, salt: bytes) -> int:
        """Return the empty prefix of a namespace."""
        if salt not in self._roots:
            self._count += 1
            self._roots[salt] = self._count
        return self._roots[salt]

    def child(self, node: int, token: int) -> int:
        """Return the prefix `node` followed by `token`."""
        key = (node, token)
        found = self._children.get(key)
        if found is None:
            self._count += 1
            found = self._children[key] = self._count
        return found


class DeviceMemory:
    """Cells by [group][block id][offset], and the executor's block tables.

    Args:
        packing: logical blocks in a physical block, by group.
    """

    def __init__(
        self,
        *,
        packing: Sequence[int],
        num_physical_blocks: int,
        block_tokens: int,
        max_running: int,
        max_context_tokens: int,
    ) -> None:
        self.packing = tuple(packing)
        self.block_tokens = block_tokens
        self.num_physical_blocks = num_physical_blocks
        max_blocks = -(-max_context_tokens // block_tokens) + 1
        self._cells = [
            np.zeros((num_physical_blocks * size, block_tokens), np.int32) for size in packing
        ]
        self.tables = [np.zeros((max_running, max_blocks), np.int32) for _ in packing]
        self._group_of = np.full(num_physical_blocks, -1)

    def reset_slot(self, slot: int) -> None:
        """Forget the block table of a slot."""
        for table in self.tables:
            table[slot] = 0

    def set_block(self, slot: int, group: int, index: int, block: int) -> None:
        """Write one block-table entry; refuses ids that no request may have."""
        require(0 <= group < len(self.packing), f"block update names group {group}")
        table = self.tables[group]
        require(0 <= index < table.shape[1], f"block update of index {index}, slot {slot}")
        self._check_block(group, block)
        table[slot, index] = block

    def copy(self, group: int, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of a block."""
        require(0 < num_tokens <= self.block_tokens, f"copy of {num_tokens} tokens")
        for block in (source, target):
            self._check_block(group, block)
        require(source != target, f"block {source} is copied onto itself")
        self._occupy(group, target)
        self._cells[group][target, :num_tokens] = self._cells[group][source, :num_tokens]

    def write(self, group: int, block: int, first: int, nodes: NDArray[np.int32]) -> None:
        """Write tokens into a block from offset `first` on."""
        self._check_block(group, block)
        self._occupy(group, block)
        self._cells[group][block, first : first + len(nodes)] = nodes

    def read(self, group: int, slot: int, num_tokens: int) -> NDArray[np.int32]:
        """Return what a row of `slot` sees as its first tokens."""
        num_blocks = -(-num_tokens // self.block_tokens)
        blocks = self.tables[group][slot, :num_blocks]
        cells: NDArray[np.int32] = self._cells[group][blocks].reshape(-1)[:num_tokens]
        if num_blocks and (self._group_of[blocks // self.packing[group]] != group).any():
            return np.zeros_like(cells)
        return cells

    def _check_block(self, group: int, block: int) -> None:
        packing = self.packing[group]
        require(
            packing <= block < packing * self.num_physical_blocks,
            f"block {block} of group {group} is the sentinel's or outside the pool of "
            f"{self.num_physical_blocks} physical blocks",
        )

    def _occupy(self, group: int, block: int) -> None:
        physical = block // self.packing[group]
        if self._group_of[physical] != group:
            self._group_of[physical] = group
            packing = self.packing[group]
            self._cells[group][physical * packing : (physical + 1) * packing] = EMPTY
