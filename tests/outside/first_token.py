"""From `tokenspeed plugins new` to the first served token: runs the commands, prints their seconds.

Usage: python first_token.py FOLDER [SOURCE]. FOLDER is new; SOURCE is a plugin's source that takes
the place of the stubs. This interpreter has TokenSpeed; the plugin goes into a fresh environment
over it. Serves the default model, which must be in the cache for the seconds to mean anything.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path

SLOTS = "device,attention,sampler,kv_store"
QUESTION = "What is the capital of France?"
PIP = ("--no-index", "--no-deps", "--no-build-isolation", "-q")


class Watch:
    """Prints the seconds of each command and of all."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Print what the command took that ended now."""
        now = time.monotonic()
        print(f"{name:28} {now - self._last:7.2f} s", flush=True)
        self._last = now

    def total(self) -> None:
        """Print what all of them took."""
        seconds = time.monotonic() - self._start
        print(f"from plugins new to the first token: {seconds:.1f} s", flush=True)


def main(folder: Path, source: Path | None = None) -> None:
    """Run them all; then the whole answer is printed."""
    folder.mkdir(parents=True)
    watch, project = Watch(), folder / "tokenspeed-granite"
    _run(sys.executable, "-m", "tokenspeed", "plugins", "new", "granite", "--slots", SLOTS,
         "--folder", str(project))  # fmt: skip
    watch.lap("plugins new")
    if source is not None:
        shutil.copytree(source, project, dirs_exist_ok=True)
    _run(sys.executable, "-m", "tokenspeed", "plugins", "validate", str(project))
    watch.lap("plugins validate")
    python = _fresh_environment(folder / "fresh")
    watch.lap("python -m venv")
    _run(python, "-m", "pip", "wheel", *PIP, "-w", str(folder / "dist"), str(project))
    watch.lap("pip wheel")
    wheel = next((folder / "dist").glob("*.whl"))
    _run(python, "-m", "pip", "install", *PIP, str(wheel))
    watch.lap("pip install")
    with (folder / "serve.log").open("w") as log:
        server = subprocess.Popen(
            [python, "-m", "tokenspeed", "serve", "--plugins", "granite",
             "--allow-experimental", "granite", "--port", "0", "--kv-gib", "0.3"],
            stderr=log,
        )  # fmt: skip
    try:
        url = _wait_ready(server, folder / "serve.log")
        watch.lap("serve")
        _ask(url, watch)
    finally:
        server.terminate()
        server.wait(60)


def _fresh_environment(folder: Path) -> str:
    """Make an environment over this one, so that its editable installs are seen too."""
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = str(folder / "bin" / "python")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    base = sysconfig.get_path("purelib")
    (Path(site.stdout.strip()) / "_base.pth").write_text(f"import site; site.addsitedir({base!r})")
    return python


def _wait_ready(server: subprocess.Popen[bytes], log: Path) -> str:
    while server.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("ready "):
                return line.split()[1]
        time.sleep(0.05)
    raise SystemExit(log.read_text())


def _ask(url: str, watch: Watch) -> None:
    body = {
        "model": "SmolLM2-135M-Instruct",
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 32,
        "stream": True,
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    answer = ""
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            text = json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
            if text and not answer:
                watch.lap("first token")
                watch.total()
            answer += text
    print(answer)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
