"""`make bench`: the same model through us and through public engines, one after another.

Every engine runs in a process of its own, with the machine to itself. Peers live in `.venv-peers`
(`benchmarks/serving/setup_peers.sh`); one that is missing is left out and named. Figures go to
`benchmarks/results/`, README's table is made from them.

Usage: compare.py [--only NAME,...] (names: transformers vllm llama.cpp dense packed server
memory front_end)
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.results_file import Row, merge_rows  # noqa: E402
from benchmarks.serving.ours import DENSE_BYTES  # noqa: E402
from benchmarks.serving.second_turn import measure_server  # noqa: E402

HERE = Path(__file__).parent
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
COMMAND = "make bench"
ENGINES = ("transformers", "vllm", "llama.cpp", "dense", "packed", "server", "memory", "front_end")


def run_child(command: list[str], what: str) -> list[dict]:
    """Run one engine and return the JSON lines it printed; [] and a message when it fails."""
    print(f"== {what}", file=sys.stderr, flush=True)
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        print(f"{what} failed (exit {done.returncode}):\n{done.stderr[-1500:]}", file=sys.stderr)
        return []
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    seconds = time.perf_counter() - start
    print(f"   {seconds:.0f} s: {json.dumps(rows)}", file=sys.stderr, flush=True)
    return rows


def rates(rows: list[dict]) -> dict[str, float]:
    """Return case -> tokens/s."""
    return {row["case"]: row["tok_s"] for row in rows}


def read_bandwidth_gb_s() -> float:
    """Measure how fast this machine reads memory: the best of five sums over 1 GiB."""
    code = (
        "import torch,time;x=torch.ones(2**28);x.sum();b=1e9\n"
        "for _ in range(5):\n s=time.perf_counter();x.sum();b=min(b,time.perf_counter()-s)\n"
        "print(2**30/b/1e9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def dense_folder(gguf: Path) -> Path | None:
    """Return the dense copy that the peers read, made once by transformers; None without peers."""
    target = gguf.parent / (gguf.stem + "-dense")
    if not PEERS_PYTHON.exists():
        print(f"no {PEERS_PYTHON}: peers are left out; run setup_peers.sh", file=sys.stderr)
        return None
    command = [PEERS_PYTHON, HERE / "peers" / "export_dense.py", gguf, target]
    run_child([str(part) for part in command], "dense copy for the peers")
    return target if target.exists() else None


def measure(gguf: Path, chosen: set[str]) -> dict[str, dict[str, float]]:
    """Run the chosen engines and return engine -> case -> tokens/s."""
    ours = [sys.executable, str(HERE / "ours.py"), "generate", str(gguf)]
    folder = dense_folder(gguf) if chosen & {"transformers", "vllm"} else None
    peer = str(PEERS_PYTHON)
    commands = {
        "transformers": [peer, HERE / "peers/transformers_peer.py", folder, "batch 1", "batch 8"],
        "vllm": [peer, HERE / "peers/vllm_cpu_peer.py", folder, "batch 1", "batch 8", "batch 32"],
        "llama.cpp": [peer, HERE / "peers/llama_cpp_peer.py", gguf, "batch 1"],
        "dense": [*ours, "dense", "batch 1", "batch 8", "batch 32"],
        "packed": [*ours, "packed", "batch 1", "batch 32"],
    }
    found = {}
    for name, command in commands.items():
        needs_peers = name in ("transformers", "vllm", "llama.cpp")
        if name in chosen and not (needs_peers and not PEERS_PYTHON.exists()):
            found[name] = rates(run_child([str(part) for part in command], name))
    return found


def generation_rows(found: dict[str, dict[str, float]]) -> list[Row]:
    """Turn tokens/s into result rows, each against its peer in this run."""
    comparisons = (
        ("dense", "batch 1", "transformers", "batch 1", ">= 1.3x (aim 1.8x)"),
        ("packed", "batch 1", "transformers", "batch 1", ">= 3x"),
        ("packed", "batch 1", "llama.cpp", "batch 1", "distance printed"),
        ("dense", "batch 32", "transformers", "batch 8", ">= 2x"),
        ("dense", "batch 32", "vllm", "batch 32", "> 1x"),
        ("dense", "batch 1", "vllm", "batch 1", ""),
        ("dense", "batch 8", "vllm", "batch 8", ""),
    )
    today = datetime.date.today().isoformat()
    rows = []
    for engine, case, peer, peer_case, target in comparisons:
        value = found.get(engine, {}).get(case)
        peer_value = found.get(peer, {}).get(peer_case)
        if value is None or peer_value is None:
            continue
        name = f"SmolLM2-135M {engine}, {case} against {peer}" + (
            f" at {peer_case}" if peer_case != case else ""
        )
        rows.append(
            Row(
                group="serving",
                name=name,
                value=round(value, 2),
                unit="tok/s",
                better="higher",
                peer=peer,
                peer_value=round(peer_value, 2),
                peer_date=today,
                ratio=round(value / peer_value, 3),
                target=target,
                command=COMMAND,
            )
        )
    return rows


def bandwidth_row(tok_s: float, weight_bytes: int) -> Row:
    """Compare the rate at which batch-1 decoding reads weights with what the machine can read."""
    machine, ours = read_bandwidth_gb_s(), tok_s * weight_bytes / 1e9
    return Row(
        group="serving",
        name="weights read at batch 1, dense, against this machine's read bandwidth",
        value=round(ours, 2),
        unit="GB/s",
        better="higher",
        peer="torch sum over 1 GiB",
        peer_value=round(machine, 2),
        ratio=round(ours / machine, 3),
        command=COMMAND,
    )


def memory_rows(model: Path) -> list[Row]:
    """Peak resident set against weights + configured KV arena + torch."""
    command = [sys.executable, str(HERE / "ours.py"), "memory", str(model)]
    rows = run_child(command, "memory")
    if not rows:
        return []
    facts = rows[0]
    budget = facts["weight_bytes"] + facts["kv_bytes"] + facts["torch_baseline_bytes"]
    return [
        Row(
            group="serving",
            name="peak memory against weights + KV arena + torch baseline",
            value=round(facts["peak_bytes"] / 2**20, 1),
            unit="MiB",
            better="lower",
            peer="sum of the three",
            peer_value=round(budget / 2**20, 1),
            ratio=round(budget / facts["peak_bytes"], 3),
            target="<= 1.15x the sum",
            command=COMMAND,
        )
    ]


def front_end_rows(model: Path) -> list[Row]:
    """CPU time of template + encode + submit for a second turn on a long history."""
    rows = run_child([sys.executable, str(HERE / "front_end.py"), str(model)], "front end")
    if not rows:
        return []
    return [
        Row(
            group="serving",
            name=f"front end of a second turn, {rows[0]['tokens']:,} tokens of history",
            value=round(rows[0]["cpu_ms"], 2),
            unit="ms of CPU",
            better="lower",
            target="<= 10 ms",
            command=COMMAND,
        )
    ]


def versions() -> dict[str, str]:
    """Versions of what was measured, from the peers' environment and ours."""
    code = (
        "import importlib.metadata as m\n"
        "for n in ('torch','transformers','vllm-cpu','xllamacpp'):\n"
        "  try: print(n, m.version(n))\n"
        "  except m.PackageNotFoundError: pass"
    )
    python = str(PEERS_PYTHON) if PEERS_PYTHON.exists() else sys.executable
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


