"""`tokenspeed bench`: load on a running server (--url), or on one started for MODEL."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from tokenspeed.checkpoint.model_path import existing_model
from tokenspeed.cli.connection import base_url
from tokenspeed.errors import ConfigError, EngineError
from tokenspeed.log import say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator


STOP_TIMEOUT_S = 20.0
"""More than a server needs to end its answers and its processes."""


def add_parser(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "bench",
        help="measure a server: time to first token, time per token, tokens per second",
        description="Send random prompts to an OpenAI-compatible server and print medians.",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="start a server for this model")
    parser.add_argument("--url", help="measure this running server, such as http://host:8000")
    parser.add_argument("--served-model-name", help="model name at --url; default: its first")
    parser.add_argument("--api-key", default="", help="bearer token of the server")
    parser.add_argument("--concurrency", type=int, default=1, help="requests at once (default: 1)")
    parser.add_argument("--requests", type=int, default=8, help="requests in all (default: 8)")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="default: 128")
    parser.add_argument("--output-tokens", type=int, default=128, help="default: 128")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--server-options",
        default="",
        metavar="TEXT",
        help="options of the server started for MODEL, such as --server-options='--threads 2'",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    for name in ("concurrency", "requests", "prompt_tokens", "output_tokens"):
        if getattr(args, name) < 1:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is {getattr(args, name)}, at least 1 is needed; change it")
    from tokenspeed.cli.load import Load, measure, summary, summary_lines
    from tokenspeed.cli.load_progress import LoadProgress
    from tokenspeed.server.http.signals import StopSignals

    if args.model is not None and args.url is None:
        existing_model(args.model)
    StopSignals().install()
    with _server(args) as url, LoadProgress(args.requests) as progress:
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


@contextlib.contextmanager
def _server(args: argparse.Namespace) -> Iterator[str]:
    """Yield the base URL of the server to measure."""
    if args.url is not None:
        if args.model is not None:
            raise ConfigError(f"both --url {args.url} and MODEL {args.model} are given; give one")
        yield base_url(args.url)
        return
    model = [] if args.model is None else [args.model]
    command = [sys.executable, "-m", "tokenspeed", "serve", *model, "--port", "0"]
    command += [
        *shlex.split(args.server_options),
        *(["--api-key", args.api_key] if args.api_key else []),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield _wait_ready(process)
    finally:
        process.terminate()
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Wait for the server's end, which takes some seconds while answers run."""
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_ready(process: subprocess.Popen[str]) -> str:
    """Pass the server's log on, from now to its end, and return its URL."""
    assert process.stderr is not None
    for line in process.stderr:
        say(line.rstrip("\n"))
        found = re.match(r"ready +(http\S+)/v1", line)
        if found:
            # A pipe that nobody reads would stop the server once it is full.
            threading.Thread(target=_pass_on, args=(process.stderr,), daemon=True).start()
            return found.group(1)
    code = process.wait()
    if code == 2:
        raise ConfigError("the server did not start, see above; change what it names")
    raise EngineError(f"the server ended with {code} before it was ready; see its log")


def _pass_on(lines: Iterable[str]) -> None:
    for line in lines:
        say(line.rstrip("\n"))
