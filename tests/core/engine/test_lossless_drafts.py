"""With drafts, right and wrong, every request gets the answer that it gets without: however it is
sampled, penalised, biased, stopped and scored, and whatever its model keeps of the past."""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.drafters import KnowingSpeculator
from tests.support.engine_parts import Job, Run, build_parts
from tests.support.random_jobs import random_jobs, with_min_tokens
from tests.support.tiny_checkpoints import make_checkpoint

from tokenspeed.contracts.grammar import GrammarSpec, GrammarVocabulary
from tokenspeed.grammar.xgrammar_engine import XGrammarEngine
from tokenspeed.models.qwen3_next import Qwen3NextForCausalLM
from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path


def run(path: Path, jobs: list[Job], **options: Any) -> tuple[Run, dict[str, int]]:
    parts = build_parts(path, num_blocks=60, max_step_tokens=40, poison=True, **options)
    return parts.run(jobs), dict(parts.scheduler.stats())


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss", "qwen3_next", "qwen3_next replayed"])
def test_answers_and_logprobs_are_those_without_drafts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("TOKENSPEED_TEST_SEED", "0")) or random.SystemRandom().getrandbits(31)
    rng = random.Random(seed)
    path = make_checkpoint(name.split()[0], tmp_path)
    if name.endswith("replayed"):
        replay_states(monkeypatch)
    jobs = [with_min_tokens(rng, job) for job in random_jobs(rng, 64)]
    plain, _ = run(path, jobs)
    answers = {tuple(job.prompt): answer for job, answer in zip(jobs, plain.tokens, strict=True)}
    speculator = KnowingSpeculator(answers, seed, wrong_share=0.3)
    drafted, stats = run(path, jobs, speculator=speculator)
    assert drafted.tokens == plain.tokens, f"TOKENSPEED_TEST_SEED={seed}"
    assert drafted.reasons == plain.reasons, f"TOKENSPEED_TEST_SEED={seed}"
    for one, other in zip(drafted.logprobs, plain.logprobs, strict=True):
        assert [entry.token_id for entry in one] == [entry.token_id for entry in other]
        assert [entry.logprob for entry in one] == pytest.approx(
            [entry.logprob for entry in other], abs=1e-3
        )
        assert [len(entry.top) for entry in one] == [len(entry.top) for entry in other]
    assert stats["accepted"] > 20, f"TOKENSPEED_TEST_SEED={seed}"
    # What ends a request is told to nobody: its last row is not observed.
    assert sum(accepted for _, accepted in speculator.observed) <= stats["accepted"]
    assert all(accepted <= drafts for drafts, accepted in speculator.observed)
    assert drafted.num_steps < plain.num_steps


@pytest.mark.parametrize("depth", [0, 1])
def test_answers_in_a_language_are_those_without_drafts(tmp_path: Path, depth: int) -> None:
    pytest.importorskip("xgrammar")
    seed = int(os.environ.get("TOKENSPEED_TEST_SEED", "0")) or random.SystemRandom().getrandbits(31)
    rng = random.Random(seed)
    path = make_checkpoint("qwen3", tmp_path)
    end = 63
    letters = [bytes([32 + token]) for token in range(end)]
    size = json.loads((path / "config.json").read_text())["vocab_size"]
    spelled = [*letters, *[b""] * (size - end)]
    engine = XGrammarEngine(GrammarVocabulary(spelled, (end,), frozenset({end})))
    texts = ["([A-M][0-9]){2,9}", "[ACE]+", "(AB|BA|0){5,20}"]
    languages = [engine.compile(GrammarSpec("regex", text)) for text in texts]
    jobs = []
    for place, job in enumerate(random_jobs(rng, 64)):
        guide = GrammarSpec("regex", texts[place % 3]) if place % 4 else None
        fields = {name: getattr(job.params, name) for name in job.params.__struct_fields__}
        params = SamplingParams(**fields | {"grammar": guide, "min_tokens": rng.randint(0, 1)})
        grammar = languages[place % 3] if guide else None
        jobs.append(replace(job, params=params, stop_token_ids=(end,), grammar=grammar))
    plain, _ = run(path, jobs, depth=depth)
    for job, tokens, reason in zip(jobs, plain.tokens, plain.reasons, strict=True):
        if job.grammar is not None:
            reasons = [item.reasons for item in plain.results if item.reasons]
            assert reason in ("stop", "length"), (seed, reasons)
            text = "".join(chr(32 + token) for token in tokens if token != end)
            if reason == "stop":
                assert re.fullmatch(job.params.grammar.text, text), f"{seed} {text!r}"
    answers = {tuple(job.prompt): answer for job, answer in zip(jobs, plain.tokens, strict=True)}
    speculator = KnowingSpeculator(answers, seed, wrong_share=0.3)
    drafted, stats = run(path, jobs, depth=depth, speculator=speculator)
    assert drafted.tokens == plain.tokens, f"TOKENSPEED_TEST_SEED={seed}"
    assert drafted.reasons == plain.reasons, f"TOKENSPEED_TEST_SEED={seed}"
    for one, other in zip(drafted.logprobs, plain.logprobs, strict=True):
        assert [entry.logprob for entry in one] == pytest.approx(
            [entry.logprob for entry in other], abs=1e-3
        )
    assert stats["accepted"] > 10, f"TOKENSPEED_TEST_SEED={seed}"


def replay_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model keep the state before its drafts only."""
    declared = Qwen3NextForCausalLM.cache_groups

    def replayed(cls: type, config: Any) -> Any:
        return tuple(
            replace(group, speculation="replay") if group.kind == "state" else group
            for group in declared(config)
        )

    monkeypatch.setattr(Qwen3NextForCausalLM, "cache_groups", classmethod(replayed))
