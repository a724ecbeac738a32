"""Real tiny plugin wheels, installed as `pip install --target` leaves them: package and dist-info.

`install_plugin` writes one; `PluginSpace` puts the folder on this process's path and on that of
child processes, so that discovery, probes and imports are the real ones.
"""

from __future__ import annotations

import itertools
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


class PluginSpace:
    """A folder of installed plugins that this process and its children import from."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.syspath_prepend(str(folder))
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))

    def install(
        self,
        plugin_id: str,
        body: str = MODEL_BODY,
        *,
        distribution: str | None = None,
        version: str = "1.2.3",
        folder: Path | None = None,
        package: str | None = None,
        **manifest: str,
    ) -> str:
        """Install one plugin and return the name of its package, new unless given."""
        package = package or f"fake_{plugin_id.replace('-', '_')}_{next(_UNIQUE)}"
        home = (folder or self.folder) / package
        home.mkdir(parents=True, exist_ok=True)
        manifest = {key: value.replace("PACKAGE", package) for key, value in manifest.items()}
        (home / "__init__.py").write_text(HEAD + textwrap.dedent(body))
        (home / "tokenspeed-plugin.toml").write_text(manifest_text(plugin_id, **manifest))
        write_metadata(
            folder or self.folder,
            distribution or f"fake-{plugin_id}",
            version,
            f"{plugin_id} = {package}:plugin",
        )
        return package


def write_metadata(
    folder: Path, distribution: str, version: str, entry_point: str, *, egg: bool = False
) -> Path:
    """Write a dist-info (or egg-info) folder with one entry point and return it."""
    name = distribution.replace("-", "_")
    kind, metadata_file = ("egg-info", "PKG-INFO") if egg else ("dist-info", "METADATA")
    info = folder / f"{name}-{version}.{kind}"
    info.mkdir(parents=True, exist_ok=True)
    (info / metadata_file).write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n\nText: x\n"
    )
    (info / "entry_points.txt").write_text(f"[tokenspeed.plugins]\n{entry_point}\n")
    return info
