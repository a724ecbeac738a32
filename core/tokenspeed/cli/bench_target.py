"""The server that a benchmark measures: a running one (--url), or one started for MODEL."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from tokenspeed.checkpoint.model_path import existing_model
from tokenspeed.cli.connection import base_url
from tokenspeed.errors import ConfigError, EngineError
from tokenspeed.log import say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

STOP_TIMEOUT_S = 20.0
"""More than a server needs to end its answers and its processes."""


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what names the server."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="start a server for this model")
    parser.add_argument("--url", help="measure this running server, such as http://host:8000")
    parser.add_argument("--served-model-name", help="model name at --url; default: its first")
    parser.add_argument("--api-key", default="", help="bearer token of the server")
    parser.add_argument(
        "--server-options",
        default="",
        metavar="TEXT",
        help="options of the server started for MODEL, such as --server-options='--threads 2'",
    )


@contextlib.contextmanager
def target_server(args: argparse.Namespace) -> Iterator[str]:
    """Yield the base URL of the server to measure.

    Raises:
        ConfigError: both or a model that is not there.
    """
    if args.url is not None:
        if args.model is not None:
            raise ConfigError(f"both --url {args.url} and MODEL {args.model} are given; give one")
        yield base_url(args.url)
        return
    if args.model is not None:
        existing_model(args.model)
    with _started(args) as url:
        yield url


@contextlib.contextmanager
def _started(args: argparse.Namespace) -> Iterator[str]:
    model = [] if args.model is None else [args.model]
    command = [sys.executable, "-P", "-m", "tokenspeed", "serve", *model, "--port", "0"]
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
