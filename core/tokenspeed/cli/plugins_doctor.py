"""`tokenspeed plugins doctor [ID]`: what is wrong with the installed plugins, and what to do."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.table import print_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tokenspeed.plugins.doctor import Finding

OK, PROBLEMS = 0, 1
CPU = "cpu."
"""Prefix of the facts about instructions."""


def fill_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.description = (
        "Examine plugins; their code runs in child processes only. A third party's code runs only "
        "when ID names it. Exit code 1: a problem was found."
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
    findings += _models(args.id, findings)
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


def _models(plugin_id: str | None, findings: list[Finding]) -> Iterator[Finding]:
    """Try the model files of the core and of what was loaded; each for itself."""
    from tokenspeed.models.health import check_models
    from tokenspeed.plugins.doctor import OK as FINE
    from tokenspeed.plugins.doctor import PROBLEM, Finding
    from tokenspeed.plugins.trust import CORE_ID

    loaded = [item.plugin for item in findings if (item.check, item.verdict) == ("loads", FINE)]
    counts: dict[str, int] = dict.fromkeys(loaded if plugin_id else [CORE_ID, *loaded], 0)
    if plugin_id == CORE_ID:
        counts = {CORE_ID: 0}
    fix = "repair the model's file, or leave its plugin out; other architectures are not affected"
    for item in check_models(tuple(loaded)) if counts else ():
        owner = item.pin.rpartition("/")[0] or CORE_ID
        if owner not in counts:
            continue
        if item.problem:
            why = "".join(f"; caused by {line}" for line in item.causes)
            text = f"{item.architecture} cannot be used: {item.problem}{why}"
            yield Finding(owner, "model", PROBLEM, text, fix, "offer-load-failed")
        else:
            counts[owner] += 1
    for owner, count in counts.items():
        if count:
            yield Finding(owner, "model", FINE, f"{_architectures(count)} can be used")


def _architectures(count: int) -> str:
    return "1 architecture" if count == 1 else f"{count} architectures"


def _text(item: Any) -> str:
    label = f" [{item.id}]" if item.id else ""
    return f"{item.text}{label}; {item.fix}" if item.fix else f"{item.text}{label}"
