"""Questions that need a fresh process; prints one JSON line.

Usage: python -P -m tokenspeed_sdk.conformance.child import|load PLUGIN [ROLE]
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from tokenspeed_sdk import PluginError
from tokenspeed_sdk.conformance.subject import Subject
from tokenspeed_sdk.conformance.surroundings import changes, import_core, picture


def main(question: str, plugin_id: str, role: str = "engine") -> None:
    """Answer one question; whatever the plugin prints goes to stderr."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    subject = Subject.find(plugin_id)
    answer = _import(subject) if question == "import" else _load(subject, role)
    with os.fdopen(answer_fd, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(answer) + "\n")


def _import(subject: Subject) -> dict[str, Any]:
    """Import the plugin's entry point and say what it cost and what it changed."""
    from tokenspeed.plugins.targets import resolve

    import_core()
    before, modules = picture(), set(sys.modules)
    begin = time.process_time()
    resolve(subject.found.target)
    seconds = time.process_time() - begin
    return {
        "seconds": seconds,
        "changes": changes(before, picture()),
        "modules": sorted(set(sys.modules) - modules),
    }


def _load(subject: Subject, role: str) -> dict[str, Any]:
    """Register twice as a process of this role does; say what was offered and what changed."""
    import_core()
    before = picture()
    try:
        offers = [sorted(offer.label for offer in subject.register(role)) for _ in range(2)]
    except PluginError as error:
        if error.id != "device-not-found":
            raise
        return {"no_device": error.message}
    return {
        "offers": offers,
        "changes": changes(before, picture()),
        "torch": "torch" in sys.modules,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
