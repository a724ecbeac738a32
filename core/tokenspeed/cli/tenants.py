"""`tokenspeed tenants list|set`: floors and caps of KV cache of a running server's tenants."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tokenspeed.cli.connection import ServerAddress, base_url
from tokenspeed.cli.table import print_table
from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 10.0
MIB = 1 << 20
HEADS = ("TENANT", "FLOOR MIB", "CAP MIB", "IN USE MIB", "CACHED MIB", "RUNNING", "WAITING")
BYTE_FIELDS = ("floor_bytes", "cap_bytes", "held_bytes", "cached_bytes")


def add_parser(subparsers: Any) -> None:
    """Add `tenants` and its verbs."""
    parser = subparsers.add_parser(
        "tenants", help="floors and caps of KV cache of a running server's tenants"
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="every tenant that has figures, and what it has")
    change = verbs.add_parser("set", help="give a tenant other figures, at once")
    change.add_argument("name", metavar="NAME", help="the tenant")
    for option, text in (
        ("--floor-mib", "KV cache that others never evict, once the tenant has it"),
        ("--cap-mib", "most KV cache that it has at a time"),
    ):
        change.add_argument(option, type=float, metavar="MIB", help=f"{text}; left out: none")
    for verb in (listing, change):
        verb.add_argument("--url", default=DEFAULT_URL, help=f"default: {DEFAULT_URL}")
        verb.add_argument("--api-key", default="", help="the key that the server was started with")
        verb.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List, or change and list."""
    server = ServerAddress(base_url(args.url), args.api_key, TIMEOUT_S)
    if args.verb == "list":
        answer = server.json("GET", "/tenants")
    else:
        body = {
            "floor_bytes": _bytes("--floor-mib", args.floor_mib),
            "cap_bytes": _bytes("--cap-mib", args.cap_mib),
        }
        answer = server.json("PUT", f"/tenants/{quote(args.name, safe='')}", body)
    if args.json:
        print(json.dumps(answer, indent=2))
    else:
        print_table(HEADS, _rows(answer["tenants"]))
    return 0


def _rows(tenants: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            tenant["name"],
            *(_mib(tenant[field]) for field in BYTE_FIELDS),
            str(tenant["running"]),
            str(tenant["waiting"]),
        )
        for tenant in tenants
    ]


def _mib(value: int | None) -> str:
    return "-" if value is None else f"{value / MIB:,.1f}"


def _bytes(option: str, value: float | None) -> int | None:
    if value is None:
        return None
    if not math.isfinite(value) or not 0 <= value <= 1 << 40:
        raise ConfigError(f"{option} is {value}; 0 to {1 << 40} MiB are allowed; change it")
    return int(value * MIB)
