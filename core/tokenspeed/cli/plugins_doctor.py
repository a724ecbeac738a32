"""`tokenspeed plugins doctor [ID]`: what is wrong with the installed plugins, and what to do."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.table import print_table

if TYPE_CHECKING:
    import argparse

OK, PROBLEMS = 0, 1
CPU = "cpu."
"""Prefix of the facts about instructions."""


def add_verbs(verbs: Any) -> None:
    """Add the verb to `plugins`."""
    parser = verbs.add_parser(
        "doctor",
        help="examine the installed plugins: what is wrong, what to do, how far a device is",
        description="Examine plugins; their code runs in child processes only. A third party's "
        "code runs only when ID names it. Exit code 1: a problem was found.",
    )
    parser.add_argument("id", nargs="?", metavar="ID", help="plugin id; absent: all")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Examine; 1 when there is a problem."""
    from tokenspeed.plugins.doctor import PROBLEM, examine
    from tokenspeed.plugins.host_facts import environment_facts

    facts = dict(environment_facts())
    findings = examine(args.id)
    has_problem = any(item.verdict == PROBLEM for item in findings)
    if args.json:
        data = {"facts": facts, "findings": [dataclasses.asdict(item) for item in findings]}
        print(json.dumps(data, indent=2))
        return PROBLEMS if has_problem else OK
    cpu = [name.removeprefix(CPU) for name in sorted(facts) if name.startswith(CPU)]
    rows = [(name, value) for name, value in sorted(facts.items()) if not name.startswith(CPU)]
    print_table(("FACT", "VALUE"), [*rows, ("cpu", f"{len(cpu)} features (--json lists them)")])
    print()
    told = [(item.plugin, item.check, item.verdict, _text(item)) for item in findings]
    print_table(("PLUGIN", "CHECK", "VERDICT", "WHAT"), told)
    return PROBLEMS if has_problem else OK


def _text(item: Any) -> str:
    label = f" [{item.id}]" if item.id else ""
    return f"{item.text}{label}; {item.fix}" if item.fix else f"{item.text}{label}"
