"""The agents' workload: the published profile, the same bytes for a seed, known best hits."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tokenspeed.cli.agentic.best_hits import requests_of, shared_chars
from tokenspeed.cli.agentic.client import Answer
from tokenspeed.cli.agentic.figures import compared, point_of
from tokenspeed.cli.agentic.from_trace import workload_of
from tokenspeed.cli.agentic.profile import CHARS_PER_TOKEN, Profile, coding_agents
from tokenspeed.cli.agentic.workload import Part, Session, Turn, Workload, messages_of
from tokenspeed.simulator import ideal_hit_rate
from tokenspeed.simulator.generate import generate_agentic

SMALL = Profile(6, seed=3, scale=0.02)


def test_the_profile_is_the_published_one() -> None:
    workload = coding_agents(Profile(40, seed=1))
    sizes = sorted(
        sum(len(part.text) for part in prompt) / CHARS_PER_TOKEN
        for name, _, prompt in requests_of(workload)
        if "." not in name
    )
    assert statistics.mean(sizes) == pytest.approx(63_000, rel=0.05)
    assert sizes[int(0.99 * len(sizes))] > 70_000
    shared = shared_chars(workload).values()
    assert sum(part for part, _ in shared) > 0.9 * sum(whole for _, whole in shared)
    outputs = [turn.output_tokens for item in workload.sessions for turn in item.turns]
    assert statistics.mean(outputs) == pytest.approx(300, rel=0.05)
    kinds = {turn.kind for item in workload.sessions for turn in item.turns}
    assert kinds == {"turn", "compaction"}
    assert any(item.children for item in workload.sessions)


def test_a_seed_makes_the_same_bytes_and_another_does_not() -> None:
    assert coding_agents(SMALL) == coding_agents(SMALL)
    assert coding_agents(SMALL) != coding_agents(Profile(6, seed=4, scale=0.02))
    longer = coding_agents(Profile(9, seed=3, scale=0.02))
    assert longer.first(6) == coding_agents(SMALL)


def test_each_turn_begins_with_all_of_the_turn_before_it() -> None:
    last: dict[str, tuple[Part, ...]] = {}
    for name, turn, prompt in requests_of(coding_agents(SMALL)):
        is_compacted = turn and len(prompt) < len(last[name])
        if turn and not is_compacted:
            assert prompt[: len(last[name])] == last[name]
            assert prompt[len(last[name])].role == "assistant"
        roles = [message["role"] for message in messages_of(prompt)]
        assert roles[0] == "system"
        assert roles[1:] == ["user", "assistant"] * (len(roles[1:]) // 2) + ["user"]
        last[name] = prompt


def test_a_trace_is_played_with_the_hits_that_its_blocks_have() -> None:
    trace = generate_agentic(4, 5, scale=0.02)
    workload = workload_of(trace, chars_per_token=4.0, pause_scale=0.0)
    shared = shared_chars(workload).values()
    rate = sum(part for part, _ in shared) / sum(whole for _, whole in shared)
    ideal = ideal_hit_rate(trace, pool_tokens=None, num_places=1, max_pause_s=0)
    assert rate == pytest.approx(ideal, abs=0.01)


def answer(turn: int, **fields: object) -> Answer:
    values = {"first_s": 1.5, "last_s": 2.5, "asked_tokens": 11, "num_tokens": 11}
    values |= {"prompt_tokens": 100, "cached_tokens": 50 * turn}
    return Answer("s0", turn, "turn", 1.0, **values | fields)  # type: ignore[arg-type]


def test_figures_of_a_run() -> None:
    shared = {("s0", 0): (0, 400), ("s0", 1): (300, 400)}
    run = {"at_once": 1, "devices": 2, "usd_per_device_hour": 3.6}
    point = point_of([answer(0), answer(1)], 10.0, shared, **run)  # type: ignore[arg-type]
    assert (point["hit_rate"], point["best_hit_rate"]) == (0.25, 0.375)
    assert point["tps_user"]["p50"] == 10.0
    assert point["tps_device"] == 22 / 10 / 2
    assert point["ttft_ms"]["p50"] == 500.0
    assert point["session_s"]["max"] == 1.5
    assert point["usd_per_session"] == pytest.approx(0.02)
    assert point["void"] == []


def test_runs_that_are_no_comparison_are_void() -> None:
    shared = {("s0", turn): (0, 400) for turn in range(100)}
    run = {"at_once": 1, "devices": 1, "usd_per_device_hour": None}
    many = [answer(turn) for turn in range(98)]
    short = point_of([*many, answer(98, num_tokens=5)], 1.0, shared, **run)  # type: ignore[arg-type]
    assert "1 answers have another length than asked for" in short["void"][0]
    bad = [*many, answer(98, error="no"), answer(99, error="no")]
    failed = point_of(bad, 1.0, shared, **run)  # type: ignore[arg-type]
    assert failed["void"] == ["2 of 100 requests failed, 1 % is allowed"]
    once = point_of(many, 1.0, shared, **run)  # type: ignore[arg-type]
    other = {**once, "prompt_tokens": once["prompt_tokens"] * 1.1}
    assert "not the same work" in compared([once, other])[0]
    assert compared([once, once]) == []


def test_a_workload_counts_the_requests_of_sub_agents() -> None:
    turn = Turn(0, (Part("user", "x"),), "y", 1, 0.0)
    child = Session("a.1", (turn, turn))
    assert Workload("w", (Session("a", (turn,), {0: (child, child)}),)).num_requests == 5


def test_the_picture_and_the_page_name_every_run(tmp_path: Path) -> None:
    from tokenspeed.cli.agentic.report import write_report

    run = {"at_once": 1, "devices": 1, "usd_per_device_hour": None}
    point = point_of([answer(0)], 1.0, {("s0", 0): (0, 9)}, **run)  # type: ignore[arg-type]
    ours = {"label": "ours", "workload": "w", "scale": 1.0, "points": [point]}
    written = write_report(tmp_path / "out", [ours, {**ours, "label": "<peer>"}])
    assert [path.name for path in written] == ["results.json", "pareto.png", "pareto.html"]
    page = written[2].read_text(encoding="utf-8")
    assert "<h2>ours: w" in page
    assert "&lt;peer&gt;" in page
    assert "<svg" in page
    assert written[1].read_bytes().startswith(b"\x89PNG")
