"""Reads traces: one JSON object a line, plain or gzip, in one of three public shapes.

Requests (Mooncake), a line a request: {"timestamp": ms, "input_length", "output_length",
"hash_ids"}; an id stands for 512 tokens and everything before them.
Sessions (agentic coding), a line a session: {"block", "req": [[t, agent, in, out, api_time,
think_time, [[first id, count], ...]], ...]}; ids are local to the session.
Turns (AIPerf), a line a turn, with what it adds to its session: see `turns.py`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any, TextIO

from tokenspeed.errors import ConfigError, reason_of
from tokenspeed.simulator.limits import (
    MAX_BLOCK_TOKENS,
    MAX_ID,
    MAX_TOKENS,
    seconds,
    whole_number,
)
from tokenspeed.simulator.trace import Conversation, Trace, Turn
from tokenspeed.simulator.turns import turns_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REQUEST_BLOCK_TOKENS = 512
DEFAULT_SERVICE_S = 5.0


def read_trace(path: Path) -> Trace:
    """Read a trace of either shape.

    Raises:
        ConfigError: not there, not JSON lines, or of neither shape; names file and line.
    """
    try:
        with _open(path) as file:
            lines = list(_objects(file, path))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(
            f"trace {path} cannot be read: {reason_of(error)}; give a .jsonl or .jsonl.gz file"
        ) from error
    if not lines:
        raise ConfigError(f"trace {path} has no line; at least one request is needed")
    return trace_of(lines, path.name.split(".")[0], str(path))


def trace_of(lines: list[dict[str, Any]], name: str, source: str) -> Trace:
    """Make a trace of parsed lines.

    Raises:
        ConfigError: a line is of neither shape.
    """
    try:
        if "req" in lines[0]:
            return _sessions(lines, name)
        if "session_id" in lines[0]:
            return turns_of(
                lines,
                name,
                block_tokens=REQUEST_BLOCK_TOKENS,
                service_s=DEFAULT_SERVICE_S,
                join=_runs,
            )
        return _requests(lines, name)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"trace {source} cannot be used ({type(error).__name__}: {error}); lines are "
            'either {"timestamp", "input_length", "output_length", "hash_ids"} or {"block", "req"}'
        ) from error


def _open(path: Path) -> TextIO:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _objects(file: TextIO, path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"trace {path}, line {number}: {error}; each line is one JSON object"
            ) from error
        if not isinstance(item, dict):
            raise ConfigError(
                f"trace {path}, line {number} is a JSON {type(item).__name__}; each line is one "
                "JSON object"
            )
        yield item


def _requests(lines: list[dict[str, Any]], name: str) -> Trace:
    conversations = []
    for line in lines:
        turn = Turn(
            prompt_tokens=whole_number("input_length", line["input_length"], 1, MAX_TOKENS),
            output_tokens=_output_tokens(line["output_length"]),
            service_s=DEFAULT_SERVICE_S,
            pause_s=0.0,
            runs=_runs(line["hash_ids"]),
        )
        _check_length(turn, REQUEST_BLOCK_TOKENS)
        start_s = seconds("timestamp", line["timestamp"], unit_s=1e-3)
        conversations.append(Conversation((turn,), start_s, is_named=False))
    return Trace(name, REQUEST_BLOCK_TOKENS, tuple(conversations))


def _output_tokens(value: Any) -> int:
    return max(1, whole_number("output length", value, 0, MAX_TOKENS))


def _check_length(turn: Turn, block_tokens: int) -> None:
    """Check that the blocks are of a prompt's size before anybody makes tokens of them."""
    whole_number("tokens of all ids", sum(n for _, n in turn.runs) * block_tokens, 0, MAX_TOKENS)


def _runs(ids: list[int]) -> tuple[tuple[int, int], ...]:
    """Join consecutive ids."""
    runs: list[tuple[int, int]] = []
    for value in ids:
        item = whole_number("id", value, 0, MAX_ID)
        if runs and sum(runs[-1]) == item:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((item, 1))
    return tuple(runs)


def _sessions(lines: list[dict[str, Any]], name: str) -> Trace:
    block_tokens, base = whole_number("block", lines[0]["block"], 1, MAX_BLOCK_TOKENS), 0
    conversations = []
    for line in lines:
        if line["block"] != block_tokens:
            raise ValueError(f"blocks of {block_tokens} and of {line['block']} tokens")
        turns = tuple(_turn(request, base, block_tokens) for request in line["req"])
        if not turns:
            raise ValueError("req is empty, a session has 1 request or more")
        conversations.append(Conversation(turns))
        base = 1 + max(
            (first + count for turn in turns for first, count in turn.runs), default=base
        )
    return Trace(name, block_tokens, tuple(conversations))


def _turn(request: list[Any], base: int, block_tokens: int) -> Turn:
    _, _, prompt_tokens, output_tokens, service_s, pause_s, runs = request
    turn = Turn(
        prompt_tokens=whole_number("input length", prompt_tokens, 1, MAX_TOKENS),
        output_tokens=_output_tokens(output_tokens),
        service_s=seconds("service time", service_s) or DEFAULT_SERVICE_S,
        pause_s=seconds("pause", pause_s),
        runs=tuple(_run(first, count, base) for first, count in runs),
    )
    _check_length(turn, block_tokens)
    return turn


def _run(first: Any, count: Any, base: int) -> tuple[int, int]:
    first = whole_number("id", first, 0, MAX_ID)
    return whole_number("id", base + first, 0, MAX_ID), whole_number("count", count, 1, MAX_TOKENS)
