"""Weight formats: from numbers to the bytes of a packed layout, and back.

What the bytes mean is said in `packing.py`. Legend: O outputs, I inputs, B bytes a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops import packing
from tokenspeed.ops.declare import EXACT, FLOAT_TOLERANCE, operator
from tokenspeed.ops.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from tokenspeed.contracts.kernel import Domain
    from tokenspeed.contracts.weights import LinearWeight

BLOCK_INPUTS = 32


def _decode_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for name in domain.values("packing", *packing.LAYOUTS):
        for shape in ((0, 256), (1, 256), (7, 512)):
            weight = packing.random_weight(name, shape, draw.random)
            yield Case(f"{name}, {shape}", (weight, draw.dtype), traits={"packing": name})


def _encode_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for name in domain.values("packing", *ENCODERS):
        if name in ENCODERS:
            for shape in ((0, 32), (1, 32), (5, 96)):
                case = (draw.floats(*shape), name)
                yield Case(f"{name}, {shape}", case, traits={"packing": name})
            zeros = draw.floats(2, 64) * 0 + 0.0  # a block's least of +0 and -0 is either
            yield Case(f"{name}, zeros", (zeros, name), traits={"packing": name})


@operator(
    "quantise.decode",
    tolerance=FLOAT_TOLERANCE,
    cases=_decode_cases,
    placement="O I, - -> O I",
)
def decode(weight: LinearWeight, dtype: torch.dtype) -> torch.Tensor:
    """Expand a packed weight: scale q + offset, group by group.

    Args:
        weight: packed, (O, I).
        dtype: of the result.
    Returns:
        (O, I) of `dtype`, device of the weight.
    Source: ggml-quants.c of ggml-org/ggml, dequantize_row_*.
    """
    return packing.decode(weight).to(dtype)


@operator(
    "quantise.encode",
    tolerance=EXACT,
    cases=_encode_cases,
    placement="O! I!, - -> O! B!",
)
def encode(x_OI: torch.Tensor, packing_name: str) -> torch.Tensor:
    """Round a weight to a packed layout with one scale a block of 32 inputs.

    Arithmetic is float32, so that the bytes are those of published files. Layouts with scales of
    scales (q4_k, q6_k) are fitted by search when a file is made, and are not encoded here.

    Args:
        x_OI: (O, I) float, I a multiple of 32.
        packing_name: "q4_0", "q4_1" or "q8_0".
    Returns:
        (O, B) uint8, `packed["data"]` of a LinearWeight.
    Source: ggml-quants.c of ggml-org/ggml, quantize_row_*_ref.
    """
    blocks = x_OI.float().reshape(-1, BLOCK_INPUTS)
    encoded = ENCODERS[packing_name](blocks)
    row_bytes = x_OI.shape[1] // BLOCK_INPUTS * encoded.shape[1]
    return encoded.reshape(x_OI.shape[0], row_bytes)


def _encode_q4_0(blocks: torch.Tensor) -> torch.Tensor:
    """The number of the largest magnitude becomes 0, zero becomes 8."""
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scale = largest / -8
    q = (blocks * _inverse(scale) + 8.5).clamp(0, 15.5)
    return _joined(_bytes_of(scale), _nibbles(q))


def _encode_q4_1(blocks: torch.Tensor) -> torch.Tensor:
    """The smallest number becomes 0, the largest 15."""
    least = blocks.amin(1, keepdim=True)
    scale = (blocks.amax(1, keepdim=True) - least) / 15
    q = ((blocks - least) * _inverse(scale) + 0.5).clamp(0, 15.5)
    return _joined(_bytes_of(scale), _bytes_of(least), _nibbles(q))


def _encode_q8_0(blocks: torch.Tensor) -> torch.Tensor:
    """The largest magnitude becomes 127; halves are rounded away from zero."""
    import torch

    scale = blocks.abs().amax(1, keepdim=True) / 127
    q = blocks * _inverse(scale)
    rounded = q.sign() * (q.abs() + 0.5).floor()
    return _joined(_bytes_of(scale), rounded.to(torch.int8).view(torch.uint8))


ENCODERS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "q4_0": _encode_q4_0,
    "q4_1": _encode_q4_1,
    "q8_0": _encode_q8_0,
}
"""Packing name -> blocks of 32 float32 numbers to bytes, one row a block."""


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    return (1 / scale).masked_fill(scale == 0, 0.0)


def _bytes_of(scale: torch.Tensor) -> torch.Tensor:
    import torch

    return scale.half().contiguous().view(-1).view(torch.uint8).view(-1, 2)


def _nibbles(q: torch.Tensor) -> torch.Tensor:
    """Return half the columns: low nibbles from the first half, high ones from the second."""
    import torch

    low, high = q.to(torch.uint8).chunk(2, dim=1)
    return low | high << 4


def _joined(*parts: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cat(parts, dim=1)
