"""Answers of device probes, kept on disk for as long as nothing they could depend on has changed.

The key holds the wheel's RECORD, the boot, the kernel's drivers and device nodes, and the variables
that hide devices. Only answers are kept, never failures: whoever repairs something sees it at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed.env import cache_dir
from tokenspeed.plugins.facts_check import facts_of
from tokenspeed.plugins.wheel_record import NO_RECORD, is_editable, record_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tokenspeed.contracts.device import DeviceFacts

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MODULES = Path("/sys/module")
DEVICES = Path("/dev")
HIDING = "VISIBLE_DEVICES"


def probe_key(info: Path, target: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the key under which a probe's answer may be kept; "": it may not.

    Args:
        info: metadata folder of the plugin's wheel.
        target: `module:function` of the probe.
        environ: variables of the process; None: this one's.
    """
    record = record_digest(info)
    boot_id = _text(BOOT_ID)
    if record == NO_RECORD or not boot_id or is_editable(info):
        return ""
    variables = os.environ if environ is None else environ
    hiding = sorted(f"{name}={value}" for name, value in variables.items() if HIDING in name)
    parts = (record, target, boot_id, *_drivers(), *_nodes(), *hiding)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def read_answer(key: str) -> tuple[DeviceFacts, ...] | None:
    """Return the devices that a probe found; None where nothing is kept."""
    if not key:
        return None
    try:
        facts = json.loads(_file(key).read_text(encoding="utf-8"))
        return tuple(facts_of(item) for item in facts)
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def keep_answer(key: str, devices: tuple[DeviceFacts, ...]) -> None:
    """Keep an answer; a folder that cannot be written costs a probe next time, nothing else."""
    if not key:
        return
    text = json.dumps([dataclasses.asdict(facts) for facts in devices])
    file = _file(key)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(name, file)


def _file(key: str) -> Path:
    return cache_dir() / "probes" / f"{key}.json"


def _drivers() -> Iterator[str]:
    """Yield every loaded kernel module that states a version, with it."""
    for module in _names(MODULES):
        version = _text(MODULES / module / "version") or _text(MODULES / module / "srcversion")
        if version:
            yield f"{module}={version}"


def _nodes() -> Iterator[str]:
    return (name for name in _names(DEVICES) if not name.startswith(("tty", "pts", "loop")))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
