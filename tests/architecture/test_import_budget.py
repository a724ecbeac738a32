"""What an API process, `--help` and listings load: no torch, no plugin, no pydantic."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODES = {
    "contracts": "import tokenspeed.contracts, pkgutil, importlib\n"
    "for m in pkgutil.iter_modules(tokenspeed.contracts.__path__):\n"
    "    importlib.import_module('tokenspeed.contracts.' + m.name)",
    "package": "import tokenspeed",
    "config": "import tokenspeed.config",
    "sdk": "import tokenspeed_sdk; tokenspeed_sdk.plugin; tokenspeed_sdk.ops",
    "names of the sdk": "from tokenspeed_sdk import *",
    "help": "run(['--help'])",
    "plugins list": "run(['plugins', 'list'])",
    "models list": "run(['models', 'list'])",
}
PRELUDE = """
import contextlib, io, json, sys


def run(argv):
    from tokenspeed.cli import main
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(argv)
        except SystemExit as end:
            code = end.code
    assert code == 0, f"{argv} exited with {code}"
"""


def loaded_by(code: str) -> set[str]:
    """Run code in a fresh interpreter and return the modules it loaded."""
    script = f"{PRELUDE}\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, capture_output=True, check=True, text=True, timeout=120)
    return set(json.loads(output.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", CODES)
def test_torch_is_not_loaded_by(name: str) -> None:
    forbidden = {"torch", "transformers"}
    if name != "models list":
        forbidden.add("tokenspeed_reference")
    assert not loaded_by(CODES[name]) & forbidden


def test_help_loads_no_server() -> None:
    assert not loaded_by(CODES["help"]) & {"pydantic", "fastapi", "uvicorn", "zmq"}


def test_the_measure_sees_what_is_loaded() -> None:
    assert {"tokenspeed.cli", "tokenspeed.plugins.discovery"} <= loaded_by(CODES["plugins list"])
