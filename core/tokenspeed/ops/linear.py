"""Matrix products with weights.

Legend: T tokens, O output features, I input features, N heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops import packing
from tokenspeed.ops.declare import FLOAT_TOLERANCE, operator
from tokenspeed.ops.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.kernel import Domain
    from tokenspeed.contracts.weights import LinearWeight

PACKED_TOLERANCE = {**FLOAT_TOLERANCE, **dict.fromkeys(("float32", "float16"), (2e-2, 2e-2))}


def _dense_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for tokens, inputs, outputs in (
        (0, 8, 4),
        (1, 64, 96),
        (2, 15, 5),
        (3, 32, 1),
        (7, 1, 6),
        (33, 576, 192),
    ):
        name = f"{tokens} rows, {inputs} to {outputs}"
        weight = draw.floats(outputs, inputs, scale=inputs**-0.5)
        x = draw.floats(tokens, inputs)
        yield Case(name, (x, weight))
        yield Case(f"{name}, bias", (x, weight, draw.floats(outputs)))
    weight = draw.floats(24, 40, scale=40**-0.5)
    yield Case("rows in a wider tensor", (draw.beside(5, 40), weight))


def _heads_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for tokens, heads, inputs, outputs in (
        (0, 2, 8, 4),
        (1, 3, 16, 20),
        (7, 1, 5, 1),
        (33, 4, 64, 48),
    ):
        weight = draw.floats(heads, outputs, inputs, scale=inputs**-0.5)
        x = draw.beside(tokens, heads, inputs, axis=1)
        yield Case(f"{tokens} rows, {heads} heads, {inputs} to {outputs}", (x, weight))


def _packed_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for name in domain.values("packing", *packing.LAYOUTS):
        for outputs, inputs in ((48, 256), (96, 512), (17, 256), (1, 256)):
            weight = packing.random_weight(name, (outputs, inputs), draw.random)
            yield _product(f"{name}, {inputs} to {outputs}", weight, None, draw)
            bias = draw.floats(outputs, scale=0.1)
            yield _product(f"{name}, {inputs} to {outputs}, bias", weight, bias, draw)


def _product(name: str, weight: LinearWeight, bias: torch.Tensor | None, draw: Draw) -> Case:
    """Return a case in which the squares of an output's terms sum to 1 at most."""
    dense_OI = packing.decode(weight)
    calls = []
    for tokens in (0, 1, 2, 7, 40):
        x = draw.wide(tokens, weight.shape[1])
        largest = (x.double().square() @ dense_OI.T.square()).sqrt().amax() if tokens else 1.0
        calls.append(((x / largest).to(draw.dtype),))
    return Case(name, (weight, bias), traits={"packing": weight.packing}, calls=tuple(calls))


@operator(
    "linear.dense",
    cases=_dense_cases,
    tokens=("x_TI",),
    placement="~T I, O I, ~O -> T O",
)
def linear(
    x_TI: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply: x @ weight.T + bias.

    Args:
        x_TI: (T, I) float, device.
        weight_OI: (O, I) same dtype, contiguous.
        bias_O: (O,) same dtype, or None.
    Returns:
        (T, O), dtype and device of x.
    Source: the definition of a matrix product.
    """
    product = x_TI @ weight_OI.T
    return product if bias_O is None else product + bias_O


@operator(
    "linear.heads",
    cases=_heads_cases,
    tokens=("x_TNI",),
    placement="~T N I, N O I -> T N O",
)
def heads_linear(x_TNI: torch.Tensor, weight_NOI: torch.Tensor) -> torch.Tensor:
    """Multiply each head with its own matrix: y_tn = W_n x_tn.

    Args:
        x_TNI: (T, N, I) float, device; heads of a token may stand apart.
        weight_NOI: (N, O, I) same dtype, contiguous.
    Returns:
        (T, N, O), dtype and device of x.
    Source: DeepSeek-V2, 2024, section 2.1.2: up-projections absorbed into queries and outputs.
    """
    return (weight_NOI @ x_TNI[..., None]).squeeze(-1)


@operator(
    "linear.packed",
    tolerance=PACKED_TOLERANCE,
    cases=_packed_cases,
    placement="~T I, O I, ~O -> T O",
)
def packed_linear(
    weight: LinearWeight, bias_O: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Prepare a product with a low-bit weight; called once a layer, while loading.

    A request for it carries the trait `packing`. The tolerance holds where the squares of an
    output's terms sum to 1 at most: kernels may round activations and group scales to bfloat16.

    Args:
        weight: packed, (O, I); its parts may be released by the caller afterwards.
        bias_O: (O,) float, or None.
    Returns:
        A callable: (T, I) float -> (T, O), dtype and device of its argument.
    Source: the block formats of ggml, see ops/packing.py.
    """
    dense = packing.decode(weight)

    def multiply(x_TI: torch.Tensor) -> torch.Tensor:
        product = x_TI @ dense.to(x_TI.dtype).T
        return product if bias_O is None else product + bias_O

    return multiply
