"""The repository stays small, plain and free of what belongs elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.source_tree import ROOT, SOURCE_ROOTS, files_under, tracked_files

MAX_FILE_BYTES = 10 * 2**20


def test_no_file_exceeds_ten_mebibytes() -> None:
    big = [str(file) for file in tracked_files() if file.stat().st_size > MAX_FILE_BYTES]
    assert big == []


def test_sources_are_ascii() -> None:
    suffixes = (".py", ".pyi", ".toml", ".h", ".cc")
    files = [*files_under(*SOURCE_ROOTS, "csrc", suffixes=suffixes)]
    assert [str(file) for file in files if not file.read_bytes().isascii()] == []


def test_test_folders_are_no_packages() -> None:
    assert files_under("tests")
    packages = [file for file in files_under("tests") if file.name == "__init__.py"]
    wheels = ("fossils", "outside", "sim")  # plugins that tests install
    assert [file for file in packages if file.relative_to(ROOT).parts[1] not in wheels] == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(file.relative_to(ROOT))
        for file in files_under(*SOURCE_ROOTS)
        if not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_nothing_waits_in_a_way_that_loses_cancellations() -> None:
    # Before Python 3.12 asyncio.wait_for swallows a cancellation that meets its result.
    files = files_under(*SOURCE_ROOTS)
    assert [str(file) for file in files if "asyncio.wait_for(" in file.read_text("utf-8")] == []


def test_every_wheel_carries_its_manifest_and_type_marker() -> None:
    for package in ("sdk/tokenspeed_sdk", *(f"plugins_{n}/tokenspeed_{n}" for n in _VENDORS)):
        folder = ROOT / package
        assert (folder / "tokenspeed-plugin.toml").is_file()
        assert (folder / "py.typed").is_file()
        pyproject = Path(folder.parent / "pyproject.toml").read_text()
        # setuptools ships data files that are named, scikit-build-core all files of the package.
        assert '"*.toml"' in pyproject or "[tool.scikit-build]" in pyproject
        assert '[project.entry-points."tokenspeed.plugins"]' in pyproject


_VENDORS = ("reference", "nvidia", "amd")
