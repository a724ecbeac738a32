"""Compares a sampler's draws with the distribution that it should draw from.

A sampler returns tokens, no probabilities: each row of a case is drawn many times at different
output positions. The counts are judged together, by a chi-square statistic, and token by token.
Legend: V vocabulary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tokenspeed.ops.compare import Outcome, map_tensors
from tokenspeed.ops.sampling_batches import repeated

if TYPE_CHECKING:
    import torch

    from tokenspeed.contracts.kernel import Case, Operator
    from tokenspeed.contracts.sampler import Sampler

DRAWS = 4000
EXPECTED = 5.0
"""Tokens that are expected less often are judged together: the statistic needs some of each."""
DEVIATIONS = 6.0
"""Standard deviations, of the statistic and of a token's count, that count as 1, the tolerance."""


def compare_draws(
    operator: Operator, sampler: Sampler, case: Case, *, device: torch.device | str = "cpu"
) -> Outcome:
    """Draw each row of the case DRAWS times; the error is in units of DEVIATIONS."""
    logits_RV, batch = case.args
    expected_RV = operator.signature(logits_RV.double(), batch)
    worst = Outcome(case.name, 0.0, "")
    for row, expected_V in enumerate(expected_RV):
        many = map_tensors(repeated(batch, row, DRAWS), lambda x: x.to(device))
        logits = logits_RV[row : row + 1].repeat(DRAWS, 1).to(device)
        tokens = sampler.sample(logits, many).tokens_R.cpu()
        counts_V = tokens.bincount(minlength=len(expected_V)).double()
        error, where = draws_error(counts_V, expected_V)
        if error > worst.error:
            worst = Outcome(case.name, error, f"row {row}: {where}")
    return worst


def draws_error(counts_V: torch.Tensor, expected_V: torch.Tensor) -> tuple[float, str]:
    """Return how far counts are from probabilities, in units of DEVIATIONS, and a sentence."""
    if len(counts_V) != len(expected_V):
        return math.inf, f"tokens up to {len(counts_V) - 1}, the vocabulary has {len(expected_V)}"
    impossible = (counts_V > 0) & (expected_V == 0)
    if impossible.any():
        return math.inf, f"token {int(impossible.nonzero()[0])} was drawn, its probability is 0"
    wanted_V = expected_V * counts_V.sum()
    common = wanted_V >= EXPECTED
    rare_counts, rare_wanted = counts_V[~common].sum(), wanted_V[~common].sum()
    statistic = float(((counts_V - wanted_V) ** 2 / wanted_V)[common].sum())
    statistic += float((rare_counts - rare_wanted) ** 2 / rare_wanted.clamp(min=1.0))
    freedom = max(int(common.sum()), 1)
    bound = freedom + DEVIATIONS * math.sqrt(2 * freedom)
    together = statistic / bound, f"chi-square {statistic:.1f}, at most {bound:.1f} is allowed"
    return max(together, _worst_token(counts_V, expected_V, common))


def _worst_token(
    counts_V: torch.Tensor, expected_V: torch.Tensor, common_V: torch.Tensor
) -> tuple[float, str]:
    """Return the same of the token that is furthest from its probability."""
    wanted_V = expected_V * counts_V.sum()
    spread_V = (wanted_V * (1 - expected_V)).sqrt().clamp(min=1.0)
    errors_V = ((counts_V - wanted_V).abs() / spread_V / DEVIATIONS).masked_fill(~common_V, 0.0)
    token = int(errors_V.argmax())
    where = f"token {token} {counts_V[token]:.0f} times, {wanted_V[token]:.0f} were expected"
    return float(errors_V[token]), where
