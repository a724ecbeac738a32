"""Rotary tables equal transformers' and unsupported rules are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.model_contexts import definition_context
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tokenspeed.errors import ConfigError
from tokenspeed.layers import RopeParameters, RotaryEmbedding
from tokenspeed.layers.rotary import build_table

KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "original_max_position_embeddings": 256,
    },
    "yarn_tuned": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 20,
        "beta_slow": 2,
        "mscale": 0.7,
        "mscale_all_dim": 1.2,
        "truncate": False,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_table_equals_transformers(kind: str) -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=2048,
        rope_parameters=dict(KINDS[kind]),
    )
    positions = torch.arange(2048)[None]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    table = build_table(RopeParameters.read(config.to_dict()), 64, 2048)
    torch.testing.assert_close(table[:, :32], cos[0, :, :32], rtol=0, atol=2e-4)
    torch.testing.assert_close(table[:, 32:], sin[0, :, :32], rtol=0, atol=2e-4)


def test_older_config_fields_mean_the_same() -> None:
    fields = {name: value for name, value in KINDS["llama3"].items() if name != "rope_theta"}
    older = RopeParameters.read({"rope_theta": 5e5, "rope_scaling": fields})
    assert older == RopeParameters.read({"rope_parameters": KINDS["llama3"]})
    oldest = {"type" if name == "rope_type" else name: value for name, value in fields.items()}
    assert older == RopeParameters.read({"rope_theta": 5e5, "rope_scaling": oldest})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_type is 'longrope'"),
        ({"rope_scaling": {"type": "linear"}}, "factor = None"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": "8"}}, "factor = '8'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ],
)
def test_unsupported_rules_are_refused_by_name(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RopeParameters.read(config)


def test_angles_of_a_step_are_the_rows_of_the_table_spread_over_heads() -> None:
    rope = RopeParameters(theta=100.0)
    table = build_table(rope, 8, 64)
    angles = RotaryEmbedding(definition_context(64), rope, 8).angles(torch.tensor([5, 0, 63]))
    cos, sin = table[[5, 0, 63]].chunk(2, dim=-1)
    assert torch.equal(angles[0], torch.cat((cos, cos), dim=-1)[:, None])
    assert torch.equal(angles[1], torch.cat((-sin, sin), dim=-1)[:, None])
