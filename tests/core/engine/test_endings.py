"""How a process ended reads as words, whatever ended it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tokenspeed.engine.endings import ending_of


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit(3)", "ended with exit code 3"),
        ("pass", "ended with exit code 0"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "was ended by SIGKILL, as the system does when memory is short",
        ),
        ("import os; os.kill(os.getpid(), 15)", "was ended by SIGTERM"),
        ("import os; os.kill(os.getpid(), 40)", "was ended by signal 40"),
    ],
)
def test_an_ending_is_told_in_words(program: str, words: str) -> None:
    done = subprocess.run([sys.executable, "-S", "-c", program], check=False, timeout=120)
    assert ending_of(done.returncode) == words
