"""Explaining a start: everything that `serve` chooses, and what it refuses, from config.json."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.model_contexts import tiny_config
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.cli.main import run as main
from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.explain import explain_start
from tokenspeed.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.engine.explain import Explanation

TIERS: dict[str, Any] = {"host_kv_gib": 0.01, "kv_store": "memory", "speculator": "ngram"}
PROFILE = {"kind": "acme", "name": "Acme One", "arch": "a1", "memory_bytes": 1 << 30}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **tiny_config()}))
    return path


def explained(model: Path, **settings: Any) -> Explanation:
    return explain_start(EngineConfig(model=str(model), **{"plugins": (), **settings}))


def test_what_is_used_only_when_it_is_named_is_chosen_too(model: Path) -> None:
    slots = explained(model, **TIERS).plan.slots
    assert slots["kv_store"].winner.pin == "reference/memory"
    assert slots["speculator"].winner.pin == "reference/ngram"
    assert not {"kv_store", "speculator"} & set(explained(model).plan.slots)


@pytest.mark.parametrize(
    ("slot", "name", "meant"),
    [
        ("kv_store", "memroy", "reference/memory"),
        ("speculator", "refrence/ngram", "reference/ngram"),
        ("policy", "lru", "core/lru"),
        ("policy", "core/lur", "core/lru"),
    ],
)
def test_a_misspelled_name_is_a_failure_with_the_one_meant(
    model: Path, slot: str, name: str, meant: str
) -> None:
    failures = explained(model, **{**TIERS, slot: name}).failures
    assert list(failures) == [slot]
    assert failures[slot].id == "pin-unknown"
    assert f"did you mean {meant!r}?" in failures[slot].message


def test_settings_that_serve_refuses_are_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="set host_kv_gib"):
        explained(model, kv_store="memory")
    with pytest.raises(ConfigError, match="did you mean 'attention'"):
        explained(model, pins=("attntion=reference/paged",))


def test_no_candidate_of_a_choice_that_fails_is_without_a_reason(model: Path) -> None:
    failures = explained(model, policy="core/lur").failures
    reasons = [entry["reason"] for entry in failures["policy"].record["candidates"]]
    assert reasons == ["core/lur is pinned", "core/lur is pinned"]


def test_the_default_policy_is_not_called_pinned(model: Path) -> None:
    chosen = {
        policy: {
            entry["offer"]: entry["reason"]
            for entry in explained(model, policy=policy).plan.slots["policy"].record["candidates"]
        }
        for policy in ("core/return_time", "core/lru")
    }
    assert chosen["core/return_time"] == {
        "core/lru": "core/return_time is the default",
        "core/return_time": "the default",
    }
    assert chosen["core/lru"] == {"core/lru": "pinned", "core/return_time": "core/lru is pinned"}


def test_the_model_may_be_the_argument_and_none_is_the_default(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for named in ([str(model)], ["--model", str(model)]):
        assert main(["plugins", "explain", *named, "--slot", "model"]) == 0
        assert "core/LlamaForCausalLM  0.1.0    REFERENCE  won" in capsys.readouterr().out
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(CheckpointError, match="the default model is not at"):
        explain_start(EngineConfig())


def test_a_plugin_whose_manifest_states_nothing_is_named_as_such(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    space = PluginSpace(tmp_path / "site", monkeypatch)
    space.install("acme", slots='device = "1.0"', probe='"PACKAGE:find"')
    profile = tmp_path / "acme.json"
    profile.write_text(json.dumps(PROFILE))
    command = ["plugins", "explain", str(model), "--device", str(profile), "--slot", "attention"]
    main([*command, "--plugins", "acme"])
    assert "plugin   acme is known by its manifest alone" in capsys.readouterr().out
    main(command)
    assert "manifest alone" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("x", "valid UTF-8 JSON was expected"),
        ("[]", "it holds a JSON list"),
        (json.dumps({**PROFILE, "memory_bytes": "64G"}), "a whole number is needed"),
    ],
)
def test_a_profile_that_cannot_be_read_says_what_to_give_once(
    text: str | None,
    words: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile = tmp_path / "acme.json"
    if text is not None:
        profile.write_text(text)
    assert main(["plugins", "explain", str(model), "--device", str(profile)]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count('{"kind": "acme"') == 1
    assert told.count(str(profile)) == 1
    assert "model folder" not in told
