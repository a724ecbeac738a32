"""`tokenspeed plugins`: `list` and `info` here, the other verbs in files of their own.

A verb's file is imported when it is called, or its help is asked for: `list` has no time for them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.table import print_table
from tokenspeed.plugins.targets import resolve

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

OK, PROBLEMS = 0, 1
VERBS = {
    "explain": (
        "plugins_explain:fill_explain",
        "what a start would choose, and why, without weights or the device",
    ),
    "doctor": (
        "plugins_doctor:fill_doctor",
        "examine the installed plugins: what is wrong, what to do, how far a device is",
    ),
    "diff": ("plugins_diff:fill_diff", "what two plans or records chose differently"),
    "lock": ("plugin_lock:fill_lock", "write a lock file of the installed plugins"),
    "verify": ("plugin_lock:fill_verify", "compare installed plugins with a lock file"),
}
"""Verb -> where its arguments are made, and its line of help."""
LOADS_NOTES = {
    "auto": "when its device is found; `tokenspeed plugins info ID` looks for it and says why not",
    "when named": "not enabled; load it with --plugins ID",
}


def add_parser(subparsers: Any) -> None:
    """Add `plugins` and its verbs."""
    parser = subparsers.add_parser("plugins", help="list installed plugins, explain one")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="every installed plugin and when it loads")
    listing.add_argument("--json", action="store_true", help="print JSON")
    info = verbs.add_parser("info", help="manifest, device and problems of one plugin")
    info.add_argument("id", metavar="ID", help="plugin id, as in `plugins list`")
    info.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    for verb, (target, text) in VERBS.items():
        verbs.add_parser(verb, help=text).fill = _filler(f"tokenspeed.cli.{target}")


def _filler(target: str) -> Callable[[argparse.ArgumentParser], None]:
    """Return a function that imports a verb's file and adds its arguments."""

    def fill(parser: argparse.ArgumentParser) -> None:
        resolve(target)(parser)

    return fill


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns 0, or 1 when a listed plugin has a problem."""
    return _list(args) if args.verb == "list" else _info(args)


def _list(args: argparse.Namespace) -> int:
    from tokenspeed.plugins.listing import list_plugins

    entries = list_plugins()
    if args.json:
        print(json.dumps(entries, indent=2))
    else:
        rows = [
            (
                entry["id"],
                entry["version"],
                entry["loads"],
                _slots(entry),
                entry["wheel"],
                entry["summary"],
            )
            for entry in entries
        ]
        print_table(("ID", "VERSION", "LOADS", "SLOTS", "WHEEL", "ABOUT"), rows)
        print()
        for loads in sorted(LOADS_NOTES.keys() & {entry["loads"] for entry in entries}):
            print(f"{loads}: {LOADS_NOTES[loads]}")
        for entry in entries:
            if entry["problem"]:
                print(f"\n{entry['id']}: {entry['problem']}")
    return PROBLEMS if any(entry["problem"] for entry in entries) else OK


def _slots(entry: dict[str, Any]) -> str:
    return " ".join(sorted(entry["slots"])) or "-"


def _info(args: argparse.Namespace) -> int:
    from tokenspeed.errors import PluginError
    from tokenspeed.plugins.listing import list_plugins
    from tokenspeed.plugins.nearest import suggestion

    by_id = {entry["id"]: entry for entry in list_plugins()}
    if args.id not in by_id:
        raise PluginError(
            f"unknown plugin {args.id!r}; {suggestion(args.id, by_id)}", id="plugin-unknown"
        )
    entry = by_id[args.id]
    entry["device"] = _device(entry)
    if args.json:
        print(json.dumps(entry, indent=2))
    else:
        print_table(("FIELD", "VALUE"), [(name, _text(value)) for name, value in entry.items()])
    return PROBLEMS if entry["problem"] else OK


def _device(entry: dict[str, Any]) -> str:
    """Run the probe in a child process; a stranger's code is not run by asking about it."""
    from tokenspeed.plugins.discovery import discover
    from tokenspeed.plugins.probe import run_probes

    found = discover().get(entry["id"])
    if entry["problem"] or found is None or found.manifest is None or not found.manifest.probe:
        return "-"
    if not entry["is_first_party"]:
        return "not probed: a stranger's code runs only when named, as in `plugins doctor ID`"
    manifest = found.manifest
    result = run_probes({found.id: manifest.probe}, {found.id: manifest.device_kinds})[found.id]
    return result.reason or "; ".join(
        f"{facts.count} x {facts.name} ({facts.arch}, {facts.memory_bytes / 2**30:.1f} GiB)"
        for facts in result.devices
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or "-"
    if isinstance(value, list):
        items = (
            f"{item['name']}={item['default']!r}" if isinstance(item, dict) else str(item)
            for item in value
        )
        return ", ".join(items) or "-"
    return str(value) or "-"
