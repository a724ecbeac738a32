"""The command line: help without torch, nearest flags, settings from all sources, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.server import run_cli

from tokenspeed.cli.main import KEPT_TRACEBACKS, exit_code, make_parser, run
from tokenspeed.cli.settings import read_settings
from tokenspeed.config.schema import EngineConfig, ServeConfig, settings_of
from tokenspeed.errors import CapabilityError, CapacityError, ConfigError, PluginError


def test_help_loads_neither_torch_nor_a_server() -> None:
    code = (
        "import sys\n"
        "from tokenspeed.cli import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'fastapi', 'pydantic', 'numpy', 'zmq', 'tokenizers'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stderr.strip() == "[]"


def test_help_is_quick() -> None:
    best_s = 9.0
    for _ in range(5):
        before = os.times()
        assert run_cli("--help").returncode == 0
        after = os.times()  # time of the processor: others may be using it
        took_s = after.children_user - before.children_user
        best_s = min(best_s, took_s + after.children_system - before.children_system)
    assert 0 < best_s < 0.3


def test_every_setting_has_a_flag() -> None:
    args = vars(make_parser().parse_args(["serve"]))
    assert not settings_of(ServeConfig).keys() & args.keys(), "absent flags leave no value"
    text = run_cli("serve", "--help").stdout
    for name in settings_of(ServeConfig):
        assert f"--{name.replace('_', '-')}" in text


def test_flag_beats_environment_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("port: 1\nthreads: 2\nmax_running: 3\n")
    monkeypatch.setenv("TOKENSPEED_PORT", "10")
    monkeypatch.setenv("TOKENSPEED_THREADS", "20")
    args = make_parser().parse_args(
        ["serve", "some-model", "--config", str(file), "--port", "100", "--no-prefix-cache"]
    )
    config = read_settings(args, ServeConfig)
    assert (config.port, config.threads, config.max_running) == (100, 20, 3)
    assert config.model == "some-model"
    assert config.prefix_cache is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--prot", "1"], "did you mean --port?"),
        (["serve", "--max-runing=1"], "did you mean --max-running?"),
        (["srve"], "did you mean serve?"),
        (["bench", "load", "--concurency", "2"], "did you mean --concurrency?"),
        (["serve", "--port", "abc"], "--port is 'abc', int is needed"),
        (["serve", "--dtype", "float33"], "did you mean 'float32'?"),
        (["serve", "--port", "70000"], "allowed is 0 to 65535"),
        (["serve", "--config", "/nonexistent.yaml"], "/nonexistent.yaml"),
        (["bench", "load", "--url", "ftp://x"], "http://HOST:PORT is needed"),
        (["bench", "load", "--url", "http://x", "model"], "give one"),
        (["bench", "load", "--concurrency", "0", "--url", "http://x"], "at least 1"),
    ],
)
def test_wrong_usage_exits_2_with_one_line_that_helps(arguments: list[str], words: str) -> None:
    done = run_cli(*arguments)
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_errors_have_the_documented_exit_codes() -> None:
    assert exit_code(ConfigError("x")) == 2
    assert exit_code(PluginError("x", exit_code=3)) == 3
    assert exit_code(PluginError("x")) == 4
    assert exit_code(CapabilityError("x")) == 5
    assert exit_code(CapacityError("x")) == 1


def test_generate_takes_engine_settings_only() -> None:
    text = run_cli("generate", "--help").stdout
    assert "--max-context-tokens" in text
    assert "--keep-alive-s" not in text
    assert settings_of(EngineConfig).keys() < settings_of(ServeConfig).keys()


def test_an_unexpected_error_is_one_line_and_its_traceback_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(args: object) -> int:
        raise ValueError("a\nlong\nstory")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tokenspeed.cli.models.run", fail)
    assert run(["models", "list"]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "ValueError: a long story" in line
    (kept,) = tmp_path.iterdir()
    assert str(kept) in line
    assert "in fail" in kept.read_text()


def test_tracebacks_do_not_pile_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(args: object) -> int:
        raise ValueError("again")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tokenspeed.cli.models.run", fail)
    for index in range(KEPT_TRACEBACKS + 5):
        old = tmp_path / f"tokenspeed-{index}.traceback"
        old.touch()
        os.utime(old, (index, index))
    (tmp_path / "mine.traceback").touch()
    assert run(["models", "list"]) == 1
    left = {path.name for path in tmp_path.iterdir()}
    assert "mine.traceback" in left
    assert "tokenspeed-5.traceback" not in left
    assert "tokenspeed-6.traceback" in left
    assert len(left) == KEPT_TRACEBACKS + 1
    assert str(tmp_path) in capsys.readouterr().err
