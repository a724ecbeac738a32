"""The benchmark of the front end, small: a real API process writes once a stream and step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.serving.played_engine import served
from benchmarks.serving.streaming import CASES, Bench, Case, admissions, write_model
from tests.support.scripted import write_scripted_model

from tokenspeed.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.serving.stream_client import Streams

    from tokenspeed.engine.messages import ModelInfo

NUM_STREAMS, NUM_STEPS = 4, 10
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    folder: Path = tmp_path_factory.mktemp("streaming")
    return write_model(str(write_scripted_model(folder / "bytes")), folder)


@pytest.fixture(scope="module")
def bench(model: ModelInfo) -> Iterator[Bench]:
    script = load_tokenizer(model.path).encode("some words. ", add_special_tokens=False)
    with served(model, script) as (engine, process):
        yield Bench(engine, process)


def drain(streams: Streams) -> None:
    """Read until nothing more comes."""
    while streams.read(0.3):
        pass


@pytest.mark.parametrize(
    "case", [BY_NAME[name] for name in ("chat", "completions, 5 logprobs", "messages", "responses")]
)
def test_a_stream_is_written_once_a_step(bench: Bench, case: Case) -> None:
    with bench.streams(case, NUM_STREAMS) as streams:
        bench.step(streams)
        bench.step(streams)
        drain(streams)  # what opens an answer may have come in a piece of its own
        events, reads = streams.num_events, streams.num_reads
        took_s = [seconds for _ in range(NUM_STEPS) for seconds in bench.step(streams)]
        steps_read = NUM_STREAMS * NUM_STEPS
        # One may come in two pieces; a second write a step would be seen in all of them.
        drain(streams)
        assert steps_read <= streams.num_reads - reads < steps_read * 1.2
        assert streams.num_events - events == NUM_STREAMS * NUM_STEPS
    assert len(took_s) == NUM_STREAMS * NUM_STEPS
    assert min(took_s) > 0


def test_long_requests_of_all_kinds_are_admitted(bench: Bench, model: ModelInfo) -> None:
    for name, path, body in admissions(model, num_tokens=2_000):
        lag_s, cpu_s, took_s = bench.admission(path, body)
        assert 0 < lag_s <= took_s + 1, name
        assert cpu_s > 0, name
