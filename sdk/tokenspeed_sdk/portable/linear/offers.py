"""What this family offers, as data: every load function imports its module only when called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenspeed_sdk import Band, KernelOffer, Offer

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGE = __name__.rpartition(".")[0]
_PACKINGS = ("q4_0", "q4_1", "q8_0", "q4_k", "q6_k")
_ENCODED = ("q4_0", "q4_1", "q8_0")
_KERNELS: tuple[tuple[str, str, str, tuple[str, ...], bool], ...] = (
    ("linear.dense", "linear_skinny_triton", "skinny:linear", (), False),
    ("linear.heads", "heads_linear_skinny_triton", "skinny:heads_linear", (), False),
    ("linear.packed", "packed_linear_triton", "packed:packed_linear", _PACKINGS, False),
    ("embedding.packed", "packed_embedding_triton", "decode:packed_embedding", _PACKINGS, True),
    ("quantise.decode", "quantise_decode_triton", "decode:decode", _PACKINGS, True),
    ("quantise.encode", "quantise_encode_triton", "encode:encode", _ENCODED, True),
)
"""Operator, name, target, packings, and whether a row's result is the same in every batch: tiles
of products follow the number of rows, and many rows are multiplied by torch's library."""


def offers(slot: str, device: str) -> tuple[Offer | KernelOffer, ...]:
    """Return what is offered for a slot on devices of a kind."""
    if slot != "operator":
        return ()
    return tuple(_kernel(device, *entry) for entry in _KERNELS)


def _kernel(
    device: str,
    operator: str,
    name: str,
    target: str,
    packings: tuple[str, ...],
    is_deterministic: bool,
) -> KernelOffer:
    requires: dict[str, tuple[object, ...]] = {
        "device": (device,),
        "arch": ("*",),
        "dtype": ("float32", "bfloat16", "float16"),
    }
    if packings:
        requires["packing"] = packings
    return KernelOffer(
        operator,
        name,
        _loader(target),
        band=Band.PORTABLE,
        requires=requires,
        graph_safe=True,
        deterministic=is_deterministic,
    )


def _loader(target: str) -> Callable[[], Callable[..., Any]]:
    return lambda: _load(target)


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(f"{_PACKAGE}.{module}"), name)
