"""Models of which there is config.json alone: any shipped architecture answers, always the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from benchmarks.device.driver import MODELS, write_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.errors import ConfigError
from tokenspeed.executor import load_weights
from tokenspeed_sdk.testkit.random_weights import RandomWeights

if TYPE_CHECKING:
    from pathlib import Path

NAMES = sorted(path.stem for path in MODELS.glob("*.json"))
SETTINGS = {"plugins": "sdk,reference", "kv_gib": 0.02, "dtype": "float32"}


@pytest.mark.parametrize("name", NAMES)
def test_a_published_build_answers_the_same_in_every_start(name: str, tmp_path: Path) -> None:
    folder = write_model(name, tmp_path / name, scale=256, num_hidden_layers=4)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    answers = []
    for _ in range(2):
        with LLM(str(folder), **SETTINGS) as llm:
            (output,) = llm.generate([[11, 12, 13, 14, 15]], params)
            answers.append(output.token_ids)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 6


def test_one_token_may_read_as_nan(tmp_path: Path) -> None:
    source = RandomWeights().open(write_model("qwen3-8b", tmp_path / "m", nan_on_token=3))
    wanted = {"model.embed_tokens.weight": (8, 4), "lm_head.weight": (8, 4)}
    tensors = dict(
        source.tensors(torch.float32, keep_packed=False, wanted=wanted, device=torch.device("cpu"))
    )
    is_nan = {}
    for name, weight in tensors.items():
        assert weight.plain is not None
        is_nan[name] = weight.plain.isnan().any(1).tolist()
    assert is_nan["model.embed_tokens.weight"] == [row == 3 for row in range(8)]
    assert not any(is_nan["lm_head.weight"])


class Silent:
    """A model that does not say what it takes."""

    def load_weights(self, weights: object) -> None:
        """Take nothing."""


def test_a_model_that_does_not_say_what_it_takes_is_refused(tmp_path: Path) -> None:
    folder = write_model("qwen3-8b", tmp_path / "m", scale=256)
    source = RandomWeights().open(folder)
    with pytest.raises(ConfigError, match=r"Silent does not say which weights it takes"):
        load_weights(
            Silent(),  # type: ignore[arg-type]
            source,
            dtype=torch.float32,
            device=torch.device("cpu"),
            keep_packed=False,
        )
