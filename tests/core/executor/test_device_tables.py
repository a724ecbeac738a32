"""Tables on the device are the host's, and the spare line stays the sentinel's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tokenspeed.executor.device_tables import DeviceTables
from tokenspeed.executor.tables import GroupTables
from tokenspeed.kv import PageIds
from tokenspeed_reference.kernels.step import patch_tables

PAGES = PageIds(4, 4, per_block=6, step=1, unit_bytes=64)


@pytest.mark.parametrize("seed", range(5))
def test_random_patches_keep_device_and_host_alike(seed: int) -> None:
    random = np.random.default_rng(seed)
    groups = [(0, GroupTables(5, 7, None)), (2, GroupTables(5, 7, PAGES))]
    device = DeviceTables(
        groups,
        patch=patch_tables,
        upload=lambda *arrays: tuple(map(torch.from_numpy, arrays)),
        device=torch.device("cpu"),
    )
    for _ in range(20):
        size = int(random.integers(0, 12))  # some cells twice: the last one counts
        updates = np.stack(
            [
                random.integers(0, 5, size),
                random.choice([0, 1, 2], size),
                random.integers(0, 7, size),
                random.integers(1, 90, size),
            ],
            axis=1,
        ).astype(np.int32)
        for index, tables in groups:
            own = updates[updates[:, 1] == index]
            tables.patch(own[:, 0], own[:, 2], own[:, 3])
        device.patch(updates)
        slots = np.arange(5, dtype=np.int32)
        for index, tables in groups:
            wanted = tables.page_rows(slots, 7)
            if wanted is None:
                wanted = tables.block_rows(slots, 7)
            assert device.of(index)[:5].numpy().tolist() == wanted.tolist()
            spare = tables.sentinel_lines(1)[0].tolist()
            assert device.of(index)[5].tolist() == spare


def test_sentinel_lines_are_pages_of_the_sentinel() -> None:
    assert GroupTables(2, 2, PAGES).sentinel_lines(1).tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]
