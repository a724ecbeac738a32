"""Finds stop strings in streamed text, holding back only what may still become one.

Works on text, after the detokenizer; the frontend ends the request when it matches.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """One request's search; the result does not depend on how the text is cut.

    The match that is complete first wins; of two that end together, the longer one.

    Args:
        stops: non-empty strings; none: everything passes through.
        include_stop_text: emit the matched string itself too.
    """

    def __init__(self, stops: Sequence[str], *, include_stop_text: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._include_stop_text = include_stop_text
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Take the next text; return what is safe to send, and the stop string once one is found.

        After a match everything else is swallowed.
        """
        if self.matched is not None:
            return "", self.matched
        text = self._held + text
        found = self._first_match(text)
        if found is None:
            keep = self._held_back(text)
            self._held = text[len(text) - keep :]
            return text[: len(text) - keep], None
        end, stop = found
        self.matched, self._held = stop, ""
        return text[: end if self._include_stop_text else end - len(stop)], stop

    def flush(self) -> str:
        """Return what was held back when the text ends without a match."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        found: tuple[int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start < 0:
                continue
            end = start + len(stop)
            if found is None or (end, -len(stop)) < (found[0], -len(found[1])):
                found = (end, stop)
        return found

    def _held_back(self, text: str) -> int:
        """Return the length of the longest tail that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[len(text) - length :]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
