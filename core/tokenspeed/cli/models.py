"""`tokenspeed models list`: the architectures that can be served; imports no model file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.table import print_table

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: Any) -> None:
    """Add `models` and its verbs."""
    parser = subparsers.add_parser("models", help="list the architectures that can be served")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="every architecture and the plugin that offers it")
    listing.add_argument(
        "--plugins", default="", metavar="IDS", help="also load these plugins, comma separated"
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the listing."""
    from tokenspeed.models.registry import architectures
    from tokenspeed.plugins.manager import load_plugins

    requested = tuple(name.strip() for name in args.plugins.split(",") if name.strip())
    # A listing serves nothing: naming the plugin is opt-in enough.
    registry = load_plugins(requested, role="cli", experimental=requested)
    rows = [
        (name, registered.plugin_id, registered.plugin_version)
        for name, registered in architectures(registry).items()
    ]
    if args.json:
        keys = ("architecture", "plugin", "version")
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
    else:
        print_table(("ARCHITECTURE", "PLUGIN", "VERSION"), rows)
    return 0
