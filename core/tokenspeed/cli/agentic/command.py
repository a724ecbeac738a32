"""`tokenspeed bench agentic`: its arguments, and one run after another."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.bench_target import add_target_arguments, target_server
from tokenspeed.cli.table import print_table
from tokenspeed.errors import ConfigError
from tokenspeed.log import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.cli.agentic.client import Target
    from tokenspeed.cli.agentic.workload import Session, Workload

REQUEST_TIMEOUT_S = 3600.0


def add_parser(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "agentic",
        help="sessions of coding agents: long shared prompts, tool pauses, sub-agents",
        description="Play multi-turn sessions of coding agents against an OpenAI-compatible "
        "server, several at once, and print what their users see. The same seed sends the same "
        "bytes to every server.",
    )
    add_target_arguments(parser)
    parser.add_argument(
        "--sessions",
        type=_counts,
        default=(1, 4),
        metavar="N,...",
        help="sessions at once: a run and a point of the picture each (default: 1,4)",
    )
    parser.add_argument(
        "--total", type=_count, help="sessions of each run (default: twice those at once)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the workload (default: 0)")
    parser.add_argument("--turns", type=_count, default=12, help="of a session (default: 12)")
    parser.add_argument(
        "--scale",
        type=_positive,
        default=1.0,
        help="of prompt and output sizes; 1: 63,000-token prompts, 0.02 suits a CPU (default: 1)",
    )
    parser.add_argument(
        "--pause-scale", type=_not_negative, default=1.0, help="of the clients' pauses (default: 1)"
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="play this recorded trace instead (.jsonl, .jsonl.gz)"
    )
    parser.add_argument(
        "--chars-per-token",
        type=_positive,
        default=4.0,
        help="how long a text of so many tokens is made (default: 4)",
    )
    parser.add_argument(
        "--replies",
        choices=("scripted", "own"),
        default="scripted",
        help="what histories hold: the same text for every server (default), or its own answers",
    )
    parser.add_argument(
        "--allow-eos",
        action="store_true",
        help="do not send ignore_eos, for servers that refuse it; answers may then be shorter",
    )
    parser.add_argument("--devices", type=_count, default=1, help="of the server (default: 1)")
    parser.add_argument("--usd-per-device-hour", type=_positive, help="for the cost of a session")
    parser.add_argument("--label", help="name of this server in the picture (default: its model)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write results.json, pareto.png and pareto.html"
    )
    parser.add_argument(
        "--beside",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="results.json of other servers, for the same picture",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play, print, draw; 1 when a run is void."""
    from tokenspeed.cli.agentic.figures import compared
    from tokenspeed.cli.agentic.report import COLUMNS, rows_of, write_report
    from tokenspeed.server.http.signals import StopSignals

    beside = [_read_results(path) for path in args.beside]
    if args.out is not None:
        from tokenspeed.simulator.pareto import check_plotting

        check_plotting("--out")
    StopSignals().install()
    with target_server(args) as url:
        results = _measure(args, url)
    runs = [results, *beside]
    written = write_report(args.out, runs) if args.out is not None else []
    if args.json:
        print(json.dumps(results))
    else:
        print_table([head for head, _, _ in COLUMNS], rows_of(results))
    void = [
        f"{point['sessions_at_once']} at once is void: {reason}"
        for point in results["points"]
        for reason in point["void"]
    ]
    void += compared([point for each in runs for point in each["points"]])
    for line in [*(f"written: {path}" for path in written), *void]:
        say(line)
    return 1 if void else 0


def _measure(args: argparse.Namespace, url: str) -> dict[str, Any]:
    """Return the results of all runs."""
    from tokenspeed.cli.agentic.best_hits import shared_chars
    from tokenspeed.cli.agentic.client import Target, play
    from tokenspeed.cli.agentic.figures import point_of
    from tokenspeed.cli.connection import ServerAddress
    from tokenspeed.cli.load_progress import LoadProgress

    server = ServerAddress(url, args.api_key, REQUEST_TIMEOUT_S)
    model = args.served_model_name or server.json("GET", "/v1/models")["data"][0]["id"]
    target = Target(server, model, args.replies == "own", ignores_eos=not args.allow_eos)
    points = []
    name = ""
    for number, at_once in enumerate(args.sessions):
        workload = _cold(_workload(args, args.total or 2 * at_once), number)
        name = workload.name
        _warm(target)
        with LoadProgress(workload.num_requests) as progress:
            answers, wall_s = play(workload, target, at_once=at_once, on_done=progress.show)
        point = point_of(
            answers,
            wall_s,
            shared_chars(workload),
            at_once=at_once,
            devices=args.devices,
            usd_per_device_hour=args.usd_per_device_hour,
        )
        points.append(point)
    return {
        "label": args.label or model,
        "workload": name,
        "seed": args.seed,
        "scale": args.scale,
        "replies": args.replies,
        "devices": args.devices,
        "points": points,
    }


def _workload(args: argparse.Namespace, total: int) -> Workload:
    if args.trace is None:
        from tokenspeed.cli.agentic.profile import Profile, coding_agents

        return coding_agents(
            Profile(
                total, args.seed, args.scale, args.pause_scale, args.turns, args.chars_per_token
            )
        )
    from tokenspeed.cli.agentic.from_trace import workload_of
    from tokenspeed.simulator import read_trace

    if args.scale != 1.0:
        raise ConfigError(
            f"--scale is {args.scale:g} with --trace; a trace is played as it was recorded: leave "
            "--scale out, or the trace"
        )
    trace = replace(
        whole := read_trace(Path(args.trace)), conversations=whole.conversations[:total]
    )
    return workload_of(trace, chars_per_token=args.chars_per_token, pause_scale=args.pause_scale)


def _cold(workload: Workload, run: int) -> Workload:
    """Return the workload with a first word of its own: no run finds the last one's cache."""
    return replace(
        workload,
        sessions=tuple(_marked(session, f"run {run:02}: ") for session in workload.sessions),
    )


def _marked(session: Session, mark: str) -> Session:
    turns = tuple(
        replace(turn, new=(replace(turn.new[0], text=mark + turn.new[0].text), *turn.new[1:]))
        if turn.history == 0
        else turn
        for turn in session.turns
    )
    children = {
        index: tuple(_marked(child, mark) for child in each)
        for index, each in session.children.items()
    }
    return replace(session, turns=turns, children=children)


def _warm(target: Target) -> None:
    """Send one small request, so that the first run does not pay for what happens once.

    Raises:
        EngineError: the server does not answer as needed.
    """
    from tokenspeed.cli.agentic.client import play
    from tokenspeed.cli.agentic.workload import Part, Session, Turn, Workload
    from tokenspeed.errors import EngineError

    turn = Turn(0, (Part("user", "hello"),), "", 4, 0.0)
    warm = Workload("warm-up", (Session("warm", (turn,)),))
    (answer,), _ = play(warm, target, at_once=1, on_done=lambda _: None)
    if answer.error:
        raise EngineError(
            f"{target.server.url} does not answer as needed: {answer.error}; see the server's log"
        )


def _read_results(path: Path) -> dict[str, Any]:
    try:
        results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        results["points"], results["label"], results["workload"], results["scale"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--beside {path} cannot be read: {error!r}; give a results.json of bench agentic"
        ) from error
    return results


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def _number(is_allowed: Callable[[float], bool], needed: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not math.isfinite(value) or not is_allowed(value):
            raise argparse.ArgumentTypeError(f"{text}: a number {needed} is needed")
        return value

    return read


_positive = _number(lambda value: value > 0, "above 0")
_not_negative = _number(lambda value: value >= 0, "of 0 or more")
