"""`tune`: backends of attention and experts are timed on what a watched engine was asked for."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.plugin_wheels import PluginSpace
from tests.support.scripted import write_scripted_model
from tests.support.tiny_checkpoints import make_checkpoint
from tests.support.tuned_plugins import ATTENTION, EXPERTS, SLOW_S

from tokenspeed import LLM, SamplingParams
from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.explain import explain_start

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tokenspeed.engine.reports import Progress

PROMPT = list(range(5, 25))
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
OPTIONS: dict[str, Any] = {"plugins": ("acme",), "block_tokens": 16}


def make_model(folder: Path, kind: str) -> str:
    model = make_checkpoint(kind, folder / "model")
    words = write_scripted_model(folder / "words")
    shutil.copy(words / "tokenizer.json", model / "tokenizer.json")
    return str(model)


def candidates(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["offer"]: entry for entry in record["candidates"]}


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginSpace:
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "cache"))
    return PluginSpace(tmp_path / "site", monkeypatch)


def test_a_slow_attention_backend_loses_and_a_failing_one_is_refused(
    tmp_path: Path, space: PluginSpace
) -> None:
    package = space.install("acme", ATTENTION, slots='attention = "1.0"')
    model = make_model(tmp_path, "llama")
    with LLM(model, plugins=("reference",), block_tokens=16) as llm:
        plain = llm.generate([PROMPT], GREEDY)[0].token_ids
    with LLM(model, tune=True, **OPTIONS) as llm:
        record = llm.engine.binding_plan.slots["attention.full"].record
        assert llm.generate([PROMPT], GREEDY)[0].token_ids == plain
    assert record["winner"] == "reference/paged_cpu"
    assert record["evidence"] == {"used": True, "note": ""}
    told = candidates(record)
    # A token of output costs a decode step and ten tokens of prompt, in three layers each.
    assert told["acme/slow"]["measured_us"] > 3 * SLOW_S * 1e6
    assert 0 < told["reference/paged_cpu"]["measured_us"] < 3 * SLOW_S * 1e6
    assert told["reference/paged"]["measured_us"] > 0
    assert told["acme/broken"]["verdict"] == "refused"
    assert "RuntimeError: no such tile" in told["acme/broken"]["reason"]
    assert [clause["id"] for clause in told["acme/broken"]["clauses"]] == ["timed.failed"]
    check_kept(model, record)
    space.install("acme", ATTENTION, slots='attention = "1.0"', version="1.2.4", package=package)


def check_kept(model: str, record: Mapping[str, Any]) -> None:
    """A second tune builds one engine; starts without it and `explain` know the times."""
    seen: list[Progress] = []
    with LLM(model, tune=True, progress=seen.append, **OPTIONS) as llm:
        assert llm.engine.binding_plan.slots["attention.full"].record == record
    assert [item.stage for item in seen].count("cache") == 1
    assert "tuning" not in [item.stage for item in seen]
    explanation = explain_start(EngineConfig(model=model, **OPTIONS))
    assert explanation.plan.slots["attention.full"].record == record


def test_a_backend_of_experts_that_chooses_them_itself_is_compared_from_the_logits_on(
    tmp_path: Path, space: PluginSpace
) -> None:
    space.install("acme", EXPERTS, slots='moe = "1.0"')
    model = make_model(tmp_path, "qwen3_moe")
    with LLM(model, plugins=("reference",), block_tokens=16) as llm:
        plain = llm.generate([PROMPT], GREEDY)[0].token_ids
    with LLM(model, tune=True, **OPTIONS) as llm:
        record = llm.engine.binding_plan.slots["moe.experts"].record
        assert llm.generate([PROMPT], GREEDY)[0].token_ids == plain
    told = candidates(record)
    assert record["evidence"]["used"]
    assert record["winner"] in ("acme/fused", "reference/plain", "reference/rowwise")
    assert told["acme/slow"]["measured_us"] > SLOW_S * 1e6
    assert told["acme/fused"]["measured_us"] > 0
    assert "no such tile" in told["acme/broken"]["reason"]
