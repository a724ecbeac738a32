"""Where a traced model makes a call: the line of its text, and the decoder layer that it is in."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_OWN_FILES = {
    str(Path(__file__).with_name(f"{name}.py")) for name in ("callers", "proxies", "recorder")
}
_TRACE_FILE = str(Path(__file__).with_name("trace.py"))


class Callers:
    """Looks up the stack from a call of the recorder."""

    def __init__(self) -> None:
        self._layers: dict[int, int] = {}
        self._layer_frame: FrameType | None = None
        self._layer = -1

    def name_layers(self, layers: Sequence[object]) -> None:
        """Tell which objects are the decoder's layers."""
        self._layers = {id(layer): index for index, layer in enumerate(layers)}

    def forget(self) -> None:
        """Let go of the stack that was seen last."""
        self._layer_frame = None

    def find(self, *, skipped: int = 0) -> tuple[str, int]:
        """Return (file:line of the model's text, index of the decoder layer or -1).

        Args:
            skipped: frames of a layer that has its own call noted.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename in _OWN_FILES:
            frame = frame.f_back
        for _ in range(skipped):
            frame = frame.f_back if frame is not None else None
        if frame is None:
            return "", -1
        file = _from_package(frame.f_code.co_filename, frame.f_globals.get("__name__", ""))
        return f"{file}:{frame.f_lineno}", self._layer_of(frame)

    def _layer_of(self, frame: FrameType) -> int:
        """Return the index of the layer whose call is under way, the last one's frame first."""
        frames: list[FrameType] = []
        above: FrameType | None = frame
        while above is not None and above.f_code.co_filename != _TRACE_FILE:
            if above is self._layer_frame:
                return self._layer
            frames.append(above)
            above = above.f_back
        for one in frames:
            is_method = one.f_code.co_varnames[:1] == ("self",)
            index = self._layers.get(id(one.f_locals.get("self"))) if is_method else None
            if index is not None:
                self._layer_frame, self._layer = one, index
                return index
        return -1


@cache
def _from_package(file: str, module: str) -> str:
    """Return the path of a file from its package on: the same on every machine."""
    return "/".join(Path(file).parts[-max(len(module.split(".")), 1) :])
