"""Acceptance 10: explain for an H200, a B200 and an MI355X on a machine that has none of them.

Set REWRITE_GOLDEN=1 to write the golden files anew, and read the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.plugin_wheels import PluginSpace
from tests.support.source_tree import ROOT
from tests.support.vendor_wheels import install_vendors

import tokenspeed
from tokenspeed.cli.main import run as main

if TYPE_CHECKING:
    from collections.abc import Callable

PROFILES = "tests/support/profiles"
MODEL = f"{PROFILES}/llama-8b.json"
GOLDEN = Path(__file__).parent / "golden"
WINNERS = {
    "h200": "hopper/paged_hopper",
    "b200": "blackwell/paged_blackwell",
    "mi355x": "cdna/paged_cdna",
}


@pytest.fixture
def explain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Run the command in this process, with the three wheels installed; returns (code, stdout)."""
    plugins = install_vendors(PluginSpace(tmp_path / "site", monkeypatch))
    monkeypatch.chdir(ROOT)

    def run(device: str, *flags: str) -> tuple[int, str]:
        command = ["plugins", "explain", "--model", MODEL, "--plugins", ",".join(plugins)]
        code = main([*command, "--device", f"{PROFILES}/{device}.json", *flags])
        return code, capsys.readouterr().out

    return run


def test_10_explain_without_a_device(explain: Callable[..., tuple[int, str]]) -> None:
    for device, winner in WINNERS.items():
        code, text = explain(device, "--slot", "attention", "--json")
        data = json.loads(text)
        assert code == 0, text
        assert data["slots"]["attention.full"]["record"]["winner"] == winner
        check_golden(f"explain_{device}.json", json.dumps(told(data), indent=2) + "\n")
        _, text = explain(device, "--slot", "attention")
        check_golden(f"explain_{device}.txt", without_digest(text))


def told(data: dict[str, Any]) -> dict[str, Any]:
    """Leave out what another plugin or operator would change."""
    return {name: data[name] for name in ("architecture", "dtype", "device", "slots", "failures")}


def without_digest(text: str) -> str:
    return "".join(line for line in text.splitlines(True) if not line.startswith("plan "))


def check_golden(name: str, text: str) -> None:
    text = text.replace(tokenspeed.__version__, "VERSION")
    path = GOLDEN / name
    if os.environ.get("REWRITE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text(), f"{name} differs; REWRITE_GOLDEN=1 writes it anew"


def test_10_why_not_says_every_clause(explain: Callable[..., tuple[int, str]]) -> None:
    code, text = explain("h200", "--why-not", "blackwell/paged_blackwell")
    assert code == 0
    assert "blackwell/paged_blackwell refused attention.full" in text
    assert "trait.arch: wanted 'sm_90a' or 'sm_90', has 'sm_100a', 'sm_103a'" in text
    _, text = explain("mi355x", "--why-not", "hopper/paged_hopper", "--json")
    clauses = [clause["id"] for clause in json.loads(text)[0]["clauses"]]
    assert clauses == ["trait.arch", "trait.device"]


def test_10_an_offer_that_is_no_candidate_is_named_with_the_nearest(
    explain: Callable[..., tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = explain("h200", "--why-not", "hopper/paged_hoper")
    assert code == 5


def test_10_every_kernel_of_the_model_is_explained(
    explain: Callable[..., tuple[int, str]],
) -> None:
    code, text = explain("h200", "--json")
    data = json.loads(text)
    assert code == 0
    chosen = {item["record"]["slot"] for item in data["kernels"]}
    assert {"linear.dense", "norm.rms", "rotary.apply", "embedding.lookup"} <= chosen
    assert all(item["record"]["traits"]["arch"] == ["sm_90a", "sm_90"] for item in data["kernels"])
    states = {item["id"]: item["state"] for item in data["plugins"]}
    assert {states[name] for name in ("hopper", "blackwell", "cdna")} == {"stated"}
