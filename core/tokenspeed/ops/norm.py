"""Normalisation operators. Legend: T tokens, D features (any leading dims stand for T)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops.declare import operator
from tokenspeed.ops.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.kernel import Domain


EPS = {"eps": 1e-5}


def _x_cases(domain: Domain) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    draw = Draw(domain)
    for shape in ((0, 8), (1, 8), (3, 64), (5, 576), (7, 1), (33, 17)):
        yield f"{shape[0]} rows of {shape[1]}", draw.floats(*shape, scale=3)
    yield "heads", draw.floats(2, 3, 64)
    yield "heads beside others", draw.beside(5, 4, 64, axis=1)
    yield "rows in a wider tensor", draw.beside(4, 40)
    yield (
        "zeros beside large and small",
        torch.cat(
            [draw.floats(1, 16) * 0, draw.floats(1, 16, scale=1e3), draw.floats(1, 16, scale=1e-3)]
        ),
    )


def _rms_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for name, x in _x_cases(domain):
        yield Case(name, (x, draw.floats(x.shape[-1])), EPS)


def _two_inputs_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for name, x in _x_cases(domain):
        yield Case(name, (x, draw.floats(*x.shape), draw.floats(x.shape[-1])), EPS)


@operator(
    "norm.rms",
    cases=_rms_cases,
    tokens=("x_TD",),
    placement="... D!, D! -> ... D!",
)
def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Scale each row to unit root mean square, then by `weight_D`: x / sqrt(mean(x^2) + eps) * w.

    Statistics are float32 or wider.

    Args:
        x_TD: (..., D) float, device; heads may stand before D.
        weight_D: (D,) same dtype.
        eps: added to the mean square.
    Returns:
        (..., D), dtype and device of x.
    Source: Root Mean Square Layer Normalization, Zhang & Sennrich 2019.
    """
    return x_TD / (x_TD.square().mean(-1, keepdim=True) + eps).sqrt() * weight_D


@operator(
    "norm.add_rms",
    cases=_two_inputs_cases,
    tokens=("x_TD", "residual_TD"),
    placement="... D!, ... D!, D! -> ... D!, ... D!",
)
def add_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add `x_TD` to the residual stream and normalise the sum as `norm.rms` does.

    Args:
        x_TD: (T, D) float, device.
        residual_TD: (T, D) same dtype; read only.
        weight_D: (D,) same dtype.
        eps: added to the mean square.
    Returns:
        (normalised sum, sum), both (T, D).
    Source: `norm.rms` of a sum; the residual stream is Deep Residual Learning, He et al. 2015.
    """
    total = residual_TD + x_TD
    return total / (total.square().mean(-1, keepdim=True) + eps).sqrt() * weight_D, total


@operator(
    "norm.centred_rms",
    cases=_rms_cases,
    tokens=("x_TD",),
    placement="... D!, D! -> ... D!",
)
def centred_rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Normalise as `norm.rms` does with the weight 1 + `weight_D`, summed in float32 or wider.

    Args:
        x_TD: (..., D) float, device; heads may stand before D.
        weight_D: (D,) same dtype, around zero.
        eps: added to the mean square.
    Returns:
        (..., D), dtype and device of x.
    Source: Gemma, Gemma Team 2024 (weights are stored less one).
    """
    return x_TD / (x_TD.square().mean(-1, keepdim=True) + eps).sqrt() * (1 + weight_D)


@operator(
    "norm.add_centred_rms",
    cases=_two_inputs_cases,
    tokens=("x_TD", "residual_TD"),
    placement="... D!, ... D!, D! -> ... D!, ... D!",
)
def add_centred_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add `x_TD` to the residual stream and normalise the sum as `norm.centred_rms` does.

    Args:
        x_TD: (T, D) float, device.
        residual_TD: (T, D) same dtype; read only.
        weight_D: (D,) same dtype.
        eps: added to the mean square.
    Returns:
        (normalised sum, sum), both (T, D).
    Source: `norm.centred_rms` of a sum.
    """
    total = residual_TD + x_TD
    return total / (total.square().mean(-1, keepdim=True) + eps).sqrt() * (1 + weight_D), total


@operator(
    "norm.gated_rms",
    cases=_two_inputs_cases,
    tokens=("x_TD", "gate_TD"),
    placement="... D!, ... D!, D! -> ... D!",
)
def gated_rms_norm(
    x_TD: torch.Tensor, gate_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Normalise as `norm.rms` does, then gate: norm(x) w silu(gate).

    Args:
        x_TD: (..., D) float, device; heads may stand before D.
        gate_TD: the same shape and dtype.
        weight_D: (D,) same dtype.
        eps: added to the mean square.
    Returns:
        (..., D), dtype and device of x.
    Source: Transformers are SSMs (Mamba-2), Dao and Gu 2024; normalised before the gate.
    """
    normed = x_TD / (x_TD.square().mean(-1, keepdim=True) + eps).sqrt() * weight_D
    return normed * gate_TD / (1 + (-gate_TD).exp())


@operator(
    "norm.sigmoid_gated_rms",
    cases=_two_inputs_cases,
    tokens=("x_TD", "gate_TD"),
    placement="... D!, ... D!, D! -> ... D!",
)
def sigmoid_gated_rms_norm(
    x_TD: torch.Tensor, gate_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Normalise as `norm.rms` does, then gate: norm(x) w sigmoid(gate).

    Args:
        x_TD: (..., D) float, device; heads may stand before D.
        gate_TD: the same shape and dtype.
        weight_D: (D,) same dtype.
        eps: added to the mean square.
    Returns:
        (..., D), dtype and device of x.
    Source: Kimi Linear, Kimi Team 2025, section 3 (the output gate of its linear attention).
    """
    normed = x_TD / (x_TD.square().mean(-1, keepdim=True) + eps).sqrt() * weight_D
    return normed / (1 + (-gate_TD).exp())
