"""Building an engine: what is missing or wrong is named, what was chosen is in the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.damage import write_tiny_folder
from tests.support.engines import TEST_SETTINGS
from tests.support.scripted import write_scripted_model

from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.build import build_engine
from tokenspeed.engine.facts import model_name
from tokenspeed.engine.memory import memory_errors
from tokenspeed.engine.reports import Progress
from tokenspeed.errors import (
    CapabilityError,
    CapacityError,
    CheckpointError,
    ConfigError,
    PluginError,
)


def config_for(model: Path, **settings: Any) -> EngineConfig:
    """Settings of a small engine."""
    return EngineConfig(model=str(model), **{**TEST_SETTINGS, **settings})


def test_the_plan_names_every_choice_and_progress_every_stage(tmp_path: Path) -> None:
    seen: list[Progress] = []
    engine = build_engine(config_for(write_scripted_model(tmp_path / "m")), progress=seen.append)
    assert set(engine.binding_plan.slots) == {
        "device",
        "grammar",
        "weight_format",
        "model",
        "attention.full",
        "policy",
        "sampler",
        "communicator",
    }
    assert [progress.stage for progress in seen] == ["plugins", "model", "weights", "cache"]
    assert engine.info.name == "m"
    assert engine.info.max_prompt_tokens == 4095
    assert engine.registry.hook_calls_after_freeze == 0


def test_an_engine_of_one_rank_has_collectives_and_leaves_them_when_it_closes(
    tmp_path: Path,
) -> None:
    engine = build_engine(config_for(write_scripted_model(tmp_path / "m")))
    assert engine.communicator is not None
    assert (engine.communicator.rank, engine.communicator.size) == (0, 1)
    engine.communicator.barrier()
    engine.close()
    with pytest.raises(ValueError, match="has left"):
        engine.communicator.barrier()


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"device": "quantum"}, CapabilityError, "device 'quantum' is not offered"),
        ({"attention": "reference/pagd"}, CapabilityError, "reference/paged"),
        ({"sampler": "sdk/dice"}, CapabilityError, "sdk/dice"),
        ({"pins": ("communicator=sdk/pigeons",)}, CapabilityError, "sdk/pigeons"),
        ({"plugins": ("reference",)}, CheckpointError, "no known format"),
        ({"plugins": ("sdkk",)}, PluginError, "sdk"),
        ({"dtype": "bfloat16"}, ConfigError, "needs float32"),
        ({"kv_gib": 1e-7}, CapacityError, "too small"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        build_engine(config_for(write_scripted_model(tmp_path / "m"), **settings))


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"policy": "core/none"}, CapabilityError, "core/none"),
        ({"kv_store": "tape", "host_kv_gib": 0.01}, CapabilityError, "kv_store 'tape'"),
        (
            {"kv_store": "memory", "host_kv_gib": 0.01, "kv_store_folder": "/dev/null/kv"},
            ConfigError,
            "/dev/null is not a folder",
        ),
        ({"record": "/dev/null/run"}, ConfigError, "record /dev/null/run cannot be written"),
        ({"kv_events": "tcp://999.1.1.1:5"}, ConfigError, "cannot be bound"),
        ({"kv_events_replay": "tcp://*:0"}, ConfigError, "kv_events is empty"),
    ],
)
def test_what_cannot_be_used_is_refused_before_the_weights_are_read(
    tmp_path: Path, settings: dict[str, Any], kind: type[Exception], text: str
) -> None:
    seen: list[Progress] = []
    settings = {"plugins": ("reference", "sdk"), **settings}
    with pytest.raises(kind, match=text):
        build_engine(
            config_for(write_scripted_model(tmp_path / "m"), **settings), progress=seen.append
        )
    assert not {"weights", "cache"} & {progress.stage for progress in seen}


def test_an_unknown_architecture_is_refused_with_those_there_are(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "m", architectures=["LlamaForCausalLLM"])
    with pytest.raises(ConfigError, match="did you mean LlamaForCausalLM"):
        build_engine(config_for(model))


def test_a_missing_model_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not on this machine: a Hugging Face folder"):
        build_engine(config_for(tmp_path / "nowhere"))


def test_the_default_model_that_was_not_fetched_says_how_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"python -m tokenspeed\.checkpoint\.default_model"):
        build_engine(EngineConfig())


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("llama-3-8b-Q4_K_M.gguf", "llama-3-8b"),
        ("model.f16.gguf", "model"),
        ("qwen2.5-7b.gguf", "qwen2.5-7b"),
    ],
)
def test_a_file_is_served_under_its_name_without_storage_type(
    tmp_path: Path, file: str, name: str
) -> None:
    (tmp_path / file).touch()
    assert model_name(tmp_path / file) == name


def test_a_folder_is_served_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "Qwen3-8B.v1").mkdir()
    assert model_name(tmp_path / "Qwen3-8B.v1") == "Qwen3-8B.v1"


@pytest.mark.parametrize(
    ("model", "text"),
    [("x" * 300, "too long"), ("/" + "x/" * 5000, "too long"), ("~nobody-here/m", "home")],
)
def test_a_path_that_cannot_be_looked_at_is_refused(model: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build_engine(EngineConfig(model=model))


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "m", vocab_size=100, eos_token_id=5)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        build_engine(config_for(model))


def test_memory_that_is_not_there_is_a_capacity_error_and_nothing_else_is() -> None:
    with pytest.raises(CapacityError, match="no memory for the test"), memory_errors("the test"):
        torch.empty(2**50, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="size"), memory_errors("the test"):
        torch.zeros(2) + torch.zeros(3)


def test_integers_in_place_of_weights_are_refused(tmp_path: Path) -> None:
    model = write_tiny_folder(tmp_path / "m")
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"I32"'))
    with pytest.raises(CheckpointError, match=r"holds torch\.int32, floating point"):
        build_engine(EngineConfig(model=str(model), plugins=("reference",)))


def test_the_start_report_names_policy_tiers_and_speculator(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "m")
    settings = {"policy": "core/lru", "speculator": "ngram", "max_drafts": 3}
    tiers = {"host_kv_gib": 0.001, "kv_store": "memory", "kv_store_gib": 2.0}
    engine = build_engine(config_for(model, **settings, **tiers))
    report = engine.report
    engine.close()
    assert (report.policy, report.speculator, report.max_drafts) == (
        "core/lru",
        "reference/ngram",
        3,
    )
    (host, kept), store = report.tiers
    assert (host, store) == ("host", ("store", "reference/memory, at most 2 GiB"))
    assert kept.endswith(" MiB, on_commit")
    assert "speculator" not in dict(report.kernels)


def test_a_plain_start_has_the_default_policy_and_the_device_alone(tmp_path: Path) -> None:
    engine = build_engine(config_for(write_scripted_model(tmp_path / "m")))
    report = engine.report
    engine.close()
    assert (report.policy, report.speculator, report.tiers) == ("core/return_time", "", ())
