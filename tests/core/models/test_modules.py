"""`--model-module`: named files are offered like a plugin's, and what is wrong with one is said."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING

import pytest

from tokenspeed.errors import PluginError
from tokenspeed.models.modules import check_model_modules, register_model_modules
from tokenspeed.models.registry import resolve_architecture
from tokenspeed.plugins import Registry, load_plugins

if TYPE_CHECKING:
    from pathlib import Path

METHODS = """
    def cache_groups(config): ...
    def load_weights(self, weights): ...
    def forward(self, ids, context): ...
    def compute_logits(self, hidden): ...
"""
UNIQUE = itertools.count()
GOOD = f"""
class Mine:
    architectures = ("MineForCausalLM", "OurForCausalLM"){METHODS}
EntryClass = Mine
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package on the path, of another name in each test."""
    folder = tmp_path / f"pkg_{next(UNIQUE)}"
    (folder / "inner").mkdir(parents=True)
    for home in (folder, folder / "inner"):
        (home / "__init__.py").write_text("raise RuntimeError('imported too early')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def write(package: Path, text: str) -> str:
    """Write inner/model.py, let its packages import, and return the module's name."""
    for home in (package, package / "inner"):
        (home / "__init__.py").write_text("")
    (package / "inner" / "model.py").write_text(text)
    return f"{package.name}.inner.model"


def test_a_module_is_found_without_importing_the_packages_above_it(package: Path) -> None:
    (package / "inner" / "model.py").write_text("raise RuntimeError\n")
    check_model_modules([f"{package.name}.inner.model"])
    assert package.name not in sys.modules


@pytest.mark.parametrize("tail", [".inner.nope", ".nope.model", "x", ".inner.", ".inner..model"])
def test_a_module_that_is_not_there_is_refused_by_name(package: Path, tail: str) -> None:
    with pytest.raises(PluginError, match="is not found; a dotted name") as caught:
        check_model_modules([package.name + tail])
    assert caught.value.id == "model-module-missing"


def test_a_path_is_answered_with_the_name_to_give(package: Path) -> None:
    write(package, GOOD)
    file = package / "inner" / "model.py"
    with pytest.raises(PluginError, match=f"PYTHONPATH={file.parent} and --model-module model"):
        check_model_modules([str(file)])


def test_a_named_module_serves_each_of_its_architectures(package: Path) -> None:
    name, registry = write(package, GOOD), Registry()
    register_model_modules(registry, [name])
    (item,) = registry.offers("model")
    assert item.pin == f"{name}/MineForCausalLM"
    assert item.plugin_version.startswith("sha256-")
    for architecture in ("MineForCausalLM", "OurForCausalLM"):
        found = resolve_architecture(registry, {"architectures": [architecture]})
        assert found.__name__ == "Mine"


def test_the_version_is_that_of_the_file(package: Path) -> None:
    versions = set()
    for text in (GOOD, GOOD, GOOD + "# changed\n"):
        registry = Registry()
        register_model_modules(registry, [write(package, text)])
        versions.add(registry.offers("model")[0].plugin_version)
    assert len(versions) == 2


def test_a_module_for_a_shipped_architecture_conflicts_and_can_be_pinned(package: Path) -> None:
    name = write(package, GOOD.replace("MineForCausalLM", "LlamaForCausalLM"))
    registry = load_plugins((), role="engine")
    register_model_modules(registry, [name])
    config = {"architectures": ["LlamaForCausalLM"]}
    pin = f"{name}/LlamaForCausalLM"
    with pytest.raises(PluginError, match=f"--pins model={pin}"):
        resolve_architecture(registry, config)
    assert resolve_architecture(registry, config, pin=pin).__name__ == "Mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("class Mine: ...", "has no EntryClass"),
        ("EntryClass = 5", r"EntryClass.architectures is \(\)"),
        (GOOD.replace('("MineForCausalLM", "OurForCausalLM")', "'Mine'"), "is 'Mine', a tuple"),
        (GOOD.replace("def forward", "def backward"), "lacks forward"),
        ("import sys; sys.exit(0)", "it ended with SystemExit: 0"),
        ("def __getattr__(name): raise RuntimeError(name)", "RuntimeError: EntryClass"),
        (GOOD.replace("MineForCausalLM", "a/b"), r"is \('a/b', 'OurForCausalLM'\), a tuple"),
        (
            "class M(type):\n    @property\n    def architectures(cls): raise RuntimeError('no')\n"
            "class Mine(metaclass=M): ...\nEntryClass = Mine",
            "EntryClass.architectures raised RuntimeError: no",
        ),
    ],
)
def test_what_is_wrong_with_a_module_is_said(package: Path, text: str, said: str) -> None:
    with pytest.raises(PluginError, match=said) as caught:
        register_model_modules(Registry(), [write(package, text)])
    assert caught.value.id == "model-module-failed"


def test_a_lock_file_forbids_modules(package: Path) -> None:
    name = write(package, GOOD)
    with pytest.raises(PluginError, match=r"not covered by lock file my\.lock") as caught:
        register_model_modules(Registry(), [name], lock="my.lock")
    assert (caught.value.id, caught.value.exit_code) == ("plugin-not-locked", 3)
    assert package.name not in sys.modules


def test_the_operator_decides_about_modules_too(
    package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, file = write(package, GOOD), tmp_path / "plugins.toml"
    monkeypatch.setattr("tokenspeed.plugins.operator_file.OPERATOR_FILE", file)
    file.write_text('schema = 1\nallow = ["reference"]\n')
    with pytest.raises(PluginError, match="is forbidden on this machine") as caught:
        check_model_modules([name])
    assert caught.value.exit_code == 3
    file.write_text(f'schema = 1\nallow = ["reference", "{name}"]\n')
    check_model_modules([name])


def test_a_module_with_the_name_of_a_plugin_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "reference.py").write_text(GOOD)
    registry = load_plugins((), role="engine")
    before = registry.dump()
    with pytest.raises(PluginError, match="'reference' has the name of a plugin"):
        register_model_modules(registry, ["reference"])
    assert registry.dump() == before


def test_a_module_that_is_named_twice_is_one(package: Path) -> None:
    name, registry = write(package, GOOD), Registry()
    register_model_modules(registry, [name, name])
    assert len(registry.offers("model")) == 1
