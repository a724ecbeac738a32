# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Copies the first tokens of blocks to other blocks, in all layers at once.

Legend: L layers, B blocks, K kv heads, S tokens of a block, H head dim, C copies.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE = 2048
"""Elements of a program."""
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element -> what it is moved as: copies know no floats."""


def copy_tokens(blocks_LBKSH: torch.Tensor, copies_C3: torch.Tensor) -> None:
    """Compute kv.copy_tokens: one launch a copy, whose numbers travel with the launch.

    A table of copies would need an upload; a step has few.
    """
    words = blocks_LBKSH.view(WORDS[blocks_LBKSH.element_size()])
    layers, num_blocks, *_, tokens, width = words.shape
    words = words.view(layers, num_blocks, -1, tokens, width)  # raises where heads are not dense
    num_heads = words.shape[2]
    columns = triton.next_power_of_2(width)
    tokens_tile = max(1, TILE // columns)
    for source, target, count in copies_C3.tolist():
        if count and words.numel():
            copy_block[(triton.cdiv(count, tokens_tile), layers * num_heads)](
                words,
                source,
                target,
                count,
                num_heads,
                *words.stride()[:4],
                WIDTH=width,
                TOKENS=tokens_tile,
                COLUMNS=columns,
            )


@triton.jit(do_not_specialize=["source", "target", "count"])
def copy_block(
    words_ptr,
    source,
    target,
    count,
    num_heads,
    layer_stride,
    block_stride,
    head_stride,
    token_stride,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Copy TOKENS tokens of one layer and head."""
    place = tl.program_id(1).to(tl.int64)
    own = words_ptr + place // num_heads * layer_stride + place % num_heads * head_stride
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    inside = (tokens < count) & (columns < WIDTH)
    places = tokens.to(tl.int64) * token_stride + columns
    part = tl.load(own + source.to(tl.int64) * block_stride + places, mask=inside)
    tl.store(own + target.to(tl.int64) * block_stride + places, part, mask=inside)
