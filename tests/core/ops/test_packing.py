"""The packed layouts mean what the public gguf package says they mean."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from tokenspeed.ops import packing

TYPES = {
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_k": gguf.GGMLQuantizationType.Q4_K,
    "q6_k": gguf.GGMLQuantizationType.Q6_K,
}


@pytest.mark.parametrize("name", packing.LAYOUTS)
def test_decode_agrees_with_the_gguf_package(name: str) -> None:
    weight = packing.random_weight(name, (12, 768), torch.Generator().manual_seed(5))
    expected = gguf.quants.dequantize(weight.packed["data"].numpy(), TYPES[name])
    decoded = packing.decode(weight)
    assert decoded.shape == (12, 768)
    assert decoded.abs().max() > 0
    np.testing.assert_allclose(decoded.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", packing.LAYOUTS)
def test_layout_sizes_agree_with_the_gguf_package(name: str) -> None:
    layout = packing.LAYOUTS[name]
    assert gguf.GGML_QUANT_SIZES[TYPES[name]] == (layout.block_inputs, layout.block_bytes)
