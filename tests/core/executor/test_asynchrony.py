"""Steps are launched without a wait for the device, and the answers are those of one at a time."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.support.drafters import KnowingSpeculator
from tests.support.engine_parts import GREEDY, Job, Parts, build_parts
from tests.support.grammars import ListEngine
from tests.support.random_jobs import random_jobs, with_min_tokens
from tests.support.tiny_checkpoints import make_checkpoint, make_prompts
from tests.support.waits import LateLink, WaitError, allows_waits, forbids_waits

from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.executor.host_link import InlineLink
from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINKS = {"inline": InlineLink(torch.device("cpu")), "ring": LateLink()}
PROMPTS = make_prompts([9, 30, 61], shared=8)
DRAWN: dict[str, Any] = {"seed": 5, "max_tokens": 12}
KINDS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=12),
    "drawn": SamplingParams(**DRAWN),
    "filtered": SamplingParams(top_k=9, top_p=0.9, min_p=0.01, **DRAWN),
    "penalised": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.7, **DRAWN),
    "biased": SamplingParams(logit_bias={3: 2.0}, min_tokens=4, **DRAWN),
    "embedded": SamplingParams(temperature=0.0, max_tokens=1, embeds=True),
    "scored": SamplingParams(logprobs=3, prompt_logprobs=2, **DRAWN),
}


def late_parts(path: Path, **options: Any) -> tuple[Parts, LateLink]:
    """Build parts whose device is late."""
    link = LateLink()
    return build_parts(path, depth=1, link=link, **options), link


def forbid_waits(parts: Parts, link: LateLink) -> None:
    """Let launches raise where they wait, but in kernels: those of the host may look at values."""
    executor, model = parts.executor, parts.executor._model
    executor.launch = within(forbids_waits, executor.launch, link)  # type: ignore[method-assign]
    model.forward = within(allows_waits, model.forward)  # type: ignore[method-assign]
    arena: Any = executor._batcher._arena  # type: ignore[union-attr]
    arena._copy = within(allows_waits, arena._copy)  # its table is on the host
    settle = within(allows_waits, executor._settle_step)
    executor._settle_step = settle  # type: ignore[method-assign]


def within(context: Callable[..., Any], function: Callable[..., Any], *args: Any) -> Any:
    """Return a function that runs in a context of its own."""

    def called(*given: Any) -> Any:
        with context(*args):
            return function(*given)

    return called


def note_forwards(parts: Parts) -> list[int]:
    """Note for every time that steps are settled how many forwards are under way unlaunched."""
    noted: list[int] = []
    executor, model = parts.executor, parts.executor._model
    forward, settle, forwards = model.forward, executor._settle, [0]

    def counted(*args: Any) -> torch.Tensor:
        forwards[0] += 1
        return forward(*args)

    def settled() -> None:
        if not all(step.is_settled for step in executor._launched):
            noted.append(forwards[0] - len(executor._link.events))  # type: ignore[attr-defined]
        settle()

    model.forward = counted  # type: ignore[method-assign]
    executor._settle = settled  # type: ignore[method-assign]
    return noted


@pytest.fixture(scope="module")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models are made once."""
    return tmp_path_factory.mktemp("models")


def test_what_waits_is_found_out() -> None:
    x = torch.arange(4)
    for wait in (x.tolist, x.sum().item, x.nonzero, lambda: x[x > 1], x.numpy, lambda: bool(x[0])):
        with pytest.raises(WaitError), forbids_waits():
            wait()


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_a_launch_waits_for_nothing(kind: str, checkpoint_folder: Path) -> None:
    path = make_checkpoint("qwen3", checkpoint_folder)
    params = list(KINDS.values()) if kind == "mixed" else [KINDS[kind]] * 3
    jobs = [
        Job(
            [*PROMPTS[place % 3], place],
            each,
            start_step=2 * place,
            match_prefix=each.prompt_logprobs is None,
        )
        for place, each in enumerate(params)
    ]
    plain = build_parts(path, max_step_tokens=24).run(jobs)
    parts, link = late_parts(path, max_step_tokens=24)
    forbid_waits(parts, link)
    late = parts.run(jobs)
    assert late.tokens == plain.tokens
    assert late.reasons == plain.reasons
    assert [len(entries) for entries in late.logprobs] == [len(item) for item in plain.logprobs]
    for one, other in zip(chain(*late.logprobs), chain(*plain.logprobs), strict=True):
        assert (one.token_id, one.rank) == (other.token_id, other.rank)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert link.num_waits == len(late.results), "each step is waited for once, as it is collected"
    assert late.embeddings.keys() == plain.embeddings.keys()
    for index, state_D in late.embeddings.items():
        np.testing.assert_allclose(state_D, plain.embeddings[index], atol=1e-5)
    scored = [sum(len(part) for _, part in item.prompt_logprobs) for item in late.results]
    asked = [len(job.prompt) - 1 for job in jobs if job.params.prompt_logprobs is not None]
    assert sum(scored) == sum(asked)


