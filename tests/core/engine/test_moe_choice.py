"""Which MoE backend a start chooses, told by the request that a model's config makes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.model_contexts import tiny_config
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.explain import explain_start

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.engine.explain import Explanation

QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 6,
}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
}
BODY = """
class Plugin:
    @hookimpl
    def register_moe_backends(self, context):
        requires = {name: ("*",) for name in (
            "device", "arch", "dtype", "num_experts", "top_k", "hidden_size", "expert_features"
        )}
        context.offer(Offer("moe", "grouped", print, band="PERFORMANT", requires=requires))

plugin = Plugin()
"""


def explained(folder: Path, fields: dict[str, Any], **settings: Any) -> Explanation:
    path = folder / "config.json"
    path.write_text(json.dumps({**tiny_config(num_hidden_layers=2), **fields}))
    return explain_start(EngineConfig(model=str(path), **{"plugins": (), **settings}))


def winner(explanation: Explanation) -> str:
    return explanation.plan.slots["moe.experts"].winner.pin


@pytest.mark.parametrize(
    ("settings", "pin"),
    [
        ({}, "reference/plain"),
        ({"deterministic": True}, "reference/rowwise"),
        ({"pins": ("moe=reference/rowwise",)}, "reference/rowwise"),
    ],
)
def test_the_reference_backend_is_chosen(
    tmp_path: Path, settings: dict[str, Any], pin: str
) -> None:
    assert winner(explained(tmp_path, QWEN3_MOE, **settings)) == pin


def test_a_dense_model_chooses_none(tmp_path: Path) -> None:
    fields = {"architectures": ["Qwen3ForCausalLM"]}
    assert not [slot for slot in explained(tmp_path, fields).plan.slots if "moe" in slot]


def test_a_vendors_backend_wins_by_band_and_is_refused_what_it_does_not_declare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = PluginSpace(tmp_path / "site", monkeypatch)
    space.install("acme", BODY, slots='moe = "1.0"')
    assert winner(explained(tmp_path, QWEN3_MOE, plugins=("acme",))) == "acme/grouped"
    refused = explained(tmp_path, GPT_OSS, plugins=("acme",))
    assert winner(refused) == "reference/plain"
    record = refused.plan.slots["moe.experts"].record
    (grouped,) = [item for item in record["candidates"] if item["offer"] == "acme/grouped"]
    clauses = {clause["id"] for clause in grouped["clauses"]}
    assert clauses == {"trait.expert_gate", "trait.expert_bias"}
