"""The engine in process, over the scripted model: order, batching, seeds, faults, interrupts."""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import TEST_SETTINGS
from tests.support.scripted import IM_END, ids_of, write_scripted_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.errors import CapacityError, EngineError, RequestError

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


def make_llm(folder: Path, *, settings: dict[str, Any] | None = None, **fields: Any) -> LLM:
    """An engine over a scripted model of its own."""
    model = write_scripted_model(folder / "model", **fields)
    return LLM(str(model), **{**TEST_SETTINGS, **(settings or {})})


def prompts_of(count: int, *, seed: int, longest: int = 90) -> list[list[int]]:
    """Random prompts, half of them with a common head."""
    draw = random.Random(seed)
    head = [draw.randrange(94) for _ in range(40)]
    return [
        (head if index % 2 else []) + [draw.randrange(94) for _ in range(draw.randint(1, longest))]
        for index in range(count)
    ]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with make_llm(tmp_path_factory.mktemp("llm")) as llm:
        yield llm


def test_a_script_is_emitted_up_to_its_end_and_finishes_with_stop(tmp_path: Path) -> None:
    with make_llm(tmp_path, script="Hello, world") as llm:
        (output,) = llm.generate("anything", SamplingParams(temperature=0.0))
    assert output.text == "Hello, world"
    assert output.token_ids == (*ids_of("Hello, world"), IM_END)
    assert output.finish_reason == "stop"


def test_answers_do_not_depend_on_batch_chunks_or_cache(llm: LLM) -> None:
    prompts = prompts_of(24, seed=1)
    alone = [llm.generate(prompt, GREEDY)[0].token_ids for prompt in prompts]
    together = [output.token_ids for output in llm.generate(prompts, GREEDY)]
    assert together == alone
    assert len(set(alone)) == len(alone)


def test_depth_1_and_a_tiny_pool_answer_like_depth_0_with_an_ample_one(
    llm: LLM, tmp_path: Path
) -> None:
    prompts = prompts_of(24, seed=2)
    expected = [output.token_ids for output in llm.generate(prompts, GREEDY)]
    tiny = {"depth": 1, "kv_gib": 0.00008, "max_step_tokens": 24}
    with make_llm(tmp_path, settings=tiny) as other:
        found = [output.token_ids for output in other.generate(prompts, GREEDY)]
        retractions = other.stats().retractions
    assert found == expected
    assert retractions > 0


def test_without_the_prefix_cache_answers_are_the_same(llm: LLM, tmp_path: Path) -> None:
    prompts = prompts_of(8, seed=3)
    with make_llm(tmp_path, settings={"prefix_cache": False}) as other:
        outputs = other.generate(prompts, GREEDY)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in llm.generate(prompts, GREEDY)]
    assert {output.cached_tokens for output in outputs} == {0}


def test_a_second_turn_reuses_the_first(llm: LLM) -> None:
    prompt = prompts_of(1, seed=4, longest=200)[0] + [1] * 64
    (first,) = llm.generate(prompt, GREEDY)
    follow_up = prompt + list(first.token_ids) + [5, 6, 7]
    (second,) = llm.generate(follow_up, GREEDY)
    shared = len(prompt) + len(first.token_ids) - 1
    assert shared - 1 <= second.cached_tokens <= shared


def test_a_seed_gives_the_same_tokens_whatever_else_runs(tmp_path: Path) -> None:
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=20)
    with make_llm(tmp_path, logit_gap=1.0) as llm:
        prompts = prompts_of(6, seed=5)
        (alone,) = llm.generate(prompts[0], params)
        together = llm.generate(prompts, params)
        (other_seed,) = llm.generate(
            prompts[0], SamplingParams(temperature=1.0, seed=12, max_tokens=20)
        )
    assert together[0].token_ids == alone.token_ids
    assert other_seed.token_ids != alone.token_ids


def test_stop_strings_end_the_text_before_them(tmp_path: Path) -> None:
    with make_llm(tmp_path, script="one two three four") as llm:
        params = SamplingParams(temperature=0.0, stop=("three",))
        (output,) = llm.generate("x", params)
        (after,) = llm.generate("x", SamplingParams(temperature=0.0))
        assert llm.stats().blocks_used == 0
    assert (output.text, output.finish_reason) == ("one two ", "stop")
    assert after.text == "one two three four"


def test_streamed_text_adds_up_to_the_generated_text(llm: LLM) -> None:
    pieces = list(llm.stream("stream this", GREEDY))
    assert len(pieces) > 5
    assert "".join(pieces) == llm.generate("stream this", GREEDY)[0].text


def test_leaving_a_stream_early_frees_its_blocks(llm: LLM) -> None:
    stream = llm.stream("leave early", GREEDY)
    next(stream)
    assert llm.stats().blocks_used > 0
    stream.close()
    assert llm.stats().blocks_used == 0


