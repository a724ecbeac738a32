"""Persistent tables of one cache group, patched by what each plan changed.

Rows are the executor's slots. Where the group's backend reads pages, their ids are kept beside the
block ids: both are written when a block changes, so a step costs what changed in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.contracts.step import SENTINEL_BLOCK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenspeed.kv import PageIds


class GroupTables:
    """Block ids of every slot, and page ids where the backend reads pages.

    Args:
        pages: how block ids become page ids; None: whole blocks.
    """

    def __init__(self, max_running: int, blocks_per_row: int, pages: PageIds | None) -> None:
        self._blocks = np.full((max_running, blocks_per_row), SENTINEL_BLOCK, dtype=np.int32)
        self._ids = pages
        if pages is not None:
            self._steps = np.arange(pages.num_pages, dtype=np.int32) * np.int32(pages.step)
            shape = (max_running, blocks_per_row, pages.num_pages)
            self._pages = np.broadcast_to(self._pages_of(SENTINEL_BLOCK), shape).copy()

    def clear(self, slot: int) -> None:
        """Forget what a slot's former owner had."""
        self._blocks[slot] = SENTINEL_BLOCK
        if self._ids is not None:
            self._pages[slot] = self._pages_of(SENTINEL_BLOCK)

    def patch(
        self, slots: NDArray[np.int32], indices: NDArray[np.int32], blocks: NDArray[np.int32]
    ) -> None:
        """Write block ids at (slot, index)."""
        self._blocks[slots, indices] = blocks
        if self._ids is not None:
            self._pages[slots, indices] = self._pages_of(blocks[:, None])

    def block_rows(self, slots: NDArray[np.int32], num_blocks: int) -> NDArray[np.int32]:
        """Return (R, num_blocks) block ids of slots, a copy."""
        return self._blocks[slots, :num_blocks]

    def page_rows(self, slots: NDArray[np.int32], num_blocks: int) -> NDArray[np.int32] | None:
        """Return (R, num_blocks * pages of a block) page ids of slots, a copy; None: no pages."""
        if self._ids is None:
            return None
        return self._pages[slots, :num_blocks].reshape(len(slots), num_blocks * self._ids.num_pages)

    @property
    def num_slots(self) -> int:
        """Lines of the tables."""
        return len(self._blocks)

    @property
    def page_arguments(self) -> dict[str, int]:
        """How `step.patch_tables` makes entries of block ids."""
        if self._ids is None:
            return {"num_pages": 1, "per_block": 1, "step": 0}
        return {
            "num_pages": self._ids.num_pages,
            "per_block": self._ids.per_block,
            "step": self._ids.step,
        }

    def sentinel_lines(self, num_lines: int) -> NDArray[np.int32]:
        """Return (num_lines, M) entries of slots that have nothing."""
        blocks_per_row = self._blocks.shape[1]
        if self._ids is None:
            return np.full((num_lines, blocks_per_row), SENTINEL_BLOCK, dtype=np.int32)
        return np.tile(self._pages_of(SENTINEL_BLOCK), (num_lines, blocks_per_row))

    def changed(self, slots: NDArray[np.int32], indices: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return (U, 3) [slot, index, block id] as the tables are now: equal where named twice."""
        return np.stack([slots, indices, self._blocks[slots, indices]], axis=1)

    def _pages_of(self, blocks: NDArray[np.int32] | int) -> NDArray[np.int32]:
        assert self._ids is not None
        ids: NDArray[np.int32] = np.asarray(blocks * self._ids.per_block + self._steps, np.int32)
        return ids
