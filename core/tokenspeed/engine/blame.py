"""Whose code raised: a failed step names the plugin, not the engine that ran it."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.plugins import PluginStatus


class Blame:
    """Finds the plugin in a traceback, by the packages that plugins came in."""

    def __init__(self, plugins: Sequence[PluginStatus]) -> None:
        self._by_package = {
            item.package: item for item in plugins if item.package and item.state == "registered"
        }

    def place_of(self, error: BaseException) -> str:
        """Return " in plugin ID VERSION (FILE:LINE)" of the innermost frame of one; "": none."""
        for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            found = self._by_package.get(package)
            if found is not None:
                file = Path(frame.f_code.co_filename)
                return (
                    f" in plugin {found.id} {found.version} ({file.parent.name}/{file.name}:{line})"
                )
        return ""
