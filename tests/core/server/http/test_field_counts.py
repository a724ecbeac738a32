"""What a long field holds is counted in windows, as in one look at the whole."""

from __future__ import annotations

import json
import random
import re

import pytest

from tokenspeed.server.http import field_limits
from tokenspeed.server.http.field_limits import _counts

TEXTS = ["", "a", ",", "[{", '"', "\\", '\\"', "\\\\", "a,\n[", '""', "\u00e9"]


def at_once(raw: bytes) -> tuple[int, int, int, int]:
    """Count as in one window."""
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    rest = re.sub(rb'"[^"]*"', b"", plain)
    return plain.count(b'"') // 2, rest.count(b","), rest.count(b"["), rest.count(b"{")


def random_value(chooser: random.Random, depth: int) -> object:
    kind = chooser.randrange(5 if depth else 3)
    if kind < 2:
        return "".join(chooser.choices(TEXTS, k=chooser.randrange(6)))
    if kind == 2:
        return chooser.choice([1, None, True, 2.5])
    if kind == 3:
        return [random_value(chooser, depth - 1) for _ in range(chooser.randrange(4))]
    return {str(i): random_value(chooser, depth - 1) for i in range(chooser.randrange(4))}


@pytest.mark.parametrize("window_bytes", [1, 2, 3, 7])
def test_windows_count_what_the_whole_holds(
    window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field_limits, "_WINDOW_BYTES", window_bytes)
    chooser = random.Random(5)
    for _ in range(500):
        raw = json.dumps([random_value(chooser, 4) for _ in range(4)]).encode()
        found = _counts(raw)
        counted = (found.texts, found.commas, found.lists, found.objects)
        assert counted == at_once(raw), raw
