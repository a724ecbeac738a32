"""Acceptance 11: a pin that cannot do it is exit 5 with the record; forced, it runs, marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess

from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.explain import explain_start

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.plugin_wheels import WheelFolder

BODY = """
def load(**options):
    from tokenspeed_reference.attention import PagedAttention
    return PagedAttention(**options)

REQUIRES = {
    "arch": ("*",),
    "dtype": ("float32",),
    "head_dim": (9999,),
    "block_tokens": ("*",),
    "gqa_ratio": ("*",),
}

class Plugin:
    @hookimpl
    def register_attention_backends(self, context):
        context.offer(Offer("attention", "flash", load, "SPECIALIZED", REQUIRES))

plugin = Plugin()
"""
PINNED = ("--plugins", "sdk,acme", "--attention", "acme/flash")
FORCED = (*PINNED, "--unsafe-force", "trait.head_dim")


@pytest.fixture
def pinned_model(tmp_path: Path, wheels: WheelFolder) -> Path:
    wheels.install("acme", BODY, slots='attention = "1.0"')
    return write_scripted_model(tmp_path / "scripted", script="Hi.", max_position_embeddings=256)


def test_11_pins_and_force(pinned_model: Path, wheels: WheelFolder, tmp_path: Path) -> None:
    refused = wheels.tokenspeed("serve", str(pinned_model), "--port", "0", *PINNED)
    assert refused.returncode == 5, refused.stderr
    assert "is pinned to acme/flash, which cannot do it: trait.head_dim" in refused.stderr
    assert "nearest offers: reference/paged_cpu, reference/paged;" in refused.stderr
    assert "refused acme/flash 1.2.3 SPECIALIZED: trait.head_dim: wanted" in refused.stderr
    assert "[pin-unsupported]" in refused.stderr
    with ServerProcess(pinned_model, tmp_path, *FORCED, environ=wheels.environ()) as server:
        plan = server.call("/v1/engine/plan").json()["plan"]
        metrics = server.call("/metrics").body.decode()
        body = {"model": server.model, "prompt": "x", "max_tokens": 2}
        assert server.call("/v1/completions", body).status == 200
    assert plan["is_tainted"]
    (slot,) = plan["forced"]
    assert plan["forced"] == {slot: ["trait.head_dim"]}
    assert plan["slots"][slot]["record"]["forced"] == ["trait.head_dim"]
    (line,) = (text for text in metrics.splitlines() if f'slot="{slot}"' in text)
    assert line.startswith("tokenspeed_binding_info{")
    for label in ('plugin="acme"', 'tainted="true"', 'forced="trait.head_dim"'):
        assert label in line
    log = server.log.read_text()
    assert "is TAINTED: acme/flash was forced past trait.head_dim" in log
    assert "TAINTED    forced attention" in log


def test_11_explain_shows_the_taint(
    pinned_model: Path, wheels: WheelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("plugins", "explain", "--model", str(pinned_model), "--slot", "attention", *FORCED)
    text = wheels.tokenspeed(*command).stdout
    assert "TAINTED by --unsafe-force" in text
    assert "pinned, and forced past trait.head_dim" in text
    monkeypatch.syspath_prepend(str(wheels.folder))
    forced = EngineConfig(
        model=str(pinned_model),
        plugins=("sdk", "acme"),
        attention="acme/flash",
        unsafe_force=("trait.head_dim",),
    )
    assert explain_start(forced).to_json()["is_tainted"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--unsafe-force", "trait.head_dim"), "nothing is pinned"),
        ((*PINNED, "--unsafe-force", "trait.headdim"), "did you mean 'trait.head_dim'"),
        (("--pins", "attention"), "is not SLOT=PLUGIN/NAME"),
        (("--prefer", "vendr=acme"), "did you mean 'vendor'"),
        (("--prefer", "graph_safe=maybe"), "true or false is needed"),
    ],
)
def test_11_wrong_rules_are_refused_before_a_process_starts(
    pinned_model: Path, wheels: WheelFolder, flags: tuple[str, ...], words: str
) -> None:
    result = wheels.tokenspeed("serve", str(pinned_model), "--port", "0", *flags)
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
