"""The step-time models: the named one against its measurements, files, refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tokenspeed.errors import ConfigError
from tokenspeed.simulator import load_step_model

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = {
    "step_us": 1000,
    "row_us": 1,
    "context_token_us": 0.5,
    "prefill_token_us": 10,
    "prefill_pair_us": 0.25,
}


class Plan:
    """The arrays that a step's time depends on."""

    def __init__(self, decodes: list[int], chunks: list[tuple[int, int]] = ()) -> None:  # type: ignore[assignment]
        counts = [1] * len(decodes) + [count for _, count in chunks]
        self.num_decode_rows = len(decodes)
        self.query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        self.context_tokens = np.array([*decodes, *(start for start, _ in chunks)], np.int32)


@pytest.mark.parametrize(
    ("plan", "measured_ms"),
    [
        (Plan([640]), 5.22),
        (Plan([640] * 8), 5.63),
        (Plan([640] * 32), 6.18),
        (Plan([640] * 128), 9.43),
        (Plan([8192]), 5.53),
        (Plan([32_768]), 6.40),
        (Plan([131_072]), 9.78),
        (Plan([], [(0, 512)]), 17.5),
        (Plan([], [(0, 4096)]), 102),
        (Plan([], [(0, 16_384)]), 504),
        (Plan([], [(0, 32_768)]), 1240),
        (Plan([], [(0, 131_072)]), 11_250),
    ],
)
def test_the_h200_model_reproduces_its_measurements(plan: Plan, measured_ms: float) -> None:
    model = load_step_model("h200-qwen3-8b")
    assert model.step_time_us(plan) / 1e3 == pytest.approx(measured_ms, rel=0.07)


def test_a_model_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(FIELDS))
    model = load_step_model(str(path))
    assert model.name == "mine"
    expected = 1000 + 1 + 0.5 * 100 + 10 * 4 + 0.25 * (4 * 8 + 10)
    assert model.step_time_us(Plan([100], [(8, 4)])) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "microseconds"),
        ("[]", "JSON object"),
        (json.dumps({"step_us": 1}), "row_us"),
        (json.dumps(FIELDS | {"speed": 1}), "speed is unknown"),
        (json.dumps(FIELDS | {"row_us": -1}), "row_us is unknown or out of range"),
    ],
)
def test_a_wrong_file_is_refused_by_field(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        load_step_model(str(path))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="h200-qwen3-8b"):
        load_step_model("h100")
