# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Inputs of a step that stays on the device, one launch each.

Legend: R rows, F fields, G further fields, S slots, L lines of a table, M places of a line, U
updates.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed.contracts.step import TOKEN_FROM_DEVICE

ROWS = 64
"""Rows of a program of `prepare`: a decode step is one program or a few."""
BLOCK = 256
"""Places of a program of `patch_tables`."""
FROM_DEVICE = tl.constexpr(TOKEN_FROM_DEVICE)


def prepare(
    rows_RF: torch.Tensor,
    last_tokens_S: torch.Tensor,
    token_ids_R: torch.Tensor,
    positions_R: torch.Tensor,
    lengths_R: torch.Tensor,
    slots_R: torch.Tensor,
    further_GR: torch.Tensor,
    *,
    vocab_size: int,
) -> None:
    """Compute step.prepare."""
    rows, further = rows_RF.shape[0], further_GR.shape[0]
    if rows:
        prepare_rows[(triton.cdiv(rows, ROWS),)](
            rows_RF,
            last_tokens_S,
            token_ids_R,
            positions_R,
            lengths_R,
            slots_R,
            further_GR,
            rows,
            vocab_size,
            FURTHER=further,
            FURTHER_TILE=triton.next_power_of_2(max(further, 1)),
            TILE=ROWS,
        )


def patch_tables(
    tables_LM: torch.Tensor,
    updates_U3: torch.Tensor,
    *,
    num_pages: int,
    per_block: int,
    step: int,
) -> None:
    """Compute step.patch_tables."""
    updates = updates_U3.shape[0]
    if updates:
        patch_places[(triton.cdiv(updates * num_pages, BLOCK),)](
            tables_LM,
            updates_U3,
            tables_LM.stride(0),
            updates,
            num_pages,
            per_block,
            step,
            TILE=BLOCK,
        )


@triton.jit(do_not_specialize=["num_rows"])
def prepare_rows(
    rows_ptr,
    last_tokens_ptr,
    token_ids_ptr,
    positions_ptr,
    lengths_ptr,
    slots_ptr,
    further_ptr,
    num_rows,
    vocab_size,
    FURTHER: tl.constexpr,
    FURTHER_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Prepare TILE rows: slot, tokens in the cache, token, further fields."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = rows < num_rows
    fields = rows_ptr + rows.to(tl.int64) * (3 + FURTHER)
    slots = tl.load(fields, mask=inside, other=0)
    context = tl.load(fields + 1, mask=inside, other=0)
    tokens = tl.load(fields + 2, mask=inside, other=0).to(tl.int64)
    is_there = inside & (tokens == FROM_DEVICE)
    last = tl.load(last_tokens_ptr + slots.to(tl.int64), mask=is_there, other=0)
    tokens = tl.where(is_there, last, tokens)
    tokens = tl.minimum(tl.maximum(tokens, 0), vocab_size - 1)
    tl.store(token_ids_ptr + rows, tokens, mask=inside)
    tl.store(positions_ptr + rows, context.to(tl.int64), mask=inside)
    tl.store(lengths_ptr + rows, context + 1, mask=inside)
    tl.store(slots_ptr + rows, slots, mask=inside)
    if FURTHER > 0:
        further = tl.arange(0, FURTHER_TILE)[None, :]
        both = inside[:, None] & (further < FURTHER)
        numbers = tl.load(fields[:, None] + 3 + further, mask=both, other=0).to(tl.int64)
        target = further_ptr + further.to(tl.int64) * num_rows + rows[:, None]
        tl.store(target, numbers, mask=both)


@triton.jit(do_not_specialize=["num_updates"])
def patch_places(
    tables_ptr,
    updates_ptr,
    line_stride,
    num_updates,
    num_pages,
    per_block,
    step,
    TILE: tl.constexpr,
):
    """Write TILE places of tables."""
    places = tl.program_id(0) * TILE + tl.arange(0, TILE)
    updates, pages = places // num_pages, places % num_pages
    inside = updates < num_updates
    fields = updates_ptr + updates.to(tl.int64) * 3
    lines = tl.load(fields, mask=inside, other=0).to(tl.int64)
    indices = tl.load(fields + 1, mask=inside, other=0)
    blocks = tl.load(fields + 2, mask=inside, other=0)
    target = tables_ptr + lines * line_stride + indices * num_pages + pages
    tl.store(target, blocks * per_block + pages * step, mask=inside)