def keep(rows: list[Row]) -> None:
    """Merge rows into the results as soon as they are measured, and print them."""
    if not rows:
        return
    path = merge_rows(rows, versions())
    for row in rows:
        ratio = f"{row.ratio:.2f}x" if row.ratio else ""
        print(f"{row.name}: {row.value:,} {row.unit}  {row.peer} {row.peer_value or ''}  {ratio}")
    print(f"written to {path.relative_to(ROOT)}", flush=True)


def main() -> int:
    """Measure what was chosen and merge the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(ENGINES))
    parser.add_argument("--model", type=Path, default=None)
    args = parser.parse_args()
    from tokenspeed.checkpoint.default_model import default_model_path

    gguf = args.model or default_model_path()
    chosen = set(args.only.split(","))
    if unknown := chosen - set(ENGINES):
        parser.error(f"unknown: {', '.join(unknown)}; allowed: {', '.join(ENGINES)}")
    found = measure(gguf, chosen)
    keep(generation_rows(found))
    if "batch 1" in found.get("dense", {}):
        keep([bandwidth_row(found["dense"]["batch 1"], DENSE_BYTES)])
    for name, measure_rows in (
        ("memory", memory_rows),
        ("front_end", front_end_rows),
        ("server", measure_server),
    ):
        if name in chosen:
            keep(measure_rows(gguf))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
