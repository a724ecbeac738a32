"""`tokenspeed simulate TRACE`: a trace through the real scheduler in virtual time.

Without --step-model only prefix hits are measured: requests arrive as recorded and each is answered
at once. With one, steps take time, and latency, throughput and queues are measured too.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.load_progress import LoadProgress
from tokenspeed.cli.table import print_table
from tokenspeed.errors import ConfigError, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokenspeed.contracts.policy import Policy
    from tokenspeed.scheduler.record import Record
    from tokenspeed.simulator import Figures, SimulatorSettings, StepModel, Trace

SUFFIXES = (".jsonl", ".jsonl.gz")


def add_parser(subparsers: Any) -> None:
    """Add `simulate`."""
    parser = subparsers.add_parser(
        "simulate",
        help="replay a trace through the scheduler, no device needed",
        description="Replay a trace through the real scheduler in virtual time: hit rates, and "
        "with --step-model latency and throughput. A run recorded with `serve --record` is "
        "repeated plan by plan.",
    )
    parser.add_argument(
        "trace",
        nargs="*",
        metavar="TRACE",
        help=".jsonl or .jsonl.gz file, or a run recorded with `serve --record`",
    )
    parser.add_argument(
        "--traces",
        default=os.environ.get("TRACES", ""),
        metavar="DIR",
        help="folder in which TRACE is looked for; without a TRACE all of its traces ($TRACES)",
    )
    parser.add_argument(
        "--generate", choices=("agentic",), help="make a trace with these statistics instead"
    )
    parser.add_argument(
        "--seed", type=_count(0, (1 << 63) - 1), default=1, help="of --generate (default: 1)"
    )
    parser.add_argument(
        "--total", type=_count(1, 1_000_000), default=128, help="sessions of --generate (128)"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write what --generate made")
    parser.add_argument(
        "--step-model", metavar="NAME|FILE", help="how long a step takes: h200-qwen3-8b, or JSON"
    )
    parser.add_argument(
        "--pool-tokens",
        type=_counts(0, 1 << 37),
        default=(0,),
        metavar="N,...",
        help="cache; 0: all fits",
    )
    parser.add_argument(
        "--sessions",
        type=_counts(1, 1_000_000),
        default=(64,),
        metavar="N,...",
        help="at once (default: 64)",
    )
    parser.add_argument(
        "--policy",
        default="core/return_time",
        metavar="PLUGIN/NAME",
        help="who goes first and whose cached blocks do (default: core/return_time)",
    )
    parser.add_argument("--plugins", default="", metavar="IDS", help="plugins to load for --policy")
    parser.add_argument(
        "--allow-experimental",
        default="",
        metavar="IDS",
        help="third parties' plugins that may fill experimental slots, such as policy",
    )
    parser.add_argument(
        "--max-running",
        type=_count(1, 1 << 16),
        default=64,
        help="requests that run at once (default: 64)",
    )
    parser.add_argument("--max-step-tokens", type=_count(1, 1 << 24), default=8192)
    parser.add_argument(
        "--max-pause-s", type=_number(1e9), default=60.0, help="longest pause of a client"
    )
    parser.add_argument(
        "--min-tps-per-user",
        type=_number(1e4),
        default=0.0,
        help="latency floor, tokens/s of a stream",
    )
    parser.add_argument("--ideal", action="store_true", help="also the plain block cache's hits")
    parser.add_argument("--pareto", type=Path, metavar="FILE", help="plot, .png .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _counts(low: int, high: int) -> Callable[[str], tuple[int, ...]]:
    """Return a reader of whole numbers with commas between them."""

    def read(text: str) -> tuple[int, ...]:
        try:
            values = tuple(int(part.replace("_", "")) for part in text.split(","))
        except ValueError:
            values = ()
        if not values or not low <= min(values) <= max(values) <= high:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is not allowed; give whole numbers {low} to {high}"
            )
        return values

    return read


def _count(low: int, high: int) -> Callable[[str], int]:
    read = _counts(low, high)
    return lambda text: sum(read("none" if "," in text else text))


def _number(high: float) -> Callable[[str], float]:
    """Return a reader of numbers from 0."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= high:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is not allowed; give a number 0 to {high:.0f}"
            )
        return value

    return read


def run(args: argparse.Namespace) -> int:
    """Replay each trace with each pool and number of sessions; print the figures."""
    from tokenspeed.simulator import load_step_model
    from tokenspeed.simulator.pareto import check_plotting, draw_pareto

    if records := records_of(args):
        return _repeat(records, as_json=args.json)
    if args.pareto:
        if not args.step_model:
            raise ConfigError("--pareto shows times; give --step-model too")
        check_plotting()
    step_model = load_step_model(args.step_model) if args.step_model else None
    make_policy = policy_maker(args.plugins, args.policy, experimental=args.allow_experimental)
    results = [
        (trace, settings, _replay(trace, settings, make_policy(), step_model))
        for trace in traces_of(args)
        for settings in settings_of(args)
    ]
    rows: list[dict[str, Any]] = [figures.as_dict() for _, _, figures in results]
    if args.ideal:
        for row, (trace, settings, _) in zip(rows, results, strict=True):
            row |= _ideals(trace, settings)
    if args.pareto:
        draw_pareto([figures for _, _, figures in results], args.pareto)
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows)
    return 0


