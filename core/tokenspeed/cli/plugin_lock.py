"""`tokenspeed plugins lock|verify`: write down what is installed, see whether it still is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.diagnostics import NOT_TRUSTED
from tokenspeed.errors import ConfigError, PluginError, reason_of

if TYPE_CHECKING:
    import argparse

    from tokenspeed.plugins.discovery import FoundPlugin


def fill_lock(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lock`."""
    parser.add_argument("ids", nargs="*", metavar="ID", help="plugins to lock; none: all that load")
    parser.add_argument("--output", metavar="FILE", help="where to; absent: stdout")
    parser.set_defaults(run=run_lock)


def fill_verify(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `verify`."""
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="lock file; absent: only each wheel's own RECORD"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_verify)


def run_lock(args: argparse.Namespace) -> int:
    """Write the lock file of the plugins named, or of all without a problem."""
    from tokenspeed.plugins.lock_file import lock_entry, lock_text, own_wheels
    from tokenspeed.plugins.outcome import manifest_of

    installed = _installed(tuple(args.ids))
    chosen = {found.id: found for found in installed if args.ids or not found.problem}
    for found in chosen.values():
        manifest_of(found)
    chosen |= {found.id: found for found in own_wheels()}
    text = lock_text(lock_entry(found) for found in chosen.values())
    if args.output:
        try:
            Path(args.output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"lock file {args.output} cannot be written: {reason_of(error)}; "
                "choose another place"
            ) from error
        print(f"{args.output}: {len(chosen)} plugins", file=sys.stderr)
    else:
        print(text, end="")
    return 0


def run_verify(args: argparse.Namespace) -> int:
    """Check every locked plugin (or every installed one); 3 when one differs."""
    rows = _against_lock(args.file) if args.file else _against_records()
    fine = "as locked" if args.file else "as installed"
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print(f"{row['id']}: {row['problem'] or fine}")
    return NOT_TRUSTED if any(row["problem"] for row in rows) else 0


def _against_lock(path: str) -> list[dict[str, str]]:
    from tokenspeed.plugins.lock_file import check_locked, find_locked, read_lock

    locked = read_lock(path)
    rows = []
    for entry in locked.values():
        found = find_locked(entry)
        rows.append(_row(entry.id, lambda found=found: check_locked(found, locked, path)))
    return rows


def _against_records() -> list[dict[str, str]]:
    from tokenspeed.plugins.lock_file import lock_entry, own_wheels

    wheels = {found.id: found for found in (*own_wheels(), *_installed(()))}
    return [_row(name, lambda found=found: lock_entry(found)) for name, found in wheels.items()]


def _row(plugin_id: str, check: Any) -> dict[str, str]:
    try:
        check()
    except PluginError as error:
        return {"id": plugin_id, "problem": error.message, "diagnostic": error.id}
    return {"id": plugin_id, "problem": "", "diagnostic": ""}


def _installed(ids: tuple[str, ...]) -> list[FoundPlugin]:
    from tokenspeed.plugins.discovery import discover
    from tokenspeed.plugins.nearest import suggestion

    found = discover()
    for plugin_id in ids:
        if plugin_id not in found:
            raise PluginError(
                f"unknown plugin {plugin_id!r}; {suggestion(plugin_id, found)}",
                id="plugin-unknown",
            )
    return [found[plugin_id] for plugin_id in ids or sorted(found)]
