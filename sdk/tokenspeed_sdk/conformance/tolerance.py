"""How far a result may lie from one that was computed in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

TOLERANCE: Mapping[str, tuple[float, float]] = {
    "float64": (1e-9, 1e-9),
    "float32": (2e-4, 2e-5),
    "float16": (1e-2, 2e-3),
    "bfloat16": (4e-2, 1e-2),
}
"""dtype -> (relative, absolute), for sums of at most some thousand products of unit size."""


def assert_close(result: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Compare in float64 with the tolerance of the result's dtype; name the worst element.

    Raises:
        AssertionError: a wrong shape, a value that is not finite, or one too far off.
    """
    dtype = str(result.dtype).removeprefix("torch.")
    relative, absolute = TOLERANCE[dtype]
    assert result.shape == expected.shape, f"{what}: shape {result.shape}, not {expected.shape}"
    have, wanted = result.double().cpu(), expected.double().cpu()
    excess = (have - wanted).abs() - (absolute + relative * wanted.abs())
    excess = excess.nan_to_num(nan=float("inf"), posinf=float("inf"))
    if excess.numel() and (worst := int(excess.argmax())) is not None:
        at = tuple(int(i) for i in _unravel(worst, tuple(excess.shape)))
        assert excess.flatten()[worst] <= 0, (
            f"{what}: at {at} it is {have.flatten()[worst]:.6g}, {wanted.flatten()[worst]:.6g} is "
            f"right ({dtype}: {relative:g} relative, {absolute:g} absolute allowed)"
        )


def _unravel(index: int, shape: tuple[int, ...]) -> list[int]:
    positions = []
    for size in reversed(shape):
        index, position = divmod(index, size)
        positions.append(position)
    return positions[::-1]