def records_of(args: argparse.Namespace) -> list[tuple[Path, Record]]:
    """Return the recorded runs among the files named; all are, or none is.

    Raises:
        ConfigError: records and traces together.
    """
    from tokenspeed.scheduler.record import read_record

    paths = [path for path in map(Path, args.trace) if path.is_file()]
    found = [(path, record) for path in paths if (record := read_record(path)) is not None]
    if found and len(found) < len(args.trace):
        raise ConfigError(
            f"{found[0][0]} is a recorded run and others named are not; repeat runs and replay "
            "traces in commands of their own"
        )
    return found


def _repeat(records: list[tuple[Path, Record]], *, as_json: bool) -> int:
    rows = []
    for path, record in records:
        plans, stats = record.replay()
        rows.append({"record": path.name, "plans_as_recorded": plans, **stats})
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _print([{"trace": row.pop("record"), **row} for row in rows])
    return 0


def policy_maker(plugins: str, pin: str, *, experimental: str = "") -> Callable[[], Policy]:
    """Return what builds the chosen policy, anew for each replay.

    Raises:
        CapabilityError: no loaded plugin offers it.
    """
    from tokenspeed.kernels.not_offered import not_offered
    from tokenspeed.plugins import load_plugins

    offers = load_plugins(_names(plugins), role="cli", experimental=_names(experimental)).offers(
        "policy"
    )
    for offer in offers:
        if offer.pin == pin:
            return offer.offer.load
    raise not_offered("policy", pin, (offer.pin for offer in offers))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def traces_of(args: argparse.Namespace) -> Iterator[Trace]:
    """Read or make what is to be replayed.

    Raises:
        ConfigError: there is nothing, or --write without --generate.
    """
    from tokenspeed.simulator import generate_agentic, read_trace

    if args.write and not args.generate:
        raise ConfigError("--write writes what --generate makes; give --generate agentic too")
    if args.generate:
        if args.write:
            _write(args.write, args.total, args.seed)
        yield generate_agentic(args.total, args.seed)
        return
    folder = Path(args.traces)
    paths = [path if path.exists() else folder / path for path in map(Path, args.trace)]
    if not paths and args.traces:
        paths = sorted(path for path in folder.glob("*") if path.name.endswith(SUFFIXES))
    if not paths:
        raise ConfigError(
            "no trace is named; give a .jsonl or .jsonl.gz file, a folder of them with --traces, "
            "or --generate agentic"
        )
    for path in paths:
        yield read_trace(path)


def _write(path: Path, total: int, seed: int) -> None:
    import gzip

    from tokenspeed.simulator.generate import agentic_lines

    text = "".join(json.dumps(line) + "\n" for line in agentic_lines(total, seed)).encode()
    try:
        path.write_bytes(gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text)
    except OSError as error:
        raise ConfigError(
            f"trace {path} cannot be written: {reason_of(error)}; name another file"
        ) from error


def settings_of(args: argparse.Namespace) -> Iterator[SimulatorSettings]:
    """Return one engine for each pool and number of sessions."""
    from tokenspeed.simulator import SimulatorSettings

    for places in args.sessions:
        for pool_tokens in args.pool_tokens:
            yield SimulatorSettings(
                pool_tokens=pool_tokens,
                places=places,
                max_pause_s=args.max_pause_s,
                max_running=args.max_running,
                max_step_tokens=args.max_step_tokens,
                scheduler={"min_tps_per_user": args.min_tps_per_user},
            )


def _replay(
    trace: Trace, settings: SimulatorSettings, policy: Policy, step_model: StepModel | None
) -> Figures:
    from tokenspeed.simulator import replay

    with LoadProgress(trace.num_requests) as progress:
        return replay(trace, settings, policy, step_model=step_model, progress=progress.show)


def _ideals(trace: Trace, settings: SimulatorSettings) -> dict[str, float]:
    from tokenspeed.simulator import ideal_hit_rate

    pool = settings.pool_tokens or None
    rates = {"hit_rate_unlimited": None} | ({"hit_rate_lru": pool} if pool else {})
    return {
        name: ideal_hit_rate(
            trace, pool_tokens=size, num_places=settings.places, max_pause_s=settings.max_pause_s
        )
        for name, size in rates.items()
    }


def _print(rows: list[dict[str, Any]]) -> None:
    """Print one column a replay: figures are many, replays few."""
    names = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    print_table(
        ("", *(str(row["trace"]) for row in rows)),
        [
            (name.replace("_", " "), *(_shown(name, row.get(name)) for row in rows))
            for name in names
            if name != "trace"
        ],
    )


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "pool_tokens" and value == 0:
        return "unlimited"
    if isinstance(value, int):
        return f"{value:,}"
    is_share = name.startswith("hit_rate") or name == "utilisation"
    return format(value, ".4f" if is_share else ",.1f")
