"""`tokenspeed models`: the architectures that can be served, and how one lies over ranks.

The listing imports no model file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.models_explain import fill_explain
from tokenspeed.cli.plugin_output import plugins_print_to_stderr
from tokenspeed.cli.table import print_table

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: Any) -> None:
    """Add `models` and its verbs."""
    parser = subparsers.add_parser("models", help="the architectures that can be served")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="every architecture and the plugin that offers it")
    listing.add_argument(
        "--plugins", default="", metavar="IDS", help="also load these plugins, comma separated"
    )
    listing.add_argument(
        "--model-module", default="", metavar="MODULES", help="and these model files of your own"
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=run)
    fill_explain(verbs.add_parser("explain", help="how a model lies over ranks, layer by layer"))


def run(args: argparse.Namespace) -> int:
    """Print the listing."""
    from tokenspeed.models.modules import register_model_modules
    from tokenspeed.models.registry import architectures
    from tokenspeed.plugins.manager import load_plugins

    requested = _names(args.plugins)
    # A listing serves nothing: naming the plugin is opt-in enough.
    with plugins_print_to_stderr():
        registry = load_plugins(requested, role="cli", experimental=requested)
        register_model_modules(registry, _names(args.model_module))
    offered = architectures(registry)
    rows = [
        (name, item.plugin_id, item.plugin_version, item.pin)
        for name, offers in offered.items()
        for item in offers
    ]
    keys = ("architecture", "plugin", "version", "pin")
    if args.json:
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return 0
    print_table(tuple(key.upper() for key in keys), rows)
    for name, offers in offered.items():
        if len(offers) > 1:
            print(f"\n{name} is offered {len(offers)} times: pin one with --pins model=PIN")
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
