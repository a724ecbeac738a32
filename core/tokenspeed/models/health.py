"""Tries every offered model file, each on its own: for `plugins doctor`.

The files are imported in a child process, so that one that raises, aborts or hangs is a finding
and nothing more; the rest is tried in a new child.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.plugins.child_process import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenspeed.plugins.child_process import Ended

CHILD = "tokenspeed.models.health_child"

TIMEOUT_S = 120.0
"""For all files together; each imports torch at most once a child."""


@dataclass(frozen=True, slots=True)
class ModelFinding:
    """What became of one model file.

    Args:
        architecture: that it was offered for.
        pin: PLUGIN/NAME of the offer.
        problem: why it cannot be used; "": nothing is wrong.
        causes: what lay behind the problem, the nearest first.
    """

    architecture: str
    pin: str
    problem: str = ""
    causes: tuple[str, ...] = ()


def check_models(
    plugins: tuple[str, ...] = (), *, timeout_s: float = TIMEOUT_S
) -> tuple[ModelFinding, ...]:
    """Import every model file that the core and these plugins offer; nothing here is imported.

    Args:
        plugins: ids, as `--plugins` takes them.
    """
    deadline_s = time.monotonic() + timeout_s
    found: dict[tuple[str, str], ModelFinding] = {}
    while not _run_child(plugins, found, deadline_s, timeout_s):
        if time.monotonic() >= deadline_s:
            found["", ""] = ModelFinding("", "", f"{timeout_s:g} s are over: the rest is not tried")
            break
    return tuple(found[key] for key in sorted(found))


def _run_child(
    plugins: tuple[str, ...],
    found: dict[tuple[str, str], ModelFinding],
    deadline_s: float,
    timeout_s: float,
) -> bool:
    """Add what one child says to `found`; False: it died at a file, which is then in `found`."""
    done = [list(key) for key in found]
    child = ChildProcess(CHILD, (json.dumps({"plugins": plugins, "done": done}),))
    ended = child.finish(deadline_s - time.monotonic())
    how = _how_it_ended(ended, timeout_s)
    begun = _take_answers(ended.output, found)
    if begun is not None:
        found[begun] = ModelFinding(*begun, how)
        return False
    if ended.code != 0:
        found["", ""] = ModelFinding("", "", f"the models cannot be listed: {how}")
    return True


def _take_answers(
    output: str, found: dict[tuple[str, str], ModelFinding]
) -> tuple[str, str] | None:
    """Add what a child has said; return the file that it began and said no more about."""
    begun: tuple[str, str] | None = None
    for line in _lines(output):
        key = (line["architecture"], line["pin"])
        if "problem" in line:
            found[key] = ModelFinding(*key, line["problem"], tuple(line["causes"]))
        begun = None if "problem" in line else key
    return begun


def _lines(output: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:  # cut off by the end of the child
            return


def _how_it_ended(ended: Ended, timeout_s: float) -> str:
    if ended.code is None:
        return f"its import did not end within {timeout_s:g} s and was stopped"
    if ended.signal_name:
        return f"its import ended the process: {ended.signal_name}"
    last = ended.last_words or "no message"
    return f"its import ended the process with code {ended.code}: {last}"
