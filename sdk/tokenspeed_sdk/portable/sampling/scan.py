# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""First pass over the logits: penalties, and the best of each chunk of a row.

A row is cut into chunks so that few rows, or one, keep many programs busy; how, depends on the
vocabulary alone. NaN counts as +Inf: either makes the row's best one that cannot be.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOWHERE = tl.constexpr(0x7FFFFFFF)
"""Behind every token id."""


@triton.jit
def scan_chunks(
    logits_ptr,
    row_stride,
    counts_ptr,
    prompt_ptr,
    counts_stride,
    prompt_stride,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    penalised_ptr,
    best_ptr,
    best_id_ptr,
    vocab_size,
    PENALISED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Find the best logit of one chunk and its lowest id; penalised logits are kept."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = ids < vocab_size
    x = tl.load(logits_ptr + row * row_stride + ids, mask=inside, other=float("-inf")).to(
        tl.float32
    )
    if PENALISED:
        counts = tl.load(counts_ptr + row * counts_stride + ids, mask=inside, other=0)
        in_prompt = tl.load(prompt_ptr + row * prompt_stride + ids, mask=inside, other=0)
        repetition = tl.load(repetition_ptr + row).to(tl.float32)
        scaled = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
        x = tl.where((counts > 0) | (in_prompt != 0), scaled, x)
        x -= tl.load(frequency_ptr + row).to(tl.float32) * counts.to(tl.float32)
        x -= tl.load(presence_ptr + row).to(tl.float32) * (counts > 0).to(tl.float32)
        tl.store(penalised_ptr + row * vocab_size + ids, x, mask=inside)
    x = tl.where(x == x, x, float("inf"))
    best = tl.max(x)
    place = row * tl.num_programs(1) + chunk
    tl.store(best_ptr + place, best)
    tl.store(best_id_ptr + place, tl.min(tl.where((x == best) & inside, ids, NOWHERE)))


@triton.jit
def best_of_row(best_ptr, best_id_ptr, row, num_chunks, SPAN: tl.constexpr):
    """Return a row's best logit, its lowest id, and 1 where the row failed, else 0."""
    chunks = tl.arange(0, SPAN)
    places = row * num_chunks + chunks
    bests = tl.load(best_ptr + places, mask=chunks < num_chunks, other=float("-inf"))
    ids = tl.load(best_id_ptr + places, mask=chunks < num_chunks, other=NOWHERE)
    best = tl.max(bests.to(tl.float32))
    token = tl.min(tl.where(bests == best, ids, NOWHERE))
    failed = tl.where((best < float("inf")) & (best > float("-inf")), 0, 1)
    return best, token, failed


@triton.jit
def take_best(best_ptr, best_id_ptr, tokens_ptr, failed_ptr, num_chunks, SPAN: tl.constexpr):
    """Finish one row of a batch that is all greedy."""
    row = tl.program_id(0).to(tl.int64)
    _best, token, failed = best_of_row(best_ptr, best_id_ptr, row, num_chunks, SPAN)
    tl.store(tokens_ptr + row, tl.where(failed == 0, token, 0).to(tl.int64))
    tl.store(failed_ptr + row, failed.to(tl.uint8))