def test_masks_are_made_after_the_forward_is_given_to_the_device(checkpoint_folder: Path) -> None:
    path = make_checkpoint("qwen3", checkpoint_folder)
    text = " ".join(map(str, range(5, 25)))
    language = ListEngine(512, 63).compile(GrammarSpec("regex", text))
    guided = SamplingParams(temperature=0.0, max_tokens=30, grammar=GrammarSpec("regex", text))
    jobs = [
        Job(PROMPTS[0], guided, stop_token_ids=(63,), grammar=language),
        Job(PROMPTS[1], GREEDY),
    ]
    parts, _ = late_parts(path)
    settled = note_forwards(parts)
    run = parts.run(jobs)
    assert run.tokens[0] == [*range(5, 25), 63]
    assert len(settled) >= 20, "a step with masks settles the ones before it"
    assert set(settled) == {1}, "while it computes: its forward was given to the device before"


def test_random_requests_get_their_answers(checkpoint_folder: Path) -> None:
    check_random_requests("qwen3", checkpoint_folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_oss", "qwen3_next"])
@pytest.mark.parametrize("round", range(6))
def test_many_random_requests_get_their_answers(
    name: str, round: int, checkpoint_folder: Path
) -> None:
    check_random_requests(name, checkpoint_folder)


def check_random_requests(name: str, folder: Path) -> None:
    """Run with drafts, languages, aborts and retraction on a late device; compare."""
    seed = int(os.environ.get("TOKENSPEED_TEST_SEED", "0")) or random.SystemRandom().getrandbits(31)
    print(f"TOKENSPEED_TEST_SEED={seed}")
    rng = random.Random(seed)
    path = make_checkpoint(name, folder)
    jobs = [guided(rng, with_min_tokens(rng, job)) for job in random_jobs(rng, 64)]
    plain = build_parts(path, num_blocks=60, max_step_tokens=40).run(jobs)
    answers = {tuple(job.prompt): answer for job, answer in zip(jobs, plain.tokens, strict=True)}
    for speculator in (None, KnowingSpeculator(answers, seed, wrong_share=0.3)):
        places = rng.sample(range(len(jobs)), 2)
        cut = [
            replace(job, abort_step=rng.randint(2, 30)) if place in places else job
            for place, job in enumerate(jobs)
        ]
        num_blocks = 14 if speculator is None and name != "qwen3_next" else 40
        parts, _ = late_parts(
            path, num_blocks=num_blocks, max_step_tokens=40, speculator=speculator
        )
        late = parts.run(cut)
        for place, (one, other) in enumerate(zip(late.tokens, plain.tokens, strict=True)):
            assert one == (other[: len(one)] if place in places else other), f"job {place}"


def guided(rng: random.Random, job: Job) -> Job:
    """Return a job whose answer is a given text, now and then."""
    if rng.random() < 0.7:
        return job
    text = " ".join(str(rng.randrange(63)) for _ in range(rng.randint(1, 25)))
    fields = {field: getattr(job.params, field) for field in job.params.__struct_fields__}
    params = SamplingParams(**fields | {"grammar": GrammarSpec("regex", text), "min_tokens": 0})
    language = ListEngine(512, 63).compile(GrammarSpec("regex", text))
    return replace(job, params=params, stop_token_ids=(63,), grammar=language)


@pytest.mark.parametrize(
    "link", [InlineLink(torch.device("cpu")), LateLink()], ids=["inline", "ring"]
)
def test_arrays_go_up_as_they_are(link: InlineLink | LateLink) -> None:
    arrays = (
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.zeros((0, 4), dtype=np.int32),
        np.array([True, False, True]),
        np.float32([1.5]),
        np.arange(1 << 18, dtype=np.int64),
    )
    for _ in range(2 * link.num_steps):
        link.begin()
        tensors = link.upload(*arrays)
        for tensor, array in zip(tensors, arrays, strict=True):
            assert tensor.shape == array.shape
            assert np.array_equal(tensor.numpy(), array)
            assert tensor.numpy().dtype == array.dtype
        link.end()


def test_staging_memory_is_kept_until_its_step_has_passed() -> None:
    link = LateLink(num_steps=2)
    hosts = []
    for step in range(3):
        link.begin()
        hosts.append(link.download(torch.full((4,), step)))
        if step < 2:
            link.end()
    assert link.num_waits == 1, "the third step waits for the first, whose place it takes"
    assert hosts[0].data_ptr() == hosts[2].data_ptr()
    link.begin()  # the third raised, and is ended here: the device may still have its uploads
    assert len(link.events) == 3
    assert hosts[1].data_ptr() == link.download(torch.zeros(4)).data_ptr()
