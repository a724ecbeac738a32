"""`make bench-control`: the control plane's CPU time beside the peers', one engine after another.

Every engine runs in a process of its own through `control_plane_workload.py`. Peers live in
`.venv-control-peers` (`setup_peers.sh`); one that is missing is quoted with its date. Figures go to
`benchmarks/results/`, group "control plane".

Usage: compare.py [--only ours,tokenspeed,vllm,sglang]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.results_file import Row, merge_rows  # noqa: E402

HERE = Path(__file__).parent
PEERS = ROOT / ".venv-control-peers"
QUOTED = "2026-11-29"
COMMAND = "make bench-control"
Results = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """One engine that runs the workloads: its adapter and where its files lie."""

    adapter: str
    site: str = ""
    variable: str = ""

    @property
    def python(self) -> Path:
        return PEERS / "bin" / "python" if self.site else Path(sys.executable)

    @property
    def is_there(self) -> bool:
        return not self.site or (PEERS / self.site).is_dir()


ENGINES = {
    "ours": Peer("peer_ours"),
    "tokenspeed": Peer("peers.peer_tokenspeed", "site_tokenspeed", "TS_SITE"),
    "vllm": Peer("peers.peer_vllm", "site_vllm", "VLLM_SITE"),
    "sglang": Peer("peers.peer_sglang", "site_sglang", "SGL_SITE"),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table: where it stands in the results, its goal, the peers' dated figures.

    Args:
        workload, pick: of the driver, and the parameters that name the run.
        paths: entries of the result that are added; "a/b" is result["a"]["b"].
        quoted: peer -> value, used when the peer did not run.
    """

    name: str
    unit: str
    workload: str
    pick: dict[str, float]
    paths: tuple[str, ...]
    target: str
    quoted: dict[str, float]

    def of(self, results: Results) -> float | None:
        """Return the figure of one engine, None when it does not have it."""
        for run in results.get(self.workload, ()):
            if all(run.get(key) == value for key, value in self.pick.items()):
                parts = [value for path in self.paths if (value := _at(run, path)) is not None]
                return sum(parts) if parts else None
        return None


def _at(run: Results, path: str) -> float | None:
    value: Any = run
    for part in path.split("/"):
        value = value.get(part) if value is not None else None
    return value


def _decode(n: int, ctx: int, target: str, quoted: dict[str, float], q: str = "p50") -> Figure:
    name = f"decode step, {n} running, {ctx // 1024}k context, {q}"
    pick = {"N": n, "ctx": ctx}
    return Figure(name, "us", "W1", pick, (f"step_us/{q}",), target, quoted)


AGENTIC, MILLION = {"frac": 1.0}, {"length": 1_048_576}
FIGURES = (
    _decode(64, 8192, "<= 12", {"tokenspeed": 577, "vllm": 1231}),
    _decode(64, 65536, "<= 15", {"tokenspeed": 5535, "vllm": 1283}),
    _decode(1024, 8192, "<= 100", {"tokenspeed": 19753, "vllm": 24905}),
    _decode(1024, 8192, "<= 200", {"tokenspeed": 24713, "vllm": 26880}, "p99"),
    _decode(4, 8192, "", {}),
    _decode(4, 524_288, "<= 1.3x of 8k", {}),
    Figure(
        "admission of a 65k prompt, 97 % cached, p50",
        "us",
        "W2",
        AGENTIC,
        ("admission_us/p50",),
        "<= 60",
        {"tokenspeed": 2541, "vllm": 16599, "sglang": 411},
    ),
    Figure(
        "admission of a 65k prompt, 97 % cached, p99",
        "us",
        "W2",
        AGENTIC,
        ("admission_us/p99",),
        "",
        {},
    ),
    Figure("same, delta submit, p50", "us", "W2d", AGENTIC, ("admission_us/p50",), "<= 15", {}),
    Figure(
        "1M-token prompt, cold: submit and all chunks",
        "ms",
        "W3",
        MILLION,
        ("cold_submit_ms", "cold_all_chunks_ms"),
        "<= 2",
        {"tokenspeed": 187, "vllm": 162, "sglang": 5.0},
    ),
    Figure(
        "1M-token prompt, all cached: submit and first plan",
        "ms",
        "W3",
        MILLION,
        ("warm_submit_ms", "warm_first_plan_ms"),
        "<= 1.5",
        {"tokenspeed": 29, "vllm": 84, "sglang": 11.6},
    ),
    Figure(
        "8k prompt into a full pool, every admission evicts, p50",
        "us",
        "W4",
        {},
        ("evict_us/p50",),
        "<= 20",
        {"tokenspeed": 740, "vllm": 3019, "sglang": 243},
    ),
    Figure(
        "8k prompt into a full pool, every admission evicts, p99",
        "us",
        "W4",
        {},
        ("evict_us/p99",),
        "",
        {},
    ),
)
RUNS = (
    ["--workload", "W1", "--n", "4,64,1024"],
    ["--workload", "W1", "--n", "64", "--ctx", "65536"],
    ["--workload", "W1", "--n", "4", "--ctx", "524288"],
    ["--workload", "W3", "--len", "1048576"],
    ["--workload", "W4"],
    ["--workload", "W2", "--frac", "1.0"],
)
OUR_RUNS = (["--workload", "W2d", "--frac", "1.0"], ["--workload", "W2", "--frac", "0.5,0.25"])


