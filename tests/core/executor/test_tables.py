"""Tables keep block ids, and beside them the page ids of backends that read pages."""

from __future__ import annotations

import numpy as np

from tokenspeed.executor.tables import GroupTables
from tokenspeed.kv import PageIds


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def test_page_ids_follow_the_blocks_that_a_patch_writes() -> None:
    tables = GroupTables(2, 3, PageIds(8, 2, per_block=5, step=2, unit_bytes=64))
    tables.patch(ids(1, 1), ids(0, 2), ids(7, 4))
    assert tables.block_rows(ids(1, 0), 3).tolist() == [[7, 0, 4], [0, 0, 0]]
    pages = tables.page_rows(ids(1, 0), 3)
    assert pages is not None
    assert pages.tolist() == [[35, 37, 0, 2, 20, 22], [0, 2, 0, 2, 0, 2]]


def test_a_cleared_slot_points_at_the_sentinel() -> None:
    tables = GroupTables(1, 2, PageIds(8, 2, per_block=2, step=1, unit_bytes=64))
    tables.patch(ids(0), ids(1), ids(9))
    tables.clear(0)
    assert tables.block_rows(ids(0), 2).tolist() == [[0, 0]]
    pages = tables.page_rows(ids(0), 2)
    assert pages is not None
    assert pages.tolist() == [[0, 1, 0, 1]]


def test_without_pages_there_are_no_page_ids() -> None:
    tables = GroupTables(1, 2, None)
    tables.patch(ids(0), ids(0), ids(3))
    assert tables.page_rows(ids(0), 2) is None
