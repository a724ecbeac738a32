"""Processes of this machine, as tests look at them."""

from __future__ import annotations

import time
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, their children and so on."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def command_of(pid: int) -> str:
    """Return a process's command line; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def workers_of(pid: int) -> list[int]:
    """Return the worker ranks under a process, in the order of their ranks."""
    found = [child for child in descendants(pid) if "engine.ranks.process" in command_of(child)]
    return sorted(found, key=lambda child: command_of(child).split("--rank ")[1])


def wait_gone(pids: list[int], *, timeout_s: float = 60.0) -> list[int]:
    """Wait until processes are gone; return those that are not."""
    deadline_s = time.monotonic() + timeout_s
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return left
