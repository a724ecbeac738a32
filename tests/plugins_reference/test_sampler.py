"""The sampler agrees with a float64 definition, and no row feels another."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.support.sampling import make_batch
from tests.support.waits import forbids_waits

from tokenspeed.contracts.sampler import SamplingBatch, scores_of
from tokenspeed.ops.sampling import next_token_distribution
from tokenspeed.sampling.params import SamplingParams
from tokenspeed_reference import sampler as sampler_module
from tokenspeed_reference.filters import keep_top_p
from tokenspeed_reference.sampler import PhiloxSampler

VOCAB = 50
GREEDY = SamplingParams(temperature=0)
SETTINGS = {
    "plain": SamplingParams(seed=1),
    "cold": SamplingParams(seed=1, temperature=0.3),
    "hot": SamplingParams(seed=1, temperature=4),
    "top_k": SamplingParams(seed=1, top_k=5),
    "top_k 1": SamplingParams(seed=1, top_k=1),
    "top_p": SamplingParams(seed=1, top_p=0.7),
    "small top_p": SamplingParams(seed=1, top_p=0.01),
    "min_p": SamplingParams(seed=1, min_p=0.2),
    "all": SamplingParams(seed=1, temperature=1.5, top_k=20, top_p=0.9, min_p=0.02),
    "penalties": SamplingParams(
        seed=1, repetition_penalty=1.7, frequency_penalty=0.6, presence_penalty=-0.4
    ),
    "bias": SamplingParams(seed=1, logit_bias={3: 4.0, 7: -100.0}),
    "min_tokens": SamplingParams(seed=1, min_tokens=10**6),
}


def make_sampler(vocab_size: int = VOCAB) -> PhiloxSampler:
    return PhiloxSampler(device=torch.device("cpu"), vocab_size=vocab_size)


def make_logits(rows: int, *, seed: int = 0, vocab_size: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2


def batch_of(params: list[SamplingParams], **options: object) -> SamplingBatch:
    history = {"prompts": [[1, 2, 2]] * len(params), "outputs": [[4, 4, 5]] * len(params)}
    return make_batch(params, VOCAB, stop_ids=(0, 9), **{**history, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
def test_draws_follow_the_definition(params: SamplingParams) -> None:
    draws = 4000
    logits = make_logits(1)
    batch = batch_of([params] * draws, output_index=range(draws))
    expected = next_token_distribution.signature(logits.double(), batch_of([params]))[0]
    tokens = make_sampler().sample(logits.expand(draws, -1).clone(), batch).tokens_R
    counts = torch.bincount(tokens, minlength=VOCAB)
    assert not counts[expected == 0].any()
    wanted = expected * draws
    common = wanted >= 5
    chi_square = float(((counts - wanted) ** 2 / wanted)[common].sum())
    freedom = int(common.sum()) - 1
    # Mean + 5 standard deviations of the chi-square distribution.
    assert chi_square <= freedom + 5 * math.sqrt(2 * max(freedom, 1))


@pytest.mark.parametrize("looks", [True, False])
def test_kept_tokens_are_those_of_the_definition(looks: bool) -> None:
    params = list(SETTINGS.values())
    logits, batch = make_logits(len(params), seed=4), batch_of(params)
    logits[:, 10:14] = logits[:, 20:24]
    expected = next_token_distribution.signature(logits.double(), batch)
    assert batch.penalties is not None
    assert batch.temperature_R is not None
    assert batch.bias is not None
    logits[batch.bias[0], batch.bias[1]] += batch.bias[2]
    penalised = sampler_module._penalised(logits, batch.penalties)
    probs = sampler_module._probabilities(penalised, batch.temperature_R, batch, looks=looks)
    probs = probs.double()
    torch.testing.assert_close(probs / probs.sum(-1, keepdim=True), expected, rtol=1e-5, atol=1e-7)


def test_greedy_takes_the_lowest_id_of_the_best() -> None:
    logits = torch.zeros(3, VOCAB)
    logits[1, [7, 30]] = 2.0
    logits[2, 49] = 1.0
    result = make_sampler().sample(logits, batch_of([GREEDY] * 3))
    assert result.tokens_R.tolist() == [0, 7, 49]
    assert not result.failed_R.any()
    assert result.logprobs is None


def test_a_seeded_row_draws_the_same_alone_and_among_others() -> None:
    params = [*SETTINGS.values(), GREEDY]
    logits = make_logits(len(params), seed=9)
    index = [3 * row for row in range(len(params))]
    together = make_sampler().sample(logits.clone(), batch_of(params, output_index=index)).tokens_R
    for row in reversed(range(len(params))):
        batch = batch_of([params[row]], output_index=[index[row]])
        alone = make_sampler().sample(logits[row : row + 1].clone(), batch)
        assert alone.tokens_R[0] == together[row]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("others", [GREEDY, SETTINGS["all"]], ids=["greedy", "sampled"])
def test_a_damaged_row_fails_alone(bad: float, others: SamplingParams) -> None:
    logits = make_logits(4)
    healthy = make_sampler().sample(logits.clone(), batch_of([others] * 4)).tokens_R
    logits[1, 17] = bad
    logits[3] = -math.inf
    result = make_sampler().sample(logits, batch_of([others] * 4))
    assert result.failed_R.tolist() == [False, True, False, True]
    assert result.tokens_R.tolist() == [healthy[0], 0, healthy[2], 0]


def test_forbidden_tokens_do_not_fail_a_row() -> None:
    logits = make_logits(2)
    logits[:, 1:] = -math.inf
    result = make_sampler().sample(logits, make_batch([GREEDY, SETTINGS["all"]], VOCAB))
    assert result.tokens_R.tolist() == [0, 0]
    assert not result.failed_R.any()


def test_a_row_whose_every_token_is_forbidden_fails() -> None:
    batch = make_batch([SETTINGS["min_tokens"]], 2, stop_ids=(0, 1))
    assert make_sampler(2).sample(torch.zeros(1, 2), batch).failed_R.tolist() == [True]


def test_logprobs_are_of_the_raw_distribution() -> None:
    params = [
        SamplingParams(temperature=0, logprobs=3, logit_bias={11: 100.0}),
        GREEDY,
        SamplingParams(temperature=0.2, seed=3, logprobs=0),
    ]
    logits = make_logits(3, seed=2)
    raw = torch.log_softmax(logits.double(), dim=-1).numpy()
    result = make_sampler().sample(logits, batch_of(params))
    assert result.logprobs is not None
    first, second, third = scores_of(result.logprobs)
    assert first is not None
    assert first.token_id == 11
    assert first.logprob == pytest.approx(raw[0, 11], abs=1e-6)
    assert first.rank == 1 + int((raw[0] > raw[0, 11]).sum())
    order = np.argsort(-raw[0], kind="stable")[:3]
    assert [token for token, _ in first.top] == order.tolist()
    assert [value for _, value in first.top] == pytest.approx(raw[0, order].tolist(), abs=1e-6)
    assert second is None
    assert third is not None
    assert third.top == ()


def test_ties_rank_by_id_in_logprobs() -> None:
    logits = torch.zeros(1, VOCAB)
    (scored,) = make_sampler().logprobs_of(logits, torch.tensor([4]), 3)()
    assert scored.rank == 5
    assert [token for token, _ in scored.top] == [0, 1, 2]
    assert scored.logprob == pytest.approx(-math.log(VOCAB))


def test_a_failed_row_has_no_logprobs() -> None:
    logits = torch.full((1, VOCAB), math.nan)
    result = make_sampler().sample(logits, batch_of([SamplingParams(temperature=0, logprobs=2)]))
    assert result.logprobs is not None
    assert scores_of(result.logprobs) == (None,)


def test_scores_of_many_rows_rank_like_a_sort() -> None:
    logits = (make_logits(70, seed=5) * 2).round() / 2
    logits[3, :9] = -0.0
    tokens = torch.arange(70) % VOCAB
    entries = make_sampler().logprobs_of(logits, tokens, 6)()
    order = logits.sort(dim=1, descending=True, stable=True).indices
    exact = logits.double().log_softmax(-1)
    for row, entry in enumerate(entries):
        assert [token for token, _ in entry.top] == order[row, :6].tolist()
        assert order[row, entry.rank - 1] == entry.token_id == tokens[row]
        assert entry.logprob == pytest.approx(float(exact[row, tokens[row]]), abs=1e-12)


def test_what_looks_at_no_value_draws_the_same() -> None:
    params = [*SETTINGS.values(), GREEDY] * 3
    logits = make_logits(len(params), seed=9)
    logits[5, 3] = math.nan
    batch = batch_of(params, output_index=range(len(params)))
    looking = make_sampler().sample(logits.clone(), batch)
    waitless = PhiloxSampler(device=torch.device("cpu"), vocab_size=VOCAB, looks=False)
    with forbids_waits():
        result = waitless.sample(logits.clone(), batch)
    assert result.tokens_R.tolist() == looking.tokens_R.tolist()
    assert result.failed_R.tolist() == looking.failed_R.tolist()


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999, 0.999999])
@pytest.mark.parametrize("sharpness", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("looks", [True, False])
def test_top_p_keeps_the_same_tokens_as_a_full_sort(
    top_p: float, sharpness: float, looks: bool
) -> None:
    probs = (make_logits(1, seed=3, vocab_size=5000) * sharpness).softmax(dim=-1)
    ordered = probs[0].sort(descending=True).values
    num_before = int((ordered.double().cumsum(0) < top_p).sum())
    expected = probs[0].clone()
    expected[expected < ordered[min(num_before, 4999)]] = 0
    keep_top_p(probs, torch.tensor([top_p], dtype=torch.float64), looks=looks)
    assert torch.equal(probs[0], expected)