def test_logprobs_come_beside_their_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, logprobs=2, prompt_logprobs=0)
    (output,) = llm.generate([3, 4, 5, 6], params)
    assert output.logprobs is not None
    assert [entry.token_id for entry in output.logprobs] == list(output.token_ids)
    assert all(len(entry.top) == 2 for entry in output.logprobs)
    assert output.prompt_logprobs is not None
    assert [entry.token_id for entry in output.prompt_logprobs] == [4, 5, 6]


def test_chat_renders_the_models_template(tmp_path: Path) -> None:
    with make_llm(tmp_path, script="Hi") as llm:
        (output,) = llm.chat([{"role": "user", "content": "Hello"}])
    assert output.text == "Hi"
    assert len(output.prompt_token_ids) == len("user\nHello\nassistant\n") + 3


def test_requests_that_can_never_fit_are_refused_with_numbers(llm: LLM) -> None:
    with pytest.raises((RequestError, CapacityError), match=r"\d"):
        llm.generate([1] * 5000, GREEDY)
    with pytest.raises(RequestError, match="token id 99999"):
        llm.generate([99999], GREEDY)
    assert llm.generate("still alive", GREEDY)[0].finish_reason == "length"


def test_a_nan_row_fails_alone(tmp_path: Path) -> None:
    with make_llm(tmp_path, nan_on_token=200) as llm:
        bad, good = llm.generate(
            [[200, 200], [8, 9]], SamplingParams(temperature=0.0, max_tokens=4)
        )
        assert llm.stats().blocks_used == 0
    assert bad.finish_reason == "error"
    assert bad.error is not None
    assert "NaN" in bad.error
    assert (good.finish_reason, len(good.token_ids)) == ("length", 4)


def test_a_step_that_raises_fails_its_requests_and_the_engine_goes_on(tmp_path: Path) -> None:
    with make_llm(tmp_path, raise_on_token=200) as llm:
        (bad,) = llm.generate([200], GREEDY)
        (good,) = llm.generate([8], GREEDY)
        assert llm.stats().blocks_used == 0
    assert bad.finish_reason == "error"
    assert bad.error is not None
    assert "scripted failure" in bad.error
    assert good.finish_reason == "length"


def test_a_kernel_that_exits_in_a_step_ends_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_llm(tmp_path) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(type(llm.engine.executor), "launch", lambda *_: sys.exit(0))
            (bad,) = llm.generate([200], GREEDY)
        (good,) = llm.generate([8], GREEDY)
    assert bad.error is not None
    assert "SystemExit(0)" in bad.error
    assert good.finish_reason == "length"


def test_eight_failed_steps_in_a_row_end_the_engine(tmp_path: Path) -> None:
    with make_llm(tmp_path, raise_on_token=200) as llm:
        for _ in range(7):
            assert llm.generate([200], GREEDY)[0].finish_reason == "error"
        with pytest.raises(EngineError, match="in a row"):
            llm.generate([200], GREEDY)


def test_ctrl_c_ends_the_call_and_leaves_the_engine_usable(tmp_path: Path) -> None:
    with make_llm(tmp_path, step_ms=20) as llm:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            llm.generate("x", SamplingParams(max_tokens=2000))
        timer.join()
        assert llm.stats().blocks_used == 0
        assert len(llm.generate("x", GREEDY)[0].token_ids) == 24


def test_a_deadline_ends_a_request_with_its_reason(tmp_path: Path) -> None:
    with make_llm(tmp_path, step_ms=20) as llm:
        llm.generate("x", SamplingParams(max_tokens=1))  # a first step may take long
        outputs = llm.generate("x", SamplingParams(max_tokens=2000), timeout_s=0.5)
    assert outputs[0].finish_reason == "timeout"
    assert 0 < len(outputs[0].token_ids) < 100


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, math.nan, math.inf, 1e30])
def test_a_time_limit_out_of_range_is_refused(llm: LLM, timeout_s: float) -> None:
    with pytest.raises(RequestError, match="timeout_s is"):
        llm.generate("x", GREEDY, timeout_s=timeout_s)
    assert llm.stats().blocks_used == 0


def test_overhead_per_step_is_measured(llm: LLM) -> None:
    llm.generate("measure", SamplingParams(temperature=0.0, max_tokens=200))
    stats = llm.stats()
    assert 0 < stats.overhead_us_p50 < stats.step_us_p50


def test_no_hook_runs_after_the_freeze(llm: LLM) -> None:
    llm.generate("steps", GREEDY)
    assert llm.stats().hook_calls_after_freeze == 0


def test_chat_takes_no_more_messages_than_http_does(llm: LLM) -> None:
    with pytest.raises(RequestError, match="at most 16384"):
        llm.chat([{"role": "user", "content": "x"}] * 16_385)
