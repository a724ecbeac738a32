# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernel that joins the shares which several parts have of one item (see `attend`).

Source: FlashInfer, Ye et al. 2025, section 2.2 (attention states compose).
Legend: M query rows of an item, H of them in a program, V value dims.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_sdk.portable.latent.attend import FEWEST, part_of_row, tiles_of_rows

MERGE_FIELDS = 6
"""Of an item to be joined: its row's first query token and their number, first query row, first
program that has a share of it, how many have, and 1 where it is not the first item of that one."""
MERGE_WIDTH = tl.constexpr(MERGE_FIELDS)
MERGED_ROWS = 8
"""Query rows of a program."""


@triton.jit
def merge_shares(
    out,
    shares,
    peaks,
    lengths,
    merges,
    num_rows,
    num_parts,
    group,
    query_tiles,
    out_token,
    out_head,
    VALUES: tl.constexpr,
    V: tl.constexpr,
    M: tl.constexpr,
    S: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    SHARES: tl.constexpr,
    ON_DEVICE: tl.constexpr,
):
    """Join H query rows of one item; the arguments are those of `attend_parts`."""
    record = tl.program_id(0)
    piece = tl.program_id(1)
    kv_head = tl.program_id(2)
    num_kv_heads = tl.num_programs(2)
    if ON_DEVICE:
        query_start = record
        num_queries = 1
        query_tile = piece * H // M
        first_row = query_tile * M
        within = piece * H - first_row
        index, tiles = tiles_of_rows(lengths, num_rows, ROWS, S)
        own = tl.sum(tl.where(index == record, tiles, 0))
        if PIECES:
            first_part = record * PIECES
            count = tl.cdiv(own, part_of_row(own, PIECES))
            is_later = 0
        else:
            size = tl.maximum(tl.cdiv(tl.sum(tiles), num_parts), FEWEST)
            start = tl.sum(tl.where(index < record, tiles, 0))
            first_part = start // size
            count = (start + own - 1) // size - first_part + 1
            is_later = (start > first_part * size).to(tl.int32)
        step = query_tiles
        first_program = first_part * query_tiles + query_tile
    else:
        query_start = tl.load(merges + record * MERGE_WIDTH)
        num_queries = tl.load(merges + record * MERGE_WIDTH + 1)
        first_row = tl.load(merges + record * MERGE_WIDTH + 2)
        first_program = tl.load(merges + record * MERGE_WIDTH + 3)
        count = tl.load(merges + record * MERGE_WIDTH + 4)
        is_later = tl.load(merges + record * MERGE_WIDTH + 5)
        within = piece * H
        step = 1
    if count > 1:
        rows_H = within + tl.arange(0, H)
        dims_V = tl.arange(0, V)
        peak_H = tl.full((H,), float("-inf"), tl.float32)
        sum_H = tl.zeros((H,), tl.float32)
        out_HV = tl.zeros((H, V), tl.float32)
        for number in range(count):
            place = (first_program + number * step) * SHARES
            if number == 0:
                place += is_later
            share_H = (place * num_kv_heads + kv_head).to(tl.int64) * M + rows_H
            part_H = tl.load(peaks + share_H)
            part_HV = tl.load(shares + share_H[:, None] * V + dims_V)
            higher_H = tl.maximum(peak_H, part_H)
            base_H = tl.where(higher_H == float("-inf"), 0.0, higher_H)
            kept_H = tl.exp2(peak_H - base_H)
            weight_H = tl.exp2(part_H - base_H)
            out_HV = out_HV * kept_H[:, None] + part_HV * weight_H[:, None]
            sum_H = sum_H * kept_H + weight_H
            peak_H = higher_H
        token_H = (first_row + rows_H) // group
        head_H = kv_head * group + (first_row + rows_H) % group
        out_H = out + (query_start + token_H).to(tl.int64) * out_token + head_H * out_head
        tl.store(
            out_H[:, None] + dims_V,
            (out_HV / sum_H[:, None]).to(out.dtype.element_ty),
            mask=(token_H < num_queries)[:, None] & (dims_V < VALUES),
        )
