"""Facts of the environment: CPU features, wheel tags, and what torch was built for; no import."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.errors import PluginError
from tokenspeed.plugins import host_facts, load_plugins
from tokenspeed.plugins.host_facts import environment_facts, tag_problem

MACHINE = platform.machine()
HERE = f"cp{sys.version_info[0]}{sys.version_info[1]}"


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor of known features."""
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: amx\n")
    monkeypatch.setattr(host_facts, "CPU_INFO", file)
    environment_facts.cache_clear()
    yield
    environment_facts.cache_clear()


@pytest.mark.parametrize(
    "tags",
    [
        (),
        ("py3-none-any",),
        ("py2.py3-none-any",),
        (f"{HERE}-{HERE}-linux_{MACHINE}",),
        (f"{HERE}-{HERE}-manylinux_2_5_{MACHINE}.manylinux1_{MACHINE}",),
        (f"cp39-abi3-manylinux2014_{MACHINE}",),
        ("cp39-cp39-linux_vax", "py3-none-any"),
    ],
)
def test_tags_that_fit(tags: tuple[str, ...]) -> None:
    assert tag_problem(tags) == ""


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        (f"cp39-cp39-linux_{MACHINE}", f"for Python tag cp39-cp39, this Python is {HERE}"),
        (f"cp399-abi3-linux_{MACHINE}", "for Python tag cp399-abi3"),
        (f"{HERE}-{HERE}-linux_vax", f"for linux_vax, this machine is {MACHINE}"),
        (f"{HERE}-{HERE}-manylinux_2_99_{MACHINE}", "needs glibc 2.99, found 2."),
    ],
)
def test_tags_that_do_not_fit_are_named(tag: str, words: str) -> None:
    assert words in tag_problem((tag,))


def test_a_wheel_for_another_python_is_refused_before_it_is_imported(
    plugin_space: PluginSpace,
) -> None:
    package = plugin_space.install("acme", "raise RuntimeError('imported')")
    info = plugin_space.folder / "fake_acme-1.2.3.dist-info"
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nTag: cp39-cp39-any\n")
    with pytest.raises(PluginError, match="Python tag cp39") as caught:
        load_plugins(("acme",), role="engine")
    assert caught.value.id == "abi-mismatch"
    assert package not in sys.modules


@pytest.mark.usefixtures("cpu")
def test_a_missing_cpu_feature_is_named(plugin_space: PluginSpace) -> None:
    plugin_space.install("acme", tail='[requires_abi]\ncpu.avx2 = ">=1"')
    load_plugins(("acme",), role="engine")
    plugin_space.install("beta", tail='[requires_abi]\ncpu.amx = ">=1"')
    with pytest.raises(PluginError, match=r"needs cpu\.amx >=1, found none"):
        load_plugins(("beta",), role="engine")


def test_torch_says_what_it_was_built_for_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin_space: PluginSpace
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch" / "version.py").write_text(
        "__version__ = '2.11.0+acme4'\nacmert: Optional[str] = '4.2'\nother = None\n"
    )
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    environment_facts.cache_clear()
    facts = environment_facts()
    environment_facts.cache_clear()
    assert (facts["torch"], facts["acmert"]) == ("2.11.0+acme4", "4.2")
    assert "other" not in facts
