"""Start and end of an engine process: errors of the start, clean stop, no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.engines import RunningEngine
from tests.support.plugin_wheels import PluginSpace
from tests.support.scripted import write_scripted_model

from tokenspeed.engine.frontend import Frontend
from tokenspeed.engine.reports import Progress, StartFailure
from tokenspeed.engine.supervisor import EngineState
from tokenspeed.errors import ConfigError, EngineError, PluginError


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_failed_start_raises_the_engines_own_error(tmp_path: Path) -> None:
    engine = RunningEngine(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is not on this machine"):
        engine.supervisor.start()
    engine.__exit__()


def test_an_exception_in_the_watching_thread_ends_the_start_with_its_text(tmp_path: Path) -> None:
    def refuse(progress: Progress) -> None:
        raise RuntimeError(f"no place for {progress.stage}")

    engine = RunningEngine(write_scripted_model(tmp_path / "model"))
    engine.supervisor._on_progress = refuse
    with pytest.raises(EngineError, match="no place for libraries"):
        engine.supervisor.start()
    pid = engine.supervisor.pid
    engine.__exit__()
    assert pid is not None
    assert not is_running(pid)


def test_an_engine_that_is_stopped_while_it_starts_is_named(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        pid = engine.supervisor.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

    engine = RunningEngine(write_scripted_model(tmp_path / "model"), start_timeout_s=1.0)
    engine.supervisor._on_progress = stop
    started_s = time.monotonic()
    with pytest.raises(EngineError, match=r"engine 1 \(pid \d+\) gives no sign of life for"):
        engine.supervisor.start()
    assert time.monotonic() - started_s < 60.0
    pid = engine.supervisor.pid
    engine.__exit__()
    assert pid is not None
    assert not is_running(pid)


def test_a_model_setting_out_of_range_is_a_config_error(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model")
    engine = RunningEngine(model, max_context_tokens=100_000)
    with pytest.raises(ConfigError, match="4096"):
        engine.supervisor.start()
    engine.__exit__()


def test_an_unexpected_error_of_the_start_is_one_line_without_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = write_scripted_model(tmp_path / "model", script=["x"])
    engine = RunningEngine(model)
    with pytest.raises(PluginError, match=r"model Scripted.* failed while it was built") as caught:
        engine.supervisor.start()
    engine.__exit__()
    assert "\n" not in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err


def test_settings_out_of_range_start_no_process(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kv_gib is nan"):
        RunningEngine(write_scripted_model(tmp_path / "model"), kv_gib=float("nan"))


def test_an_engine_is_not_restarted_after_an_upgrade_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = PluginSpace(tmp_path / "site", monkeypatch)
    package = space.install("acme")
    model = write_scripted_model(tmp_path / "model")
    with RunningEngine(model, plugins=("sdk", "acme")) as engine:
        (space.folder / "fake_acme-1.2.3.dist-info").rename(tmp_path / "old")
        space.install("acme", package=package, version="2.0.0")
        engine.kill()
        deadline_s = time.monotonic() + 60
        while engine.supervisor.state is not EngineState.UNHEALTHY:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert engine.supervisor.num_restarts == 1

        async def reason(frontend: Frontend) -> str:
            return ""

        with pytest.raises(EngineError, match=r"sees plugin acme as fake-acme 2\.0\.0"):
            engine.run(reason)


def test_a_report_that_cannot_be_read_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenspeed.engine.supervisor.EngineReport", StartFailure)
    engine = RunningEngine(write_scripted_model(tmp_path / "model"))
    with pytest.raises(EngineError, match="a report of the engine cannot be read"):
        engine.supervisor.start()
    engine.__exit__()


def test_stop_ends_the_process_and_the_report_describes_the_start(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model")
    with RunningEngine(model) as engine:
        pid, report = engine.supervisor.pid, engine.supervisor.report
        assert pid is not None
        assert report is not None
        assert report.pid == pid
        assert report.architecture == "ScriptedForCausalLM"
        records = report.plan["slots"]
        assert records["weight_format"]["offer"] == "none"
        assert records["attention.full"]["record"]["candidates"]
    assert not is_running(pid)
    assert engine.supervisor.state is EngineState.STOPPED


LAUNCHER = """
import sys, time
from pathlib import Path
from tests.support.engines import RunningEngine
engine = RunningEngine(Path(sys.argv[1]))
engine.supervisor.start()
print(engine.supervisor.pid, flush=True)
time.sleep(600)
"""


def test_the_engine_does_not_outlive_a_killed_launcher(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model")
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(model)], stdout=subprocess.PIPE, text=True
    )
    with launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        assert is_running(pid)
        os.kill(launcher.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)
