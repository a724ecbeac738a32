"""The child process of `health.py`: imports one model file after the other and says how it went.

stdout has two JSON lines a file: before the import, and after it with the problem.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import PluginError, cause_lines
from tokenspeed.models.registry import architectures, load_model_class
from tokenspeed.plugins.manager import load_plugins

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenspeed.contracts.binding import RegisteredOffer
    from tokenspeed.contracts.registration import Offer


def main(plugins: Iterable[str], done: Iterable[list[str]]) -> None:
    """Try what is not in `done`, a list of [architecture, pin]."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # whatever a model file prints must not mix with the answer
    finished = {tuple(key) for key in done}
    names = tuple(plugins)
    registry = load_plugins(names, role="engine", fallback="allow", experimental=names)
    with os.fdopen(answer_fd, "w", encoding="utf-8", buffering=1) as stream:
        for architecture, offers in architectures(registry).items():
            for item in offers:
                if (architecture, item.pin) in finished:
                    continue
                head = {"architecture": architecture, "pin": item.pin}
                stream.write(json.dumps(head) + "\n")
                stream.write(json.dumps({**head, **_tried(item, architecture)}) + "\n")


def _tried(item: RegisteredOffer[Offer], architecture: str) -> dict[str, Any]:
    try:
        load_model_class(item, architecture)
    except PluginError as error:
        return {"problem": error.message, "causes": cause_lines(error)}
    return {"problem": "", "causes": ()}


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
