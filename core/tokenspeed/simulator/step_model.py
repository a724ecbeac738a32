"""How long a step takes: a sum of five terms, named models, and the JSON file of an own one.

t = step + row * decode rows + context * cached tokens that decode rows attend to
  + prefill * query tokens of chunks + pair * (query token, attended token) pairs of chunks
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray


MAX_TERM_US = 1e9


class StepShape(Protocol):
    """What a step's time depends on; a `StepPlan` has it."""

    @property
    def num_decode_rows(self) -> int:
        """Rows that decode; they come first."""

    @property
    def query_start(self) -> NDArray[np.int32]:
        """(R + 1,) row r owns query tokens [query_start[r], query_start[r + 1])."""

    @property
    def context_tokens(self) -> NDArray[np.int32]:
        """(R,) cached tokens before each row's queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """Times in microseconds.

    Args:
        step_us: any step: weights are read once.
        row_us: a decode row.
        context_token_us: a cached token that a decode row attends to.
        prefill_token_us: a query token of a chunk.
        prefill_pair_us: a query token of a chunk and a token before it.
    """

    name: str
    step_us: float
    row_us: float
    context_token_us: float
    prefill_token_us: float
    prefill_pair_us: float

    def step_time_us(self, plan: StepShape) -> float:
        """Return the time of one step."""
        queries = np.diff(plan.query_start).astype(np.int64)
        context = plan.context_tokens.astype(np.int64)
        rows = plan.num_decode_rows
        chunks, before = queries[rows:], context[rows:]
        pairs = chunks * before + chunks * (chunks + 1) // 2
        return float(
            self.step_us
            + self.row_us * int(queries[:rows].sum())
            + self.context_token_us * int(context[:rows].sum())
            + self.prefill_token_us * int(chunks.sum())
            + self.prefill_pair_us * int(pairs.sum())
        )


STEP_MODELS = {
    model.name: model
    for model in (
        # One H200, bf16, decode replayed as a graph by a tuned engine, measured 2026-11: 5.22 ms a
        # step at batch 1, 9.43 at 128; 9.78 at 128k context; prefill 102 ms of 4k, 1.24 s of 32k,
        # 11.25 s of 128k. The terms reproduce these within 7 %.
        StepModel(
            name="h200-qwen3-8b",
            step_us=5200.0,
            row_us=10.5,
            context_token_us=0.0354,
            prefill_token_us=21.7,
            prefill_pair_us=9.78e-4,
        ),
    )
}


def load_step_model(name: str) -> StepModel:
    """Return a named model, or read one from a JSON file with the fields of `StepModel`.

    Raises:
        ConfigError: neither a known name nor a file with exactly these numbers.
    """
    if name in STEP_MODELS:
        return STEP_MODELS[name]
    path = Path(name)
    allowed = [item.name for item in dataclasses.fields(StepModel) if item.name != "name"]
    if not path.is_file():
        raise ConfigError(
            f"step model {name!r} is neither a file nor one of {', '.join(STEP_MODELS)}; give a "
            f"JSON file with {', '.join(allowed)}"
        )
    try:
        given = json.loads(path.read_text())
        values = {key: float(given.pop(key)) for key in allowed}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"step model {path}: {type(error).__name__} {error}; it is a JSON object with the "
            f"numbers {', '.join(allowed)}, microseconds each"
        ) from error
    wrong = [key for key in given if key != "name"] + [
        key for key, value in values.items() if not 0 <= value <= MAX_TERM_US
    ]
    if wrong:
        raise ConfigError(
            f"step model {path}: {', '.join(wrong)} is unknown or out of range; allowed are "
            f"{', '.join(allowed)}, 0 to {MAX_TERM_US:.0f}"
        )
    return StepModel(name=str(given.get("name", path.stem)), **values)
