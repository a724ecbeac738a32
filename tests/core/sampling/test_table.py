"""The sampling table: neutral batches stay None, and a slot is a function of its tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.sampling import NO_TOKENS, make_batch

from tokenspeed.executor import InlineLink
from tokenspeed.sampling.params import SamplingParams
from tokenspeed.sampling.table import SamplingTable

GREEDY = SamplingParams(temperature=0)
VOCAB = 10


def rows(*slots: int) -> np.ndarray:
    return np.array(slots, np.int32)


def test_greedy_batch_is_neutral_even_with_filters_given() -> None:
    batch = make_batch(
        [GREEDY, SamplingParams(temperature=0, top_k=3, top_p=0.5, min_p=0.1)], VOCAB
    )
    assert batch.temperature_R is None
    assert batch.top_k_R is None
    assert batch.top_p_R is None
    assert batch.min_p_R is None
    assert batch.penalties is None
    assert batch.bias is None
    assert batch.num_logprobs_R is None


@pytest.mark.parametrize("temperature", [5e-324, 1e-44, 1e-38, 9e-6])
def test_a_temperature_that_logits_cannot_be_divided_by_is_greedy(temperature: float) -> None:
    batch = make_batch([SamplingParams(temperature=temperature, seed=1, top_k=3)], VOCAB)
    assert batch.temperature_R is None
    assert batch.top_k_R is None


def test_each_row_gets_its_slots_parameters() -> None:
    table = SamplingTable(4, VOCAB, InlineLink(torch.device("cpu")))
    table.admit(3, SamplingParams(temperature=0.5, top_k=2, seed=-1), (), NO_TOKENS, NO_TOKENS)
    table.admit(1, SamplingParams(top_p=0.5, min_p=0.25, seed=2**64 - 2), (), NO_TOKENS, NO_TOKENS)
    batch = table.batch(rows(1, 3), rows(7, 0))
    assert batch.temperature_R is not None
    assert batch.temperature_R.tolist() == [1.0, 0.5]
    assert batch.top_k_R is not None
    assert batch.top_k_R.tolist() == [0, 2]
    assert batch.top_p_R is not None
    assert batch.top_p_R.tolist() == [0.5, 1.0]
    assert batch.min_p_R is not None
    assert batch.min_p_R.tolist() == [0.25, 0.0]
    assert batch.seeds_R.tolist() == [-2, -1]
    assert batch.output_index_R.tolist() == [7, 0]


def test_sampling_without_a_seed_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="seed"):
        make_batch([SamplingParams(temperature=1)], VOCAB)


def test_stop_ids_are_forbidden_until_min_tokens() -> None:
    params = SamplingParams(temperature=0, min_tokens=2, logit_bias={4: 1.5})
    early = make_batch([GREEDY, params], VOCAB, output_index=[0, 1], stop_ids=(2, 5)).bias
    assert early is not None
    assert [part.tolist() for part in early] == [[1, 1, 1], [4, 2, 5], [1.5, -np.inf, -np.inf]]
    late = make_batch([GREEDY, params], VOCAB, output_index=[0, 2], stop_ids=(2, 5)).bias
    assert late is not None
    assert [part.tolist() for part in late] == [[1], [4], [1.5]]


def test_readmission_rebuilds_the_counts_that_appends_made() -> None:
    params = SamplingParams(temperature=0, frequency_penalty=1)
    prompt, output = rows(1, 2), rows(3, 3, 4)
    table = SamplingTable(2, VOCAB, InlineLink(torch.device("cpu")))
    table.admit(0, params, (), prompt, NO_TOKENS)
    for token in output.tolist():
        table.append(0, (token,))
    table.admit(1, params, (), prompt, output)
    penalties = table.batch(rows(0, 1), rows(3, 3)).penalties
    assert penalties is not None
    assert penalties.output_counts_RV[0].tolist() == [0, 0, 0, 2, 1, 0, 0, 0, 0, 0]
    assert torch.equal(penalties.output_counts_RV[0], penalties.output_counts_RV[1])
    assert penalties.prompt_mask_RV[1].nonzero().flatten().tolist() == [1, 2]


def test_a_slot_keeps_nothing_of_its_former_request() -> None:
    table = SamplingTable(1, VOCAB, InlineLink(torch.device("cpu")))
    full = SamplingParams(
        temperature=0, presence_penalty=1, logit_bias={1: 2}, min_tokens=3, logprobs=2
    )
    table.admit(0, full, (4,), rows(1), rows(2))
    table.admit(0, GREEDY, (4,), rows(1), rows(2))
    batch = table.batch(rows(0), rows(1))
    assert batch.penalties is None
    assert batch.bias is None
    assert batch.num_logprobs_R is None


def test_rows_without_penalties_stay_neutral_beside_one_with() -> None:
    batch = make_batch(
        [GREEDY, SamplingParams(temperature=0, repetition_penalty=2)],
        VOCAB,
        prompts=[[1], [2]],
        outputs=[[3], [4]],
    )
    assert batch.penalties is not None
    assert batch.penalties.repetition_R.tolist() == [1, 2]
    assert not batch.penalties.output_counts_RV[0].any()
    assert not batch.penalties.prompt_mask_RV[0].any()
