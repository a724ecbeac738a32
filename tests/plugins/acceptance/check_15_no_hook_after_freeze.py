"""Check 15: a thousand decode steps call no hook; one that is called raises here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.damage import write_tiny_folder
from tests.support.server import ServerProcess

from tokenspeed.plugins import load_plugins

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 1000


def test_15_no_hook_after_freeze(tmp_path: Path) -> None:
    model = write_tiny_folder(tmp_path / "tiny")
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = 2048
    (model / "config.json").write_text(json.dumps(config))
    flags = ("--kv-gib", "0.01", "--threads", "1")
    counting = {"TOKENSPEED_TEST_STRICT": "0"}  # as in production
    with ServerProcess(model, tmp_path, *flags, environ=counting) as server:
        body = {"prompt": [5], "max_tokens": STEPS + 1, "ignore_eos": True, "temperature": 0}
        answer = server.call("/v1/completions", {"model": server.model, **body})
        assert answer.status == 200, answer.body
        assert answer.json()["usage"]["completion_tokens"] == STEPS + 1
        server.wait_metric("tokenspeed_steps_total", STEPS + 1)
        assert server.metric("tokenspeed_hook_calls_after_freeze_total") == 0


def test_15_a_hook_call_after_the_freeze_raises_in_tests() -> None:
    registry = load_plugins((), role="engine")
    registry.on_hook_call("register_models")
    registry.freeze(strict=True)
    with pytest.raises(AssertionError, match="register_models was called after the freeze"):
        registry.on_hook_call("register_models")
