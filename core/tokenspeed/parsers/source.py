"""The text of an answer while it comes, as the readers of formats see it: they ask, it waits.

A reader is a generator that takes what it needs with `yield from`; each bare `yield` means that it
waits for more text. No step looks at how much happens to be there, so that what a reader makes of
a text does not depend on how the text was cut.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    T = TypeVar("T")
    Steps = Generator[None, None, T]
    Emit = Callable[[str], None]

SPACE = re.compile(r"[ \t\r\n]+")


class BadCall(Exception):
    """A call cannot be read; ends the reader. The text is the reason."""

    is_unfinished = False


class UnfinishedCall(BadCall):
    """The answer ended inside a call."""

    is_unfinished = True

    def __init__(self) -> None:
        super().__init__("the answer ends inside the call")


class Marks:
    """Texts to look for; none stands inside another, so that the first one found is the one.

    Args:
        texts: at least one.
    """

    def __init__(self, *texts: str) -> None:
        assert not any(a in b for a in texts for b in texts if a != b), texts
        self.texts = texts
        self.pattern = re.compile("|".join(map(re.escape, texts)))
        self._heads = {text[:length] for text in texts for length in range(1, len(text))}
        self._longest = max(map(len, texts)) - 1

    def held(self, text: str, start: int) -> int:
        """Return how long the end of `text[start:]` is that may become a mark."""
        for length in range(min(self._longest, len(text) - start), 0, -1):
            if text[-length:] in self._heads:
                return length
        return 0


class Source:
    """Unread text. Time is linear in what is fed, as long as readers hold little back."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._pin: int | None = None
        self._record: list[str] | None = None
        self._recorded_to = 0
        self.is_ended = False

    def feed(self, text: str) -> None:
        """Add text; what was read is forgotten, unless it is pinned."""
        if self._record is not None:
            self._flush_record()
        start = self._at if self._pin is None else self._pin
        self._text = self._text[start:] + text
        self._at -= start
        self._recorded_to -= start
        self._pin = None if self._pin is None else 0

    def end(self) -> None:
        """Say that nothing follows."""
        self.is_ended = True

    def pin(self) -> None:
        """Remember this place for `rewind`."""
        self._pin = self._at

    def rewind(self) -> None:
        """Go back to the pinned place and forget it."""
        assert self._pin is not None
        self._at, self._pin = self._pin, None

    def unpin(self) -> None:
        """Forget the pinned place."""
        self._pin = None

    def record(self, mark: str) -> None:
        """Keep a copy of what is read from now on, which began with `mark`."""
        self._record, self._recorded_to = [mark], self._at

    def recorded(self, *, with_rest: bool = False) -> str:
        """Return what was read since `record`, to the last character.

        Args:
            with_rest: what waits to be read too.
        """
        self._flush_record()
        return "".join(self._record or ()) + (self._text[self._at :] if with_rest else "")

    def _flush_record(self) -> None:
        if self._record is not None and self._at > self._recorded_to:
            self._record.append(self._text[self._recorded_to : self._at])
            self._recorded_to = self._at

    def char(self) -> Steps[str]:
        """Return the next character without taking it; "" at the end."""
        while self._at == len(self._text):
            if self.is_ended:
                return ""
            yield
        return self._text[self._at]

    def take(self, count: int) -> Steps[str]:
        """Take so many characters, or fewer at the end."""
        while len(self._text) - self._at < count and not self.is_ended:
            yield
        taken = self._text[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def run(self, pattern: re.Pattern[str], emit: Emit | None = None) -> Steps[None]:
        """Take characters as long as they fit; `pattern` is one class of characters with a "+"."""
        while True:
            found = pattern.match(self._text, self._at)
            if found is not None:
                self._at = found.end()
                if emit is not None:
                    emit(found.group())
            if self._at < len(self._text) or self.is_ended:
                return
            yield

    def word(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Take characters as long as they fit and return them; something must follow them.

        Raises:
            UnfinishedCall: the text ends, so that more of them could have come.
        """
        parts: list[str] = []
        yield from self.run(pattern, parts.append)
        if not (yield from self.char()):
            raise UnfinishedCall
        return "".join(parts)

    def skip_space(self) -> Steps[str]:
        """Drop white space; return the next character, which is not taken."""
        yield from self.run(SPACE)
        return (yield from self.char())

    def until(self, marks: Marks, emit: Emit) -> Steps[str]:
        """Emit text up to the first of the marks, take that and return it; "" at the end."""
        while True:
            found = marks.pattern.search(self._text, self._at)
            if found is not None:
                self._emit_to(found.start(), emit)
                self._at = found.end()
                return found.group()
            held = 0 if self.is_ended else marks.held(self._text, self._at)
            self._emit_to(len(self._text) - held, emit)
            if self.is_ended:
                return ""
            yield

    def _emit_to(self, end: int, emit: Emit) -> None:
        if end > self._at:
            emit(self._text[self._at : end])
            self._at = end

    def choose(self, *texts: str) -> Steps[str]:
        """Take the one of the texts that comes next and return it; "": none does."""
        while True:
            rest = self._text[self._at : self._at + max(map(len, texts))]
            for text in texts:
                if rest.startswith(text):
                    self._at += len(text)
                    return text
            if self.is_ended or not any(text.startswith(rest) for text in texts):
                return ""
            yield

    def expect(self, *texts: str) -> Steps[str]:
        """Take the one of the texts that comes next and return it.

        Raises:
            BadCall: none does; UnfinishedCall: the text ends before that is known.
        """
        found = yield from self.choose(*texts)
        if found:
            return found
        rest = self._text[self._at : self._at + max(map(len, texts))]
        if any(text.startswith(rest) for text in texts):
            raise UnfinishedCall
        wanted = " or ".join(map(repr, texts))
        raise BadCall(f"{rest[:1]!r} stands where {wanted} must")

    def rest(self, emit: Emit) -> Steps[None]:
        """Emit everything to the end."""
        while True:
            self._emit_to(len(self._text), emit)
            if self.is_ended:
                return
            yield
