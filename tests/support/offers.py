"""Small registered offers for selection tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.contracts.kernel import KernelOffer
from tokenspeed.contracts.registration import Offer

if TYPE_CHECKING:
    from collections.abc import Mapping

BASE: Mapping[str, tuple[object, ...]] = {"device": ("cpu",), "dtype": ("float32",)}


def kernel(
    pin: str, *, only: Mapping[str, tuple[object, ...]] | None = None, **options: Any
) -> RegisteredOffer:
    """Make a kernel offer PLUGIN/NAME of operator "op"; `device=` and `dtype=` set its traits."""
    plugin_id, _, name = pin.partition("/")
    traits = {key: options.pop(key) for key in ("device", "dtype", "head_dim") if key in options}
    requires = dict(only) if only is not None else {**BASE, **traits}
    load = options.pop("load", lambda: len)
    return RegisteredOffer(
        plugin_id, "1.0", KernelOffer("op", name, load, requires=requires, **options)
    )


def attention(pin: str, **traits: tuple[object, ...]) -> RegisteredOffer:
    """Make an attention offer PLUGIN/NAME."""
    plugin_id, _, name = pin.partition("/")
    return RegisteredOffer(
        plugin_id, "1.0", Offer("attention", name, len, requires={**BASE, **traits})
    )
