"""Check 14: what is locked runs; one other byte in a library, and `serve` exits with 3."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.plugin_wheels import WheelFolder

LIBRARY = bytes(range(256)) * 16


def test_14_lock_file(wheels: WheelFolder, unread_model: Path, tmp_path: Path) -> None:
    body = "raise RuntimeError('imported')"
    package = wheels.install("acme", body, files={"_kernels.so": LIBRARY}, api='">=1.0,<2"')
    lock = tmp_path / "plugins.lock"
    written = wheels.tokenspeed("plugins", "lock", "--output", str(lock))
    assert written.returncode == 0, written.stderr
    verified = wheels.tokenspeed("plugins", "verify", str(lock))
    assert verified.returncode == 0, verified.stdout
    serve = ("serve", str(unread_model), "--plugins", "acme", "--plugins-lock", str(lock))

    library = wheels.folder / package / "_kernels.so"
    data = bytearray(LIBRARY)
    data[1000] ^= 1
    times = library.stat()
    library.write_bytes(data)
    os.utime(library, ns=(times.st_atime_ns, times.st_mtime_ns))  # size and time are as before
    result = wheels.tokenspeed(*serve, timeout_s=120)
    assert result.returncode == 3, result.stderr
    assert f"{package}/_kernels.so differ" in result.stderr
    assert "[plugin-lock-differs]" in result.stderr
    problems = wheels.tokenspeed("plugins", "verify", str(lock), "--json")
    assert problems.returncode == 3
    assert [row["id"] for row in json.loads(problems.stdout) if row["problem"]] == ["acme"]

    library.write_bytes(LIBRARY)
    import_error = wheels.tokenspeed(*serve, timeout_s=120)
    assert import_error.returncode == 4, import_error.stderr
    assert "[plugin-import-failed]" in import_error.stderr
