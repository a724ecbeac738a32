"""What this family offers, as data: modules are imported when an offer is loaded."""

from __future__ import annotations

from tokenspeed_sdk import Band, KernelOffer, Offer, lazy
from tokenspeed_sdk.portable.requires import any_shape

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
    """Return what this family offers for a slot on a kind of device."""
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
    requires = {**any_shape(device), **({"packing": packings} if packings else {})}
    return KernelOffer(
        operator,
        name,
        lazy(f"{__package__}.{target}"),
        Band.PORTABLE,
        requires,
        graph_safe=True,
        deterministic=is_deterministic,
    )
