"""Every number of rows up to the largest has a size that wastes little."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tokenspeed.executor.graph_sizes import sizes_up_to


def test_the_sizes_of_a_small_engine() -> None:
    assert sizes_up_to(1) == (1,)
    assert sizes_up_to(3) == (1, 2, 3)
    assert sizes_up_to(20) == (1, 2, 4, 8, 16, 20)


@pytest.mark.parametrize("most", [7, 8, 64, 100, 128, 200, 256, 300, 512])
def test_sizes_grow_to_the_largest_and_pad_by_an_eighth_at_most(most: int) -> None:
    sizes = sizes_up_to(most)
    assert sizes[-1] == most
    assert list(sizes) == sorted(set(sizes))
    for smaller, size in pairwise(sizes):
        assert size - smaller <= max(8, size // 8)
