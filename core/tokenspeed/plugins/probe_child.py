"""The child process of `probe.py`: calls one probe and prints its answer as one JSON line."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import sys
from itertools import islice
from typing import Any

from tokenspeed.contracts.device import DeviceFacts
from tokenspeed.diagnostics import DIAGNOSTICS
from tokenspeed.errors import MAX_TEXT, PluginError, cause_lines, plugin_code, shown, told
from tokenspeed.plugins.names import printable
from tokenspeed.plugins.targets import resolve

OWN_WORDS = "plugin-refused"
"""Id of a PluginError that states none: from a probe it means that no device was found."""
MAX_DEVICES = 4096
MAX_FILE_BYTES = 1 << 26
"""A probe that prints without end is ended, before the disk is full."""


def main(target: str, limit_s: int) -> None:
    """Call `module:function` and print devices, or reason, diagnostic id and causes.

    Args:
        limit_s: the kernel ends this process after so many seconds, should its parent be gone.
    """
    signal.alarm(limit_s)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a reason, not a file
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # whatever the plugin or its libraries print must not mix with the answer
    answer = json.dumps(_probe(target))
    with os.fdopen(answer_fd, "w", encoding="utf-8") as stream:
        stream.write(answer + "\n")


def _probe(target: str) -> dict[str, Any]:
    try:
        with plugin_code():
            devices = [_fields(facts) for facts in islice(resolve(target)(), MAX_DEVICES)]
    except PluginError as error:
        # What a plugin says in its own words, or under an id that it made up.
        is_ours = error.id in DIAGNOSTICS and error.id != OWN_WORDS
        diagnostic = error.id if is_ours else "device-not-found"
        return _failure(str(error.message), diagnostic, cause_lines(error))
    except Exception as error:
        reason = f"probe {target} raised {told(error)}"
        return _failure(reason, "probe-raised", cause_lines(error, with_itself=True))
    if "torch" in sys.modules:
        return _failure(f"probe {target} imports torch, which probes may not", "probe-invalid")
    if devices:
        return {"devices": devices, "reason": ""}
    return _failure("probe found no device", "device-not-found")


def _fields(facts: object) -> dict[str, Any]:
    if not isinstance(facts, DeviceFacts):
        raise TypeError(f"{shown(facts)} is no DeviceFacts")
    return dataclasses.asdict(facts)


def _failure(reason: str, diagnostic: str, causes: tuple[str, ...] = ()) -> dict[str, Any]:
    text = printable(reason)[:MAX_TEXT]
    return {"devices": [], "reason": text, "id": diagnostic, "causes": causes}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
