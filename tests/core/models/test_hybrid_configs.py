"""Hybrid architectures read config.json strictly and declare their cache groups without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest
import torch
from tests.support.model_contexts import definition_context, layers_with_weights, plain, tiny_config

from tokenspeed.contracts.model import CacheField, CacheGroup, gqa_fields
from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.errors import CheckpointError, ConfigError

GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 3,
    "linear_value_head_dim": 5,
    "full_attention_interval": 2,
    "partial_rotary_factor": 0.5,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 6,
    "shared_expert_intermediate_size": 7,
}
CONFIGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpt_oss": ("gpt_oss", GPT_OSS),
    "qwen3_next": ("qwen3_next", {**DELTA, **EXPERTS}),
    "qwen3_5": ("qwen3_5", DELTA),
    "qwen3_5_moe": ("qwen3_5", {**DELTA, **EXPERTS}),
}
KV = gqa_fields(2, 4)
STATE = (
    CacheField("conv", (32, 3), "float32", units=2),
    CacheField("recurrent", (4, 3, 5), "float32", units=2),
)
DELTA_GROUPS = (
    CacheGroup("full", "full", (1, 3), KV),
    CacheGroup("state", "state", (0, 2), STATE, speculation="rows_per_position"),
)
GROUPS = {
    "gpt_oss": (
        CacheGroup("full", "full", (1, 3), KV, sinks=True),
        CacheGroup("window", "window", (0, 2), KV, window=8, sinks=True),
    ),
    "qwen3_next": DELTA_GROUPS,
    "qwen3_5": DELTA_GROUPS,
    "qwen3_5_moe": DELTA_GROUPS,
}


def make_config(name: str, **changes: Any) -> Mapping[str, Any]:
    return tiny_config(**{"num_hidden_layers": 4, **CONFIGS[name][1], **changes})


def entry_class(name: str) -> Any:
    return import_module(f"tokenspeed.models.{CONFIGS[name][0]}").EntryClass


def build(name: str, **changes: Any) -> Any:
    context = definition_context(groups=("full", "window"))
    return entry_class(name)(make_config(name, **changes), context)


@pytest.mark.parametrize("name", CONFIGS)
def test_cache_groups_need_no_torch(name: str) -> None:
    code = (
        "import json, sys\n"
        f"from tokenspeed.models.{CONFIGS[name][0]} import EntryClass\n"
        "print(EntryClass.cache_groups(json.loads(sys.argv[1])))\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(make_config(name))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(GROUPS[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_full_attention_alone_declares_one_group(name: str) -> None:
    config = make_config(name, layer_types=["full_attention"] * 4)
    (group,) = entry_class(name).cache_groups(config)
    assert (group.kind, group.layers) == ("full", (0, 1, 2, 3))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types for 3 layers"),
        ({"layer_types": ["chunked_attention"] * 4}, "'chunked_attention'"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config = 'mxfp4'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "'dynamic'"),
        ({"num_hidden_layers": None}, "num_hidden_layers = None"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        ({"head_dim": 5}, "head_dim = 5"),
    ],
)
def test_what_is_unsupported_is_refused_by_name(
    name: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        entry_class(name).cache_groups(make_config(name, **changes))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("gpt_oss", {"layer_types": ["sliding_attention"] * 4}, "at least one full_attention"),
        ("gpt_oss", {"num_experts_per_tok": 5}, "num_experts_per_tok = 5.* from 1 to 4"),
        ("gpt_oss", {"sliding_window": 0}, "sliding_window = 0"),
        ("gpt_oss", {"swiglu_limit": -1.0}, "swiglu_limit = -1.0"),
        ("gpt_oss", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("qwen3_next", {"linear_num_value_heads": 3}, "linear_num_value_heads = 3, a multiple"),
        ("qwen3_next", {"mlp_only_layers": [4]}, r"mlp_only_layers = \[4\]"),
        ("qwen3_next", {"mlp_only_layers": 1}, "mlp_only_layers = 1"),
        ("qwen3_next", {"norm_topk_prob": 1}, "norm_topk_prob = 1"),
        ("qwen3_next", {"partial_rotary_factor": 0.3}, "rotates 1 of head_dim = 4"),
        ("qwen3_next", {"partial_rotary_factor": 0.1}, "rotates 0 of head_dim = 4"),
        ("qwen3_next", {"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5, at most"),
        ("qwen3_5", {"intermediate_size": None}, "intermediate_size = None"),
        ("qwen3_5_moe", {"moe_intermediate_size": None}, "moe_intermediate_size = None"),
    ],
)
def test_what_one_architecture_refuses(name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        entry_class(name).cache_groups(make_config(name, **changes))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_layer_with_weights_says_how_it_is_spread(name: str) -> None:
    found = list(layers_with_weights(build(name)))
    assert len(found) >= 4 * 6 + 3
    assert all(isinstance(layer.spread, Mapping) for layer in found)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_missing_tensor_is_named(name: str) -> None:
    with pytest.raises(CheckpointError, match="lacks"):
        build(name).load_weights(iter([("model.norm.weight", plain(torch.ones(16)))]))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj"),
        ("qwen3_next", "model.layers.0.mlp.experts.2.up_proj.weight"),
        ("qwen3_next", "model.layers.0.linear_attn.in_proj_qkvz.weight"),
    ],
)
def test_packed_tensors_of_stacked_weights_are_refused(name: str, tensor: str) -> None:
    model = build(name)
    packed = LinearWeight(dict(model.weight_slots())[tensor].shape, None, "q4_1")
    with pytest.raises(CheckpointError, match="is packed as q4_1"):
        model.load_weights(iter([(tensor, packed)]))


def test_heads_for_drafts_are_left_out() -> None:
    model = build("qwen3_next")
    extra = ("mtp.layers.0.mlp.gate.weight", plain(torch.zeros(3, 3)))
    with pytest.raises(CheckpointError, match="lacks"):
        model.load_weights(iter([extra]))
    with pytest.raises(CheckpointError, match="not part of this architecture"):
        build("gpt_oss").load_weights(iter([extra]))
