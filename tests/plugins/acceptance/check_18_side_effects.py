"""Check 18: whoever changes the process at import fails C0, and what was changed is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import MODEL_BODY

if TYPE_CHECKING:
    from tests.support.plugin_wheels import WheelFolder

CHANGES = {
    "sys.path": ("import sys; sys.path.insert(0, '/opt/acme')", "sys.path changed: added ['/opt/"),
    "environment": ("import os; os.environ['ACME'] = '1'", "environment variable ACME is new"),
    "core function": (
        "import tokenspeed.plugins.manager as m; m.load_plugins = lambda *a, **k: None",
        "attribute tokenspeed.plugins.manager.load_plugins was replaced",
    ),
    "core method": (
        "from tokenspeed.plugins.registry import Registry; Registry.freeze = lambda self: None",
        "attribute tokenspeed.plugins.registry.Registry.freeze was replaced",
    ),
    "thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=(9,), name='acme',"
        " daemon=True).start()",
        "the threads changed: added ['acme']",
    ),
    "signal": (
        "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)",
        "the handler of <Signals.SIGUSR1",
    ),
}


@pytest.mark.parametrize("changes", [(), tuple(CHANGES)], ids=["nothing", "everything"])
def test_18_side_effects(wheels: WheelFolder, changes: tuple[str, ...]) -> None:
    wheels.install("acme", "\n".join(CHANGES[name][0] for name in changes) + "\n" + MODEL_BODY)
    done = wheels.tokenspeed(
        "plugins", "test", "acme", "--level", "C0", "--json", "--only", "changes-nothing"
    )
    (check,) = json.loads(done.stdout)["checks"]
    assert check["outcome"] == ("failed" if changes else "passed"), check
    assert [name for name in changes if CHANGES[name][1] not in check["message"]] == []
    assert done.returncode == (1 if changes else 0)
