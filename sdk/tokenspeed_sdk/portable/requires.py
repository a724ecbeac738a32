"""What the offers of the families require, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FLOATS = ("float32", "bfloat16", "float16")


def any_shape(device: str) -> Mapping[str, tuple[object, ...]]:
    """Return what a kernel requires that takes every shape, in every dtype.

    Args:
        device: kind of the device.
    """
    return {
        "device": (device,),
        "arch": ("*",),
        "dtype": FLOATS,
        "head_dim": ("*",),
        "block_tokens": ("*",),
    }
