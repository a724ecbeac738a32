"""`tokenspeed bench` and `tokenspeed generate`, run as a user runs them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.scripted import write_scripted_model
from tests.support.server import SCRIPT, run_cli

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import ServerProcess

LOAD = ("--requests", "4", "--concurrency", "2", "--prompt-tokens", "40", "--output-tokens", "9")


def test_bench_counts_every_token_of_a_running_server(hash_server: ServerProcess) -> None:
    done = run_cli("bench", "--url", f"{hash_server.url}/v1", *LOAD, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["requests"], figures["failed"]) == (4, 0)
    assert figures["output_tokens"] == 4 * 9
    assert figures["cached_tokens"] <= 4
    # A step takes 2 ms at least, and a prompt of 40 tokens 4 ms more.
    assert figures["ttft_ms_p50"] > 6
    assert figures["tpot_ms_p50"] > 2
    assert 0 < figures["tok_s"] < 1000


def test_bench_without_a_server_is_one_clear_line() -> None:
    done = run_cli("bench", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "is a server there?" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_bench_starts_and_stops_a_server_for_a_model(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model")
    options = "--server-options=--plugins sdk --block-tokens 16"
    done = run_cli("bench", str(model), *LOAD, options, environ=_cache(tmp_path))
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
