"""DeepSeek-V2 and V3 decode as transformers does, though keys and values are never expanded.

Float32 on the reference plugin, through scheduler and executor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.engine_parts import Job, build_parts
from tests.support.model_contexts import definition_context
from tests.support.served_checkpoints import byte_tokenizer
from tests.support.tiny_checkpoints import (
    LATENT_SPECS,
    decode_greedily,
    make_checkpoint,
    make_prompts,
)

from tokenspeed import LLM
from tokenspeed.errors import CheckpointError, ConfigError
from tokenspeed.models.deepseek_v2 import EntryClass as DeepseekV2
from tokenspeed.models.deepseek_v3 import EntryClass as DeepseekV3
from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

NUM_TOKENS = 48
PROMPTS = make_prompts([1, 7, 33, 90], shared=20)
TOLERANCE = 1e-4


@pytest.mark.parametrize("name", LATENT_SPECS)
def test_greedy_tokens_equal_transformers(checkpoint_folder: Path, name: str) -> None:
    wanted = decode_greedily(make_checkpoint(name, checkpoint_folder), PROMPTS, NUM_TOKENS)
    assert wanted.median_gap > 100 * TOLERANCE
    parts = build_parts(checkpoint_folder / name, max_step_tokens=48)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    assert parts.run([Job(prompt, params) for prompt in PROMPTS]).tokens == wanted.tokens


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_engine_serves_latents_from_its_prefix_cache(
    checkpoint_folder: Path, deterministic: bool
) -> None:
    path = make_checkpoint("deepseek_v3", checkpoint_folder)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    wanted = decode_greedily(path, PROMPTS, NUM_TOKENS)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    settings: dict[str, Any] = {"plugins": "reference", "dtype": "float32", "kv_gib": 0.01}
    with LLM(str(path), block_tokens=16, deterministic=deterministic, **settings) as llm:
        for _ in range(2):
            outputs = llm.generate(PROMPTS, params)
            assert [list(output.token_ids) for output in outputs] == wanted.tokens
        assert [output.cached_tokens for output in outputs[1:]] == [
            len(prompt) - 1 for prompt in PROMPTS[1:]
        ]


TINY = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "kv_lora_rank": 4,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
    "moe_intermediate_size": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"topk_method": "noaux_tc"}, "topk_method = 'noaux_tc'"),
        ({"norm_topk_prob": True}, "norm_topk_prob = True"),
        ({"moe_layer_freq": 2}, "moe_layer_freq = 2"),
        ({"qk_rope_head_dim": 3}, "qk_rope_head_dim = 3"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config = 'fp8'"),
        ({"topk_method": "group_limited_greedy", "n_group": 3}, "n_routed_experts = 4"),
        ({"n_shared_experts": 0}, "n_shared_experts = 0"),
        ({"kv_lora_rank": None}, "kv_lora_rank = None"),
    ],
)
def test_what_v2_does_not_have_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    assert DeepseekV2.cache_groups(TINY)[0].value_dim == 4
    with pytest.raises(ConfigError, match=said):
        DeepseekV2.cache_groups({**TINY, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
        ({"topk_method": "greedy"}, "topk_method = 'greedy'"),
        ({"n_group": None}, "n_group = None"),
        ({"topk_group": 3}, "topk_group = 3.* from 1 to 2"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok = 5"),
    ],
)
def test_what_v3_does_not_have_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    config = {**TINY, "n_group": 2, "topk_group": 1}
    assert DeepseekV3.expert_groups(config)[0].routing.group_best == 2
    with pytest.raises(ConfigError, match=said):
        DeepseekV3.expert_groups({**config, **changes})


def test_layers_that_make_drafts_are_left_out(checkpoint_folder: Path) -> None:
    import torch

    from tokenspeed.contracts.weights import LinearWeight

    config = {**TINY, "n_group": 2, "topk_group": 1, "num_nextn_predict_layers": 1}
    model, other = (DeepseekV3(config, definition_context()) for _ in range(2))
    needed = {
        name: LinearWeight(slot.shape, torch.zeros(slot.shape))
        for name, slot in model.weight_map().items()
    }
    extra = LinearWeight((3,), torch.zeros(3))
    model.load_weights([*needed.items(), ("model.layers.2.enorm.weight", extra)])
    with pytest.raises(CheckpointError, match=r"model\.layers\.3"):
        other.load_weights([*needed.items(), ("model.layers.3.enorm.weight", extra)])
