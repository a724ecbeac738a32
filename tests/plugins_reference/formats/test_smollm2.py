"""The default model's real file, tensor for tensor against transformers' own loader."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tokenspeed_reference.formats.gguf import GgufFormat
from tokenspeed_sdk import cache_dir

MODEL = cache_dir() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
"""Resolved at import, before the cache folder of the tests takes over."""


@pytest.fixture(scope="module")
def model_file() -> Path:
    assert MODEL.is_file(), f"{MODEL} is missing; run `make model` first"
    return MODEL


def test_the_real_file_opens_and_is_whole(model_file: Path) -> None:
    source = GgufFormat().open(model_file)
    weights = dict(source.tensors(torch.float32, keep_packed=True))
    assert len(weights) == 272
    assert source.bytes_read == source.total_bytes == 96_576_768
    assert weights["model.embed_tokens.weight"].packing == "q8_0"
    assert weights["model.layers.29.mlp.down_proj.weight"].packing == "q4_1"
    assert source.config()["rope_theta"] == 100_000.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_tensor_and_the_config_equal_transformers(model_file: Path) -> None:
    from transformers import AutoModelForCausalLM, GgufConfig

    theirs = AutoModelForCausalLM.from_pretrained(
        str(model_file.parent),
        gguf_file=model_file.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    source = GgufFormat().open(model_file)
    wanted = theirs.state_dict()
    wanted.pop("lm_head.weight")  # tied
    for name, weight in source.tensors(torch.float32, keep_packed=False):
        assert weight.plain is not None
        assert torch.equal(weight.plain, wanted.pop(name)), name
    assert not wanted
    config = source.config()
    for key in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "vocab_size",
        "tie_word_embeddings", "eos_token_id", "head_dim", "attention_bias", "mlp_bias",
    ):  # fmt: skip
        assert config[key] == pytest.approx(getattr(theirs.config, key), rel=1e-6), key
