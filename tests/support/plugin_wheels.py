"""Real tiny plugin wheels, installed as `pip install --target` leaves them: package and dist-info.

`WheelFolder` is such a folder for child processes: `install` writes a wheel with manifest, entry
point, METADATA and a RECORD of true digests; `tokenspeed` and `python` run a child that sees them.
`PluginSpace` puts the folder on this process's path too. Discovery, probes, imports are the real
ones.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

_UNIQUE = itertools.count()

HEAD = """
from tokenspeed_sdk import *
"""
MODEL_BODY = """
class Plugin:
    @hookimpl
    def register_models(self, context):
        facts = {"architectures": ("Acme",)}
        context.offer(Offer("model", "acme", lazy("json:loads"), facts=facts))

plugin = Plugin()
"""


def manifest_text(plugin_id: str, **changes: str) -> str:
    """Return a valid manifest with some lines replaced; values are TOML, "" drops the key."""
    lines = {
        "schema": "1",
        "id": f'"{plugin_id}"',
        "api": '">=1.0,<2"',
        "vendor": '"acme"',
        "device_kinds": '["*"]',
        "roles": '["engine", "worker", "cli"]',
    }
    slots = changes.pop("slots", 'model = "1.0"')
    tail = changes.pop("tail", "")
    lines |= changes
    head = "\n".join(f"{name} = {value}" for name, value in lines.items() if value)
    return f"{head}\n[slots]\n{slots}\n{tail}\n"


class WheelFolder:
    """A folder of installed wheels that child processes import from.

    Several can be stacked: `WheelFolder(path, before=(other,))` runs children that see `other`
    first.
    """

    def __init__(self, folder: Path, *, before: tuple[WheelFolder, ...] = ()) -> None:
        self.folder = folder
        self._before = before

    def install(
        self,
        plugin_id: str,
        body: str = MODEL_BODY,
        *,
        distribution: str | None = None,
        version: str = "1.2.3",
        folder: Path | None = None,
        package: str | None = None,
        files: Mapping[str, str | bytes] | None = None,
        **manifest: str,
    ) -> str:
        """Install one plugin and return the name of its package, new unless given.

        Args:
            body: of the package's `__init__.py`, after `from tokenspeed_sdk import *`.
            files: further files of the package by name, such as a native library.
            manifest: lines of the manifest as TOML; PACKAGE stands for the package's name.
        """
        package = package or f"fake_{plugin_id.replace('-', '_')}_{next(_UNIQUE)}"
        manifest = {key: value.replace("PACKAGE", package) for key, value in manifest.items()}
        contents: dict[str, str | bytes] = {
            "__init__.py": HEAD + textwrap.dedent(body),
            "tokenspeed-plugin.toml": manifest_text(plugin_id, **manifest),
            **(files or {}),
        }
        folder = folder or self.folder
        for name, content in contents.items():
            path = folder / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        write_metadata(
            folder,
            distribution or f"fake-{plugin_id}",
            version,
            f"{plugin_id} = {package}:plugin",
            files=tuple(f"{package}/{name}" for name in contents),
        )
        return package

    def at_startup(self, code: str) -> None:
        """Run code at the start of every Python process that sees this folder first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "sitecustomize.py").open("a") as file:
            file.write(textwrap.dedent(code))

    def record_processes(self) -> Path:
        """Note the command line of every Python process to come, a line each; return the file."""
        file = self.folder / "processes"
        self.at_startup(
            f"""
            import sys
            with open({str(file)!r}, "a") as processes:
                processes.write(" ".join(sys.orig_argv) + "\\n")
            """
        )
        return file

    def environ(self, **extra: str) -> dict[str, str]:
        """Return an environment for a child that sees this folder first."""
        before = [str(space.folder) for space in self._before]
        paths = [*before, str(self.folder), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **extra}

    def tokenspeed(
        self, *arguments: str, timeout_s: float = 60, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end in a child that sees the wheels."""
        return self._run(("-m", "tokenspeed", *arguments), timeout_s, environ)

    def python(
        self, code: str, *, timeout_s: float = 60, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Python code in a child that sees the wheels."""
        return self._run(("-c", textwrap.dedent(code)), timeout_s, environ)

    def _run(
        self, arguments: tuple[str, ...], timeout_s: float, environ: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=self.environ(**environ),
            check=False,
        )


class PluginSpace(WheelFolder):
    """A folder of installed plugins that this process and all its children import from."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("PYTHONPATH", self.environ()["PYTHONPATH"])


def write_metadata(
    folder: Path,
    distribution: str,
    version: str,
    entry_point: str,
    *,
    egg: bool = False,
    files: tuple[str, ...] = (),
) -> Path:
    """Write a dist-info (or egg-info) folder with one entry point and return it.

    Args:
        files: of the wheel, relative to `folder`; a dist-info's RECORD states their digests.
    """
    name = distribution.replace("-", "_")
    kind, metadata_file = ("egg-info", "PKG-INFO") if egg else ("dist-info", "METADATA")
    info = folder / f"{name}-{version}.{kind}"
    info.mkdir(parents=True, exist_ok=True)
    (info / metadata_file).write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n\nText: x\n"
    )
    (info / "entry_points.txt").write_text(f"[tokenspeed.plugins]\n{entry_point}\n")
    if not egg:
        own = [f"{info.name}/{item}" for item in (metadata_file, "entry_points.txt")]
        rows = [_record_row(folder, path) for path in (*files, *own)]
        (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,"]) + "\n")
    return info


def _record_row(folder: Path, path: str) -> str:
    data = (folder / path).read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}"
