"""Models and layers compute nothing themselves: a forward pass is operators, views and moves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from tests.support.engine_parts import Job, build_parts
from tests.support.source_tree import ROOT, files_under
from tests.support.tiny_checkpoints import make_checkpoint, make_prompts
from tests.support.torch_calls import (
    IN_A_STEP,
    TABLE_FILE,
    WHILE_LOADING,
    CallsOfModels,
)

from tokenspeed.sampling import SamplingParams

MODELS = (
    "llama",
    "qwen2_tied",
    "qwen3",
    "qwen3_moe",
    "mixtral",
    "deepseek_v2_lite",
    "deepseek_v3",
    "gpt_oss",
    "qwen3_next",
    "qwen3_next_dense_layers",
    "qwen3_5",
    "qwen3_5_moe",
)
PARAMS = SamplingParams(temperature=0.0, max_tokens=3)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_calls_operators_only(checkpoint_folder: Path, name: str) -> None:
    make_checkpoint(name, checkpoint_folder)
    with CallsOfModels() as loading:
        parts = build_parts(checkpoint_folder / name, max_step_tokens=16)
    with CallsOfModels() as running:
        parts.run([Job(prompt, PARAMS) for prompt in make_prompts([3, 40])])
    assert running.beyond(IN_A_STEP) == {}
    assert loading.beyond(WHILE_LOADING, free_file=TABLE_FILE) == {}
    assert "torch.Tensor.view" in running.seen


def test_the_measure_sees_what_a_layer_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenspeed.layers import placements

    code = compile("def double(x):\n    return x + x\n", placements.__file__, "exec")
    space: dict[str, object] = {}
    exec(code, space)
    with CallsOfModels() as calls:
        torch.ones(2) * 3
        space["double"](torch.ones(2))  # type: ignore[operator]
    assert list(calls.beyond(IN_A_STEP)) == ["torch.Tensor.add"]


def test_the_source_names_no_other_torch_function() -> None:
    allowed = {name.removeprefix("torch.") for name in WHILE_LOADING if name.count(".") == 1}
    allowed |= {"Tensor", "dtype", "device", "int64"}
    wrong = []
    for file in files_under("core/tokenspeed/layers", "core/tokenspeed/models"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                wrong.append(f"{file.name}:{node.lineno} imports from {node.module}")
            is_torch = (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "torch"
            )
            is_free = file == ROOT / TABLE_FILE
            if is_torch and node.attr not in allowed and not is_free:
                wrong.append(f"{file.name}:{node.lineno} torch.{node.attr}")
    assert wrong == []
