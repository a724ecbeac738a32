"""Edges of the cache's kernels that their operators' cases miss."""

from __future__ import annotations

import pytest
import torch

from tokenspeed.kv.arena import _copy_tokens
from tokenspeed_sdk.portable.cache.copies import copy_tokens
from tokenspeed_sdk.portable.cache.step import BLOCK, patch_tables

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(2, 5, 16, 40), (2, 5, 3, 16, 8), (1, 5, 2, 3, 16, 8)])
def test_blocks_of_any_shape_and_dtype_are_copied_as_torch_copies(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    plain = torch.randint(0, 100, shape).to(torch.uint8).to(dtype)
    blocks, copies = plain.clone().to(DEVICE), torch.tensor([[1, 4, 7], [0, 2, 16], [3, 0, 0]])
    copy_tokens(blocks, copies)
    _copy_tokens(plain, copies)
    assert blocks.cpu().view(torch.uint8).equal(plain.view(torch.uint8))


def test_blocks_whose_heads_are_not_dense_are_refused() -> None:
    blocks = torch.zeros(1, 2, 3, 4, 16, 8)[:, :, :, :3]
    with pytest.raises(RuntimeError, match="view"):
        copy_tokens(blocks, torch.tensor([[0, 1, 4]]))


def test_what_does_not_fill_the_last_program_of_a_patch_is_left_alone() -> None:
    table = torch.full((2, BLOCK + 8), -7, dtype=torch.int32, device=DEVICE)
    count = BLOCK + 1
    updates = torch.stack(
        [torch.ones(count), torch.arange(count), torch.arange(count) + 3], dim=1
    ).int()
    patch_tables(table, updates.to(DEVICE), num_pages=1, per_block=1, step=0)
    assert (table[0] == -7).all()
    assert table[1, :count].tolist() == [*range(3, count + 3)]
    assert (table[1, count:] == -7).all()
