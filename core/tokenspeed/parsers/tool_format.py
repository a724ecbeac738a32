"""What formats of tool calls share: when calls are looked for, and the loop over their marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tokenspeed.contracts.parser import ParsedDelta, looks_for_calls
from tokenspeed.parsers.calls import Calls, random_id
from tokenspeed.parsers.script import ScriptedAnswer
from tokenspeed.parsers.source import BadCall, Marks

if TYPE_CHECKING:
    from tokenspeed.contracts.conversation import Tool, ToolChoice
    from tokenspeed.contracts.grammar import GrammarSpec
    from tokenspeed.contracts.parser import AnswerParser, AnswerStart
    from tokenspeed.parsers.calls import MakeId
    from tokenspeed.parsers.script import Told
    from tokenspeed.parsers.source import Source, Steps
    from tokenspeed.parsers.structure import CallShape


class PlainAnswer:
    """An answer in which no calls are looked for."""

    is_reasoning = False

    def feed(self, text: str) -> ParsedDelta:
        """Pass the text on."""
        return ParsedDelta(content=text)

    def finish(self) -> ParsedDelta:
        """Nothing was held back."""
        return ParsedDelta()


class ToolFormat:
    """A format whose calls begin with a mark. A format says its marks and reads what follows one.

    A mark that closes and has nothing open is dropped; one of the inside of a call, outside of any,
    is a bad call.
    """

    opens: ClassVar[tuple[str, ...]]
    closes: ClassVar[tuple[str, ...]] = ()
    inner: ClassVar[tuple[str, ...]] = ()
    """Marks inside calls, which `read_calls` takes itself."""
    shape: ClassVar[CallShape | None] = None
    """How a grammar writes them; None: nobody can say it for all models of the format."""
    reasoning_end: ClassVar[str] = ""

    def __init__(self, make_id: MakeId = random_id) -> None:
        self.make_id = make_id
        self.markers = (*self.opens, *self.inner, *self.closes)
        self._marks = Marks(*self.markers)

    def start(self, start: AnswerStart) -> AnswerParser:
        """Begin an answer; without tools, and with the choice "none", all of it is content."""
        if not looks_for_calls(start.tools, start.tool_choice):
            return PlainAnswer()
        return ScriptedAnswer(lambda source, told: self._script(source, told, start))

    def _script(self, source: Source, told: Told, start: AnswerStart) -> Steps[None]:
        calls = Calls(source, told, start, self.make_id)
        yield from self.read(source, calls)
        calls.finish()

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        """Read a whole answer."""
        while mark := (yield from source.until(self._marks, calls.text)):
            calls.open(mark)
            if mark in self.opens:
                yield from self.read_calls(source, calls, mark)
            elif mark in self.inner:
                raise BadCall(f"{mark!r} stands outside a call")

    def read_calls(self, source: Source, calls: Calls, mark: str) -> Steps[None]:
        """Read what an opening mark opens, with its closing mark if that is there.

        Raises:
            BadCall: it is no call.
        """
        raise NotImplementedError

    @property
    def structures(self) -> bool:
        """Whether there is a language of its calls."""
        return self.shape is not None

    def structure(self, tools: tuple[Tool, ...], choice: ToolChoice) -> GrammarSpec | None:
        """Return the language of an answer with calls of these tools."""
        return None if self.shape is None else self.shape.language(tools, choice)


class SectionFormat(ToolFormat):
    """A format whose calls stand in a section, or alone; a call's closing mark may be missing.

    `opens` is (section, call), `closes` (call, section).
    """

    def read_calls(self, source: Source, calls: Calls, mark: str) -> Steps[None]:
        """Read the calls of a section."""
        (section, call), (call_end, section_end) = self.opens, self.closes
        if mark == section:
            yield from source.skip_space()
            mark = yield from source.expect(call)
        while mark == call:
            yield from self.read_call(source, calls)
            yield from source.skip_space()
            if (yield from source.choose(call_end)):
                yield from source.skip_space()
            calls.end()
            mark = yield from source.choose(call, section_end)

    def read_call(self, source: Source, calls: Calls) -> Steps[None]:
        """Read what stands between the marks of one call.

        Raises:
            BadCall: it is no call.
        """
        raise NotImplementedError
