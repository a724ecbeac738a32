"""Discovery: metadata and manifests only, nothing imported, ambiguity is an error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.plugin_wheels import PluginSpace, write_metadata

from tokenspeed.plugins.discovery import discover
from tokenspeed.plugins.listing import describe
from tokenspeed.plugins.plugin_plan import identity_of


def test_our_own_wheels_are_found_with_their_manifests() -> None:
    found = discover()
    assert {"reference", "nvidia", "amd", "sdk"} <= set(found)
    for plugin_id in ("reference", "nvidia", "amd", "sdk"):
        assert found[plugin_id].problem == ""
        assert found[plugin_id].distribution == f"tokenspeed-{plugin_id}"


def test_a_plugin_is_found_without_importing_it(plugin_space: PluginSpace) -> None:
    package = plugin_space.install("acme", "raise RuntimeError('imported')")
    found = discover()["acme"]
    assert (found.version, found.distribution, found.problem) == ("1.2.3", "fake-acme", "")
    assert found.manifest is not None
    assert package not in sys.modules


def test_two_distributions_with_one_id_are_an_error_with_both_paths(
    plugin_space: PluginSpace,
) -> None:
    plugin_space.install("acme", distribution="acme-one")
    plugin_space.install("acme", distribution="acme-two")
    problem = discover()["acme"].problem
    assert "claimed 2 times" in problem
    assert "acme_one-1.2.3.dist-info" in problem
    assert "acme_two-1.2.3.dist-info" in problem


def test_a_stale_egg_info_twin_is_an_error_with_both_paths(plugin_space: PluginSpace) -> None:
    package = plugin_space.install("acme")
    entry = f"acme = {package}:plugin"
    write_metadata(plugin_space.folder, "fake-acme", "1.2.3", entry, egg=True)
    problem = discover()["acme"].problem
    assert "dist-info" in problem
    assert "egg-info" in problem


def test_another_version_further_down_the_path_is_an_error(
    plugin_space: PluginSpace, tmp_path: Path, monkeypatch
) -> None:
    package = plugin_space.install("acme")
    monkeypatch.syspath_prepend(str(tmp_path / "other"))
    plugin_space.install("acme", folder=tmp_path / "other", package=package, version="1.2.4")
    problem = discover()["acme"].problem
    assert "1.2.3" in problem
    assert "1.2.4" in problem


def test_the_same_wheel_in_a_layered_environment_is_one_plugin(
    plugin_space: PluginSpace, tmp_path: Path, monkeypatch
) -> None:
    package = plugin_space.install("acme")
    monkeypatch.syspath_prepend(str(tmp_path / "overlay"))
    plugin_space.install("acme", folder=tmp_path / "overlay", package=package)
    found = discover()["acme"]
    assert found.problem == ""
    assert "overlay" in found.path
    assert len(found.shadowed) == 1


def test_a_missing_manifest_a_missing_package_and_another_id_are_problems(
    plugin_space: PluginSpace,
) -> None:
    package = plugin_space.install("acme")
    (plugin_space.folder / package / "tokenspeed-plugin.toml").unlink()
    write_metadata(plugin_space.folder, "gone", "1.0", "gone = package_that_is_gone:plugin")
    plugin_space.install("other", id='"another"')
    found = discover()
    assert "cannot be read" in found["acme"].problem
    assert "package_that_is_gone" in found["gone"].problem
    assert "'another' differs from entry point 'other'" in found["other"].problem


def entry_points(space: PluginSpace, data: bytes) -> None:
    """Install acme beside a sound plugin, and replace what its metadata says."""
    space.install("sound")
    space.install("acme")
    (space.folder / "fake_acme-1.2.3.dist-info" / "entry_points.txt").write_bytes(data)


@pytest.mark.parametrize(
    ("data", "plugin_id", "words"),
    [
        (b"[tokenspeed.plugins]\nacme\n", "acme", "entry point acme is ''"),
        (b"[tokenspeed.plugins]\nacme = \xff:x\n", "acme", "entry point acme is '\ufffd:x'"),
        (b"[tokenspeed.plugins]\nacme = a\0b:x\n", "acme", "entry point acme is 'a\\x00b:x'"),
        (b"[tokenspeed.plugins]\nacme = a b c\n", "acme", "PACKAGE:OBJECT is needed"),
        (b"[tokenspeed.plugins]\n= a:b\n", "", "the name of its entry point is ''"),
        (b"[tokenspeed.plugins]\na/b = a:b\n", "a/b", "the name of its entry point is 'a/b'"),
        (b"[tokenspeed.plugins]\nauto = a:b\n", "auto", "the name of its entry point is 'auto'"),
        (b"[tokenspeed.plugins]\na\x1b[31m = a:b\n", "a [31m", "entry point is 'a\\x1b[31m'"),
    ],
)
def test_a_damaged_entry_point_is_a_problem_of_its_own_plugin(
    plugin_space: PluginSpace, data: bytes, plugin_id: str, words: str
) -> None:
    entry_points(plugin_space, data)
    found = discover()
    assert words in found[plugin_id].problem
    assert found[plugin_id].problem_id == "plugin-unlocatable"
    assert found["sound"].problem == ""


def test_comments_and_other_groups_around_an_entry_point_are_no_plugins(
    plugin_space: PluginSpace,
) -> None:
    before = set(discover())
    entry_points(
        plugin_space, b"[other]\nx = y:z\n# [tokenspeed.plugins]\n[tokenspeed.plugins]\n; a = b:c\n"
    )
    assert set(discover()) == before | {"sound"}


@pytest.mark.parametrize("name", ["METADATA", "WHEEL", "RECORD"])
def test_metadata_that_is_no_text_stops_nobody(plugin_space: PluginSpace, name: str) -> None:
    plugin_space.install("acme")
    info = plugin_space.folder / "fake_acme-1.2.3.dist-info"
    (info / name).write_bytes(b"Name: \xff\nVersion: \xff\nTag: \xff\n\n")
    found = discover()["acme"]
    assert found.problem == ""
    assert describe(found)["id"] == "acme"
    assert identity_of(found)


def test_the_error_on_two_with_one_id_is_the_same_whoever_was_installed_first(
    plugin_space: PluginSpace, tmp_path: Path, monkeypatch
) -> None:
    package = plugin_space.install("acme")
    other = tmp_path / "other"
    plugin_space.install("acme", folder=other, package=package, version="1.2.4")
    paths = [entry for entry in sys.path if entry not in (str(plugin_space.folder), str(other))]
    seen = []
    for first, second in ((plugin_space.folder, other), (other, plugin_space.folder)):
        monkeypatch.setattr(sys, "path", [str(first), str(second), *paths])
        seen.append(discover()["acme"])
    assert seen[0] == seen[1]
