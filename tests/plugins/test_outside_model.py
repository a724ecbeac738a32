"""Architectures that an outsider adds, `tests/outside/postnorm`, answer as transformers does.

The same files serve as modules that the command line names, and as a wheel in an environment of its
own. Checkpoints are random; prompts are longer than the windows, and share a beginning.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from tests.support.overlay import Overlay
from tests.support.plugin_wheels import WheelFolder
from tests.support.scripted import VOCAB_SIZE, byte_tokenizer
from tests.support.server import ServerProcess
from tests.support.source_tree import ROOT
from tests.support.tiny_checkpoints import (
    Expected,
    TinySpec,
    decode_greedily,
    make_prompts,
    reference_model,
)

from tokenspeed import LLM, SamplingParams
from tokenspeed.placement.trace import trace
from tokenspeed_sdk.conformance import run_conformance

if TYPE_CHECKING:
    from pathlib import Path

WHEEL = ROOT / "tests" / "outside" / "postnorm"
GEMMA2 = {
    "vocab_size": VOCAB_SIZE,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "sliding_window": 20,
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 9.0,
    "tie_word_embeddings": False,
}
SPECS = {
    "gemma2": TinySpec("Gemma2ForCausalLM", GEMMA2),
    "gemma2_tied_biases_no_caps": TinySpec(
        "Gemma2ForCausalLM",
        {
            **GEMMA2,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        },
    ),
    "olmo2": TinySpec("Olmo2ForCausalLM", {"vocab_size": VOCAB_SIZE}),
}
PROMPTS = [[t % 256 for t in prompt] for prompt in make_prompts([1, 19, 33, 90, 150], shared=20)]
NUM_TOKENS = 32
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
CHUNKS = {"block_tokens": 16, "max_step_tokens": 29}


@cache
def checkpoint(folder: Path, name: str) -> Path:
    path = folder / name
    reference_model(SPECS[name]).save_pretrained(path)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    return path


@cache
def expected(folder: Path, name: str) -> Expected:
    return decode_greedily(checkpoint(folder, name), PROMPTS, NUM_TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outside")


@pytest.mark.parametrize("name", SPECS)
def test_a_named_module_answers_as_transformers_in_chunks_batches_and_from_the_cache(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(WHEEL))
    module = f"tokenspeed_postnorm.{name.partition('_')[0]}"
    wanted = expected(folder, name)
    assert wanted.median_gap > 0.1
    with LLM(str(checkpoint(folder, name)), model_module=module, **CHUNKS) as llm:
        for _ in range(2):
            answers = llm.generate(PROMPTS, GREEDY)
            assert [list(answer.token_ids) for answer in answers] == wanted.tokens
        assert llm.stats().cached_tokens > 200


@pytest.mark.parametrize("name", SPECS)
def test_its_text_can_be_placed_on_several_ranks(
    name: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.syspath_prepend(str(WHEEL))
    entry = import_module(f"tokenspeed_postnorm.{name.partition('_')[0]}").EntryClass
    config = json.loads((checkpoint(folder, name) / "config.json").read_text())
    graphs = trace(entry, config)
    layers = {node.layer for node in graphs.forward.nodes}
    assert layers == {-1, *range(config["num_hidden_layers"])}
    assert ("activation.softcap" in [node.target for node in graphs.logits.nodes]) == (
        name == "gemma2"
    )


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Overlay:
    environment = Overlay(tmp_path_factory.mktemp("overlay"))
    environment.install(WHEEL)
    return environment


@pytest.mark.slow
def test_its_source_is_valid_and_the_wheel_conforms(overlay: Overlay, folder: Path) -> None:
    valid = overlay.tokenspeed("plugins", "validate", str(WHEEL))
    assert valid.returncode == 0, valid.stdout
    models = [f"--checkpoint={checkpoint(folder, name)}" for name in ("gemma2", "olmo2")]
    done = overlay.tokenspeed("plugins", "test", "postnorm", "--level", "C2", *models)
    assert done.returncode == 0, done.stdout
    for name in ("gemma2", "olmo2"):
        assert f"passed  C2/a-model-answers-as-transformers[{name}]" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma2", "olmo2"])
def test_the_wheel_serves_what_transformers_decodes(
    overlay: Overlay, folder: Path, tmp_path: Path, name: str
) -> None:
    wanted = expected(folder, name)
    flags = ("--plugins", "postnorm", "--max-step-tokens", "29")
    model = checkpoint(folder, name)
    with ServerProcess(model, tmp_path, *flags, python=overlay.python) as server:
        for _ in range(2):
            body = {"model": name, "prompt": PROMPTS, "max_tokens": NUM_TOKENS, "temperature": 0}
            answer = server.call("/v1/completions", {**body, "ignore_eos": True}).json()
            texts = [choice["text"] for choice in answer["choices"]]
            assert texts == [byte_tokenizer().decode(tokens) for tokens in wanted.tokens]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 200


PLUGIN = """
class Plugin:
    @hookimpl
    def register_models(self, context):
        load = lazy(__name__ + ".gemma2:EntryClass")
        facts = {"architectures": ("Gemma2ForCausalLM",)}
        context.offer(Offer("model", "mine", load, facts=facts))

plugin = Plugin()
"""
ALIKE, TRUE = "a-model-answers-alike-however-its-steps-are-cut", "a-model-answers-as-transformers"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "failed"),
    [
        ("EntryClass", "EntryClass", []),
        ("read.window)", "read.window + 1)", [TRUE]),
        ("softcap=config.attention_cap", "softcap=0.0", [TRUE]),
        (
            "self.embedding(token_ids_T)",
            "self.embedding(token_ids_T % len(token_ids_T))",
            [ALIKE, TRUE],
        ),
    ],
    ids=["right", "window", "soft cap", "company"],
)
def test_the_kit_finds_what_is_wrong_with_a_model(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    right: str,
    wrong: str,
    failed: list[str],
) -> None:
    text = (WHEEL / "tokenspeed_postnorm" / "gemma2.py").read_text()
    assert right in text
    wheels = WheelFolder(tmp_path)
    wheels.install("acme", PLUGIN, files={"gemma2.py": text.replace(right, wrong)})
    monkeypatch.setenv("PYTHONPATH", wheels.environ()["PYTHONPATH"])
    report = run_conformance(
        "acme", level="C2", only="C2/a-model", checkpoints=[checkpoint(folder, "gemma2")]
    )
    assert [c.id for c in report.checks if c.outcome == "failed"] == [
        f"C2/{name}[gemma2]" for name in failed
    ], report.text()
    assert len(report.checks) == 2


def test_without_a_checkpoint_the_kit_says_that_no_model_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = WheelFolder(tmp_path)
    wheels.install("acme")
    monkeypatch.setenv("PYTHONPATH", wheels.environ()["PYTHONPATH"])
    report = run_conformance("acme", level="C2", only="C2/a-model")
    assert {(c.outcome, c.message) for c in report.checks} == {
        (
            "skipped",
            "no model was run; give a small checkpoint of its architecture: --checkpoint",
        )
    }
    assert len(report.checks) == 2
