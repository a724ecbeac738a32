"""Threads and child processes that a test module leaves behind in the process that ran it."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

from tests.support.processes import command_of, is_running

ENDING_S = 10.0
"""Longest that what was told to end may take to be gone."""
_KEPT: set[int] = set()
_OF_PYTHON = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
"""Helpers that multiprocessing starts once for a process, and ends with it."""
_ALLOWED = ("render_", "tqdm_monitor")
"""Threads that may stay, by the beginnings of their names.

Those that render prompts end when the app of a test is collected, which waits for what the web
framework and the test runner remember of it; an API process has one app. The other one serves all
progress bars of a process.
"""


def keep(pid: int) -> None:
    """Note a process that serves all modules of a run."""
    _KEPT.add(pid)


def present() -> dict[object, str]:
    """Return what runs now beside the main thread: threads and process ids, each with its name."""
    found: dict[object, str] = {
        thread: f"thread {thread.name}"
        for thread in threading.enumerate()
        if not thread.name.startswith(_ALLOWED)
        and not isinstance(thread, threading._DummyThread)  # native; Python never forgets it
    }
    for task in Path("/proc/self/task").glob("*/children"):
        for pid in map(int, task.read_text().split()):
            command = command_of(pid)
            if pid in _KEPT or not is_running(pid) or any(word in command for word in _OF_PYTHON):
                continue
            found[pid] = f"process {pid}: {command[:200]}"
    return found


def left_since(before: dict[object, str]) -> list[str]:
    """Return what came since then and does not end."""
    deadline_s = time.monotonic() + ENDING_S
    while True:
        left = [name for key, name in present().items() if key not in before]
        if not left or time.monotonic() > deadline_s:
            return sorted(left)
        gc.collect()  # threads of a pool end when nobody has it any more
        time.sleep(0.02)
