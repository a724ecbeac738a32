"""`tune`: candidates are timed on the model's own shapes, once; a slow one loses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.plugin_wheels import PluginSpace
from tests.support.scripted import write_scripted_model
from tests.support.tiny_checkpoints import make_checkpoint

from tokenspeed import LLM, SamplingParams
from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.reports import Progress
from tokenspeed.engine.tuning import tune
from tokenspeed.errors import ConfigError

SLOW = """
import time

def slow(*args, **kwargs):
    from tokenspeed_reference.kernels.norm import rms_norm
    time.sleep(0.002)
    return rms_norm(*args, **kwargs)

class Plugin:
    @hookimpl
    def register_kernels(self, context):
        requires = {"arch": ("*",), "dtype": ("float32",)}
        context.offer(KernelOffer("norm.rms", "slow", lambda: slow, Band.SPECIALIZED, requires))

plugin = Plugin()
"""
PROMPT = list(range(5, 25))
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def make_model(folder: Path) -> str:
    model = make_checkpoint("llama", folder / "model")
    words = write_scripted_model(folder / "words")
    shutil.copy(words / "tokenizer.json", model / "tokenizer.json")
    return str(model)


def norm_record(llm: LLM) -> dict[str, Any]:
    records = [decision.record for decision in llm.engine.binding_plan.kernels]
    return dict(next(record for record in records if record["slot"] == "norm.rms"))


def test_a_slow_kernel_of_a_high_band_loses_once_it_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = PluginSpace(tmp_path / "site", monkeypatch)
    space.install("acme", SLOW, slots='operator = "1.0"', device_kinds='["cpu"]')
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "cache"))
    model = make_model(tmp_path)
    options: dict[str, Any] = {
        "plugins": ("acme",),
        "allow_experimental": ("acme",),
        "block_tokens": 16,
    }
    with LLM(model, **options) as llm:
        assert norm_record(llm)["winner"] == "acme/slow"
        assert norm_record(llm)["evidence"]["note"] == "nothing was measured"
        plain = llm.generate([PROMPT], GREEDY)[0].token_ids
    seen: list[Progress] = []
    with LLM(model, tune=True, progress=seen.append, **options) as llm:
        record = norm_record(llm)
        assert record["winner"] != "acme/slow"
        assert record["evidence"]["used"]
        times = {entry["offer"]: entry["measured_us"] for entry in record["candidates"]}
        assert times["acme/slow"] > 2000
        assert all(time_us is not None and time_us > 0 for time_us in times.values())
        assert llm.generate([PROMPT], GREEDY)[0].token_ids == plain
    tuning = [item for item in seen if item.stage == "tuning"]
    assert tuning[0].done == 0
    assert tuning[-1].done == tuning[-1].total > 10
    (file,) = (tmp_path / "cache" / "tuning").glob("*.json")
    shapes = json.loads(file.read_text())["shapes"]
    assert any(shape.startswith("norm.rms|float32[1x48]") for shape in shapes)
    check_later_starts(model, options)


def check_later_starts(model: str, options: dict[str, Any]) -> None:
    """A second tune builds no watched engine; a start without --tune uses what is there."""
    seen: list[Progress] = []
    with LLM(model, tune=True, progress=seen.append, **options) as llm:
        tuned = norm_record(llm)
    stages = [item.stage for item in seen]
    assert "tuning" not in stages
    assert stages.count("cache") == 1  # one engine was built, none watched
    with LLM(model, **options) as llm:
        assert norm_record(llm) == tuned
    with LLM(model, **{**options, "plugins": ("reference",)}) as llm:  # other versions, no times
        assert not norm_record(llm)["evidence"]["used"]


def test_a_cache_folder_that_cannot_be_written_ends_the_start_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "file"))
    built: list[object] = []
    with pytest.raises(ConfigError, match=r"measured times cannot be kept: .*Not a directory"):
        tune(EngineConfig(), lambda _: None, lambda *arguments: built.append(arguments))  # type: ignore[arg-type,func-returns-value]
    assert built == []


def test_a_trial_on_which_everybody_fails_refuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> float:
        raise RuntimeError("no clock")

    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("tokenspeed.engine.trials.time_sample", fail)
    model = make_model(tmp_path)
    with LLM(model, tune=True, plugins=("reference",), max_context_tokens=64) as llm:
        record = norm_record(llm)
        attention = llm.engine.binding_plan.slots["attention.full"].record
    assert record["evidence"]["note"] == "nothing was measured"
    assert [entry["offer"] for entry in record["candidates"] if entry["clauses"]] == []
    assert attention["evidence"]["used"]
    (file,) = (tmp_path / "cache" / "tuning").glob("*.json")
    assert json.loads(file.read_text())["failures"] == {}


def test_a_kernel_that_fails_is_refused_and_the_next_best_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = SLOW.replace("    time.sleep(0.002)\n", "    raise SystemExit('no such tile')\n")
    space = PluginSpace(tmp_path / "site", monkeypatch)
    space.install("acme", failing, slots='operator = "1.0"', device_kinds='["cpu"]')
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "cache"))
    options: dict[str, Any] = {"plugins": ("acme",), "allow_experimental": ("acme",)}
    model = make_model(tmp_path)
    with LLM(model, tune=True, max_context_tokens=64, block_tokens=16, **options) as llm:
        record = norm_record(llm)
    assert record["winner"] == "reference/rms_norm_cpu"
    told = {entry["offer"]: entry["reason"] for entry in record["candidates"]}
    assert "it ended with SystemExit: no such tile" in told["acme/slow"]
