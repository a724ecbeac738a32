"""The bring-up ladder of a device plugin: how far it is, and what still falls back.

    R0 device -> R1 attention -> R2 GEMM, MoE, formats -> R3 graphs, communication -> R4 speed

A rung counts only when those below it are reached: below R1 the model answers by reference
operators in torch on the plugin's device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

RUNGS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("R0", "a device", ("device",)),
    ("R1", "attention on it", ("attention",)),
    (
        "R2",
        "matrix products, experts or weight formats",
        ("operator:linear.", "operator:moe.", "moe", "weight_format"),
    ),
    ("R3", "graphs or communication", ("graph_safe", "communicator")),
    ("R4", "measured times on the device", ("measured",)),
)
"""Rung, what it means, and what shows it: any one of these."""

COMPUTING_SLOTS = ("attention", "sampler", "moe", "communicator")


def shown_by(offers: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return what a plugin's offers show, in the words of RUNGS.

    Args:
        offers: {"slot", "name", "operator", "graph_safe"} each.
    """
    shown: set[str] = set()
    for offer in offers:
        shown.add(offer["slot"])
        if offer["operator"]:
            shown.add(f"operator:{offer['operator']}")
        if offer["graph_safe"]:
            shown.add("graph_safe")
    return shown


def rung_of(shown: Collection[str]) -> str:
    """Return the highest rung reached, or "" below R0."""
    reached = ""
    for name, _, signs in RUNGS:
        if not any(item == sign or _is_family(sign, item) for item in shown for sign in signs):
            break
        reached = name
    return reached


def _is_family(sign: str, item: str) -> bool:
    return sign.endswith(".") and item.startswith(sign)


def next_rung(reached: str) -> str:
    """Return what the rung above asks for, or ""."""
    names = [name for name, _, _ in RUNGS]
    above = names.index(reached) + 1 if reached else 0
    return "" if above == len(RUNGS) else f"{RUNGS[above][0]}: {RUNGS[above][1]}"


def falls_back(
    offers: Iterable[Mapping[str, Any]], operators: Iterable[str], live_slots: Collection[str]
) -> list[str]:
    """Return the slots and operators for which the plugin brings nothing of its own."""
    offers = list(offers)
    slots = {offer["slot"] for offer in offers}
    own = {offer["operator"] for offer in offers}
    missing = [slot for slot in COMPUTING_SLOTS if slot in live_slots and slot not in slots]
    return missing + sorted(name for name in operators if name not in own)
