"""The slots: their versions, the hook that fills each, and which of them are live.

A slot that is declared but not live is refused by name, so that nobody offers into the void.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed.errors import PluginError
from tokenspeed.plugins.nearest import suggestion

API_VERSION = "1.0"
"""Version of what `tokenspeed_sdk` promises; manifests state the range they accept."""
API_VERSIONS = (API_VERSION,)
"""What plugins may ask for: this version, and the last of the major before, once there is one."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One place that plugins fill.

    Args:
        name: as written in manifests.
        version: major.minor of its interface; the core takes plugins of the same major.
        hooks: hooks that may offer for it.
        live: False: it arrives in a later version, offers are refused.
    """

    name: str
    version: str
    hooks: tuple[str, ...]
    live: bool


SLOTS = {
    slot.name: slot
    for slot in (
        Slot("device", "1.0", ("register_devices",), True),
        Slot("operator", "1.0", ("register_operators", "register_kernels"), True),
        Slot("attention", "1.0", ("register_attention_backends",), True),
        Slot("sampler", "1.0", ("register_samplers",), True),
        Slot("weight_format", "1.0", ("register_weight_formats",), True),
        Slot("model", "1.0", ("register_models",), True),
        Slot("moe", "1.0", ("register_moe_backends",), True),
        Slot("communicator", "1.0", ("register_communicators",), True),
        Slot("kv_store", "1.0", ("register_kv_stores",), True),
        Slot("speculator", "1.0", ("register_speculators",), True),
        Slot("transfer", "1.0", ("register_transfers",), False),
        Slot("placement_rule", "1.0", ("register_placement_rules",), False),
        Slot("grammar", "1.0", ("register_grammars",), True),
        Slot("tokenizer", "1.0", ("register_tokenizers",), False),
        Slot("parser", "1.0", ("register_parsers",), True),
        Slot("client_rule", "1.0", ("register_client_rules",), True),
        Slot("policy", "1.0", ("register_policies",), True),
        Slot("cli", "1.0", ("register_cli",), True),
        Slot("endpoint", "1.0", ("register_endpoints",), False),
    )
}

EXPERIMENTAL = {
    "operator": "2026-11",
    "placement_rule": "2026-11",
    "transfer": "2026-11",
    "grammar": "2026-11",
    "tokenizer": "2026-11",
    "parser": "2026-11",
    "client_rule": "2026-11",
    "policy": "2026-11",
    "cli": "2026-11",
    "endpoint": "2026-11",
}
"""Slot -> since when it is experimental: it may change with a changelog line and an adapter, and a
third party's plugin fills it only with an opt-in (--allow-experimental)."""

SLOT_OF_HOOK = {hook: slot.name for slot in SLOTS.values() for hook in slot.hooks}


def live_slot(name: str) -> Slot:
    """Return a slot that can be filled today.

    Raises:
        PluginError: unknown name (with the nearest one), or a slot that arrives later.
    """
    slot = SLOTS.get(name)
    if slot is None:
        raise PluginError(f"unknown slot {name!r}: {suggestion(name, SLOTS)}", id="slot-unknown")
    if not slot.live:
        live = ", ".join(sorted(slot.name for slot in SLOTS.values() if slot.live))
        raise PluginError(
            f"slot {name} arrives in a later version; slots of this one: {live}", id="slot-not-live"
        )
    return slot
