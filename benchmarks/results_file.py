"""Benchmark results: one JSON file a machine, rows merged by (group, name), tables made from it."""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured figure.

    Args:
        group, name: identity; a later run replaces the row.
        value, unit: what was measured; `better` says which way is good: "higher" or "lower".
        peer, peer_value, peer_date: what it is compared with, and when that was measured.
        ratio: how much better than the peer (> 1 is better), or None.
        target: text of the goal, "" for none.
        command: how to measure it again.
    """

    group: str
    name: str
    value: float
    unit: str
    better: str
    command: str
    peer: str = ""
    peer_value: float | None = None
    peer_date: str = ""
    ratio: float | None = None
    target: str = ""
    commit: str = ""


def machine_name() -> str:
    """Name this kind of machine: processor and cores, as a file name."""
    import os

    return f"cpu-{platform.machine()}-{os.cpu_count()}-cores"


def current_commit() -> str:
    """Return the short commit, with `+` when the tree has changes."""
    commit, diff = (
        subprocess.run(["git", *args], capture_output=True, text=True, check=False).stdout.strip()
        for args in (["rev-parse", "--short", "HEAD"], ["diff", "--stat"])
    )
    return commit + ("+" if diff else "")


def merge_rows(rows: list[Row], versions: dict[str, str], machine: str | None = None) -> Path:
    """Merge rows into the machine's file and return its path."""
    machine = machine or machine_name()
    path = RESULTS / f"{machine}.json"
    old = json.loads(path.read_text()) if path.exists() else {"rows": [], "versions": {}}
    merged = {(row["group"], row["name"]): row for row in old["rows"]}
    commit = current_commit()
    for row in rows:
        merged[row.group, row.name] = dataclasses.asdict(
            dataclasses.replace(row, commit=row.commit or commit)
        )
    data = {
        "machine": machine,
        "versions": {**old["versions"], **versions},
        "rows": list(merged.values()),
    }
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path


def markdown_table(path: Path, groups: tuple[str, ...]) -> str:
    """Render the rows of some groups as a Markdown table."""
    data = json.loads(path.read_text())
    lines = ["| work | value | peer | ratio | target |", "|---|---|---|---|---|"]
    for row in data["rows"]:
        if row["group"] in groups:
            peer = f"{row['peer']} {row['peer_value']:,.1f}" if row["peer_value"] else row["peer"]
            ratio = f"{row['ratio']:.2f}x" if row["ratio"] else ""
            lines.append(
                f"| {row['name']} | {row['value']:,.1f} {row['unit']} | {peer} | {ratio} "
                f"| {row['target']} |"
            )
    return "\n".join(lines)
