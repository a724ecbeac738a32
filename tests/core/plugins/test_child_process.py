"""Children that run a plugin's code are over when their time is, whatever they leave behind."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.plugins.child_process import MAX_BYTES, ChildProcess, Ended

LONG_S = 300


def run(space: PluginSpace, body: str, wait_s: float = 60.0) -> Ended:
    """Run a module with this body as a child."""
    package = space.install("acme", files={"child.py": "import os, subprocess, sys\n" + body})
    return ChildProcess(f"{package}.child", ()).finish(wait_s)


@pytest.mark.parametrize(
    "left",
    [
        f"subprocess.Popen(['sleep', '{LONG_S}'])",
        f"subprocess.Popen(['sleep', '{LONG_S}'], start_new_session=True)",
        f"os.fork() or os.execvp('sleep', ['sleep', '{LONG_S}'])",
    ],
)
def test_what_a_child_leaves_behind_is_not_waited_for(plugin_space: PluginSpace, left: str) -> None:
    start_s = time.monotonic()
    body = f"left = {left}\nprint(getattr(left, 'pid', left), flush=True)\nos._exit(3)\n"
    ended = run(plugin_space, body)
    if "session" in left:  # it got away, and holds whatever it inherited
        os.kill(int(ended.output), signal.SIGKILL)
    assert ended.code == 3
    assert time.monotonic() - start_s < LONG_S


def test_its_whole_session_is_killed_with_it(plugin_space: PluginSpace) -> None:
    body = f"print(subprocess.Popen(['sleep', '{LONG_S}']).pid, flush=True)\nos.abort()\n"
    ended = run(plugin_space, body)
    assert ended.signal_name == "SIGABRT"
    for _ in range(600):  # the system reaps it a moment later
        state = _state_of(int(ended.output))
        if state in ("", "Z"):
            return
        time.sleep(0.1)
    raise AssertionError(f"the grandchild is {state}")


def _state_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_over_time_it_is_killed_and_what_it_said_is_kept(plugin_space: PluginSpace) -> None:
    body = "import time\nprint('half', flush=True)\nprint('a\\nb', file=sys.stderr, flush=True)\n"
    ended = run(plugin_space, body + f"time.sleep({LONG_S})\n", wait_s=3.0)
    assert ended.code is None
    assert ended.output == "half\n"
    assert ended.last_words == "b"


def test_of_endless_words_the_start_of_the_answer_and_the_last_complaint_are_kept(
    plugin_space: PluginSpace,
) -> None:
    body = f"""
for stream in (sys.stdout, sys.stderr):
    stream.write("first" + "x" * {2 * MAX_BYTES} + "\\nlast\\n")
"""
    ended = run(plugin_space, body)
    assert ended.output.startswith("first")
    assert ended.last_words == "last"
    assert max(len(ended.output), len(ended.errors)) <= MAX_BYTES


def test_the_working_directory_is_not_on_its_path(plugin_space: PluginSpace, monkeypatch) -> None:
    plugin_space.folder.mkdir(parents=True)
    (plugin_space.folder / "here").mkdir()
    (plugin_space.folder / "here" / "json.py").write_text("raise RuntimeError('picked up')")
    monkeypatch.chdir(plugin_space.folder / "here")
    assert run(plugin_space, "import json\n").code == 0
