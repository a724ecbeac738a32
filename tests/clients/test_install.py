"""The clients' installer: installed once; a registry that cannot be reached is no failure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("install.sh")
REFUSED = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError: [Errno 111]"
)
LACKS = "ERROR: No matching distribution found for openai==3.57.0"
CONFLICT = "ERROR: ResolutionImpossible: openai==9 and openai==8 are asked for"


def install(folder: Path, *, said: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run it with a Python whose pip says something and ends with a code."""
    pip = f'#!/bin/sh\necho "{said}" >&2\nexit {code}\n'
    fake = folder / "python"
    fake.write_text(f"#!/bin/sh\nmkdir -p $3/bin\ncat >$3/bin/python <<'END'\n{pip}END\n"
                    "chmod +x $3/bin/python\n")  # fmt: skip
    fake.chmod(0o755)
    command = [str(SCRIPT), str(fake), str(folder / "clients/small"), "requirements.txt"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_was_installed_is_marked(tmp_path: Path) -> None:
    assert install(tmp_path).returncode == 0
    assert (tmp_path / "clients/.small").exists()
    assert not (tmp_path / "clients/small.unreachable").exists()


@pytest.mark.parametrize("said", [REFUSED, LACKS], ids=["refused", "lacks"])
def test_a_registry_that_cannot_be_reached_is_told_and_tried_again(
    tmp_path: Path, said: str
) -> None:
    done = install(tmp_path, said=said, code=1)
    assert done.returncode == 0
    assert "the package registry cannot be reached" in done.stdout
    assert said in (tmp_path / "clients/small.unreachable").read_text()
    assert not (tmp_path / "clients/.small").exists()
    assert install(tmp_path).returncode == 0
    assert not (tmp_path / "clients/small.unreachable").exists()


@pytest.mark.parametrize("said", [CONFLICT, ""], ids=["conflict", "silent"])
def test_another_failure_ends_the_make(tmp_path: Path, said: str) -> None:
    done = install(tmp_path, said=said, code=1)
    assert done.returncode == 1
    assert said in done.stderr
    assert not (tmp_path / "clients/small.unreachable").exists()
    assert not (tmp_path / "clients/.small").exists()
