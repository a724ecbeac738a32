"""Writes docs/plugins/slots.md from the slots and interfaces: `python docs/generate_slots.py`."""

from __future__ import annotations

import inspect
from pathlib import Path

from tokenspeed.plugins.slots import EXPERIMENTAL, SLOTS, Slot
from tokenspeed_sdk.conformance.interfaces import INTERFACES, OPTIONAL

PAGE = Path(__file__).with_name("plugins") / "slots.md"
DEGRADABLE = ("kv_store", "speculator")
HEAD = """# Slots

A slot is a place that plugins fill. Its version is that of its interface: the core takes plugins of
this major and of the one before. *Stable* slots keep their interface for a whole major version.
*Experimental* ones may change with a changelog line, and a third party's plugin fills them only
with `--allow-experimental ID`. When an offer fails at run time, an *essential* slot fails the rank
and names the plugin; a *degradable* one is detached, counted and reported, and answers stay right.
Interfaces are Protocols in `core/tokenspeed/contracts/`, exported by `tokenspeed_sdk`. Written by
`python docs/generate_slots.py`.

| slot | version | status | hooks | interface |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the page's text."""
    rows = map(_row, SLOTS.values())
    sections = (_section(slot) for slot in SLOTS.values() if slot.name in INTERFACES)
    return HEAD + "".join(rows) + "".join(sections)


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
    """Tell the members of a slot's interface, each with the first line of what it says."""
    interface = INTERFACES[slot.name]
    module = inspect.getmodule(interface)
    assert module is not None
    source = module.__name__.replace(".", "/")
    optional = {method: flag for flag, member, method in OPTIONAL.get(slot.name, ()) if not member}
    optional |= {
        method: f"{flag} {member}" for flag, member, method in OPTIONAL.get(slot.name, ()) if member
    }
    lines = [f"\n## {slot.name}\n", _first_line(module.__doc__), ""]
    lines += [f"`{interface.__name__}` in `core/{source}.py`: {_first_line(interface.__doc__)}", ""]
    lines += ["| member | | what it does |", "|---|---|---|"]
    for name in getattr(interface, "__annotations__", {}):
        lines.append(f"| `{name}` | attribute | |")
    for name, member in vars(interface).items():
        function = getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        kind = f"if `{optional[name]}` declares it" if name in optional else "required"
        lines.append(f"| `{name}` | {kind} | {_first_line(function.__doc__)} |")
    return "\n".join(lines) + "\n"


def _first_line(text: str | None) -> str:
    """Return the first sentence line of a docstring, on one line."""
    paragraph = (text or "").strip().split("\n\n")[0]
    return " ".join(paragraph.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
