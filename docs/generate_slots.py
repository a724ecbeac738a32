"""Writes docs/plugins/slots.md from the slots and interfaces: `python docs/generate_slots.py`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import tokenspeed_sdk
from tokenspeed.plugins.slots import EXPERIMENTAL, SLOTS, Slot
from tokenspeed_sdk.conformance.interfaces import INTERFACES, LOAD_KEYWORDS, OPTIONAL

if TYPE_CHECKING:
    from types import ModuleType

PAGE = Path(__file__).with_name("plugins") / "slots.md"
EXPORTED = frozenset(tokenspeed_sdk.__all__)
NOTES = {
    "device": """\
A device's kind is a name of yours. It stands in three places, which must agree: `device_kinds` of
the manifest, `DeviceFacts.kind` of the probe, and `facts["kind"]` of the offer (else the offer's
name). `torch_device()` may well be the host's.""",
    "attention": """\
A logical block is a power of two of tokens, 16 or more: 128 unless the user says `--block-tokens`.
An offer lists the sizes that it takes as trait `block_tokens`; one that does not list 128 is not
chosen in a plain start. A kernel that reads smaller pieces lists the blocks that they divide, and
offers `facts={"cache": CacheDemand(page_tokens=32)}`: its batches then have `page_tables`, and the
views that it is given are cut into pages. Other sizes cannot be served.""",
}
OFFERING = """\
## Offering

A hook is given a `Registration`. It offers a `KernelOffer` for slot `operator`, whose `load` takes
nothing and returns the kernel, and an `Offer` for every other slot. What each operator computes:
[operators.md](operators.md)."""
OFFERED = (
    tokenspeed_sdk.Registration,
    tokenspeed_sdk.Offer,
    tokenspeed_sdk.KernelOffer,
    tokenspeed_sdk.Band,
)
DEGRADABLE = ("kv_store", "speculator")
HEAD = """# Slots

A slot is a place that plugins fill. Its version is that of its interface: the core takes plugins of
this major and of the one before. *Stable* slots keep their interface for a whole major version.
*Experimental* ones may change with a changelog line, and a third party's plugin fills them only
with `--allow-experimental ID`. What an offer of an *essential* slot raises while serving ends the
requests of that step, and a second time in a row the engine, which starts anew
([decision](../adr/0005-crashes-and-failed-steps.md)); the log has the traceback. A *degradable* one
is detached, counted and reported, and answers stay right.

Interfaces are Protocols, exported by `tokenspeed_sdk` with everything that they take and return;
each stands below as it is written. What a plugin builds needs no base class: its methods are looked
at when it is built. Trailing capitals of a tensor's name are its axes, told in the legend. *Host*
arrays lie in host memory, *device* tensors on the torch device of the runtime. Written by
`python docs/generate_slots.py`.

| slot | version | status | hooks | interface |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the page's text."""
    rows = map(_row, SLOTS.values())
    sections = (_section(slot) for slot in SLOTS.values() if slot.name in INTERFACES)
    return HEAD + "".join(rows) + _code(OFFERING, *OFFERED) + "".join(sections)


def _code(head: str, *items: type) -> str:
    """Return a section that shows classes as they are written."""
    code = "\n\n\n".join(inspect.getsource(item).rstrip() for item in items)
    return f"\n{head}\n\n```python\n{code}\n```\n"


def _row(slot: Slot) -> str:
    since = EXPERIMENTAL.get(slot.name)
    status = f"experimental since {since}" if since else "stable"
    if not slot.live:
        status += ", arrives later"
    elif not since:
        status += ", degradable" if slot.name in DEGRADABLE else ", essential"
    hooks = ", ".join(f"`{hook}`" for hook in slot.hooks)
    name = slot.name
    interface = f"[{INTERFACES[name].__name__}](#{name})" if name in INTERFACES else "-"
    return f"| `{name}` | {slot.version} | {status} | {hooks} | {interface} |\n"


def _section(slot: Slot) -> str:
    """Tell what a slot's offers are built with, and its interface as it is written."""
    interface = INTERFACES[slot.name]
    module = inspect.getmodule(interface)
    assert module is not None
    lines = [f"## {slot.name}\n", inspect.cleandoc(module.__doc__ or ""), ""]
    if slot.name in NOTES:
        lines += [NOTES[slot.name], ""]
    lines += [_load(slot.name), ""]
    for method, flag in _optional(slot.name).items():
        lines += [f"`{method}` is optional: `{flag}` declares it.", ""]
    types = [interface, *_types(module, interface)]
    return _code("\n".join(lines).rstrip(), *types)


def _load(slot: str) -> str:
    """Say how an offer's `load` is called."""
    if slot == "model":
        return "`load()` returns the class; the engine builds it with (config, context)."
    keywords = LOAD_KEYWORDS.get(slot, {})
    if not keywords:
        return "`load()` takes nothing and returns it."
    rows = "".join(f"\n- `{name}`: {meaning}" for name, meaning in keywords.items())
    return f"`load(*, {', '.join(keywords)})` returns it:\n{rows}"


def _optional(slot: str) -> dict[str, str]:
    """Return optional method -> the flag that declares it."""
    return {method: f"{flag} {member}".strip() for flag, member, method in OPTIONAL.get(slot, ())}


def _types(module: ModuleType, interface: type) -> list[type]:
    """Return the other exported classes of the interface's module, in the order of the file."""
    classes = [item for item in vars(module).values() if inspect.isclass(item)]
    own = [item for item in classes if item.__module__ == module.__name__]
    return [item for item in own if item.__name__ in EXPORTED and item is not interface]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
