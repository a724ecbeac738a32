"""Checks facts of a device that came as data: from a probe's process, or from a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.capability import TRAITS
from tokenspeed.contracts.device import DeviceFacts
from tokenspeed.errors import shown
from tokenspeed.plugins.names import KIND_WORDS, NAME_RULE, TRAIT_RULE, are_trait_values, is_name

if TYPE_CHECKING:
    from collections.abc import Mapping

REQUIRED = {"kind": str, "name": str, "arch": str, "memory_bytes": int}
OPTIONAL = {"count": int, "traits": dict, "runs": list}
MAX_BYTES = 1 << 60
OF_THE_REQUEST = ("device", "arch")
"""Traits that every request has from `kind`, `arch` and `runs`."""


def facts_of(data: Mapping[str, Any]) -> DeviceFacts:
    """Build facts from the fields of DeviceFacts as JSON has them; a missing `count` is 1.

    Raises:
        ValueError: an unknown or missing field, or a value that no device has.
    """
    known = {**REQUIRED, **OPTIONAL}
    for name in [*(name for name in data if name not in known), *REQUIRED]:
        if name not in known or name not in data:
            problem = "missing" if name in known else "unknown"
            raise ValueError(f"{problem} field {shown(name)}; the fields are {', '.join(known)}")
    for name, value in data.items():
        if not isinstance(value, known[name]) or isinstance(value, bool):
            raise ValueError(f"{name} is {shown(value)}, {KIND_WORDS[known[name]]} is needed")
    _check_values(data)
    return DeviceFacts(**{"count": 1, **data, "runs": tuple(data.get("runs", ()))})


def _check_values(data: Mapping[str, Any]) -> None:
    if not is_name(data["kind"]):
        raise ValueError(f"kind is {shown(data['kind'])}; allowed: {NAME_RULE}")
    for name in ("name", "arch"):
        if not data[name].isprintable():
            raise ValueError(f"{name} is {shown(data[name])}; one line of text is needed")
    if not 0 < data["memory_bytes"] <= MAX_BYTES:
        raise ValueError(f"memory_bytes is {shown(data['memory_bytes'])}, 1 to 2**60 are allowed")
    if data.get("count", 1) < 1:
        raise ValueError(f"count is {shown(data['count'])}, 1 or more is needed")
    for arch in data.get("runs", ()):
        if not isinstance(arch, str) or not arch:
            raise ValueError(f"runs holds {shown(arch)}, names of architectures are needed")
    for trait, value in data.get("traits", {}).items():
        if trait not in TRAITS or trait in OF_THE_REQUEST:
            known = ", ".join(name for name in TRAITS if name not in OF_THE_REQUEST)
            raise ValueError(f"unknown trait {shown(trait)} of a device; known: {known}")
        if not are_trait_values((value,)):
            raise ValueError(f"trait {trait} is {shown(value)}; {TRAIT_RULE}")
