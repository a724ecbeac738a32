"""Lock files: what they hold, what differs, and that a damaged one opens nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.errors import PluginError
from tokenspeed.plugins import discover, load_plugins
from tokenspeed.plugins.lock_file import check_locked, lock_entry, lock_text, read_lock
from tokenspeed.plugins.wheel_record import changed_files, is_editable, record_digest


def written(path: Path, *plugin_ids: str) -> str:
    found = discover()
    path.write_text(lock_text(lock_entry(found[name]) for name in plugin_ids))
    return str(path)


def refusal(lock: str, *requested: str) -> PluginError:
    with pytest.raises(PluginError) as caught:
        load_plugins(requested, role="engine", lock=lock)
    assert caught.value.exit_code == 3
    return caught.value


def test_a_lock_file_reads_back_as_it_was_written(
    plugin_space: PluginSpace, tmp_path: Path
) -> None:
    plugin_space.install("acme")
    found = discover()
    entries = [lock_entry(found[name]) for name in ("reference", "acme")]
    (tmp_path / "lock").write_text(lock_text(entries))
    assert read_lock(str(tmp_path / "lock")) == {entry.id: entry for entry in entries}


def test_what_is_locked_loads_and_nothing_else(plugin_space: PluginSpace, tmp_path: Path) -> None:
    plugin_space.install("acme")
    load_plugins(("acme",), role="engine", lock=written(tmp_path / "lock", "reference", "acme"))
    error = refusal(written(tmp_path / "lock", "reference"), "acme")
    assert error.id == "plugin-not-locked"
    assert "lists reference" in str(error)


def test_another_version_is_named_with_both(plugin_space: PluginSpace, tmp_path: Path) -> None:
    package = plugin_space.install("acme")
    lock = written(tmp_path / "lock", "reference", "acme")
    (plugin_space.folder / "fake_acme-1.2.3.dist-info").rename(tmp_path / "gone")
    plugin_space.install("acme", package=package, version="1.2.4")
    error = refusal(lock, "acme")
    assert error.id == "plugin-lock-differs"
    assert "version is '1.2.4'" in str(error)
    assert "'1.2.3'" in str(error)


def test_a_record_rewritten_to_fit_changed_files_is_found(
    plugin_space: PluginSpace, tmp_path: Path
) -> None:
    package = plugin_space.install("acme")
    lock = written(tmp_path / "lock", "reference", "acme")
    plugin_space.install("acme", "plugin = None", package=package)
    assert "record is" in str(refusal(lock, "acme"))


def test_a_missing_file_of_the_wheel_is_a_difference(plugin_space: PluginSpace) -> None:
    package = plugin_space.install("acme", files={"data.bin": b"1"})
    found = discover()["acme"]
    assert changed_files(found.info) == []
    (plugin_space.folder / package / "data.bin").unlink()
    assert changed_files(found.info) == [f"{package}/data.bin"]


def test_an_editable_install_is_held_to_its_sources(
    plugin_space: PluginSpace, tmp_path: Path
) -> None:
    package = plugin_space.install("acme")
    info = plugin_space.folder / "fake_acme-1.2.3.dist-info"
    rows = (info / "RECORD").read_text().splitlines()
    (info / "RECORD").write_text("\n".join(row for row in rows if not row.startswith(package)))
    (info / "direct_url.json").write_text(json.dumps({"url": "x", "dir_info": {"editable": True}}))
    assert is_editable(info)
    lock = written(tmp_path / "lock", "reference", "acme")
    load_plugins(("acme",), role="engine", lock=lock)
    (plugin_space.folder / package / "more.py").write_text("x = 1\n")
    assert "source is" in str(refusal(lock, "acme"))


def test_the_record_digest_does_not_depend_on_the_installer(plugin_space: PluginSpace) -> None:
    plugin_space.install("acme")
    info = plugin_space.folder / "fake_acme-1.2.3.dist-info"
    before = record_digest(info)
    rows = (info / "RECORD").read_text().splitlines()
    added = [f"{info.name}/INSTALLER,sha256=zu,4", "../../../bin/acme,sha256=x,9", "a/b.pyc,,"]
    (info / "RECORD").write_text("\n".join([*reversed(rows), *added]))
    assert record_digest(info) == before
    (info / "RECORD").write_text("\n".join([*rows, "a/c.py,sha256=zu,4"]))
    assert record_digest(info) != before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("plugins = ", "it cannot be read"),
        ("schema = 7", "schema is 7"),
        ("schema = 1\nplugins = 3", "plugins is 3"),
        ('schema = 1\n[[plugins]]\nid = "acme"', "a table of id, distribution"),
        ('schema = 1\n[[plugins]]\nid = 1\ndistribution = ""\nversion = ""\nrecord = ""\nsource=""',
         "id is 1"),
    ],
)  # fmt: skip
def test_a_damaged_lock_file_opens_nothing(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "lock").write_text(text)
    error = refusal(str(tmp_path / "lock"))
    assert error.id == "plugin-lock-invalid"
    assert words in str(error)


def test_a_missing_lock_file_opens_nothing(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "nowhere")).id == "plugin-lock-invalid"


def test_a_plugin_of_another_distribution_is_a_difference(plugin_space: PluginSpace) -> None:
    plugin_space.install("acme")
    found = discover()
    entry = lock_entry(found["reference"])
    with pytest.raises(PluginError, match="not in lock file"):
        check_locked(found["acme"], {"reference": entry}, "lock")
