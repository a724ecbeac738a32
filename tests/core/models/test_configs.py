"""Architectures read config.json strictly, declare their cache without torch, say what is cut."""

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

from tokenspeed.contracts.model import CacheGroup, gqa_fields
from tokenspeed.errors import CheckpointError, ConfigError

MODULES = ("llama", "qwen2", "qwen3")


def entry_class(module: str) -> Any:
    return import_module(f"tokenspeed.models.{module}").EntryClass


@pytest.mark.parametrize("module", MODULES)
def test_cache_groups_need_no_torch(module: str) -> None:
    code = (
        "import json, sys\n"
        f"from tokenspeed.models.{module} import EntryClass\n"
        "print(EntryClass.cache_groups(json.loads(sys.argv[1])))\n"
        "assert 'torch' not in sys.modules\n"
    )
    config = json.dumps(tiny_config())
    done = subprocess.run(
        [sys.executable, "-c", code, config], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str((CacheGroup("full", "full", (0, 1), gqa_fields(2, 4)),))


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"use_sliding_window": True, "max_window_layers": 1}, "use_sliding_window = True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "'dynamic'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config = 'gptq'"),
        ({"hidden_size": None}, "hidden_size = None"),
        ({"num_hidden_layers": -1}, "num_hidden_layers = -1"),
        ({"vocab_size": "32"}, "vocab_size = '32'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        ({"head_dim": 5}, "head_dim = 5"),
        ({"rms_norm_eps": 0}, "rms_norm_eps = 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'"),
        ({"layer_types": 5}, "layer_types = 5"),
        ({"quantization_config": []}, r"quantization_config = \[\]"),
        ({"rope_parameters": 5}, "rope_parameters = 5"),
        ({"rope_parameters": "x"}, "rope_parameters = 'x'"),
        ({"rope_scaling": [1]}, "rope_scaling = "),
        ({"rope_parameters": {"rope_type": []}, "rope_scaling": None}, "rope_type"),
        ({"rope_theta": "x"}, "rope_theta = 'x'"),
        ({"rope_theta": -1.0}, "rope_theta = -1.0"),
        ({"rope_theta": float("inf")}, "rope_theta = inf"),
        ({"rope_theta": 10**400}, "rope_theta = 1000"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor = 0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0}}, "factor = 0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": "x"}}, "mscale = 'x'"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers = 2147483648"),
        ({"num_hidden_layers": 2000}, "num_hidden_layers = 2000, an integer from 1 to 1024"),
        ({"head_dim": 2**31}, "head_dim = 2147483648"),
        ({"hidden_size": 2**40}, "hidden_size = "),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps = 1000"),
    ],
)
def test_unsupported_fields_are_refused_with_their_value(
    module: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        entry_class(module).cache_groups(tiny_config(**changes))


def test_a_window_beyond_the_last_layer_is_no_window() -> None:
    config = tiny_config(use_sliding_window=True, max_window_layers=2)
    assert entry_class("qwen2").cache_groups(config)


@pytest.mark.parametrize("module", MODULES)
def test_a_missing_tensor_is_named(module: str) -> None:
    model = entry_class(module)(tiny_config(), definition_context())
    with pytest.raises(CheckpointError, match="lacks"):
        model.load_weights(iter([("model.norm.weight", plain(torch.ones(16)))]))


def test_a_stored_copy_of_a_tied_head_is_ignored_and_derived_buffers_too() -> None:
    model = entry_class("llama")(tiny_config(tie_word_embeddings=True), definition_context())
    names = dict(model.weight_slots())
    tensors = [(name, plain(torch.ones(slot.shape))) for name, slot in names.items()]
    extra = [
        ("lm_head.weight", plain(torch.zeros(32, 16))),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", plain(torch.zeros(2))),
    ]
    model.load_weights(iter(tensors + extra))
    torch.testing.assert_close(model.compute_logits(torch.ones(1, 16)), torch.full((1, 32), 16.0))


@pytest.mark.parametrize("module", MODULES)
def test_every_layer_with_weights_says_how_it_is_spread(module: str) -> None:
    found = list(layers_with_weights(entry_class(module)(tiny_config(), definition_context())))
    assert len(found) >= 2 * 6 + 3
    assert all(isinstance(layer.spread, Mapping) for layer in found)
