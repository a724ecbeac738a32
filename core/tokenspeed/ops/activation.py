"""Activations: gates, a scale, a soft cap. Legend: T tokens, F features."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops.declare import operator
from tokenspeed.ops.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.kernel import Domain


def _silu_cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    for tokens, features in ((0, 4), (1, 4), (3, 96), (17, 256), (5, 7)):
        gate_up = draw.floats(tokens, 2 * features, scale=4)
        yield Case(f"{tokens} rows of {features}", (gate_up,))
    yield Case("rows in a wider tensor", (draw.beside(4, 80),))
    gate = torch.tensor([-200.0, -88.0, -1e-4, 0.0, 1e-4, 88.0, 200.0, 11.0], dtype=draw.dtype)
    yield Case("ends of the gate", (torch.cat([gate, torch.ones_like(gate)])[None],))


def _gelu_cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    gate = torch.tensor([-200.0, -9.0, -3.0, -1e-4, 0.0, 1e-4, 3.0, 11.0], dtype=draw.dtype)
    ends = torch.cat([gate, torch.ones_like(gate)])[None]
    for form, options in (("erf", {}), ("tanh", {"tanh": True})):
        for tokens, features in ((0, 4), (1, 4), (3, 96), (17, 256), (5, 7)):
            gate_up = draw.floats(tokens, 2 * features, scale=3)
            yield Case(f"{form}, {tokens} rows of {features}", (gate_up,), options)
        yield Case(f"{form}, rows in a wider tensor", (draw.beside(4, 80),), options)
        yield Case(f"{form}, ends of the gate", (ends,), options)


def _sigmoid_cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    for shape in ((0, 4), (1, 4), (3, 2, 96), (5, 7)):
        name = " x ".join(map(str, shape))
        yield Case(name, (draw.floats(*shape, scale=3), draw.floats(*shape, scale=3)))
    yield Case("gate in a wider tensor", (draw.floats(4, 3, 16), draw.beside(4, 3, 16, axis=1)))
    gate = torch.tensor([[-200.0, -88.0, 0.0, 88.0, 200.0]], dtype=draw.dtype)
    yield Case("ends of the gate", (torch.ones_like(gate), gate))


def _scale_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for tokens, features, factor in ((0, 4, 2.0), (1, 4, -0.5), (17, 96, 22.625)):
        x = draw.floats(tokens, features)
        yield Case(f"{tokens} rows of {features} by {factor:g}", (x,), {"factor": factor})
    yield Case("rows in a wider tensor", (draw.beside(4, 40),), {"factor": 0.125})


def _cap_cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    for tokens, features, cap in ((0, 4, 2.0), (1, 4, 50.0), (17, 96, 30.0)):
        x = draw.floats(tokens, features, scale=cap)
        yield Case(f"{tokens} rows of {features} to {cap:g}", (x,), {"cap": cap})
    yield Case("rows in a wider tensor", (draw.beside(4, 40, scale=3),), {"cap": 3.0})
    ends = torch.tensor([[-1e4, -30.0, -1e-3, 0.0, 1e-3, 30.0, 1e4]], dtype=draw.dtype)
    yield Case("ends", (ends,), {"cap": 30.0})


@operator(
    "activation.silu_mul",
    cases=_silu_cases,
    tokens=("gate_up_TF2",),
    placement="T 2F -> T F",
)
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


@operator(
    "activation.gelu_mul",
    cases=_gelu_cases,
    tokens=("gate_up_TF2",),
    placement="T 2F -> T F",
)
def gelu_mul(gate_up_TF2: torch.Tensor, *, tanh: bool = False) -> torch.Tensor:
    """Gate the second half with the first: gelu(gate) * up.

    gelu(g) = g/2 (1 + erf(g / sqrt(2))), or its approximation
    g/2 (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))): they differ by up to 5e-4.

    Args:
        gate_up_TF2: (T, 2 F) float, device; gate in [0, F), up in [F, 2 F).
        tanh: the approximation; config.json calls it "gelu_pytorch_tanh" or "gelu_new".
    Returns:
        (T, F), dtype and device of the input.
    Source: Gaussian Error Linear Units, Hendrycks & Gimpel 2016, section 2.
    """
    gate, up = gate_up_TF2.chunk(2, dim=-1)
    if tanh:
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        return gate / 2 * (1 + inner.tanh()) * up
    return gate / 2 * (1 + (gate / math.sqrt(2)).erf()) * up


@operator(
    "activation.sigmoid_mul",
    cases=_sigmoid_cases,
    overwrites=("x_TF",),
    tokens=("x_TF", "gate_TF"),
    placement="... F, ... F -> ... F",
)
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


@operator("activation.scale", cases=_scale_cases, tokens=("x_TF",), placement="~... -> ...")
def scale(x_TF: torch.Tensor, *, factor: float) -> torch.Tensor:
    """Multiply by a number.

    Args:
        x_TF: (T, F) float, device; heads may stand before F.
        factor: a number that the dtype of x holds exactly.
    Returns:
        Shape, dtype and device of x.
    Source: Attention Is All You Need, Vaswani et al. 2017, section 3.4: scaled embeddings.
    """
    return x_TF * factor


@operator("activation.softcap", cases=_cap_cases, tokens=("x_TF",), placement="... -> ...")
def softcap(x_TF: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Keep numbers within a cap smoothly: cap tanh(x / cap).

    Args:
        x_TF: (T, F) float, device; heads may stand before F.
        cap: above 0.
    Returns:
        Shape, dtype and device of x.
    Source: Gemma 2, 2024, section 2: logit soft-capping.
    """
    return (x_TF / cap).tanh() * cap
