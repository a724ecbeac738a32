"""The child process of `doctor.py`: loads one plugin and says what it brought, as one JSON line.

What a plugin does to a process (crash, hang, print) it does here. Also opens native libraries
without running their Python part.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

from tokenspeed.contracts.kernel import KernelOffer
from tokenspeed.errors import PluginError, cause_lines
from tokenspeed.plugins.manager import load_plugins
from tokenspeed.plugins.registry import Registry


def main(plugin_id: str, limit_s: int, libraries: list[str]) -> None:
    """Open libraries, load the plugin; print the answer.

    Args:
        limit_s: the kernel ends this process after so many seconds.
    """
    signal.alarm(limit_s)
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # what plugins print must not mix with the answer
    answer = {"libraries": {path: _open(path) for path in libraries}, **_load(plugin_id)}
    with os.fdopen(answer_fd, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(answer) + "\n")


def _open(path: str) -> str:
    """Return why a native library cannot be opened, or ""."""
    try:
        ctypes.CDLL(path, mode=os.RTLD_LAZY)
    except OSError as error:
        return str(error)
    return ""


def _load(plugin_id: str) -> dict[str, Any]:
    names = () if plugin_id == "core" else (plugin_id,)
    try:
        registry = load_plugins(names, role="engine", experimental=names)
    except PluginError as error:
        return {"error": str(error), "id": error.id, "causes": cause_lines(error)}
    except Exception as error:
        return {"error": f"loading raised {type(error).__name__}: {error}", "id": "hook-raised"}
    return {
        "offers": _offers(registry, plugin_id),
        "operators": sorted(name for name in registry.operators if registry.kernel_offers(name)),
    }


def _offers(registry: Registry, plugin_id: str) -> list[dict[str, Any]]:
    slots = registry.dump()["offers"]
    plain = [
        {"slot": slot, "name": item.offer.name, "operator": "", "graph_safe": False}
        for slot in slots
        for item in registry.offers(slot)
        if item.plugin_id == plugin_id
    ]
    kernels = [
        {
            "slot": "operator",
            "name": item.offer.name,
            "operator": name,
            "graph_safe": _is_graph_safe(item.offer),
        }
        for name in sorted(registry.operators)
        for item in registry.kernel_offers(name)
        if item.plugin_id == plugin_id
    ]
    return plain + kernels


def _is_graph_safe(offer: KernelOffer) -> bool:
    return offer.graph_safe or True in offer.requires.get("graph_safe", ())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
