"""Qwen3-MoE decodes as transformers does, whichever layers have experts; its config is strict.

Float32 on the reference plugin, through scheduler and executor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.engine_parts import Job, build_parts
from tests.support.model_contexts import definition_context, tiny_config
from tests.support.tiny_checkpoints import (
    MOE_SPECS,
    decode_greedily,
    make_checkpoint,
    make_prompts,
)

from tokenspeed.contracts.moe import ExpertGroup, Routing
from tokenspeed.errors import ConfigError
from tokenspeed.layers import GatedMLP, MoE
from tokenspeed.models.qwen3_moe import EntryClass
from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

NUM_TOKENS = 48
PROMPTS = make_prompts([1, 7, 33, 90], shared=20)
TOLERANCE = 1e-4
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6}


@pytest.mark.parametrize("name", MOE_SPECS)
def test_greedy_tokens_equal_transformers(checkpoint_folder: Path, name: str) -> None:
    wanted = decode_greedily(make_checkpoint(name, checkpoint_folder), PROMPTS, NUM_TOKENS)
    assert wanted.median_gap > 100 * TOLERANCE
    parts = build_parts(checkpoint_folder / name, max_step_tokens=48)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    assert parts.run([Job(prompt, params) for prompt in PROMPTS]).tokens == wanted.tokens


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({}, (0, 1, 2, 3)),
        ({"decoder_sparse_step": 2}, (1, 3)),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, (1,)),
        ({"mlp_only_layers": [0, 1, 2, 3]}, ()),
    ],
)
def test_sparse_layers_are_those_that_transformers_makes_sparse(
    fields: dict[str, Any], layers: tuple[int, ...]
) -> None:
    config = tiny_config(num_hidden_layers=4, **EXPERTS, **fields)
    group = ExpertGroup("experts", layers, 4, 16, 6, Routing(2, normalise=False))
    assert EntryClass.expert_groups(config) == ((group,) if layers else ())
    model = EntryClass(config, definition_context())
    kinds = [MoE if layer in layers else GatedMLP for layer in range(4)]
    assert [type(layer.mlp) for layer in model.layers] == kinds


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_sliding_window": True}, "use_sliding_window = True"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config = 'fp8'"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"num_experts": 0}, "num_experts = 0"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok = 5.* from 1 to 4"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size = None"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob = 'yes'"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step = 0"),
        ({"mlp_only_layers": [2]}, r"mlp_only_layers = \[2\]"),
    ],
)
def test_what_is_unsupported_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EntryClass.expert_groups(tiny_config(**{**EXPERTS, **changes}))
