"""Probes run in children: whatever they do, the launcher survives and has the reason."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.diagnostics import DIAGNOSTICS
from tokenspeed.errors import MAX_TEXT
from tokenspeed.plugins.probe import ProbeResult, run_probes

if TYPE_CHECKING:
    from pathlib import Path


def probe(
    space: PluginSpace, body: str, timeout_s: float = 30.0, kinds: tuple[str, ...] = ("*",)
) -> ProbeResult:
    package = space.install("acme", body)
    targets = {"acme": f"{package}:find"}
    return run_probes(targets, {"acme": kinds}, timeout_s=timeout_s)["acme"]


def test_devices_come_back_whatever_the_plugin_prints(plugin_space: PluginSpace) -> None:
    body = """
    import os, sys
    def find():
        print("noise"); os.write(1, b"more noise"); sys.stderr.write("noise")
        return (DeviceFacts("acme", "Acme One", "a1", 2, 1024, {"sinks": True}),)
    """
    result = probe(plugin_space, body)
    assert result.reason == ""
    assert (result.devices[0].name, result.devices[0].count) == ("Acme One", 2)
    assert result.devices[0].traits == {"sinks": True}


def test_a_device_of_a_kind_that_the_manifest_does_not_name_is_a_mistake(
    plugin_space: PluginSpace,
) -> None:
    body = "def find():\n    return (DeviceFacts('basalt', 'Basalt', 'b1', 1, 1024),)\n"
    result = probe(plugin_space, body, kinds=("acme", "acme-lite"))
    assert (result.id, result.devices) == ("probe-invalid", ())
    assert "kind 'basalt', the manifest's device_kinds are acme, acme-lite" in result.reason
    assert probe(plugin_space, body, kinds=("basalt",)).devices


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise PluginError('no Acme card; plug one in')", "no Acme card; plug one in"),
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("import os; os.abort()", "crashed: SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "crashed: SIGILL"),
        ("import os; os._exit(7)", "exited with code 7"),
        ("return ()", "found no device"),
        ("return 5", "TypeError"),
        ("return 'abc'", "'a' is no DeviceFacts"),
        ("import sys; sys.exit(0)", "it ended with SystemExit: 0"),
        ("raise type('E', (Exception,), {'__str__': lambda e: 1 / 0})", "text cannot be made"),
        ("return [DeviceFacts('a', 'b', 'c', 1, -5)]", "memory_bytes is -5"),
        ("return [DeviceFacts('a', 'b', 'c', 0, 5)]", "count is 0"),
        ("return [DeviceFacts('*', 'b', 'c', 1, 5)]", "kind is '*'"),
        ("return [DeviceFacts('a', 'b', 'c', 1, float('nan'))]", "memory_bytes is nan"),
        ("return [DeviceFacts('a', 'b', 'c', 1, 5, {'device': 'cpu'})]", "unknown trait 'device'"),
        ("return [DeviceFacts('a', 'b', 'c', 1, 5, {'window': []})]", "trait window is []"),
        ("import subprocess; subprocess.Popen(['sleep', '300']); return []", "found no device"),
        ("while True: print('x' * 10000)", "File too large"),
        ("import sys; sys.modules['torch'] = sys; return ()", "imports torch"),
    ],
)
def test_every_failure_becomes_a_reason(plugin_space: PluginSpace, body: str, reason: str) -> None:
    result = probe(plugin_space, f"def find():\n    {body}\n")
    assert reason in result.reason
    assert result.devices == ()
    assert result.id in DIAGNOSTICS


def test_an_id_that_a_plugin_made_up_is_none_of_ours(plugin_space: PluginSpace) -> None:
    result = probe(plugin_space, "def find():\n    raise PluginError('a' * 10**6, id='mine')\n")
    assert result.id == "device-not-found"
    assert len(result.reason) <= MAX_TEXT


def test_a_hanging_probe_is_stopped_at_the_limit(plugin_space: PluginSpace) -> None:
    start = time.monotonic()
    result = probe(plugin_space, "import time\ndef find():\n    time.sleep(60)\n", timeout_s=0.5)
    assert "no answer within 0.5 s" in result.reason
    assert time.monotonic() - start < 55


def test_a_hanging_probe_ends_itself_when_its_parent_is_gone(plugin_space: PluginSpace) -> None:
    package = plugin_space.install("acme", "import time\ndef find():\n    time.sleep(60)\n")
    command = [sys.executable, "-m", "tokenspeed.plugins.probe_child", f"{package}:find", "1"]
    assert subprocess.run(command, timeout=120, check=False).returncode == -signal.SIGALRM


def test_probes_run_at_the_same_time(plugin_space: PluginSpace, tmp_path: Path) -> None:
    body = f"""
import os, pathlib, time
def find():
    folder = pathlib.Path({str(tmp_path)!r})
    (folder / f"{{os.getpid()}}.here").touch()
    while len(list(folder.glob("*.here"))) < 4:
        time.sleep(0.01)
    raise RuntimeError("all four are here")
"""
    package = plugin_space.install("acme", body)
    targets = {str(number): f"{package}:find" for number in range(4)}
    results = run_probes(targets, dict.fromkeys(targets, ("*",)), timeout_s=60.0)
    assert all("all four are here" in result.reason for result in results.values())
