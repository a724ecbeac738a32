"""What a step's inputs are made of on the device, where they stay at the same addresses.

Kernels of a step that is replayed read these buffers, so what changes in a step is one upload and
these two operators. Legend: R rows, F fields, G further fields, S slots, L lines of a table, U
updates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.kernel import Case
from tokenspeed.contracts.step import TOKEN_FROM_DEVICE
from tokenspeed.ops.declare import EXACT, operator
from tokenspeed.ops.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.kernel import Domain

SLOT, CONTEXT_TOKENS, TOKEN = range(3)
"""The first fields of a row of `step.prepare`."""

FIRST_FURTHER = 3
"""Of the fields that are handed through."""


def _prepare_cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    for rows, further in ((0, 1), (1, 1), (2, 4), (5, 3), (64, 2), (257, 1)):
        slots = draw.distinct(300, rows).int()
        context = draw.integers(0, 1 << 20, rows).int()
        tokens = draw.integers(-1, 60, rows).int()
        others = draw.integers(-1, 1 << 30, rows, further).int()
        packed = torch.cat([torch.stack([slots, context, tokens], dim=1), others], dim=1)
        last = draw.integers(-3, 60, 300)
        buffers = (
            torch.full((rows,), -7),
            torch.full((rows,), -7),
            torch.full((rows,), -7, dtype=torch.int32),
            torch.full((rows,), -7, dtype=torch.int32),
            torch.full((further, rows), -7),
        )
        name = f"{rows} rows, {further} further fields"
        yield Case(name, (packed, last, *buffers), {"vocab_size": 50})


def _patch_cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    for pages, per_block, step in ((1, 1, 0), (4, 4, 1), (3, 30, 7)):
        for updates in (0, 1, 9, 500):
            cells = draw.distinct(20 * 30, updates)
            blocks = draw.integers(0, 1 << 16, updates)
            rows = torch.stack([cells // 30, cells % 30, blocks], dim=1).int()
            table = torch.full((21, 30 * pages), -7, dtype=torch.int32)
            options = {"num_pages": pages, "per_block": per_block, "step": step}
            yield Case(f"{updates} blocks of {pages} pages", (table, rows), options)
    table = torch.zeros((2, 4), dtype=torch.int32)
    twice = torch.tensor([[1, 2, 5], [1, 2, 5]], dtype=torch.int32)
    options = {"num_pages": 1, "per_block": 1, "step": 0}
    yield Case("the same update twice", (table, twice), options)


@operator(
    "step.prepare",
    tolerance=EXACT,
    cases=_prepare_cases,
    placement="-, -, -, -, -, -, - ->",
)
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
    """Write the inputs of rows of one query token each.

    Args:
        rows_RF: (R, F) int32, device, contiguous; F = 3 + G. Fields of a row: its slot in [0, S),
            the tokens of its request that are in the cache (>= 0), its token id or
            TOKEN_FROM_DEVICE, then G numbers that are handed through.
        last_tokens_S: (S,) int64, device; the token of rows with TOKEN_FROM_DEVICE, by slot.
        token_ids_R: (R,) int64; written: the row's token, clamped to [0, vocab_size).
        positions_R: (R,) int64; written: the tokens in the cache.
        lengths_R: (R,) int32; written: one more than those.
        slots_R: (R,) int32; written.
        further_GR: (G, R) int64, contiguous; written: the further fields.
        vocab_size: token ids are below it.
    Returns:
        Nothing.
    Source: ours; the token that is still on the device is the `future token` of SGLang's overlap
        scheduler (https://lmsys.org/blog/2024-12-04-sglang-v0-4/, 2024).
    """
    import torch

    slots, tokens = rows_RF[:, SLOT], rows_RF[:, TOKEN].long()
    tokens = torch.where(tokens == TOKEN_FROM_DEVICE, last_tokens_S[slots.long()], tokens)
    token_ids_R.copy_(tokens.clamp(0, vocab_size - 1))
    positions_R.copy_(rows_RF[:, CONTEXT_TOKENS])
    lengths_R.copy_(rows_RF[:, CONTEXT_TOKENS] + 1)
    slots_R.copy_(slots)
    further_GR.copy_(rows_RF[:, FIRST_FURTHER:].T)


@operator(
    "step.patch_tables",
    tolerance=EXACT,
    cases=_patch_cases,
    placement="-, - ->",
)
def patch_tables(
    tables_LM: torch.Tensor,
    updates_U3: torch.Tensor,
    *,
    num_pages: int,
    per_block: int,
    step: int,
) -> None:
    """Write the pages of blocks into lines of a table: page i of block b is b per_block + i step.

    Args:
        tables_LM: (L, M) int32, device, contiguous; written in place.
        updates_U3: (U, 3) int32, device, contiguous; [line, index, block id] in the tables' bounds:
            the block's pages take the places [index num_pages, (index + 1) num_pages) of the line.
            Two updates of one place are equal.
        num_pages: pages of a block; 1: the table may have block ids, of per_block 1 and step 0.
        per_block: page ids from one block's first page to the next block's.
        step: page ids from one page of a block to its next.
    Returns:
        Nothing.
    Source: ours; see `kv.layout.PageIds` for the ids.
    """
    import torch

    lines, indices, blocks = updates_U3.long().unbind(1)
    pages = torch.arange(num_pages, device=tables_LM.device)
    places = indices[:, None] * num_pages + pages
    ids = blocks[:, None] * per_block + pages * step
    tables_LM[lines[:, None], places] = ids.int()
