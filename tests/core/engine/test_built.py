"""What a device gives for an arena is looked at before anything is written into it."""

from __future__ import annotations

import mmap

import pytest
import torch

from tokenspeed.engine.built import check_arena, check_built
from tokenspeed.errors import PluginError

SIZE = 8192


def mapped(num_bytes: int) -> torch.Tensor:
    """Memory that begins at a page."""
    return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8)


def test_flat_aligned_bytes_are_an_arena() -> None:
    check_arena(mapped(SIZE), SIZE, "p/d")


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        (torch.zeros(SIZE), "(8192,) float32"),
        (mapped(SIZE - 1), "(8191,) uint8"),
        (mapped(SIZE).view(2, -1), "(2, 4096) uint8"),
        (mapped(2 * SIZE)[::2], "(8192,) uint8"),
        (mapped(SIZE + 16)[16:], "memory at address 0x"),
    ],
    ids=["dtype", "size", "shape", "strided", "alignment"],
)
def test_anything_else_is_refused_by_name(storage: torch.Tensor, words: str) -> None:
    with pytest.raises(PluginError) as caught:
        check_arena(storage, SIZE, "p/d")
    assert f"device: p/d gave {words}" in str(caught.value)
    assert "for an arena of 8192 bytes" in str(caught.value)


def test_slots_whose_offers_are_functions_or_guarded_elsewhere_are_left_alone() -> None:
    check_built("model", object(), "p/x")
