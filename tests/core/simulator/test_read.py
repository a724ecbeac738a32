"""Traces of both public shapes are read; anything else is refused by file and line."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tokenspeed.errors import ConfigError
from tokenspeed.simulator import read_trace

if TYPE_CHECKING:
    from pathlib import Path

SESSIONS = [
    {"block": 64, "req": [[0, "", 130, 5, 2.0, 0, [[1, 2]]], [9, "", 200, 7, None, 4, [[1, 3]]]]},
    {"block": 64, "req": [[0, "", 70, 5, 2.0, None, [[1, 1]]]]},
]
REQUESTS = [
    {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [4, 5]},
    {"timestamp": 1500, "input_length": 1030, "output_length": 0, "hash_ids": [4, 9]},
]


def write(folder: Path, lines: list[Any], name: str = "trace.jsonl") -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_sessions_keep_their_turns_and_do_not_share_ids(tmp_path: Path, name: str) -> None:
    trace = read_trace(write(tmp_path, SESSIONS, name))
    first, second = trace.conversations
    assert [turn.prompt_tokens for turn in first.turns] == [130, 200]
    assert first.turns[1].pause_s == 4
    assert first.turns[1].service_s == 5, "a missing time is 5 s"
    assert set(first.turns[1].runs[0]) & {second.turns[0].runs[0][0]} == set()
    assert second.turns[0].runs[0][0] > sum(first.turns[1].runs[0]) - 1


def test_requests_arrive_at_their_time_and_have_no_session(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, REQUESTS))
    assert [item.start_s for item in trace.conversations] == [0.0, 1.5]
    assert not any(item.is_named for item in trace.conversations)
    assert trace.conversations[0].turns[0].runs == ((4, 2),)
    assert trace.conversations[1].turns[0].runs == ((4, 1), (9, 1))


def test_prompts_are_equal_just_as_far_as_their_ids(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, SESSIONS))
    first, second = trace.conversations[0].turns
    a, b = trace.prompt_ids(first, 1), trace.prompt_ids(second, 2)
    assert (a.size, b.size) == (130, 200)
    assert np.array_equal(a[:128], b[:128])
    assert not np.any(a[128:] == b[128:130])
    assert a.dtype == np.int32
    assert a.min() >= 0


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"block": 64}], "cannot be used"),
        ([{"timestamp": 0, "input_length": "x", "output_length": 1, "hash_ids": []}], "x"),
        ([[1, 2]], "line 1 is a JSON list"),
        ([SESSIONS[0], {**SESSIONS[1], "block": 32}], "32"),
    ],
)
def test_other_shapes_are_refused(tmp_path: Path, lines: list[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_trace(write(tmp_path, lines))


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(REQUESTS[0]) + "\n{oops\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_trace(path)


@pytest.mark.parametrize("content", [None, b"", b"not gzip"])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "t.jsonl.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"t\.jsonl\.gz"):
        read_trace(path)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"{}\n" * 5000)[:-9], b"\x1f\x8b\x08\x00", b"\x1f\x8b" + b"\x08" * 99],
    ids=["without its end", "head alone", "bad blocks"],
)
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(path)


@pytest.mark.parametrize("line", [b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000])
def test_a_line_that_python_cannot_hold_is_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(line)
    with pytest.raises(ConfigError, match=r"t\.jsonl"):
        read_trace(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_length", 0),
        ("input_length", True),
        ("input_length", 600.0),
        ("input_length", 10**12),
        ("output_length", -1),
        ("output_length", 2**70),
        ("timestamp", -1),
        ("timestamp", float("nan")),
        ("timestamp", float("inf")),
        ("timestamp", 1e30),
        ("hash_ids", [-1]),
        ("hash_ids", [0.5]),
        ("hash_ids", ["a"]),
        ("hash_ids", [2**62]),
        ("hash_ids", list(range(40_000))),
    ],
)
def test_a_request_out_of_range_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        read_trace(write(tmp_path, [{**REQUESTS[0], field: value}]))


@pytest.mark.parametrize(
    "session",
    [
        {"block": 64, "req": []},
        {"block": 0, "req": [[0, "", 130, 5, 2.0, 0, [[1, 2]]]]},
        {"block": 64, "req": [[0, "", 130, 5, -2.0, 0, [[1, 2]]]]},
        {"block": 64, "req": [[0, "", 130, 5, 2.0, float("nan"), [[1, 2]]]]},
        {"block": 64, "req": [[0, "", 130, 5, 2.0, 0, [[1, 0]]]]},
        {"block": 64, "req": [[0, "", 130, 5, 2.0, 0, [[1, 10**11]]]]},
        {"block": 64, "req": [[0, "", 130, 5, 2.0, 0, [[2**62, 1]]]]},
    ],
)
def test_a_session_out_of_range_is_refused(tmp_path: Path, session: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        read_trace(write(tmp_path, [SESSIONS[0], session] if session["block"] else [session]))
