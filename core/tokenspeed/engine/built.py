"""Checks what plugins built before anything uses it, and names whose code failed while building.

Only what is there is looked at, by name: what it takes and computes is for the conformance kit.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.attention import AttentionBackend
from tokenspeed.contracts.communicator import Communicator
from tokenspeed.contracts.device import DeviceFacts, DeviceRuntime
from tokenspeed.contracts.kv_store import KVStore, StoreFacts
from tokenspeed.contracts.moe import MoEBackend
from tokenspeed.contracts.policy import Policy
from tokenspeed.contracts.sampler import Sampler
from tokenspeed.contracts.weights import WeightFormat, WeightSource
from tokenspeed.errors import PluginError, TokenSpeedError, plugin_code, shown, told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tokenspeed.contracts.binding import RegisteredOffer

INTERFACES: Mapping[str, type] = {
    "attention": AttentionBackend,
    "communicator": Communicator,
    "device": DeviceRuntime,
    "kv_store": KVStore,
    "moe": MoEBackend,
    "policy": Policy,
    "sampler": Sampler,
    "weight_format": WeightFormat,
}
"""Slot -> interface of what its offers build; models and speculators have checks of their own."""
FACTS: Mapping[str, type] = {"device": DeviceFacts, "kv_store": StoreFacts}


def check_built(slot: str, built: object, winner: RegisteredOffer[Any]) -> None:
    """Check that what an offer built has the methods and facts of its slot.

    Args:
        slot: or a part of one, such as "attention.full".
    Raises:
        PluginError: names plugin, offer and what is missing.
    """
    base = slot.partition(".")[0]
    interface = INTERFACES.get(base)
    if interface is None:
        return
    with building(winner, f"a look at what {slot} built"):
        missing = missing_methods(interface, built)
        if not missing and base in FACTS and not isinstance(built.facts, FACTS[base]):  # type: ignore[attr-defined]
            missing = [f"facts of type {FACTS[base].__name__}"]
    if missing:
        raise PluginError(
            f"plugin {winner.plugin_id} {winner.plugin_version}: offer {slot}/{winner.offer.name} "
            f"built {shown(built)}, which has no {', '.join(missing)}; `tokenspeed plugins test "
            f"{winner.plugin_id}` checks all of it",
            id="offer-invalid",
        )


def check_source(source: object, winner: RegisteredOffer[Any]) -> None:
    """Check what a weight format opened.

    Raises:
        PluginError: names plugin, offer and what is missing.
    """
    missing = missing_methods(WeightSource, source)
    if missing:
        raise PluginError(
            f"plugin {winner.plugin_id} {winner.plugin_version}: weight format {winner.offer.name} "
            f"opened {shown(source)}, which has no {', '.join(missing)}",
            id="offer-invalid",
        )


def missing_methods(interface: type, built: object) -> list[str]:
    """Return the methods of an interface that an object lacks."""
    names = [name for name, member in vars(interface).items() if inspect.isfunction(member)]
    public = [name for name in names if not name.startswith("_")]
    return [name for name in public if not callable(getattr(built, name, None))]


@contextmanager
def building(winner: RegisteredOffer[Any], what: str) -> Iterator[None]:
    """Run code of a plugin while the engine is built: what it raises names the plugin.

    Raises:
        PluginError: something else than an error of ours came out.
    """
    try:
        with plugin_code():
            yield
    except TokenSpeedError:
        raise
    except Exception as error:
        raise PluginError(
            f"plugin {winner.plugin_id} {winner.plugin_version} failed at {what}: {told(error)}; "
            "fix or leave out the plugin",
            id="offer-load-failed",
        ) from error
