"""A vendor's wheel that was written from the docs alone is built, conforms and serves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.overlay import Overlay
from tests.support.source_tree import ROOT, imports_of

from tokenspeed_sdk import cache_dir

if TYPE_CHECKING:
    from pathlib import Path

GRANITE = ROOT / "tests" / "outside" / "granite"
MODEL = cache_dir() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, in a small village by the sea,",
    "A prefix cache is " * 30,
)
GREEDY = """
import json, sys
from tokenspeed import LLM, SamplingParams

model, settings, prompts = json.loads(sys.argv[1])
with LLM(model, kv_gib=0.3, max_context_tokens=1024, **settings) as llm:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    answers = llm.generate(prompts, params)
    answers += llm.generate(prompts, params)  # from the cache
    print(json.dumps([answer.text or answer.error for answer in answers]))
"""
STORE = {"kv_store": "granite/compressed", "host_kv_gib": 0.1, "kv_write": "on_commit"}

needs_model = pytest.mark.skipif(not MODEL.is_file(), reason="the default model is not fetched")


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Overlay:
    environment = Overlay(tmp_path_factory.mktemp("granite"))
    environment.install(GRANITE)
    return environment


def test_it_imports_the_sdk_alone() -> None:
    files = sorted(GRANITE.rglob("*.py"))
    targets = {found.target for file in files for found in imports_of(file)}
    of_ours = {target.partition(".")[0] for target in targets if target.startswith("tokenspeed")}
    assert of_ours == {"tokenspeed_sdk", "tokenspeed_granite"}


@pytest.mark.slow
def test_it_conforms(overlay: Overlay) -> None:
    done = overlay.tokenspeed("plugins", "test", "granite", "--json", timeout_s=300)
    report = json.loads(done.stdout)
    failed = [item for item in report["checks"] if item["outcome"] == "failed"]
    assert (failed, report["ok"]) == ([], True)
    levels = {item["id"].partition("/")[0] for item in report["checks"]}
    assert levels == {"C0", "C1", "C2", "C3"}


@pytest.mark.slow
@needs_model
def test_its_greedy_text_is_that_of_the_reference(overlay: Overlay) -> None:
    granite = {"plugins": "granite", "allow_experimental": "granite"}
    pins = {"attention": "granite/stream", "sampler": "granite/inverse"}

    def texts(settings: dict[str, object]) -> list[str]:
        asked = json.dumps([str(MODEL), settings, PROMPTS])
        done = overlay.run("-c", GREEDY, asked, timeout_s=300)
        assert done.returncode == 0, done.stderr
        answers: list[str] = json.loads(done.stdout)
        return answers

    wanted = texts({"plugins": "reference"})
    assert wanted[0].startswith(" Paris")
    assert texts({**granite, **pins, "fallback": "error"}) == wanted
    assert texts({**granite, **STORE}) == wanted


@pytest.mark.slow
@needs_model
@pytest.mark.parametrize("source", [(), (GRANITE,)], ids=["stubs", "granite"])
def test_the_first_token_comes_within_five_minutes(
    source: tuple[Path, ...], tmp_path: Path
) -> None:
    script = str(ROOT / "tests" / "outside" / "first_token.py")
    done = subprocess.run(
        [sys.executable, script, str(tmp_path / "work"), *map(str, source)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"^from plugins new to the first token: (\S+) s$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    assert float(found[1]) < 300
    assert "Paris" in done.stdout.splitlines()[-1]
