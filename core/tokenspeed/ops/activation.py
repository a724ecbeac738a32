"""Gated activations. Legend: T tokens, F hidden features of the MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.ops.declare import operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def _cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for tokens, features in ((1, 4), (3, 96), (17, 256)):
        yield (torch.randn(tokens, 2 * features, generator=random) * 4,), {}


def _gate_cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for shape in ((1, 4), (3, 2, 96)):
        x, gate = torch.randn(2, *shape, generator=random) * 3
        yield (x, gate), {}


@operator("activation.silu_mul", cases=_cases)
def silu_mul(gate_up_TF2: torch.Tensor) -> torch.Tensor:
    """Gate the second half with the first: silu(gate) * up, silu(g) = g / (1 + exp(-g)).

    Args:
        gate_up_TF2: (T, 2 F) float, device; gate in [0, F), up in [F, 2 F).
    Returns:
        (T, F), dtype and device of the input.
    Source: GLU Variants Improve Transformer, Shazeer 2020.
    """
    gate, up = gate_up_TF2.chunk(2, dim=-1)
    return gate / (1 + (-gate).exp()) * up


@operator("activation.sigmoid_mul", cases=_gate_cases)
def sigmoid_mul(x_TF: torch.Tensor, gate_TF: torch.Tensor) -> torch.Tensor:
    """Gate element by element: x sigmoid(gate).

    Args:
        x_TF: (T, F) float, device; heads may stand before F. May be overwritten.
        gate_TF: the same shape and dtype.
    Returns:
        (T, F), dtype and device of x.
    Source: Gated Attention for Large Language Models, Qiu et al. 2025.
    """
    return x_TF / (1 + (-gate_TF).exp())
