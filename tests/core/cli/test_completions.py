"""Completion scripts know every command, verb and flag, and are valid in their shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tokenspeed.cli.main import COMMANDS
from tokenspeed.cli.main import run as main


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_the_script_knows_commands_verbs_and_flags(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completions", shell]) == 0
    script = capsys.readouterr().out
    for word in (*COMMANDS, "explain", "doctor", "diff", "--why-not", "--unsafe-force"):
        assert word.lstrip("-") in script


def test_bash_completes_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    main(["completions", "bash"])
    script = capsys.readouterr().out
    ask = (
        "COMP_WORDS=(tokenspeed plugins expl); COMP_CWORD=2; COMP_LINE='tokenspeed plugins expl'\n"
        "_shtab_tokenspeed 2>/dev/null; echo ${COMPREPLY[@]}"
    )
    result = subprocess.run(
        [bash, "-c", f"{script}\n{ask}"], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stdout.split() == ["explain"], result.stderr
