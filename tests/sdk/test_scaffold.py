"""What `tokenspeed plugins new` renders: every set of slots is a plugin that registers."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from tokenspeed.plugins.manifest import parse_manifest
from tokenspeed.plugins.registrar import StagedRegistration, run_hooks
from tokenspeed.plugins.slots import SLOTS
from tokenspeed_sdk import ConfigError
from tokenspeed_sdk.conformance.interfaces import INTERFACES
from tokenspeed_sdk.scaffold import ABOUT, Scaffold, render, write
from tokenspeed_sdk.validation import opt_ins, validate_folder

if TYPE_CHECKING:
    from pathlib import Path

SETS = [slots for size in range(1, len(ABOUT) + 1) for slots in itertools.combinations(ABOUT, size)]
ALL = tuple(ABOUT)


def test_the_sets_are_all_sets_of_the_stable_slots() -> None:
    assert len(SETS) == 511


def check(scaffold: Scaffold) -> None:
    """Parse every rendered file; compare manifest, project and hooks with the slots asked for."""
    files = render(scaffold)
    manifest = parse_manifest(tomllib.loads(files[f"{scaffold.package}/tokenspeed-plugin.toml"]))
    assert manifest.id == scaffold.id
    assert set(manifest.slots) == set(scaffold.slots)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    entry_points = project["entry-points"]["tokenspeed.plugins"]
    assert entry_points == {scaffold.id: f"{scaffold.package}:plugin"}
    trees = {name: ast.parse(text) for name, text in files.items() if name.endswith(".py")}
    hooks = {
        node.name
        for node in ast.walk(trees[f"{scaffold.package}/__init__.py"])
        if isinstance(node, ast.FunctionDef) and node.name.startswith("register_")
    }
    assert hooks == {SLOTS[slot].hooks[0] for slot in scaffold.slots}
    modules = {name.removesuffix(".py") for name in trees if name.startswith(scaffold.package)}
    assert {f"{scaffold.package}/{slot}" for slot in scaffold.slots} <= modules
    assert not [name for name, text in files.items() if "{%" in text]


def test_every_set_of_slots_renders_a_valid_plugin() -> None:
    for slots in SETS:
        check(Scaffold("acme", slots))


@pytest.mark.parametrize("slots", [("operator",), ("device", "operator"), (*ALL, "operator")])
def test_kernels_are_rendered_where_they_are_named_and_must_be_opted_in_to(
    slots: tuple[str, ...], tmp_path: Path
) -> None:
    scaffold = Scaffold("acme", slots)
    files = render(scaffold)
    hooks = files["tokenspeed_acme/__init__.py"]
    assert "def register_kernels(" in hooks
    assert "import " + ("Band, KernelOffer, hookimpl" if len(slots) == 1 else "Band") in hooks
    assert "serve --plugins acme --allow-experimental acme" in files["README.md"]
    write(scaffold, tmp_path / "acme")
    assert validate_folder(tmp_path / "acme") == []
    assert ["--allow-experimental acme" in note for note in opt_ins(tmp_path / "acme")] == [True]


def test_stable_slots_need_no_opt_in(tmp_path: Path) -> None:
    write(Scaffold("acme", ALL), tmp_path / "acme")
    assert opt_ins(tmp_path / "acme") == []
    assert "--allow-experimental" not in (tmp_path / "acme" / "README.md").read_text()


@pytest.mark.parametrize("slots", [("attention",), ALL])
def test_a_native_plugin_is_valid_and_has_its_kernel(slots: tuple[str, ...]) -> None:
    scaffold = Scaffold("acme-two", slots, native=True)
    check(scaffold)
    files = render(scaffold)
    project = tomllib.loads(files["pyproject.toml"])
    assert project["tool"]["setuptools"]["ext-modules"][0]["sources"] == ["csrc/kv_write.cc"]
    assert "tokenspeed_acme_two_kv_write" in files["csrc/kv_write.cc"]


@pytest.mark.parametrize("slot", [slot for slot in ALL if slot not in ("device", "model")])
def test_what_is_to_be_replaced_first_is_a_method_of_the_slot(slot: str) -> None:
    names = re.findall(r"`(\w+)`", ABOUT[slot].first)
    assert names
    assert [name for name in names if not hasattr(INTERFACES[slot], name)] == []


def test_what_is_rendered_imports_the_sdk_and_never_the_core() -> None:
    scaffold = Scaffold("acme", ALL, native=True)
    for name, text in render(scaffold).items():
        nodes = ast.walk(ast.parse(text)) if name.endswith(".py") else ()
        modules = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
        assert "tokenspeed" not in {str(module).partition(".")[0] for module in modules}, name


@pytest.mark.parametrize("slots", [*((slot,) for slot in ALL), ALL])
def test_what_is_rendered_registers_an_offer_for_each_slot(
    slots: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaffold = Scaffold(f"acme-{ALL.index(slots[0])}-{len(slots)}", slots)
    write(scaffold, tmp_path / "plugin")
    monkeypatch.syspath_prepend(tmp_path / "plugin")
    module = importlib.import_module(scaffold.package)
    manifest = parse_manifest(
        tomllib.loads(
            (tmp_path / "plugin" / scaffold.package / "tokenspeed-plugin.toml").read_text()
        )
    )
    registration = StagedRegistration(manifest, "engine", {})
    run_hooks(module.plugin, registration, lambda name: None)
    assert sorted(slot for slot, _ in registration.staged) == sorted(slots)
    for name in [name for name in sys.modules if name.startswith(scaffold.package)]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("plugin_id", "slots", "native", "words"),
    [
        ("Acme", ("device",), False, "'Acme'"),
        ("a b", ("device",), False, "lower-case"),
        ("-acme", ("device",), False, "lower-case"),
        ("a" * 64, ("device",), False, "63 characters at most"),
        ("nvidia", ("device",), False, "taken"),
        ("core", ("device",), False, "taken"),
        ("acme", (), False, "fills no slot"),
        ("acme", ("atention",), False, "did you mean 'attention'"),
        ("acme", ("policy",), False, "'policy' has no template.*by hand"),
        ("acme", ("device",), True, "add attention"),
        ("acme", ("policy",), False, "slot 'policy' has no template"),
    ],
)
def test_what_cannot_be_made_is_refused(
    plugin_id: str, slots: tuple[str, ...], native: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Scaffold(plugin_id, slots, native=native)


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(ConfigError, match="not empty"):
        write(Scaffold("acme", ("device",)), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("folder", ["x" * 300, "file", "file/x", "dangling"])
def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "at all")
    with pytest.raises(ConfigError, match=r"no plugin is made: .*name another with --folder"):
        write(Scaffold("acme", ("device",)), tmp_path / folder)


@pytest.mark.parametrize(
    "text", ["[project", "x = " + "9" * 5000, "x = " + "[" * 3000, "\udcff", None]
)
def test_a_project_that_cannot_be_read_is_no_project(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match="is no project"):
        validate_folder(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "project = 3", "[project]\nentry-points = 3", "[project.entry-points]\nx = 3"]
)
def test_a_project_without_a_plugin_has_one_problem(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    (problem,) = validate_folder(tmp_path)
    assert "has no [project.entry-points" in problem.message
