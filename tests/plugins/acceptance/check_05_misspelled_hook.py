"""Check 5: a misspelled hook, or one with an extra argument, is named with what was meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.plugin_wheels import WheelFolder

BODY = """
class Plugin:
    @hookimpl
    def {signature}:
        pass

plugin = Plugin()
"""
LOAD = """
from tokenspeed.cli.main import run as main
import sys
sys.exit(main(["models", "list", "--plugins", "acme"]))
"""


@pytest.mark.parametrize(
    ("signature", "hook", "meant", "diagnostic"),
    [
        ("register_modles(self, context)", "register_modles", "register_models", "hook-unknown"),
        (
            "register_models(self, context, device)",
            "register_models takes (context, device)",
            "drop device: did you mean register_models(context)?",
            "hook-signature",
        ),
    ],
)
def test_05_misspelled_hook(
    wheels: WheelFolder, signature: str, hook: str, meant: str, diagnostic: str
) -> None:
    wheels.install("acme", BODY.format(signature=signature))
    result = wheels.python(LOAD)
    assert result.returncode == 4, result.stderr
    for words in ("plugin acme", hook, meant, "plugin API 1.0", f"[{diagnostic}]"):
        assert words in result.stderr
