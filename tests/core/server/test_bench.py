"""`tokenspeed bench` and `tokenspeed generate`, run as a user runs them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.scripted import write_scripted_model
from tests.support.server import SCRIPT, run_cli

from tokenspeed.cli.load_progress import LoadProgress

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import ServerProcess

LOAD = ("--requests", "4", "--concurrency", "2", "--prompt-tokens", "40", "--output-tokens", "9")


def test_bench_counts_every_token_of_a_running_server(hash_server: ServerProcess) -> None:
    done = run_cli("bench", "load", "--url", f"{hash_server.url}/v1", *LOAD, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["requests"], figures["failed"]) == (4, 0)
    assert figures["output_tokens"] == 4 * 9
    assert figures["cached_tokens"] <= 4
    # A step takes 2 ms at least, and a prompt of 40 tokens 4 ms more.
    assert figures["ttft_ms_p50"] > 6
    assert figures["tpot_ms_p50"] > 2
    assert 0 < figures["tok_s"] < 1000


def test_bench_agentic_plays_sessions_and_finds_what_they_share(
    hash_server: ServerProcess, tmp_path: Path
) -> None:
    flags = ("--sessions", "1,2", "--total", "2", "--turns", "3", "--seed", "5")
    sizes = ("--scale", "0.01", "--chars-per-token", "1", "--pause-scale", "0.001")
    out = ("--out", str(tmp_path / "out"), "--json")
    done = run_cli("bench", "agentic", "--url", hash_server.url, *flags, *sizes, *out)
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)["points"]
    assert [point["sessions_at_once"] for point in points] == [1, 2]
    assert [point["void"] for point in points] == [[], []]
    for point in points:
        # One session finds the other's system prompt, and each turn the turn before it; the marks
        # of the template and the blocks' ends are what may be missing.
        assert point["best_hit_rate"] - 0.06 < point["hit_rate"] <= point["best_hit_rate"] + 0.03
        assert point["ttft_ms_first_turn"]["p50"] > point["ttft_ms"]["min"]
    assert (tmp_path / "out" / "pareto.html").exists()


def test_bench_without_a_server_is_one_clear_line() -> None:
    done = run_cli("bench", "load", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "is a server there?" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_bench_shows_the_servers_own_words_and_names_the_key(script_server: ServerProcess) -> None:
    done = run_cli("bench", "load", "--url", script_server.url)
    assert done.returncode == 1
    assert "answered 401: " in done.stderr
    assert "pass --api-key" in done.stderr
    assert "{" not in done.stderr
    long = ("--api-key", "secret", "--prompt-tokens", "5000")
    done = run_cli("bench", "load", "--url", script_server.url, *long)
    assert "512 tokens" in done.stderr
    assert "{" not in done.stderr


def test_progress_of_a_load_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoadProgress(9) as progress:
        for done, interval_s in ((1, 3600.0), (4, 0.0), (5, 3600.0)):
            monkeypatch.setattr("tokenspeed.cli.load_progress.INTERVAL_S", interval_s)
            progress.show(done)
    assert capsys.readouterr().err == "tokenspeed: 4 of 9 requests done\n"


def test_bench_starts_and_stops_a_server_for_a_model(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model")
    options = "--server-options=--plugins sdk --block-tokens 16"
    done = run_cli("bench", "load", str(model), *LOAD, options, environ=_cache(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "throughput" in done.stdout


def test_generate_prints_the_answer_alone_on_stdout(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", script=SCRIPT)
    options = ("--plugins", "sdk", "--prompt", "hi", "--stop", "test")
    done = run_cli("generate", str(model), *options, environ=_cache(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == SCRIPT.split("test")[0] + "\n"


def _cache(folder: Path) -> dict[str, str]:
    return {"TOKENSPEED_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
