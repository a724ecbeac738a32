"""`tune`: backends of attention and experts are timed on what a watched engine was asked for."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.plugin_wheels import PluginSpace
from tests.support.served_checkpoints import serve_checkpoint
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


def candidates(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["offer"]: entry for entry in record["candidates"]}


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginSpace:
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "cache"))
    return PluginSpace(tmp_path / "site", monkeypatch)


def test_a_slow_attention_backend_loses_and_a_failing_one_is_refused(
    tmp_path: Path, space: PluginSpace
) -> None:
    space.install("acme", ATTENTION, slots='attention = "1.0"')
    model = str(serve_checkpoint("llama", tmp_path))
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
    for stale in space.folder.glob("*.dist-info"):
        shutil.rmtree(stale)
    body = ATTENTION.replace("Slow(attention", "(attention").replace('"slow"', '"swift"')
    space.install("acme", body, slots='attention = "1.0"', version="1.2.4")
    explanation = explain_start(EngineConfig(model=model, **OPTIONS))
    other = explanation.plan.slots["attention.full"].record
    assert other["evidence"] == {"used": False, "note": "nothing was measured"}
    assert other["winner"] == "acme/swift"
    seen: list[Progress] = []
    with LLM(model, tune=True, progress=seen.append, **OPTIONS) as llm:
        timed = candidates(llm.engine.binding_plan.slots["attention.full"].record)
    assert "tuning" in [item.stage for item in seen]
    assert 0 < timed["acme/swift"]["measured_us"] < 3 * SLOW_S * 1e6


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
    model = str(serve_checkpoint("qwen3_moe", tmp_path))
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


@pytest.mark.parametrize(
    ("name", "slots_timed"),
    [
        ("gpt_oss", ["attention.full", "attention.window", "moe.experts"]),
        ("deepseek_v3", ["attention.full", "moe.experts"]),  # latents; chooses by more than logits
        ("qwen3_next", ["attention.full", "moe.experts"]),  # states beside
    ],
)
def test_every_cache_group_has_times_of_its_own(
    name: str, slots_timed: list[str], tmp_path: Path, space: PluginSpace
) -> None:
    model = str(serve_checkpoint(name, tmp_path))
    options: dict[str, Any] = {
        "plugins": ("reference",),
        "block_tokens": 16,
        "max_context_tokens": 128,
        "max_running": 4,
    }
    with LLM(model, **options) as llm:
        plain = llm.generate([PROMPT], GREEDY)[0].token_ids
    with LLM(model, tune=True, objective="throughput", **options) as llm:
        slots = llm.engine.binding_plan.slots
        assert llm.generate([PROMPT], GREEDY)[0].token_ids == plain
    timed = [slot for slot in slots if slots[slot].record["evidence"]["used"]]
    assert timed == slots_timed
    for slot in timed:
        for entry in slots[slot].record["candidates"]:
            assert entry["clauses"] or entry["measured_us"] > 0


def test_a_pinned_backend_is_watched_no_more_than_others_are_timed(
    tmp_path: Path, space: PluginSpace
) -> None:
    model = str(serve_checkpoint("llama", tmp_path))
    options: dict[str, Any] = {"plugins": ("reference",), "attention": "reference/paged"}
    with LLM(model, tune=True, block_tokens=16, **options) as llm:
        record = llm.engine.binding_plan.slots["attention.full"].record
    assert record["winner"] == "reference/paged"
    assert not record["evidence"]["used"]
