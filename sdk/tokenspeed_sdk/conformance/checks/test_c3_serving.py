"""C3: a real engine with the plugin's offers answers right under load, and loses nothing."""

from __future__ import annotations

import random
import resource
import time
from typing import TYPE_CHECKING, Any

import pytest

from tokenspeed_sdk import PluginError
from tokenspeed_sdk.conformance.construct import device_of
from tokenspeed_sdk.conformance.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tokenspeed import LLM
    from tokenspeed_sdk.conformance.serving import Subjects

DETERMINISTIC = "deterministic"
SOAK_S = 15.0
SOAK_MIB = 48
"""Growth of the process that a soak may show after its first third."""


@pytest.fixture
def subjects(subject: Subject, tmp_path: Path, request: pytest.FixtureRequest) -> Subjects:
    """What takes part; the parameter says of which dtype, or that only deterministic offers do."""
    from tokenspeed_sdk.conformance.serving import engine_settings, takes

    wanted = getattr(request, "param", "float32")
    dtype = "float32" if wanted == DETERMINISTIC else wanted
    if dtype != "float32" and not takes(subject, dtype):
        pytest.skip(f"no attention and no experts of its own take {dtype}")

    try:
        runtime = device_of(subject)
    except PluginError as error:
        pytest.skip(error.message)
    is_deterministic = wanted == DETERMINISTIC
    found = engine_settings(subject, runtime, tmp_path, deterministic=is_deterministic, dtype=dtype)
    if not found.offers:
        pytest.skip("it offers nothing that takes part in serving")
    return found


@pytest.fixture
def model(subjects: Subjects, tmp_path: Path) -> Path:
    from tokenspeed_sdk.conformance.serving import make_model

    return make_model(tmp_path, subjects)


@pytest.fixture
def start(subjects: Subjects, model: Path) -> Iterator[Callable[..., LLM]]:
    from tokenspeed import LLM

    started = []

    def make(**settings: Any) -> LLM:
        llm = LLM(str(model), **subjects.settings, **settings)
        started.append(llm)
        return llm

    yield make
    for llm in started:
        llm.close()


def assert_nothing_is_held(llm: LLM) -> None:
    stats = llm.stats()
    held = (stats.running, stats.waiting, stats.blocks_used)
    assert held == (0, 0, 0), f"running, waiting, blocks held after the last answer: {held}"
    assert stats.hook_calls_after_freeze == 0


@pytest.mark.parametrize("subjects", ["float32", "bfloat16"], indirect=True)
def test_answers_under_load_equal_those_of_the_reference(
    start: Callable[..., LLM], model: Path, subjects: Subjects
) -> None:
    from tokenspeed_sdk.conformance import serving

    prompts = serving.make_prompts(24, seed=1, scale=subjects.scale)
    expected = serving.reference_answers(model, prompts, subjects)
    llm = start(**subjects.small_pool())
    for _ in range(2):  # the second time prefixes are cached, evicted or in the store
        answers = llm.generate(prompts, serving.greedy())
        serving.assert_same_answers(answers, expected, subjects.dtype)
    stats = llm.stats()
    assert stats.retractions > 0, "the pool was to be too small, and no request was retracted"
    assert stats.evictions > 0, "the pool was to be too small, and nothing was evicted"
    assert stats.cached_tokens > 0, "no prefix was found again"
    assert_nothing_is_held(llm)


@pytest.mark.parametrize("subjects", [DETERMINISTIC], indirect=True)
def test_a_seeded_answer_does_not_depend_on_its_company(
    start: Callable[..., LLM], subjects: Subjects
) -> None:
    from tokenspeed_sdk.conformance import serving

    rng = random.Random(3)
    prompts = serving.make_prompts(6, seed=2, scale=subjects.scale)
    params = [serving.random_params(rng) for _ in prompts]
    llm = start(**subjects.ample_pool())
    together = [answer.token_ids for answer in llm.generate(prompts, params)]
    alone = [llm.generate([p], [q])[0].token_ids for p, q in zip(prompts, params, strict=True)]
    assert together == alone


def test_a_cancelled_answer_gives_everything_back(
    start: Callable[..., LLM], subjects: Subjects
) -> None:
    from tokenspeed_sdk.conformance import serving

    llm = start(**subjects.small_pool())
    for prompt in serving.make_prompts(6, seed=4, scale=subjects.scale):
        for number, _ in enumerate(llm.stream(prompt, serving.greedy(64))):
            if number == 2:
                break
    assert_nothing_is_held(llm)


def test_a_soak_loses_nothing(
    start: Callable[..., LLM],
    subjects: Subjects,
    record_property: Callable[[str, object], None],
) -> None:
    from tokenspeed_sdk.conformance import serving

    rng = random.Random(5)
    llm = start(**subjects.small_pool())
    begin = time.monotonic()
    memory: list[int] = []
    while time.monotonic() - begin < SOAK_S:
        seed = rng.randrange(1 << 30)
        prompts = serving.make_prompts(rng.randint(1, 16), seed=seed, scale=subjects.scale)
        if rng.random() < 0.3:
            next(iter(llm.stream(prompts[0], serving.random_params(rng))), None)
        answers = llm.generate(prompts, [serving.random_params(rng) for _ in prompts])
        assert not [answer.error for answer in answers if answer.error]
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert_nothing_is_held(llm)
    grown = (memory[-1] - memory[len(memory) // 3]) / 1024
    assert grown <= SOAK_MIB, f"the process grew by {grown:.0f} MiB in the later part of the soak"
    stats = llm.stats()
    record_property("output_tokens_per_s", round(stats.output_tokens / (time.monotonic() - begin)))
    record_property("steps", stats.steps)
    record_property("retractions", stats.retractions)
    record_property("evictions", stats.evictions)
