"""What a plugin built is looked at once, where it comes in: later another part would be blamed.

The conformance kit looks closer; this is what every start can afford.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.attention import AttentionBackend
from tokenspeed.contracts.communicator import Communicator
from tokenspeed.contracts.device import DeviceFacts, DeviceRuntime
from tokenspeed.contracts.grammar import GrammarEngine
from tokenspeed.contracts.kv_store import KVStore, StoreFacts
from tokenspeed.contracts.moe import MoEBackend
from tokenspeed.contracts.policy import Policy
from tokenspeed.contracts.sampler import Sampler
from tokenspeed.contracts.weights import WeightFormat, WeightSource
from tokenspeed.errors import PluginError, TokenSpeedError, plugin_code, told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from tokenspeed.contracts.binding import RegisteredOffer

INTERFACES: Mapping[str, type] = {
    "device": DeviceRuntime,
    "attention": AttentionBackend,
    "moe": MoEBackend,
    "sampler": Sampler,
    "communicator": Communicator,
    "kv_store": KVStore,
    "grammar": GrammarEngine,
    "policy": Policy,
    "weight_format": WeightFormat,
    "weight_source": WeightSource,
}
"""Slot, or what it opens -> interface all of whose methods are required."""
FACTS: Mapping[str, type] = {"device": DeviceFacts, "kv_store": StoreFacts}
ARENA_ALIGNMENT = 4096


def check_built(slot: str, built: Any, who: str) -> None:
    """Check that what fills a slot has the methods of its interface.

    Args:
        slot: or a part of it, such as "attention.full".
        who: PLUGIN/NAME of the offer.
    Raises:
        PluginError: a method is missing.
    """
    interface = INTERFACES.get(slot.partition(".")[0])
    if interface is None:
        return
    needed = [
        name
        for name, member in vars(interface).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]
    missing = [name for name in needed if not callable(getattr(built, name, None))]
    facts = FACTS.get(slot)
    if facts is not None and not isinstance(getattr(built, "facts", None), facts):
        missing.append(f"facts of type {facts.__name__}")
    if missing:
        raise PluginError(
            f"{slot}: what {who} builds ({type(built).__name__}) has no {', '.join(missing)}; "
            f"{interface.__name__} needs {', '.join(needed)}; fix its plugin, or pin another offer",
            id="offer-load-failed",
        )


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


def check_kind(kind: str, facts_kind: str, who: str) -> None:
    """Check that a device is of the kind that its offer was chosen for.

    Raises:
        PluginError: it is of another: nothing that the plugin offers for its device would be used.
    """
    if kind != facts_kind:
        raise PluginError(
            f"device: {who} offers kind {kind!r} and builds a device of kind {facts_kind!r}; make "
            "facts['kind'] of the offer and facts.kind of the runtime equal",
            id="offer-load-failed",
        )


def check_arena(storage: torch.Tensor, num_bytes: int, who: str) -> None:
    """Check the memory that a device gave.

    Raises:
        PluginError: it is not what `DeviceRuntime.allocate_arena` says.
    """
    import torch

    is_flat = storage.dim() == 1 and storage.is_contiguous()
    problem = ""
    if storage.dtype != torch.uint8 or not is_flat or storage.numel() != num_bytes:
        problem = f"{tuple(storage.shape)} {storage.dtype}".replace("torch.", "")
    elif storage.data_ptr() % ARENA_ALIGNMENT:
        problem = f"memory at address {storage.data_ptr():#x}"
    if problem:
        raise PluginError(
            f"device: {who} gave {problem} for an arena of {num_bytes} bytes; ({num_bytes},) "
            f"uint8, contiguous and aligned to {ARENA_ALIGNMENT} bytes is needed; fix "
            "allocate_arena of its plugin",
            id="offer-load-failed",
        )
