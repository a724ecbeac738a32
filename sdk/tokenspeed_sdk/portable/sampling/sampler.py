# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Sampler in Triton: greedy rows in two launches, drawn ones in three, filtered ones in four.

Which launches a batch makes depends on what is None in it alone: with all shapes fixed, it may be
captured into a graph. Legend: R rows, V vocabulary, C chunks of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from tokenspeed_sdk import SampleResult, SamplingBatch
from tokenspeed_sdk.portable.sampling.draw import draw_rows
from tokenspeed_sdk.portable.sampling.narrow import narrow_chunks
from tokenspeed_sdk.portable.sampling.scan import scan_chunks, take_best
from tokenspeed_sdk.portable.sampling.scores import scores
from tokenspeed_sdk.portable.sampling.weigh import BINS, weigh_chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed_sdk import TokenLogprobs

CHUNK = 4096
"""Tokens of a program: 16 a thread, and a vocabulary of 150,000 gives 37 programs a row."""
ROOM = 4096
"""Candidates that a filtered row may have before the whole of it is read again."""
TILE = 1024
"""Tokens that the last pass looks at together."""
WAYS = 8
"""Cuts tried together: 11 rounds find one of 2^32."""
WARPS = 8


class TritonSampler:
    """Sampler of a device that triton compiles for; holds no state between steps."""

    def __init__(self, *, device: torch.device, vocab_size: int) -> None:
        self._device = device

    def sample(self, logits_RV: torch.Tensor, batch: SamplingBatch) -> SampleResult:
        """Sample one token a row."""
        asked = [row for row, count in enumerate(batch.num_logprobs_R or ()) if count >= 0]
        # Row by row: a list as index is copied to the device, which waits for it.
        raw = torch.stack([logits_RV[row] for row in asked]) if asked else None
        if batch.bias is not None:
            rows, ids, values = batch.bias  # an entry may be named twice: torch's adds both
            logits_RV.index_put_((rows, ids), values.to(logits_RV.dtype), accumulate=True)
        tokens_R, failed_R = _drawn(logits_RV, batch)
        if batch.num_logprobs_R is None or raw is None:
            return SampleResult(tokens_R, failed_R)
        tokens_N = torch.stack([tokens_R[row] for row in asked])
        given = scores(raw, tokens_N, [batch.num_logprobs_R[row] for row in asked])
        failed = failed_R.to("cpu", non_blocking=True)

        def entries() -> tuple[TokenLogprobs | None, ...]:
            by_row = dict(zip(asked, given(), strict=True))
            return tuple(
                None if has_failed else by_row.get(row)
                for row, has_failed in enumerate(failed.tolist())
            )

        return SampleResult(tokens_R, failed_R, entries)

    def logprobs_of(
        self, logits_TV: torch.Tensor, token_ids_T: torch.Tensor, num_top: int
    ) -> Callable[[], tuple[TokenLogprobs, ...]]:
        """Score given tokens."""
        return scores(logits_TV, token_ids_T, [num_top] * logits_TV.shape[0])


def _drawn(logits_RV: torch.Tensor, batch: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor]:
    rows, vocab_size = logits_RV.shape
    device = logits_RV.device
    tokens_R = torch.empty(rows, dtype=torch.int64, device=device)
    failed_R = torch.empty(rows, dtype=torch.uint8, device=device)
    if not rows:
        return tokens_R, failed_R.view(torch.bool)
    chunk = min(CHUNK, triton.next_power_of_2(vocab_size))
    chunks = triton.cdiv(vocab_size, chunk)
    sizes = {"CHUNK": chunk, "SPAN": triton.next_power_of_2(chunks), "num_warps": WARPS}
    best_RC = torch.empty(rows, chunks, dtype=torch.float32, device=device)
    best_id_RC = torch.empty(rows, chunks, dtype=torch.int32, device=device)
    logits_RV = _scanned(logits_RV, batch, best_RC, best_id_RC, chunk)
    if batch.temperature_R is None:
        take_best[(rows,)](
            best_RC, best_id_RC, tokens_R, failed_R, chunks, SPAN=sizes["SPAN"], num_warps=1
        )
        return tokens_R, failed_R.view(torch.bool)
    filters = (batch.top_k_R, batch.top_p_R, batch.min_p_R)
    filtered = any(values is not None for values in filters)
    settings = (batch.temperature_R, *_with_neutrals(batch))
    source = (logits_RV, logits_RV.stride(0), best_RC, best_id_RC, *settings)
    mass_RC = torch.empty(rows, chunks, dtype=torch.float64, device=device)
    counts = torch.empty(rows * filtered, chunks, BINS.value, dtype=torch.int32, device=device)
    kept = torch.empty(rows * filtered, ROOM, dtype=torch.float32, device=device)
    kept_ids = torch.empty(rows * filtered, ROOM, dtype=torch.int32, device=device)
    weigh_chunks[(rows, chunks)](
        *source, mass_RC, counts, vocab_size, chunks, FILTERED=filtered, **sizes
    )
    if filtered:
        narrow_chunks[(rows, chunks)](
            *source, mass_RC, counts, kept, kept_ids, vocab_size, chunks, ROOM=ROOM, **sizes
        )
    draw_rows[(rows,)](
        *source,
        batch.seeds_R,
        batch.output_index_R,
        mass_RC,
        counts,
        kept,
        kept_ids,
        tokens_R,
        failed_R,
        vocab_size,
        chunks,
        FILTERED=filtered,
        ROOM=ROOM,
        TILE=min(TILE, chunk),
        WAYS=WAYS,
        **sizes,
    )
    return tokens_R, failed_R.view(torch.bool)


def _scanned(
    logits_RV: torch.Tensor,
    batch: SamplingBatch,
    best_RC: torch.Tensor,
    best_id_RC: torch.Tensor,
    chunk: int,
) -> torch.Tensor:
    """Fill in the best of each chunk; return the logits, with penalties if there are any."""
    penalties, result = batch.penalties, logits_RV
    unused = (best_id_RC, best_id_RC, 0, 0, best_RC, best_RC, best_RC)
    if penalties is not None:
        counts_RV, prompt_RV = penalties.output_counts_RV, penalties.prompt_mask_RV
        result = torch.empty(logits_RV.shape, dtype=torch.float32, device=logits_RV.device)
        unused = (
            counts_RV,
            prompt_RV.view(torch.uint8),
            counts_RV.stride(0),
            prompt_RV.stride(0),
            penalties.repetition_R,
            penalties.frequency_R,
            penalties.presence_R,
        )
    scan_chunks[tuple(best_RC.shape)](
        logits_RV,
        logits_RV.stride(0),
        *unused,
        result,
        best_RC,
        best_id_RC,
        logits_RV.shape[1],
        PENALISED=penalties is not None,
        CHUNK=chunk,
        num_warps=WARPS,
    )
    return result


def _with_neutrals(batch: SamplingBatch) -> tuple[torch.Tensor, ...]:
    """Return top_k, top_p and min_p; where one is off for the whole batch, what says so."""
    if batch.top_k_R is batch.top_p_R is batch.min_p_R is None:
        return batch.seeds_R, batch.seeds_R, batch.seeds_R  # never read
    assert batch.temperature_R is not None
    zeros = torch.zeros_like(batch.temperature_R)
    return (
        zeros if batch.top_k_R is None else batch.top_k_R,
        zeros + 1 if batch.top_p_R is None else batch.top_p_R,
        zeros if batch.min_p_R is None else batch.min_p_R,
    )
