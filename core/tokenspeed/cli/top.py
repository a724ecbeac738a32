"""`tokenspeed top [URL]`: a live view of a running server's inside."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.connection import NoAnswerError, ServerAddress, StatusError, base_url
from tokenspeed.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

PATH = "/v1/engine/state"
DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 10.0
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 3600.0
PASSING_STATUSES = frozenset({429, 500, 502, 503, 504})
"""Answers of a server that may be well again at the next look."""


def add_parser(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "top",
        help="watch a running server: throughput, pools, queue, requests",
        description="Show what a running server does, live; Ctrl-C ends it.",
    )
    parser.add_argument(
        "url", nargs="?", metavar="URL", default=DEFAULT_URL, help=f"default: {DEFAULT_URL}"
    )
    parser.add_argument("--api-key", default="", help="bearer token of the server")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds (default: 1)")
    parser.add_argument("--once", action="store_true", help="print one picture and end")
    parser.add_argument("--json", action="store_true", help="print the state as JSON, one a line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show the server until Ctrl-C, or once."""
    if not MIN_INTERVAL_S <= args.interval <= MAX_INTERVAL_S:
        raise ConfigError(
            f"--interval is {args.interval}, {MIN_INTERVAL_S} to {MAX_INTERVAL_S} s is allowed; "
            "change it"
        )
    server = ServerAddress(base_url(args.url), args.api_key, TIMEOUT_S)
    if args.once:
        return _once(server, as_json=args.json)
    from tokenspeed.server.http.signals import StopSignals

    StopSignals().install()
    with contextlib.suppress(KeyboardInterrupt):  # the way out, and no failure
        _watch(server, args.interval, as_json=args.json)
    return 0


def _once(server: ServerAddress, *, as_json: bool) -> int:
    state = fetch(server)
    if as_json:
        print(json.dumps(state))
    else:
        from tokenspeed.cli.top_screen import Screen

        Screen(server.url).print(state)
    return 0


def _watch(server: ServerAddress, interval_s: float, *, as_json: bool) -> None:
    """Show one picture after another; a server that is gone is waited for."""
    last_problem = ""
    if as_json:
        for state, problem in _pictures(server, interval_s):
            if state is not None:
                print(json.dumps(state), flush=True)
            elif problem != last_problem:
                print(f"tokenspeed: {problem}", file=sys.stderr)
            last_problem = problem
        return
    from tokenspeed.cli.top_screen import Screen

    with Screen(server.url, is_live=True) as screen:
        for state, problem in _pictures(server, interval_s):
            screen.show(state, problem)


def _pictures(
    server: ServerAddress, interval_s: float
) -> Iterator[tuple[dict[str, Any] | None, str]]:
    """Yield states for ever; None and the reason where there is none."""
    while True:
        started_s = time.monotonic()
        try:
            yield fetch(server), ""
        except NoAnswerError as error:
            yield None, f"{error} Trying again every {interval_s:g} s"
        except StatusError as error:
            if error.status not in PASSING_STATUSES:
                raise
            yield None, f"{error} Trying again every {interval_s:g} s"
        time.sleep(max(MIN_INTERVAL_S, started_s + interval_s - time.monotonic()))


def fetch(server: ServerAddress) -> dict[str, Any]:
    """Ask a server for its state.

    Raises:
        EngineError: it cannot be reached, refuses, or is no TokenSpeed.
    """
    try:
        state = server.json("GET", PATH)
    except StatusError as error:
        if error.status != 404:
            raise
        raise StatusError(
            f"{server.url} has no {PATH}: it is no TokenSpeed server, or an older one; "
            "name another URL",
            status=404,
        ) from None
    if not isinstance(state, dict) or "counters" not in state:
        raise EngineError(f"{server.url}{PATH} did not answer a state; is it a TokenSpeed server?")
    return state
