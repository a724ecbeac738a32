"""`generate` and `LLM` refuse what cannot work, before anything is loaded where possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.scripted import write_scripted_model
from tests.support.server import run_cli

from tokenspeed.engine.llm import LLM
from tokenspeed.errors import ConfigError, RequestError
from tokenspeed.sampling.params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-tokens", "0", "--prompt", "x"], "max_tokens is 0, allowed is [1,"),
        (["--temperature", "-1", "--prompt", "x"], "temperature is -1.0, allowed is [0"),
        (["--prompt", ""], "the prompt is empty"),
    ],
)
def test_wrong_flags_are_usage_errors_and_load_nothing(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    done = run_cli("generate", str(tmp_path), *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_model_reads_the_same_everywhere(tmp_path: Path) -> None:
    model = str(tmp_path / "nowhere")
    commands = (["serve", model], ["bench", "load", model], ["generate", model, "--prompt", "x"])
    done = [run_cli(*command) for command in commands]
    assert {each.returncode for each in done} == {2}
    assert len({each.stderr for each in done}) == 1
    assert "is not on this machine" in done[0].stderr
    with pytest.raises(ConfigError, match="is not on this machine"):
        LLM(model)


def test_an_answer_that_cannot_fit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", max_position_embeddings=64)
    with LLM(str(model), plugins=("sdk",), block_tokens=16) as llm:
        with pytest.raises(RequestError, match="max_tokens is 200, but the context is 64 tokens"):
            llm.generate("abcd", SamplingParams(max_tokens=200))
        with pytest.raises(RequestError, match="so at most 60 fit"):
            next(iter(llm.stream("abcd", SamplingParams(max_tokens=61))))
        with pytest.raises(RequestError, match="prompt is empty"):
            llm.generate("")
        assert len(llm.generate("abcd", SamplingParams(max_tokens=60))[0].token_ids) == 60
