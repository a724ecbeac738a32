"""A checkpoint's own name for its kind of model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.tokenizer_files import write_gguf

from tokenspeed.checkpoint.model_type import model_type_of

if TYPE_CHECKING:
    from pathlib import Path


def test_it_stands_in_the_config_or_in_the_header(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    assert model_type_of(tmp_path) == "qwen3"
    assert model_type_of(write_gguf(tmp_path / "model.gguf")) == "llama"


def test_a_checkpoint_may_have_none(tmp_path: Path) -> None:
    assert model_type_of(tmp_path) == ""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": 3}))
    assert model_type_of(tmp_path) == ""
