"""`tokenspeed plugins` and `models`: real process, real environment."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.plugin_wheels import PluginSpace


@pytest.fixture
def plugin_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginSpace:
    return PluginSpace(tmp_path / "site", monkeypatch)


def tokenspeed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tokenspeed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def listed() -> dict[str, Any]:
    result = tokenspeed("plugins", "list", "--json")
    return {entry["id"]: entry for entry in json.loads(result.stdout)}


def test_the_list_says_when_each_plugin_loads(plugin_space: PluginSpace) -> None:
    plugin_space.install("acme")
    entries = listed()
    loads = {plugin_id: entry["loads"] for plugin_id, entry in entries.items()}
    assert loads == {
        "core": "always",
        "reference": "always",
        "nvidia": "auto",
        "amd": "auto",
        "sdk": "when named",
        "acme": "when named",
    }


def test_the_table_is_on_stdout_and_the_exit_code_is_zero() -> None:
    result = tokenspeed("plugins", "list")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0].split() == [
        "ID",
        "VERSION",
        "LOADS",
        "SLOTS",
        "WHEEL",
        "ABOUT",
    ]
    assert result.stderr == ""


def test_a_plugin_with_a_problem_is_listed_with_it_and_exit_code_one(
    plugin_space: PluginSpace,
) -> None:
    plugin_space.install("acme", api='">=9"')
    result = tokenspeed("plugins", "list")
    assert result.returncode == 1
    assert "acme: needs plugin API >=9, this tokenspeed has 1.0" in result.stdout
    assert listed()["acme"]["loads"] == "never"


def test_info_shows_the_manifest_and_never_runs_a_strangers_probe(
    plugin_space: PluginSpace, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    body = f"open({str(marker)!r}, 'w').close()\ndef find(): ..."
    plugin_space.install("acme", body, probe='"PACKAGE:find"')
    result = tokenspeed("plugins", "info", "acme", "--json")
    entry = json.loads(result.stdout)
    assert entry["slots"] == {"model": "1.0"}
    assert entry["device"].startswith("not probed")
    assert not marker.exists()


def test_info_of_a_vendor_wheel_says_what_its_probe_found() -> None:
    entry = json.loads(tokenspeed("plugins", "info", "amd", "--json").stdout)
    assert entry["device"]
    assert entry["device"] != "-"


def test_info_of_an_unknown_plugin_exits_four_with_the_nearest() -> None:
    result = tokenspeed("plugins", "info", "referense")
    assert result.returncode == 4
    assert "did you mean 'reference'" in result.stderr
    assert "Traceback" not in result.stderr


def test_models_are_listed_with_their_plugin() -> None:
    result = tokenspeed("models", "list", "--json")
    assert result.returncode == 0, result.stderr
    names = {entry["architecture"]: entry["plugin"] for entry in json.loads(result.stdout)}
    assert names["LlamaForCausalLM"] == "core"
    assert "ScriptedForCausalLM" not in names
    table = tokenspeed("models", "list", "--plugins", "sdk").stdout
    assert re.search(r"ScriptedForCausalLM +sdk", table)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("models", "list", "--plugins", "nvidja"), 4, "did you mean 'nvidia'"),
        (("plugins", "lst"), 2, "list"),
        (("plugins",), 2, "VERB"),
    ],
)
def test_wrong_commands_name_the_right_one(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = tokenspeed(*arguments)
    assert result.returncode == code
    assert words in result.stderr


def cpu_s(code: str) -> float:
    """CPU seconds of a child, which other work on the machine lengthens little."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Path(os.devnull).open("w") as sink:
        subprocess.run([sys.executable, "-c", code], stdout=sink, check=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


NOISY = """
import os
print("noise"); os.write(1, b"more noise")
class Plugin:
    @hookimpl
    def register_models(self, context):
        print("noise")
        facts = {"architectures": ("Acme",)}
        context.offer(Offer("model", "acme", lazy("json:loads"), facts=facts))
plugin = Plugin()
"""


def test_what_plugins_and_model_files_print_never_mixes_with_json(
    plugin_space: PluginSpace, tmp_path: Path
) -> None:
    plugin_space.install("acme", NOISY)
    (plugin_space.folder / "noisy_model.py").write_text("print('noise')\nEntryClass = None\n")
    result = tokenspeed("models", "list", "--plugins", "acme", "--json")
    assert "acme/acme" in {entry["pin"] for entry in json.loads(result.stdout)}
    assert result.stderr.count("noise") == 3
    assert tokenspeed("models", "list", "--model-module", "noisy_model", "--json").stdout == ""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(TINY))
    explained = tokenspeed(
        "plugins", "explain", "--model", str(model), "--plugins", "acme", "--json"
    )
    assert json.loads(explained.stdout)["architecture"] == "LlamaForCausalLM"


TINY = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def test_a_wheel_of_garbage_costs_the_listing_one_problem(plugin_space: PluginSpace) -> None:
    plugin_space.install("acme")
    plugin_space.install(
        "broken", slots='model = "1.x"', tail='[config.n]\ntype="number"\ndefault=nan'
    )
    info = plugin_space.folder / "fake_broken-1.2.3.dist-info"
    for name in ("METADATA", "WHEEL", "RECORD"):
        (info / name).write_bytes(b"\xff\xfe\0")
    result = tokenspeed("plugins", "list", "--json")
    assert result.returncode == 1
    entries = json.loads(result.stdout, parse_constant=lambda _: pytest.fail("no JSON"))
    assert [entry["id"] for entry in entries if entry["problem"]] == ["broken"]


def test_a_plugin_that_exits_with_zero_does_not_end_a_command_as_if_all_were_well(
    plugin_space: PluginSpace,
) -> None:
    plugin_space.install("acme", "import sys; sys.exit(0)")
    result = tokenspeed("models", "list", "--plugins", "acme")
    assert result.returncode == 4
    assert "it ended with SystemExit: 0" in result.stderr