def run_engine(name: str) -> Results:
    """Run all workloads on one engine; {} when it does not run here."""
    peer = ENGINES[name]
    if not peer.is_there:
        print(f"{name} is not in {PEERS.name}: quoted", file=sys.stderr)
        return {}
    results: Results = {}
    for arguments in RUNS + (OUR_RUNS if name == "ours" else ()):
        for key, value in run_workload(name, arguments).items():
            results[key] = results.get(key, []) + value if isinstance(value, list) else value
    return results


def run_workload(name: str, arguments: list[str]) -> Results:
    """Run some workloads in a fresh process."""
    peer = ENGINES[name]
    print(f"== {name} {' '.join(arguments)}", file=sys.stderr, flush=True)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if peer.site:
        environment[peer.variable] = str(PEERS / peer.site)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        done = subprocess.run(
            [peer.python, "control_plane_workload.py", "--peer", peer.adapter, *arguments]
            + ["--out", out],
            cwd=HERE,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{name} failed:\n{done.stderr[-1500:]}", file=sys.stderr)
            return {}
        results: Results = json.loads(out.read_text())
        return results


def rows_of(figure: Figure, measured: dict[str, Results]) -> list[Row]:
    """Return one row a peer that has the figure, or one without a peer."""
    value = figure.of(measured["ours"])
    if value is None:
        return []
    rows = []
    for peer in ENGINES:
        theirs = None if peer == "ours" else figure.of(measured.get(peer, {}))
        date = "same run" if theirs is not None else QUOTED
        theirs = theirs if theirs is not None else figure.quoted.get(peer)
        if theirs is not None:
            rows.append(_row(figure, value, peer, theirs, date))
    return rows or [_row(figure, value, "", None, "")]


def _row(figure: Figure, value: float, peer: str, theirs: float | None, date: str) -> Row:
    cache_only = " (cache only)" if peer == "sglang" else ""
    return Row(
        group="control plane",
        name=figure.name + (f", against {peer}{cache_only}" if peer else ""),
        value=value,
        unit=figure.unit,
        better="lower",
        command=COMMAND,
        peer=peer,
        peer_value=theirs,
        peer_date=date,
        ratio=theirs / value if theirs else None,
        target=f"{figure.target} {figure.unit}" if figure.target else "",
    )


def main() -> None:
    """Measure, merge into the machine's file, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(ENGINES), help="engines, between commas")
    chosen = parser.parse_args().only.split(",")
    measured = {name: run_engine(name) for name in ENGINES if name in chosen}
    rows = [row for figure in FIGURES for row in rows_of(figure, measured)]
    versions = {name: results["version"] for name, results in measured.items() if results}
    path = merge_rows(rows, versions)
    for row in rows:
        print(f"{row.name:<75} {row.value:>9.2f} {row.unit}  {row.target:<12} {row.peer_value}")
    print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
