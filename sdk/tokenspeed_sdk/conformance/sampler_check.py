"""What a sampler does beside drawing: greedy rows, bias, scores, failed rows, rows by themselves.

That its draws come in the right frequencies is operator `sampling.distribution`.
Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch

from tokenspeed.contracts.sampler import scores_of
from tokenspeed_sdk import PURPOSE_SAMPLE, SamplingBatch
from tokenspeed_sdk.conformance import philox

if TYPE_CHECKING:
    from tokenspeed_sdk import Sampler

SAMPLED = (1.0, 0, 1.0, 0.0)
"""temperature, top_k, top_p, min_p of rows that are drawn."""
DRAWS = 32
NEARLY = 1e-5
"""Share of probability by which sums in float32 may be off."""


def check_greedy(sampler: Sampler, vocab_size: int, device: torch.device) -> None:
    """Rows of temperature 0 take the largest logit, the lowest id on a tie; bias counts before."""
    logits = _logits(5, vocab_size)
    logits[1, [7, 3]] = logits[1].max() + 1
    logits[2, 11] = float("-inf")
    wanted = logits.argmax(dim=-1)
    wanted[1] = 3
    tokens = sampler.sample(logits.to(device), _batch(5, device)).tokens_R.cpu()
    assert tokens.tolist() == wanted.tolist(), f"greedy rows give {tokens}, not {wanted}"
    best = int(logits[0].argmax())
    bias = _entries([(0, best, float("-inf")), (3, 4, 1000.0)], device)
    tokens = sampler.sample(logits.clone().to(device), _batch(5, device, bias=bias)).tokens_R
    second = int(logits[0].topk(2).indices[1])
    assert tokens[0] == second, f"a forbidden token: {int(tokens[0])} is taken, not {second}"
    assert tokens[3] == 4, f"a token with bias 1000 is not taken but {int(tokens[3])}"


def check_failed_rows(sampler: Sampler, vocab_size: int, device: torch.device) -> None:
    """Rows with NaN, +Inf or nothing finite are marked failed, with token 0; others are not."""
    logits = _logits(4, vocab_size)
    logits[0, 5], logits[1, 6], logits[2, :] = float("nan"), float("inf"), float("-inf")
    result = sampler.sample(logits.to(device), _batch(4, device, setting=SAMPLED))
    assert result.failed_R.tolist() == [True, True, True, False], f"marked: {result.failed_R}"
    assert result.tokens_R[:3].tolist() == [0, 0, 0], "failed rows give token 0"


def check_scores(sampler: Sampler, vocab_size: int, device: torch.device) -> None:
    """Log probabilities are those before temperature; ranks and the most likely tokens agree."""
    logits = _logits(3, vocab_size)
    batch = _batch(3, device, num_logprobs=(-1, 0, 4))
    result = sampler.sample(logits.clone().to(device), batch)
    assert result.logprobs is not None, "log probabilities were asked for and are missing"
    result.tokens_R.tolist()  # waits, as whoever asks for scores that were put off has waited
    scores = scores_of(result.logprobs)
    exact = logits.double().log_softmax(-1)
    assert scores[0] is None, "row 0 asked for none"
    for row in (1, 2):
        entry = scores[row]
        assert entry is not None, f"row {row} asked for its token's log probability"
        wanted = float(exact[row, entry.token_id])
        assert math.isclose(entry.logprob, wanted, abs_tol=1e-4), f"{entry.logprob}, not {wanted}"
        assert entry.rank == 1 + int((exact[row] > exact[row, entry.token_id]).sum())
    top = scores[2]
    assert top is not None
    assert [token for token, _ in top.top] == exact[2].topk(4).indices.tolist()


def check_draws(sampler: Sampler, vocab_size: int, device: torch.device) -> None:
    """A seeded row draws the token that its Philox number stands for, as on every device."""
    logits = _logits(DRAWS, vocab_size, seed=3)
    seeds = [(1 << 40) * row + 11 * row - 5 for row in range(DRAWS)]
    seeded = torch.tensor(seeds, dtype=torch.int64, device=device)
    batch = dataclasses.replace(
        _batch(DRAWS, device, setting=SAMPLED),
        seeds_R=seeded,
        output_index_R=torch.arange(DRAWS, dtype=torch.int64, device=device),
    )
    tokens = sampler.sample(logits.clone().to(device), batch).tokens_R.tolist()
    sums = logits.double().softmax(-1).cumsum(-1)
    for row, token in enumerate(tokens):
        number = philox.uniform(seeds[row], row, PURPOSE_SAMPLE)
        low = float(sums[row, token - 1]) if token else 0.0
        assert low - NEARLY <= number <= float(sums[row, token]) + NEARLY, (
            f"seed {seeds[row]}, position {row}: token {token} stands for [{low:.6f}, "
            f"{float(sums[row, token]):.6f}), and the number is {number:.6f}"
        )


def check_rows_are_independent(sampler: Sampler, vocab_size: int, device: torch.device) -> None:
    """A row's token does not depend on the rows beside it."""
    logits = _logits(6, vocab_size)
    whole = sampler.sample(logits.clone().to(device), _batch(6, device, setting=SAMPLED))
    for row in range(6):
        batch = _batch(1, device, setting=SAMPLED, seed=row)
        alone = sampler.sample(logits[row : row + 1].clone().to(device), batch)
        assert alone.tokens_R[0] == whole.tokens_R[row], f"row {row} differs in a batch of one"


def _logits(num_rows: int, vocab_size: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2


def _entries(
    entries: list[tuple[int, int, float]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, ids, values = zip(*entries, strict=True)
    return (
        torch.tensor(rows, device=device),
        torch.tensor(ids, device=device),
        torch.tensor(values, dtype=torch.float32, device=device),
    )


def _batch(
    num_rows: int,
    device: torch.device,
    *,
    setting: tuple[float, int, float, float] | None = None,
    seed: int = 0,
    bias: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    num_logprobs: tuple[int, ...] | None = None,
) -> SamplingBatch:
    def filled(index: int, dtype: torch.dtype, neutral: float) -> torch.Tensor | None:
        value = neutral if setting is None else setting[index]
        if setting is None or (index and value == neutral):
            return None
        return torch.full((num_rows,), value, dtype=dtype, device=device)

    return SamplingBatch(
        temperature_R=filled(0, torch.float32, 0),
        top_k_R=filled(1, torch.int32, 0),
        top_p_R=filled(2, torch.float32, 1.0),
        min_p_R=filled(3, torch.float32, 0.0),
        seeds_R=torch.arange(seed, seed + num_rows, dtype=torch.int64, device=device),
        output_index_R=torch.zeros(num_rows, dtype=torch.int64, device=device),
        penalties=None,
        bias=bias,
        num_logprobs_R=num_logprobs,
    )
