"""The simulated device's sampler, which never looks at a result, draws what the reference draws."""

from __future__ import annotations

import pytest
import torch
from tests.sim.tokenspeed_sim.recording import record
from tests.sim.tokenspeed_sim.sampler import Sampler

from tokenspeed.contracts.sampler import SamplingBatch
from tokenspeed_reference.sampler import PhiloxSampler

ROWS, VOCAB = 64, 50
CPU = torch.device("cpu")


def batch_of(random: torch.Generator) -> SamplingBatch:
    """Return rows with every filter on or off."""

    def mixed(value: torch.Tensor, neutral: float) -> torch.Tensor:
        is_on = torch.rand(ROWS, generator=random) < 0.6
        return torch.where(is_on, value, torch.full_like(value, neutral))

    def uniform() -> torch.Tensor:
        return torch.rand(ROWS, generator=random)

    return SamplingBatch(
        temperature_R=mixed(uniform() + 0.2, 0.0),
        top_k_R=mixed(torch.randint(1, VOCAB + 9, (ROWS,), generator=random).int(), 0),
        top_p_R=mixed(uniform() * 0.98 + 0.01, 1.0),
        min_p_R=mixed(uniform() * 0.3, 0.0),
        seeds_R=torch.randint(-(2**62), 2**62, (ROWS,), generator=random),
        output_index_R=torch.randint(0, 1000, (ROWS,), generator=random),
        penalties=None,
        bias=None,
        num_logprobs_R=None,
    )


def logits_of(random: torch.Generator) -> torch.Tensor:
    """Return logits with ties, and a row that fails."""
    logits = torch.randn(ROWS, VOCAB, generator=random) * 2
    logits[:, 10:14] = logits[:, 20:24]
    logits[5, 3] = torch.nan
    return logits


@pytest.mark.parametrize("seed", range(8))
def test_tokens_are_those_of_the_reference(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits, batch = logits_of(random), batch_of(random)
    wanted = PhiloxSampler(device=CPU, vocab_size=VOCAB).sample(logits.clone(), batch)
    given = Sampler(device=CPU, vocab_size=VOCAB).sample(logits.clone(), batch)
    assert torch.equal(given.tokens_R, wanted.tokens_R)
    assert torch.equal(given.failed_R, wanted.failed_R)


def test_draws_can_be_recorded() -> None:
    random = torch.Generator().manual_seed(9)
    sampler, logits = Sampler(device=CPU, vocab_size=VOCAB), logits_of(random)
    batch = batch_of(random)
    out = torch.zeros(ROWS, dtype=torch.int64)

    def work() -> None:
        out.copy_(sampler.sample(logits, batch).tokens_R)

    graph = record(work)
    logits.copy_(logits_of(random))
    graph.replay()
    assert torch.equal(out, sampler.sample(logits, batch).tokens_R)
