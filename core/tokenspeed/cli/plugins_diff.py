"""`tokenspeed plugins diff A.json B.json`: what two starts chose differently, and why.

Takes what `plugins explain --json` prints, what `GET /v1/engine/plan` answers, or one record.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.table import print_table
from tokenspeed.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

SAME, DIFFERENT = 0, 1
ABSENT = "-"
ADVICE = "give the output of `tokenspeed plugins explain --json`, or of GET /v1/engine/plan"


def fill_diff(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.description = (
        "Compare two files: output of `plugins explain --json`, answers of GET /v1/engine/plan, or "
        "single records. Exit code 1: they differ."
    )
    parser.add_argument("a", metavar="A.json")
    parser.add_argument("b", metavar="B.json")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the differences; 1 when there are some."""
    differences = list(compare(_records(args.a), _records(args.b)))
    if args.json:
        print(json.dumps(differences, indent=2))
    elif differences:
        rows = [(item["choice"], item["what"], item["a"], item["b"]) for item in differences]
        print_table(("CHOICE", "WHAT", args.a, args.b), rows)
    else:
        print("no difference")
    return DIFFERENT if differences else SAME


def compare(
    a: Mapping[str, Mapping[str, Any]], b: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, str]]:
    """Yield each difference of two sets of records as texts: choice, what, a, b."""
    for choice in sorted({*a, *b}):
        before, after = _facts(a.get(choice)), _facts(b.get(choice))
        for what in [*before, *(name for name in after if name not in before)]:
            texts = before.get(what, ABSENT), after.get(what, ABSENT)
            if texts[0] != texts[1]:
                yield {"choice": choice, "what": what, "a": texts[0], "b": texts[1]}


def _facts(record: Mapping[str, Any] | None) -> dict[str, str]:
    """Return what is compared of a record: the request, the winner, each candidate's verdict."""
    if record is None:
        return {}
    facts = {"winner": str(record["winner"] or "nobody")}
    facts |= {f"asked {name}": _text(value) for name, value in record["traits"].items()}
    for name in ("pin", "objective", "forced", "is_fallback"):
        facts[name] = _text(record.get(name, ABSENT))
    for entry in record["candidates"]:
        facts[f"version of {entry['offer']}"] = entry["version"]
        facts[entry["offer"]] = f"{entry['verdict']}: {entry['reason']}"
    return facts


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) or ABSENT if isinstance(value, list) else str(value)


def _records(file: str) -> dict[str, Mapping[str, Any]]:
    """Return the records of a file by slot, or by operator and its traits.

    Raises:
        ConfigError: unreadable, not JSON, or neither plan nor record.
    """
    from tokenspeed.checkpoint.json_file import read_json_object

    try:
        data = read_json_object(Path(file), advice=ADVICE)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    data = data.get("plan", data)
    try:
        if "candidates" in data:
            return {str(data["slot"]): data}
        slots = {name: entry["record"] for name, entry in data["slots"].items()}
        kernels = [entry["record"] for entry in data["kernels"]]
        failed = [item["record"] for item in data.get("failures", ()) if item["record"]]
        named = {_kernel_name(record): record for record in (*kernels, *failed)}
        return {**slots, **named}
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} is neither a plan nor a record: {error!r}; {ADVICE}") from error


def _kernel_name(record: Mapping[str, Any]) -> str:
    """Name a kernel's choice by what tells it from others of the same operator."""
    own = {
        name: value
        for name, value in record["traits"].items()
        if name not in ("device", "arch", "dtype")
    }
    text = ", ".join(f"{name}={_text(value)}" for name, value in own.items())
    return f"{record['slot']} ({text})" if text else str(record["slot"])
