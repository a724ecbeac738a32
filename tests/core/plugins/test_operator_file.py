"""The operator's file: what it forbids stays forbidden, and a file with a mistake opens nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.errors import PluginError
from tokenspeed.plugins import load_plugins, operator_file
from tokenspeed.plugins.operator_file import OperatorRules, read_operator_file


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "plugins.toml"
    monkeypatch.setattr(operator_file, "OPERATOR_FILE", path)
    return path


def refusal(*requested: str, **options: object) -> PluginError:
    with pytest.raises(PluginError) as caught:
        load_plugins(requested, role="engine", **options)  # type: ignore[arg-type]
    assert caught.value.exit_code == 3
    return caught.value


def test_the_path_is_fixed() -> None:
    assert Path("/etc/tokenspeed/plugins.toml") == operator_file.OPERATOR_FILE


def test_without_a_file_nothing_is_forbidden(file: Path) -> None:
    assert read_operator_file() == OperatorRules()


def test_a_forbidden_plugin_is_refused_though_it_is_named(
    file: Path, plugin_space: PluginSpace
) -> None:
    package = plugin_space.install("acme", "raise RuntimeError('imported')")
    file.write_text('schema = 1\nforbid = ["acme"]')
    error = refusal("acme")
    assert error.id == "plugin-forbidden"
    assert str(file) in str(error)
    assert package not in __import__("sys").modules
    load_plugins((), role="engine")


def test_only_the_allowed_may_load(file: Path, plugin_space: PluginSpace) -> None:
    plugin_space.install("acme")
    file.write_text('schema = 1\nallow = ["reference"]')
    load_plugins((), role="engine")
    assert "allowed are reference" in str(refusal("acme"))
    file.write_text('schema = 1\nallow = ["reference", "acme"]\nforbid = ["acme"]')
    assert refusal("acme").id == "plugin-forbidden"


def test_the_operators_lock_file_holds_beside_the_users(
    file: Path, plugin_space: PluginSpace, tmp_path: Path
) -> None:
    plugin_space.install("acme")
    (tmp_path / "empty.lock").write_text("schema = 1\n")
    file.write_text(f'schema = 1\nlock = "{tmp_path}/empty.lock"')
    assert refusal("acme").id == "plugin-not-locked"


def test_no_flag_opts_in_where_the_operator_does_not(file: Path, plugin_space: PluginSpace) -> None:
    plugin_space.install("acme", slots='model = "1.0"\npolicy = "1.0"')
    file.write_text("schema = 1\nexperimental = false")
    assert refusal("acme", experimental=("acme",)).id == "plugin-experimental-slot"
    file.write_text("schema = 1\n")
    load_plugins(("acme",), role="engine", experimental=("acme",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema = ", "it cannot be read: Invalid value"),
        ("x = " + "9" * 5000, "it cannot be read: "),
        ("x = " + "[" * 3000, "it is nested too deeply"),
        ("", "schema is None, this version reads 1"),
        ("schema = 2", "schema is 2"),
        ('schema = 1\nfrobid = ["acme"]', "unknown key 'frobid': did you mean 'forbid'?"),
        ('schema = 1\nforbid = "acme"', "forbid is 'acme', a list is needed"),
        ("schema = 1\nforbid = [7]", "holds 7, texts are needed"),
        ('schema = 1\nexperimental = "no"', "experimental is 'no', true or false is needed"),
        ("schema = true", "schema is True, a whole number is needed"),
    ],
)
def test_a_file_with_a_mistake_stops_every_start(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    error = refusal()
    assert error.id == "operator-file-invalid"
    assert words in str(error)


def test_a_file_that_cannot_be_read_stops_every_start(file: Path) -> None:
    file.mkdir()
    assert "it cannot be read" in str(refusal())
