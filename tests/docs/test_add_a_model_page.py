"""The model of docs/plugins/add-a-model.md, as a reader would copy it, answers as it should."""

from __future__ import annotations

import re
import shlex
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.engine_parts import Job, build_parts
from tests.support.model_contexts import definition_context, tiny_config
from tests.support.plugin_wheels import PluginSpace, write_metadata
from tests.support.scripted import VOCAB_SIZE, byte_tokenizer
from tests.support.server import run_cli
from tests.support.source_tree import ROOT
from tests.support.tiny_checkpoints import TinySpec, decode_greedily, make_prompts, reference_model
from tests.support.traced_models import random_weights

from tokenspeed import LLM
from tokenspeed.cli.main import make_parser
from tokenspeed.errors import PlacementError, PluginError
from tokenspeed.models.llama import LlamaAttention, LlamaForCausalLM
from tokenspeed.placement.trace import trace
from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs" / "plugins" / "add-a-model.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```\w+\n# (my_models/\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^    tokenspeed (.*)$", PAGE, re.MULTILINE)
SPEC = TinySpec(
    "MistralForCausalLM",
    {"vocab_size": VOCAB_SIZE, "sliding_window": None, "head_dim": 16},
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mistral") / "mistral"
    reference_model(SPEC).save_pretrained(path)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    return path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginSpace:
    """Write the files of the page and install the wheel as `pip install -e` does."""
    files = dict(BLOCK.findall(PAGE))
    assert len(files) == 5
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    space = PluginSpace(tmp_path / "my_models", monkeypatch)
    write_metadata(space.folder, "my-models", "0.1", "mymodels = my_models:plugin")
    return space


def test_the_model_decodes_greedily_as_transformers(
    checkpoint: Path, installed: PluginSpace
) -> None:
    prompts = [[token % 256 for token in prompt] for prompt in make_prompts([1, 7, 60], shared=5)]
    wanted = decode_greedily(checkpoint, prompts, 32)
    params = SamplingParams(temperature=0.0, max_tokens=32)
    parts = build_parts(checkpoint, plugins=("mymodels",), max_step_tokens=31)
    assert parts.run([Job(prompt, params) for prompt in prompts]).tokens == wanted.tokens


def test_the_commands_of_the_page_do_what_it_says(checkpoint: Path, installed: PluginSpace) -> None:
    assert len(COMMANDS) == 7
    answers = set()
    for line in COMMANDS:
        arguments = shlex.split(line.replace("path/to/mistral", str(checkpoint)))
        if arguments[0] == "serve":
            make_parser().parse_args(arguments)  # running it is `generate` behind HTTP
            continue
        done = run_cli(*arguments)
        assert done.returncode == 0, done.stderr
        if arguments[0] == "generate":
            answers.add(done.stdout)
        else:
            assert "MistralForCausalLM" in done.stdout
            assert ("is offered 2 times" in done.stdout) == (line.count("my") == 2)
    assert len(answers) == 1


def test_without_a_pin_two_sources_are_an_error_with_the_pins(
    checkpoint: Path, installed: PluginSpace
) -> None:
    module = ("my_models.mistral",)
    with pytest.raises(PluginError, match=r"--pins model=my_models\.mistral/Mistral") as caught:
        LLM(str(checkpoint), plugins=("mymodels",), model_module=module)
    assert caught.value.exit_code == 2


def test_the_layer_of_ones_own_is_traced_and_filled() -> None:
    (code,) = re.findall(r"^```python\n(from tokenspeed_sdk import layers, ops\n.*?)^```", PAGE,
                         re.DOTALL | re.MULTILINE)  # fmt: skip
    space: dict[str, Any] = {}
    exec(code, space)

    class Attention(LlamaAttention):
        def __init__(self, config: Any, context: Any, *rest: Any) -> None:
            super().__init__(config, context, *rest)
            self.own = space["OwnNorm"](context, config.hidden_size)

        def weight_slots(self, name: str) -> Any:
            yield from super().weight_slots(name)
            yield from self.own.weight_slots(f"{name}.own")

        def __call__(self, x_TD: Any, step: Any, angles: Any) -> Any:
            return super().__call__(self.own(x_TD), step, angles)

    class Model(LlamaForCausalLM):
        def make_attention(self, layer: int) -> Attention:
            return Attention(self.config, self.context, self.rotary, layer)

    nodes = trace(Model, tiny_config()).forward.nodes
    (node,) = [node for node in nodes if node.target == "layers.1.attention.own"]
    assert node.weights == (((16,),),)
    model = Model(tiny_config(), definition_context())
    model.load_weights(random_weights(model))
    x_TD = torch.randn(3, 16)
    own = model.layers[1].attention.own  # type: ignore[attr-defined]
    wanted = x_TD / (x_TD.square().mean(-1, keepdim=True) + 1e-6).sqrt() * own._weight_D
    torch.testing.assert_close(own(x_TD), wanted)


def test_the_refusal_on_the_page_is_what_a_reader_sees(
    installed: PluginSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = installed.folder / "my_models" / "mistral.py"
    text = file.read_text()
    assert "x_TD.shape[0]" in text
    file.write_text(text.replace("x_TD.shape[0]", "len(x_TD)"))
    monkeypatch.syspath_prepend(str(installed.folder))
    for name in ("my_models", "my_models.mistral", "my_models.plugin"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = import_module("my_models.mistral")
    with pytest.raises(PlacementError) as caught:
        trace(module.EntryClass, tiny_config(hidden_size=64))
    shown = re.findall(r"^    (my_models/mistral.*?)\n\n", PAGE, re.DOTALL | re.MULTILINE)
    assert [" ".join(item.split()) for item in shown] == [str(caught.value)]
