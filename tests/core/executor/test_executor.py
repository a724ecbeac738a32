"""The executor samples what plans ask for, keeps tokens on the device, and isolates failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.plans import Row, make_plan
from tests.support.successor_model import (
    GROUPS,
    NAN_TOKEN,
    VOCAB_SIZE,
    RecordingAttention,
    SuccessorModel,
)

from tokenspeed.contracts.sampler import SampleResult
from tokenspeed.contracts.step import StepResult
from tokenspeed.executor import Executor, InlineLink
from tokenspeed.executor import prompt_scores as prompt_scores_module
from tokenspeed.kv import Arena, solve_layout
from tokenspeed.plugins import load_plugins
from tokenspeed.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
CPU = torch.device("cpu")


def make_executor() -> tuple[Executor, SuccessorModel]:
    layout = solve_layout(GROUPS, block_tokens=16, dtype="float32", arena_bytes=2**18)
    storage = torch.zeros(layout.total_bytes, dtype=torch.uint8)
    registry = load_plugins(("reference",), role="engine")
    offer: Any = registry.offers("sampler")[0].offer
    model = SuccessorModel()
    executor = Executor(
        model,
        arena=Arena(layout, storage),
        attention={group.name: RecordingAttention() for group in GROUPS},
        sampler=offer.load(device=CPU, vocab_size=VOCAB_SIZE),
        max_running=4,
        max_context_tokens=100,
        block_tokens=16,
        vocab_size=VOCAB_SIZE,
        link=InlineLink(CPU),
    )
    return executor, model


def add(executor: Executor, request_id: int, params: SamplingParams = GREEDY) -> None:
    prompt = np.arange(1, 7, dtype=np.int32)
    executor.add_request(request_id, prompt, np.zeros(0, dtype=np.int32), params, ())


def step(executor: Executor, rows: list[Row], **fields: Any) -> StepResult:
    executor.launch(make_plan(rows, **fields))
    return executor.collect()


def test_only_rows_that_sample_get_logits_and_tokens() -> None:
    executor, model = make_executor()
    for request_id in (1, 2, 3):
        add(executor, request_id)
    rows = [
        Row(0, [1, 2, 3], request_id=1),
        Row(1, [4, 5], output_index=0, request_id=2),
        Row(2, [7], output_index=0, request_id=3),
    ]
    result = step(executor, rows, admitted=[(0, 0), (1, 1), (2, 2)])
    assert result.tokens.tolist() == [-1, 6, 8]
    assert result.tokens.dtype == np.int32
    assert result.failed is None
    assert model.logit_rows == [2]


def test_a_step_without_sampling_computes_no_logits() -> None:
    executor, model = make_executor()
    add(executor, 1)
    result = step(executor, [Row(0, [1, 2], request_id=1)], admitted=[(0, 0)])
    assert result.tokens.tolist() == [-1]
    assert model.logit_rows == []


def test_results_come_in_launch_order_and_tokens_pass_on_the_device() -> None:
    executor, model = make_executor()
    add(executor, 1)
    executor.launch(
        make_plan([Row(3, [1, 2], output_index=0, request_id=1)], step_id=7, admitted=[(0, 3)])
    )
    ahead = [Row(3, [-1], 2, output_index=1, request_id=1)]
    executor.launch(make_plan(ahead, step_id=8, num_decode_rows=1))
    assert [executor.collect().step_id for _ in range(2)] == [7, 8]
    assert model.token_ids == [[1, 2], [3]]


def test_a_row_with_nan_logits_fails_alone() -> None:
    executor, _ = make_executor()
    add(executor, 1)
    add(executor, 2)
    rows = [
        Row(0, [NAN_TOKEN], output_index=0, request_id=1),
        Row(1, [5], output_index=0, request_id=2),
    ]
    result = step(executor, rows, admitted=[(0, 0), (1, 1)])
    assert result.failed is not None
    assert result.failed.tolist() == [True, False]
    assert result.tokens[1] == 6


def test_what_reading_a_step_raises_comes_with_its_own_collect() -> None:
    executor, _ = make_executor()
    add(executor, 1, SamplingParams(temperature=0.0, logprobs=0))
    add(executor, 2)
    sampler: Any = executor._sampler
    sample = sampler.sample

    def failing(*args: Any) -> SampleResult:
        result: SampleResult = replace(sample(*args), logprobs=lambda: {}["no scores"])
        return result

    sampler.sample = failing
    first = [Row(0, [1], output_index=0, request_id=1)]
    executor.launch(make_plan(first, step_id=1, admitted=[(0, 0)]))
    sampler.sample = sample
    second = [Row(1, [5], output_index=0, request_id=2)]
    executor.launch(make_plan(second, step_id=2, admitted=[(0, 1)]))
    executor._settle()  # as a step with masks does while it is launched
    with pytest.raises(KeyError, match="no scores"):
        executor.collect()
    assert executor.collect().tokens.tolist() == [6]


def test_a_slot_given_away_takes_nothing_of_its_former_owners_step() -> None:
    executor, _ = make_executor()
    counted = SamplingParams(temperature=0.0, presence_penalty=20.0)
    for request_id in (1, 2):
        add(executor, request_id, counted)
    executor.launch(make_plan([Row(0, [7], output_index=0, request_id=1)], admitted=[(0, 0)]))
    executor.launch(make_plan([Row(0, [3], output_index=0, request_id=2)], admitted=[(0, 0)]))
    assert [executor.collect().tokens.tolist() for _ in range(2)] == [[8], [4]]
    # Counts of its own output alone: 8 may come, 4 may not.
    assert step(executor, [Row(0, [7], 1, output_index=1, request_id=2)]).tokens.tolist() == [8]
    assert step(executor, [Row(0, [3], 2, output_index=2, request_id=2)]).tokens.tolist() != [4]


def test_a_removed_request_may_still_be_in_a_launched_step() -> None:
    executor, _ = make_executor()
    add(executor, 1)
    step(executor, [Row(0, [1], output_index=0, request_id=1)], admitted=[(0, 0)])
    executor.remove_request(1)
    ahead = [Row(0, [-1], 1, output_index=1, request_id=1)]
    assert step(executor, ahead, num_decode_rows=1).tokens.tolist() == [3]


def test_a_dropped_lookahead_token_is_not_counted_after_retraction() -> None:
    executor, _ = make_executor()
    add(executor, 1, SamplingParams(temperature=0.0, presence_penalty=2.0, logit_bias={4: 9.0}))
    first = [Row(0, [2], output_index=0, request_id=1)]
    assert step(executor, first, admitted=[(0, 0)]).tokens.tolist() == [3]
    ahead = [Row(0, [3], 1, output_index=1, request_id=1)]
    assert step(executor, ahead, num_decode_rows=1).tokens.tolist() == [4]
    # The token 4 at index 1 was dropped: the request is admitted again with one output. Counted,
    # the penalty of 2 would leave 10 - 2 for token 3 + 1 = 4, and the bias decides nothing else.
    again = [Row(2, [2, 2], output_index=1, request_id=1)]
    # Token 3 peaks at 10 - 2 (it was sampled); token 4 has its bias of 9, uncounted.
    assert step(executor, again, admitted=[(0, 2)]).tokens.tolist() == [4]


def test_a_slot_taken_by_another_request_forgets_the_first() -> None:
    executor, _ = make_executor()
    add(executor, 1, SamplingParams(temperature=0.0, logit_bias={9: 100.0}))
    add(executor, 2)
    first = [Row(0, [1], output_index=0, request_id=1)]
    assert step(executor, first, admitted=[(0, 0)]).tokens.tolist() == [9]
    second = [Row(0, [1], output_index=0, request_id=2)]
    assert step(executor, second, admitted=[(0, 0)]).tokens.tolist() == [2]


def test_logprobs_stand_beside_the_rows_that_asked() -> None:
    executor, _ = make_executor()
    add(executor, 1)
    add(executor, 2, SamplingParams(temperature=0.0, logprobs=3))
    rows = [
        Row(0, [1], output_index=0, request_id=1),
        Row(1, [2], request_id=2),
        Row(2, [2], output_index=0, request_id=2),
    ]
    result = step(executor, rows, admitted=[(0, 0), (1, 1), (2, 2)])
    assert result.logprobs is not None
    assert result.logprobs[:2] == (None, None)
    assert result.logprobs[2] is not None
    (entry,) = result.logprobs[2]
    assert entry.token_id == 3
    assert len(entry.top) == 3


@pytest.mark.parametrize("slice_tokens", [1, 2, 100])
def test_prompt_tokens_are_scored_once_in_slices(
    monkeypatch: pytest.MonkeyPatch, slice_tokens: int
) -> None:
    monkeypatch.setattr(prompt_scores_module, "_SLICE_BYTES", slice_tokens * 4 * VOCAB_SIZE)
    executor, model = make_executor()
    add(executor, 1, SamplingParams(temperature=0.0, prompt_logprobs=0))
    first = step(executor, [Row(0, [1, 2, 3, 4], request_id=1)], admitted=[(0, 0)])
    rest = [Row(0, [5, 6], 4, output_index=0, request_id=1)]
    second = step(executor, rest)
    assert [entry.token_id for entry in first.prompt_logprobs[0][1]] == [2, 3, 4, 5]
    assert [entry.token_id for entry in second.prompt_logprobs[0][1]] == [6]
    assert max(model.logit_rows) <= slice_tokens
    again = step(executor, [Row(1, [1, 2, 3, 4], request_id=1)], admitted=[(0, 1)])
    assert again.prompt_logprobs == ()
