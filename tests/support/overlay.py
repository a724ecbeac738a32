"""Virtual environments over this one: what is installed there is seen there alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

INSTALL = ("install", "-q", "--no-index", "--no-deps", "--no-build-isolation")


class Overlay:
    """A virtual environment whose packages come before those of the running one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site = folder / "lib" / version / "site-packages"
        base = sysconfig.get_path("purelib")
        (self.site / "_base.pth").write_text(f"import site; site.addsitedir({base!r})\n")

    def install(self, project: Path) -> None:
        """Build a project's wheel and install it, without any index.

        A copy is built: setuptools builds inside of the sources, where others may be building too.
        """
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        with tempfile.TemporaryDirectory() as folder:
            ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
            copy = shutil.copytree(project, Path(folder) / project.name, ignore=ignored)
            done = subprocess.run(
                [*pip, *INSTALL, str(copy)], capture_output=True, text=True, check=False
            )
        assert done.returncode == 0, done.stderr

    def run(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run the environment's Python to its end."""
        return subprocess.run(
            [str(self.python), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def tokenspeed(
        self, *arguments: str, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        return self.run("-m", "tokenspeed", *arguments, timeout_s=timeout_s)
