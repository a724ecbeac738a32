"""Real models cut over real processes answer as on one rank: weights, caches and programs meet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.support.placed_engines import (
    NUM_TOKENS,
    PROMPTS,
    check_equal,
    even_checkpoint,
    rank_llm,
)
from tests.support.served_checkpoints import PlainModel, serve_checkpoint

from tokenspeed import SamplingParams
from tokenspeed.engine.ranks import group
from tokenspeed.errors import ConfigError, PlacementError

if TYPE_CHECKING:
    from pathlib import Path


def test_heads_cut_over_two_ranks_give_the_tokens_of_one(tmp_path: Path) -> None:
    check_equal(serve_checkpoint("llama", tmp_path), tp=2)  # of 331 tokens, an odd number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("llama", {"pp": 2}),
        ("llama", {"cp": 2}),
        ("deepseek_v3", {"tp": 2, "cp": 2}),
        ("qwen3_next_even", {"cp": 2}),
        ("llama", {"dense_tp": 2}),
        ("qwen3", {"tp": 4}),
        ("qwen3_moe", {"tp": 2, "ep": 2}),
        ("mixtral", {"ep": 2}),
        ("deepseek_v3", {"tp": 2}),
        ("deepseek_v3", {"ep": 2}),
        ("deepseek_v3", {"tp": 2, "pp": 2}),
        ("gpt_oss_even", {"tp": 2}),
        ("gpt_oss_even", {"pp": 2}),
        ("qwen3_next_even", {"tp": 2}),
    ],
)
def test_every_kind_of_cut_gives_the_tokens_of_one_rank(
    name: str, degrees: dict[str, int], tmp_path: Path
) -> None:
    check_equal(even_checkpoint(name, tmp_path), **degrees)


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [{"ep": 2}, {"dp": 2, "ep": 2}, {"ep": 2, "pp": 2}])
def test_experts_move_between_ranks_under_load_and_tokens_stay(
    degrees: dict[str, int], tmp_path: Path
) -> None:
    path = even_checkpoint("qwen3_moe", tmp_path)
    plain = PlainModel(path, max_context_tokens=256)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with rank_llm(path, eplb_steps=3, eplb_slots=1, **degrees) as engine:
        for _ in range(2):
            outputs = engine.generate(PROMPTS, params)
            for prompt, output in zip(PROMPTS, outputs, strict=True):
                assert plain.answer(prompt, NUM_TOKENS).agrees(output.token_ids)
        while len(engine.stats().experts) < degrees.get("pp", 1):
            time.sleep(0.05)  # the other stage says it with its next beat
        experts, figures = engine._loop.state()["experts"], engine.stats().experts
    assert experts["times"] > 3
    assert experts["moved"] > 0
    assert all(sum(layer["counts"]) > 0 for layer in experts["layers"].values())
    assert sorted(map(int, experts["layers"])) == [0, 1, 2]
    assert all(one.looks > 0 for one in figures)


def test_experts_of_one_rank_or_of_none_are_not_balanced(tmp_path: Path) -> None:
    path = serve_checkpoint("llama", tmp_path)
    with pytest.raises(ConfigError, match=r"eplb_steps is 5 and ep is 1.*give --ep"):
        rank_llm(path, eplb_steps=5)
    with pytest.raises(ConfigError, match=r"eplb_slots is 1 and eplb_steps is 0.*--eplb-steps"):
        rank_llm(path, ep=2, eplb_slots=1)
    with pytest.raises(ConfigError, match=r"eplb_steps is 5 and Llama\w+ has no experts"):
        rank_llm(path, ep=2, eplb_steps=5)


@pytest.mark.parametrize(
    ("degrees", "error", "words"),
    [
        ({"tp": 3}, PlacementError, r"over tp 3: .* that work, .*: tp 1, 2, 4"),
        ({"ep": 2}, ConfigError, "ep is 2 and the model has no experts"),
        ({"pp": 99}, ConfigError, "set pp to 3 or less"),
    ],
)
def test_a_model_that_cannot_be_cut_so_names_the_numbers_and_starts_no_process(
    degrees: dict[str, int],
    error: type[Exception],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []
    monkeypatch.setattr(group, "spawn_workers", lambda *given: started.append(given) or [])
    path = serve_checkpoint("llama", tmp_path)
    with pytest.raises(error, match=words):
        rank_llm(path, **degrees)
    assert not started
