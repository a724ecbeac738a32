"""Matrix products with weights. Legend: T tokens, O output features, I input features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.ops import packing
from tokenspeed.ops.declare import FLOAT_TOLERANCE, operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.weights import LinearWeight

PACKED_TOLERANCE = {**FLOAT_TOLERANCE, "float32": (2e-2, 2e-2)}


def _dense_cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for tokens, inputs, outputs in ((1, 64, 96), (3, 32, 1), (33, 576, 192)):
        weight = torch.randn(outputs, inputs, generator=random) * inputs**-0.5
        x = torch.randn(tokens, inputs, generator=random)
        yield (x, weight), {}
        yield (x, weight, torch.randn(outputs, generator=random)), {}


def _packed_cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for name in packing.LAYOUTS:
        for outputs, inputs in ((48, 256), (96, 512), (17, 256)):
            weight = packing.random_weight(name, (outputs, inputs), random)
            yield (weight, None), {}
            yield (weight, torch.randn(outputs, generator=random)), {}


@operator("linear.dense", cases=_dense_cases)
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
    """
    product = x_TI @ weight_OI.T
    return product if bias_O is None else product + bias_O


@operator(
    "linear.packed", tolerance={**FLOAT_TOLERANCE, "float32": (2e-2, 2e-2)}, cases=_packed_cases
)
def packed_linear(
    weight: LinearWeight, bias_O: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Prepare a product with a low-bit weight; called once a layer, while loading.

    A request for it carries the trait `packing`. The tolerance holds relative to the largest
    output: kernels may round activations and group scales to bfloat16.

    Args:
        weight: packed, (O, I); its parts may be released by the caller afterwards.
        bias_O: (O,) float, or None.
    Returns:
        A callable: (T, I) float -> (T, O), dtype and device of its argument.
    """
    dense = packing.decode(weight)

    def multiply(x_TI: torch.Tensor) -> torch.Tensor:
        product = x_TI @ dense.to(x_TI.dtype).T
        return product if bias_O is None else product + bias_O

    return multiply
