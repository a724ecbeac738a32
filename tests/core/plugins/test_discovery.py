"""Discovery: metadata and manifests only, nothing imported, ambiguity is an error."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.plugin_wheels import PluginSpace, write_metadata

from tokenspeed.plugins.discovery import discover


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
