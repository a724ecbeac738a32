"""`tokenspeed simulate`: figures on stdout, plain refusals, generated traces that read back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.engines import TEST_SETTINGS
from tests.support.scripted import write_scripted_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.cli.main import run
from tokenspeed.diagnostics import exit_code_of

if TYPE_CHECKING:
    from pathlib import Path

LINES = [
    {
        "block": 64,
        "req": [
            [0, "", 650, 20, 2.0, 0, [[1, 10]]],
            [9, "", 720, 20, 2.0, 4, [[1, 11]]],
        ],
    },
    {"block": 64, "req": [[0, "", 700, 20, 2.0, 0, [[1, 10]]]]},
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_hits_need_no_step_model(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(trace), "--json", "--ideal"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["requests"] == 3
    assert row["hit_rate"] == pytest.approx(640 / 2070, abs=0.005)
    assert row["hit_rate_unlimited"] == pytest.approx(640 / 2070)
    assert row["ttft_ms_p50"] is None


def test_a_sweep_prints_a_column_each(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", "small.jsonl", "--traces", str(trace.parent)]
    assert run([*command, "--step-model", "h200-qwen3-8b", "--sessions", "1,2"]) == 0
    lines = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["places"].split()[1:] == ["1", "2"]
    assert len(lines["ttft ms p50"].split()) == 5


def test_a_generated_trace_is_written_and_reads_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "made.jsonl"
    make = ["simulate", "--generate", "agentic", "--total", "3", "--seed", "2", "--json"]
    assert run([*make, "--write", str(path)]) == 0
    (made,) = json.loads(capsys.readouterr().out)
    assert run(["simulate", str(path), "--json"]) == 0
    (read,) = json.loads(capsys.readouterr().out)
    assert made | {"trace": ""} == read | {"trace": ""}


def test_a_recorded_engine_is_repeated_plan_by_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    model = write_scripted_model(tmp_path / "model")
    with LLM(str(model), record=str(path), **TEST_SETTINGS) as llm:
        llm.generate([[1, 2, 3], [1, 2, 4]], SamplingParams(max_tokens=4, ignore_eos=True))
    assert run(["simulate", str(path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["plans_as_recorded"] > 3
    assert row["finished"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--generate agentic"),
        (["nowhere.jsonl"], "cannot be read"),
        (["t.jsonl", "--pareto", "p.png"], "--step-model"),
        (["t.jsonl", "--step-model", "h100"], "h200-qwen3-8b"),
        (["t.jsonl", "--policy", "acme/best"], "core/return_time"),
        (["t.jsonl", "--write", "x"], "--generate"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRACES", raising=False)
    assert run(["simulate", *arguments]) != 0
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("policy", ["core/lur", "lru", "acme/best"])
def test_an_unknown_policy_ends_with_the_code_and_the_words_of_a_start(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", "--generate", "agentic", "--total", "1", "--policy", policy]) == 5
    simulated = capsys.readouterr().err
    model = str(write_scripted_model(tmp_path / "m"))
    start = ["generate", model, "--plugins", "sdk", "--prompt", "x", "--policy", policy]
    assert run(start) == exit_code_of("pin-unknown") == 5
    assert simulated in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ("--pool-tokens", "-1"),
        ("--pool-tokens", "9" * 20),
        ("--sessions", "0"),
        ("--sessions", ","),
        ("--max-running", "0"),
        ("--max-running", "1,2"),
        ("--max-step-tokens", "9" * 11),
        ("--max-pause-s", "nan"),
        ("--min-tps-per-user", "1e9"),
        ("--total", "0"),
    ],
)
def test_numbers_out_of_range_are_refused_with_what_is_allowed(
    flags: tuple[str, str], trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(["simulate", str(trace), *flags])
    assert "is not allowed; give" in capsys.readouterr().err


def test_a_pool_of_no_block_is_refused(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(trace), "--pool-tokens", "1"]) == 2
    assert "has 0 blocks" in capsys.readouterr().err


def test_more_places_than_sessions_change_nothing(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", str(trace), "--json", "--sessions", "1_000_000"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["requests"] == 3


@pytest.mark.parametrize("text", ["[" * 100_000, '{"step_us": Infinity}', "\x00"])
def test_a_step_model_out_of_range_is_refused(
    text: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    terms = dict.fromkeys(("row_us", "context_token_us", "prefill_token_us", "prefill_pair_us"), 1)
    path = trace.parent / "model.json"
    path.write_text(text.replace("}", ", " + json.dumps(terms)[1:]))
    assert run(["simulate", str(trace), "--step-model", str(path)]) == 2
    assert "step model" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_written_trace_is_read_again(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    made = ["simulate", "--generate", "agentic", "--total", "2", "--write", str(path), "--json"]
    assert run(made) == 0
    generated = json.loads(capsys.readouterr().out)[0]
    assert path.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
    assert run(["simulate", str(path), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)[0]
    figures = ("requests", "steps", "hit_rate")
    assert [again[field] for field in figures] == [generated[field] for field in figures]
