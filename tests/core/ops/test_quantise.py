"""Encoded weights have the bytes that the public gguf package writes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.ops import packing, quantise

TYPES = {
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}


@pytest.mark.parametrize("name", quantise.ENCODERS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_bytes_are_those_of_the_gguf_package(name: str, scale: float) -> None:
    x = torch.randn(40, 256, generator=torch.Generator().manual_seed(2)) * scale
    x[3, :32] = 0.0
    got = quantise.encode.signature(x, name)
    np.testing.assert_array_equal(got.numpy(), gguf.quants.quantize(x.numpy(), TYPES[name]))


@pytest.mark.parametrize("name", quantise.ENCODERS)
def test_decoding_returns_each_number_within_its_step(name: str) -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(3))
    weight = LinearWeight((8, 64), None, name, {"data": quantise.encode.signature(x, name)})
    ints = packing.unpack(name, weight.packed["data"])
    step = ints.scale_OG.abs().repeat_interleave(32, dim=1)
    error = (quantise.decode.signature(weight, torch.float32) - x).abs()
    # The largest of the other sign is cut by q4_0: its steps reach -8 and 7.
    assert (error <= (1.01 if name == "q4_0" else 0.51) * step + 1e-3).all()
