"""The child process of `probe.py`: calls one probe and prints its answer as one JSON line."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import sys
from typing import Any

from tokenspeed.errors import PluginError, cause_lines
from tokenspeed.plugins.targets import resolve

OWN_WORDS = "plugin-refused"
"""Id of a PluginError that states none: from a probe it means that no device was found."""


def main(target: str, limit_s: int) -> None:
    """Call `module:function` and print devices, or reason, diagnostic id and causes.

    Args:
        limit_s: the kernel ends this process after so many seconds, should its parent be gone.
    """
    signal.alarm(limit_s)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a reason, not a file
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # whatever the plugin or its libraries print must not mix with the answer
    answer = json.dumps(_probe(target))
    with os.fdopen(answer_fd, "w", encoding="utf-8") as stream:
        stream.write(answer + "\n")


def _probe(target: str) -> dict[str, Any]:
    try:
        devices = [dataclasses.asdict(facts) for facts in resolve(target)()]
    except PluginError as error:
        diagnostic = "device-not-found" if error.id == OWN_WORDS else error.id
        return _failure(error.message, diagnostic, cause_lines(error))
    except Exception as error:
        reason = f"probe {target} raised {type(error).__name__}: {error}"
        return _failure(reason, "probe-raised", cause_lines(error, with_itself=True))
    if "torch" in sys.modules:
        return _failure(f"probe {target} imports torch, which probes may not", "probe-invalid")
    return {"devices": devices, "reason": ""}


def _failure(reason: str, diagnostic: str, causes: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"devices": [], "reason": reason, "id": diagnostic, "causes": causes}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
