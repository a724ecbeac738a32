"""`tokenspeed bench`: load on a server: plain requests, or sessions of agents."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tokenspeed.cli.agentic import command as agentic
from tokenspeed.cli.bench_target import add_target_arguments, target_server
from tokenspeed.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    """Add the group and its verbs."""
    group = subparsers.add_parser(
        "bench",
        help="measure a server: time to first token, time per token, tokens per second",
        description="Measure an OpenAI-compatible server.",
    )
    verbs = group.add_subparsers(metavar="VERB", required=True)
    _add_load(verbs)
    agentic.add_parser(verbs)


def _add_load(verbs: Any) -> None:
    parser = verbs.add_parser(
        "load",
        help="random prompts that share nothing",
        description="Send random prompts to an OpenAI-compatible server and print medians.",
    )
    add_target_arguments(parser)
    parser.add_argument("--concurrency", type=int, default=1, help="requests at once (default: 1)")
    parser.add_argument("--requests", type=int, default=8, help="requests in all (default: 8)")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="default: 128")
    parser.add_argument("--output-tokens", type=int, default=128, help="default: 128")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_load)


def run_load(args: argparse.Namespace) -> int:
    """Measure and print."""
    for name in ("concurrency", "requests", "prompt_tokens", "output_tokens"):
        if getattr(args, name) < 1:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is {getattr(args, name)}, at least 1 is needed; change it")
    from tokenspeed.cli.load import Load, measure, summary, summary_lines
    from tokenspeed.cli.load_progress import LoadProgress
    from tokenspeed.server.http.signals import StopSignals

    StopSignals().install()
    with target_server(args) as url, LoadProgress(args.requests) as progress:
        load = Load(
            url=url,
            model=args.served_model_name,
            api_key=args.api_key,
            concurrency=args.concurrency,
            num_requests=args.requests,
            prompt_tokens=args.prompt_tokens,
            output_tokens=args.output_tokens,
            seed=args.seed,
        )
        figures = summary(load, *measure(load, on_done=progress.show))
    print(json.dumps(figures) if args.json else "\n".join(summary_lines(figures)))
    return 0 if not figures["failed"] else 1
