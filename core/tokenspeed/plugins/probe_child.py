"""The child process of `probe.py`: calls one probe and prints its answer as one JSON line."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from typing import Any

from tokenspeed.errors import PluginError
from tokenspeed.plugins.targets import resolve


def main(target: str, limit_s: int) -> None:
    """Call `module:function` and print `{"devices": [...], "reason": "..."}`.

    Args:
        limit_s: the kernel ends this process after so many seconds, should its parent be gone.
    """
    signal.alarm(limit_s)
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # whatever the plugin or its libraries print must not mix with the answer
    answer = json.dumps(_probe(target))
    with os.fdopen(answer_fd, "w", encoding="utf-8") as stream:
        stream.write(answer + "\n")


def _probe(target: str) -> dict[str, Any]:
    try:
        devices = [dataclasses.asdict(facts) for facts in resolve(target)()]
    except PluginError as error:
        return {"devices": [], "reason": str(error)}
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        return {"devices": [], "reason": f"probe {target} raised {cause}"}
    if "torch" in sys.modules:
        return {"devices": [], "reason": f"probe {target} imports torch, which probes may not"}
    return {"devices": devices, "reason": ""}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
