"""`tokenspeed models explain`: the compiled layers as a table or JSON, and clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.traced_models import even

from tokenspeed.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a folder with the config.json of a sparse model, and nothing else."""
    config = {**even("deepseek_v3"), "num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def explained(model: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert run(["models", "explain", str(model), "--json", *flags]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_layer_is_told_once(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(model, capsys, "--tp", "2", "--ep", "2")
    assert found["architecture"] == "DeepseekV3ForCausalLM"
    assert found["world"] == 2
    layers = [layer for section in found["sections"] for layer in section["layers"]]
    assert sorted(layers) == [0, 1, 2, 3]
    assert [section["title"] for section in found["sections"]][-2:] == ["after layer 3", "logits"]
    shared = next(section for section in found["sections"] if len(section["layers"]) > 1)
    kinds = [row["kind"] for row in shared["rows"]]
    assert kinds.count("all_reduce") == 2


def test_totals_are_the_sums_of_the_rows(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(model, capsys, "--tp", "2", "--dp", "2", "--ep", "4", "--tokens", "64")
    for key in ("sent_bytes", "time_us"):
        total = 0.0
        for section in found["sections"]:
            own = sum(row[key] for row in section["rows"])
            assert own == pytest.approx(section[key])
            total += own * (len(section["layers"]) or 1)
        assert total == pytest.approx(found[key])
        assert total > 0


def test_ranks_share_weights_and_cache(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (whole,) = explained(model, capsys)["stages"]
    (half,) = explained(model, capsys, "--tp", "2", "--ep", "2")["stages"]
    assert whole["weight_bytes"] / 2 < half["weight_bytes"] < whole["weight_bytes"] * 0.7
    assert half["cache_token_bytes"] == whole["cache_token_bytes"], "one latent serves all heads"
    first, last = explained(model, capsys, "--pp", "2")["stages"]
    assert first["ranks"] == [1, 1]
    assert last["ranks"] == [0, 0]
    assert (first["layers"], last["layers"]) == ([0, 1], [2, 3])
    assert first["cache_token_bytes"] + last["cache_token_bytes"] == whole["cache_token_bytes"]


def test_the_table_has_every_node_and_collective(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["models", "explain", str(model / "config.json"), "--tp", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith("  ")]
    assert ["all_reduce", "attention.output"] in [row[:2] for row in rows]
    assert ["module", "mlp.experts"] in [row[:2] for row in rows]
    assert any("attn_tp, 2 ranks" in line and line.endswith(" us") for line in lines)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--tp", "3"), "the others as given: tp 1, 2, 4, 8"),
        (("--tp", "6", "--ep", "4"), "do not fit together"),
        (("--tp", "0"), "tp is 0, allowed is 1 to 1024"),
        (("--pp", "9"), "9 pipeline stages for 4 layers"),
        (("--tokens", "0"), "--tokens is 0"),
    ],
)
def test_what_does_not_fit_is_a_usage_error(
    model: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], text: str
) -> None:
    assert run(["models", "explain", str(model), *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert text in captured.err


def test_a_missing_folder_and_an_unknown_architecture_are_usage_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["models", "explain", str(tmp_path)]) == 2
    assert "no model is at" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"architectures": ["LamaForCausalLM"]}')
    assert run(["models", "explain", str(tmp_path)]) == 2
    assert "did you mean LlamaForCausalLM?" in capsys.readouterr().err


def test_a_wrong_annotation_in_a_file_of_ones_own_is_named(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / "wrong_head_model.py").write_text(
        "from tokenspeed.contracts.placement import ParallelGroup\n"
        "from tokenspeed.models.llama import LlamaForCausalLM\n\n\n"
        "class WrongHeadForCausalLM(LlamaForCausalLM):\n"
        '    """Its head says a letter that its product has not."""\n\n'
        '    architectures = ("WrongHeadForCausalLM",)\n\n'
        "    def __init__(self, config, context):\n"
        "        from tokenspeed.layers import Linear\n\n"
        "        super().__init__(config, context)\n"
        "        size = self.config.hidden_size\n"
        '        spread = {"K": ParallelGroup.ATTN_TP}\n'
        "        self.head = Linear(context, size, (self.config.vocab_size,), spread=spread)\n\n\n"
        "EntryClass = WrongHeadForCausalLM\n"
    )
    config = {**even("llama"), "architectures": ["WrongHeadForCausalLM"]}
    (model / "config.json").write_text(json.dumps(config))
    monkeypatch.syspath_prepend(str(model))
    flags = ("--tp", "2", "--model-module", "wrong_head_model")
    assert run(["models", "explain", str(model), *flags]) == 2
    text = capsys.readouterr().err
    assert "head (" in text
    assert "spreads K over attn_tp, expected one of " in text


def test_the_command_needs_no_weights(model: Path) -> None:
    command = [sys.executable, "-m", "tokenspeed", "models", "explain", str(model), "--tp", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout.startswith("model    DeepseekV3ForCausalLM")
