"""A plugin that hangs at its import or in a hook ends the start with an error that names it."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import PluginSpace, WheelFolder

from tokenspeed.errors import PluginError
from tokenspeed.plugins import load_plugins
from tokenspeed.plugins.time_limit import time_limit

if TYPE_CHECKING:
    from pathlib import Path

HOOK_HANGS = """
import time

class Plugin:
    @hookimpl
    def register_models(self, context):
        time.sleep(600)

plugin = Plugin()
"""
SWALLOWS = """
import time

try:
    time.sleep(600)
except BaseException:
    pass
""" + HOOK_HANGS.replace("time.sleep(600)", "pass")
NATIVE = """
import ctypes

ctypes.PyDLL(None).sleep(600)
"""


@pytest.mark.parametrize(
    "body",
    [HOOK_HANGS, "import threading\nthreading.Lock().acquire() and threading.Event().wait()",
     "while True:\n    pass", SWALLOWS],
    ids=["hook", "lock", "loop", "swallowed"],
)  # fmt: skip
def test_a_plugin_that_hangs_is_named_and_its_stack_is_written(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tokenspeed.plugins.time_limit.LIMIT_S", 0.3)
    space = PluginSpace(tmp_path / "site", monkeypatch)
    package = space.install("acme", body)
    started_s = time.monotonic()
    with pytest.raises(PluginError, match=r"plugin acme did not finish .* in 0\.3 s") as caught:
        load_plugins(("acme",), role="engine")
    assert time.monotonic() - started_s < 60
    assert "plugin-start-too-long" in str(caught.value)
    assert f"{package}/__init__.py" in capfd.readouterr().err
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_native_code_that_never_returns_ends_with_the_process(tmp_path: Path) -> None:
    wheels = WheelFolder(tmp_path)
    package = wheels.install("acme", NATIVE)
    done = wheels.python(
        """
        from tokenspeed.plugins import load_plugins, time_limit
        time_limit.LIMIT_S, time_limit.AGAIN_S = 3.0, 0.2
        load_plugins(("acme",), role="engine")
        """
    )
    assert done.returncode == 1
    assert f"{package}/__init__.py" in done.stderr


def test_what_is_quick_is_left_alone_and_other_threads_have_no_limit() -> None:
    with time_limit("acme", limit_s=5):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)

    def load() -> None:
        with time_limit("acme", limit_s=0.01):
            time.sleep(0.05)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
