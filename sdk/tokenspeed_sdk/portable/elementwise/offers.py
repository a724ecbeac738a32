"""What this family offers, as data: modules are imported when an offer is loaded."""

from __future__ import annotations

from tokenspeed_sdk import Band, KernelOffer, Offer, lazy
from tokenspeed_sdk.portable.requires import any_shape

_KERNELS = (
    ("norm.rms", "rms_norm", "norm"),
    ("norm.add_rms", "add_rms_norm", "norm"),
    ("norm.centred_rms", "centred_rms_norm", "norm"),
    ("norm.add_centred_rms", "add_centred_rms_norm", "norm"),
    ("norm.gated_rms", "gated_rms_norm", "norm"),
    ("norm.sigmoid_gated_rms", "sigmoid_gated_rms_norm", "norm"),
    ("activation.silu_mul", "silu_mul", "gates"),
    ("activation.gelu_mul", "gelu_mul", "gates"),
    ("activation.sigmoid_mul", "sigmoid_mul", "pointwise"),
    ("activation.scale", "scale", "pointwise"),
    ("activation.softcap", "softcap", "pointwise"),
    ("moe.add_shared", "add_shared", "pointwise"),
    ("rotary.angles", "rotary_angles", "rotary"),
    ("rotary.apply", "apply_rotary", "rotary"),
    ("embedding.lookup", "embedding", "rows"),
)


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
            graph_safe=True,
        )
        for operator, function, module in _KERNELS
    )
