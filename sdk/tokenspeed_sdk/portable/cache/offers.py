"""What this family offers, as data: modules are imported when an offer is loaded."""

from __future__ import annotations

from tokenspeed_sdk import Band, KernelOffer, Offer, lazy
from tokenspeed_sdk.portable.requires import any_shape

_KERNELS = (
    ("kv.gather", "gather_kv", "gather", False),
    ("kv.copy_tokens", "copy_tokens", "copies", False),
    ("step.prepare", "prepare", "step", True),
    ("step.patch_tables", "patch_tables", "step", True),
)
"""(operator, function, module, whether it may be captured: the first two read the host)."""


def offers(slot: str, device: str) -> tuple[Offer | KernelOffer, ...]:
    """Return what this family offers for a slot on a kind of device."""
    if slot != "operator":
        return ()
    return tuple(
        KernelOffer(
            operator,
            f"{function}_triton",
            lazy(f"{__package__}.{module}:{function}"),
            Band.PORTABLE,
            any_shape(device),
            graph_safe=graph_safe,
        )
        for operator, function, module, graph_safe in _KERNELS
    )
