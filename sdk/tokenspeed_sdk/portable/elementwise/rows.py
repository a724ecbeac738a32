# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Rows of an embedding table. Legend: T tokens, V vocabulary, D hidden."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Elements of a program: eight a thread, one load of 16 bytes in bf16."""


def embedding(token_ids_T: torch.Tensor, weight_VD: torch.Tensor) -> torch.Tensor:
    """Compute embedding.lookup."""
    tokens, (vocab_size, hidden_size) = token_ids_T.shape[0], weight_VD.shape
    rows = torch.empty(tokens, hidden_size, dtype=weight_VD.dtype, device=weight_VD.device)
    if rows.numel():
        block = min(BLOCK, triton.next_power_of_2(hidden_size))
        take_rows[(tokens, triton.cdiv(hidden_size, block))](
            token_ids_T,
            weight_VD,
            rows,
            token_ids_T.stride(0),
            vocab_size,
            hidden_size,
            BLOCK=block,
        )
    return rows


@triton.jit
def take_rows(
    ids_ptr, table_ptr, rows_ptr, id_stride, vocab_size, hidden_size, BLOCK: tl.constexpr
):
    """Copy BLOCK elements of one token's row; zeros where its id is outside the table."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(ids_ptr + token * id_stride).to(tl.int64)
    inside = columns < hidden_size
    # Not 0: the interpreter makes numbers of comparisons of scalars, which are no mask.
    is_known = (inside & (word >= 0) & (word < vocab_size)) != 0
    row = tl.load(table_ptr + word * hidden_size + columns, mask=is_known, other=0.0)
    tl.store(rows_ptr + token * hidden_size + columns, row, mask=inside)
