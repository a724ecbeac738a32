"""Lock files: what they hold, what differs, and that a damaged one opens nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.errors import PluginError
from tokenspeed.plugins import discover, load_plugins
from tokenspeed.plugins.lock_file import check_locked, lock_entry, lock_text, own_wheels, read_lock
from tokenspeed.plugins.wheel_record import changed_files, is_editable, record_digest

ENTRY = """
[[plugins]]
id = "acme"
distribution = ""
version = ""
record = ""
source = ""
"""


def written(path: Path, *plugin_ids: str) -> str:
    found = discover()
    wheels = {item.id: item for item in (*own_wheels(), *(found[name] for name in plugin_ids))}
    path.write_text(lock_text(map(lock_entry, wheels.values())))
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
    assert "lists core, reference, sdk" in str(error)


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
        ("schema = true", "schema is True"),
        ("schema = 1\nplugin = 1", "unknown key 'plugin'"),
        ("schema = " + "1" * 5000, "5000 digits"),
        ("schema = 1" + 2 * ENTRY, "plugin 'acme' is listed twice"),
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


def test_a_file_that_was_added_to_a_wheel_is_a_difference(
    plugin_space: PluginSpace, tmp_path: Path
) -> None:
    package = plugin_space.install("acme")
    lock = written(tmp_path / "lock", "reference", "acme")
    cache = plugin_space.folder / package / "__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"")  # what the interpreter writes is none
    load_plugins(("acme",), role="engine", lock=lock)
    for name in ("__init__.abi3.so", "more.pyc", "deep/more.py"):  # imported before __init__.py
        added = plugin_space.folder / package / name
        added.parent.mkdir(exist_ok=True)
        added.write_bytes(b"")
        error = refusal(lock, "acme")
        assert "source is '" in str(error)
        assert "has none" in str(error)
        added.unlink()


@pytest.mark.parametrize("record", [b"\xff\n", b"a\0b,sha256=x,1\n", b'"' + b"a" * 200_000])
def test_a_damaged_record_states_nothing_so_that_every_file_is_hashed(
    plugin_space: PluginSpace, tmp_path: Path, record: bytes
) -> None:
    package = plugin_space.install("acme")
    (plugin_space.folder / "fake_acme-1.2.3.dist-info" / "RECORD").write_bytes(record)
    lock = written(tmp_path / "lock", "reference", "acme")
    load_plugins(("acme",), role="engine", lock=lock)
    (plugin_space.folder / package / "__init__.py").write_text("")
    assert refusal(lock, "acme").id == "plugin-lock-differs"


def test_a_record_with_another_hash_is_understood(plugin_space: PluginSpace) -> None:
    package = plugin_space.install("acme")
    info = plugin_space.folder / "fake_acme-1.2.3.dist-info"
    file = plugin_space.folder / package / "__init__.py"
    digest = hashlib.sha512(file.read_bytes()).digest()
    text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"{package}/__init__.py,sha512={text},\n")
    assert changed_files(info) == []
    file.write_text("")
    assert changed_files(info) == [f"{package}/__init__.py"]


def test_a_pipe_in_place_of_a_file_is_not_waited_for(plugin_space: PluginSpace) -> None:
    package = plugin_space.install("acme")
    file = plugin_space.folder / package / "__init__.py"
    file.unlink()
    os.mkfifo(file)
    assert changed_files(discover()["acme"].info) == [f"{package}/__init__.py"]


def test_the_core_and_the_sdk_are_held_to_the_lock_file_too(
    plugin_space: PluginSpace, tmp_path: Path
) -> None:
    lock = Path(written(tmp_path / "lock", "reference"))
    assert {"core", "sdk", "reference"} == set(read_lock(str(lock)))
    text = lock.read_text()
    for wheel in own_wheels():
        entry = lock_entry(wheel)
        lock.write_text(text.replace(entry.record, "0" * 64))
        error = refusal(str(lock))
        assert error.id == "plugin-lock-differs"
        assert f"plugin {wheel.id}: record is" in str(error)
        others = [item for item in read_lock(str(lock)).values() if item.id != wheel.id]
        lock.write_text(lock_text(others))
        assert refusal(str(lock)).id == "plugin-not-locked"


def test_sources_of_an_editable_core_are_covered() -> None:
    core = own_wheels()[0]
    assert core.distribution == "tokenspeed"
    if is_editable(core.info):
        assert lock_entry(core).source != ""
