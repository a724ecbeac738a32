"""Check 3: whatever a probe does to its process, the launcher survives and gives the reason."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.plugin_wheels import WheelFolder

ILLEGAL = {"x86_64": b"\x0f\x0b", "aarch64": b"\x00\x00\x00\x00"}
EXECUTE = """
import ctypes, mmap
memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write({code!r})
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
ctypes.CFUNCTYPE(None)(address)()
"""
BODIES = {
    "abort": ("import os; os.abort()", "probe crashed: SIGABRT", "probe-crashed"),
    "hang": ("import time; time.sleep(600)", "probe gave no answer within 5 s", "probe-timeout"),
    "illegal": ("", "probe crashed: SIGILL", "probe-crashed"),
    "segfault": (
        "import ctypes; ctypes.string_at(0)",
        "probe crashed: SIGSEGV",
        "probe-crashed",
    ),
}


@pytest.mark.parametrize("way", BODIES)
def test_03_probe_dies(wheels: WheelFolder, unread_model: Path, way: str) -> None:
    code, reason, diagnostic = BODIES[way]
    if way == "illegal":
        instruction = ILLEGAL.get(platform.machine())
        if instruction is None:
            pytest.skip(f"no illegal instruction is known for {platform.machine()}")
        code = EXECUTE.format(code=instruction)
    lines = "\n".join(f"    {line}" for line in code.strip().splitlines())
    wheels.install("acme", f"def find():\n{lines}\n\nplugin = None\n", probe='"PACKAGE:find"')
    result = wheels.tokenspeed("serve", str(unread_model), "--plugins", "acme", timeout_s=120)
    assert result.returncode == 4, result.stderr
    assert f"plugin acme (fake-acme 1.2.3) failed at probe: {reason}" in result.stderr
    assert f"[{diagnostic}]" in result.stderr
