"""gpt-oss: the harmony format, a stream of messages on channels; reasoning and calls in one.

<|channel|>analysis<|message|>REASONING<|end|>
<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
<|start|>assistant<|channel|>final<|message|>CONTENT<|return|>

The prompt ends with <|start|>assistant. Messages on "analysis" are reasoning, those to a function
are calls whatever their channel, all others are content. Text outside messages is content too.
Messages of one kind are separate lines. A closing mark may be missing before the next message.
Calls are part of the format: where none is asked for, one is a bad call.
Source: openai/harmony, docs/format.md ("Harmony response format").
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokenspeed.contracts.parser import ThinkingForm
from tokenspeed.parsers.calls import Calls, random_id
from tokenspeed.parsers.json_text import read_arguments
from tokenspeed.parsers.script import ScriptedAnswer
from tokenspeed.parsers.source import BadCall, Marks
from tokenspeed.parsers.structure import CallShape

if TYPE_CHECKING:
    from tokenspeed.contracts.conversation import Tool, ToolChoice
    from tokenspeed.contracts.grammar import GrammarSpec
    from tokenspeed.contracts.parser import AnswerParser, AnswerStart
    from tokenspeed.parsers.calls import MakeId
    from tokenspeed.parsers.script import Told
    from tokenspeed.parsers.source import Emit, Source, Steps

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
FUNCTIONS = "functions."
CALL_SHAPE = CallShape(
    begin=f"{CHANNEL}commentary to={FUNCTIONS}NAME {CONSTRAIN}json{MESSAGE}",
    end="",  # <|call|> ends the answer: it is a stop token
    trigger=f"{CHANNEL}commentary to=",
    before=(f"{CHANNEL}analysis{MESSAGE}", f"{END}{START}assistant"),
)
_BODY = Marks(END, CALL, RETURN, START, CHANNEL)
_HEAD = Marks(MESSAGE, END, CALL, RETURN, START)
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")


class Harmony:
    """Makes the parser of an answer."""

    markers = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
    opens: tuple[str, ...] = ()
    structures = True
    reasoning_end = f"{CHANNEL}final{MESSAGE}"
    thinking = ThinkingForm(
        opens=f"{CHANNEL}analysis{MESSAGE}",
        ends=(END, START, CHANNEL),
        close=f"{END}{START}assistant",
        is_repeated=True,
    )

    def __init__(self, make_id: MakeId = random_id) -> None:
        self.make_id = make_id

    def start(self, start: AnswerStart) -> AnswerParser:
        """Begin in the message whose head the prompt ends with, if it ends with one."""
        return ScriptedAnswer(lambda source, told: _Reader(source, told, self, start).read())

    def structure(self, tools: tuple[Tool, ...], choice: ToolChoice) -> GrammarSpec | None:
        """Return the language of the whole answer; its reasoning is free text."""
        return CALL_SHAPE.language(tools, choice)


class _Reader:
    """Reads one answer."""

    def __init__(self, source: Source, told: Told, form: Harmony, start: AnswerStart) -> None:
        self._source = source
        self._told = told
        self._calls = Calls(source, told, start, form.make_id)
        self._is_asked = start.tool_choice.mode != "none"
        self._head = _open_head(start.prompt_end)
        self._begun: set[Emit] = set()

    def read(self) -> Steps[None]:
        if self._head:
            mark = yield from self._read_body(self._head)
        else:
            mark = yield from self._source.until(_BODY, self._lines(self._told.content))
        while mark:
            if mark in (START, CHANNEL):
                mark = yield from self._read_message(mark)
            else:
                mark = yield from self._source.until(_BODY, self._lines(self._told.content))

    def _read_message(self, mark: str) -> Steps[str]:
        """Read a message from its first mark on; return the mark that follows it."""
        parts = [mark]
        self._source.record(mark)
        end = yield from self._source.until(_HEAD, parts.append)
        if end != MESSAGE:
            return end
        return (yield from self._read_body("".join(parts)))

    def _read_body(self, head: str) -> Steps[str]:
        recipient = _RECIPIENT.search(head)
        channel = _CHANNEL.search(head)
        if recipient is not None and recipient[1] != "assistant":
            return (yield from self._read_call(recipient[1]))
        is_reasoning = channel is not None and channel[1] == "analysis"
        emit = self._lines(self._told.reasoning if is_reasoning else self._told.content)
        self._told.is_reasoning = is_reasoning
        mark = yield from self._source.until(_BODY, emit)
        self._told.is_reasoning = is_reasoning and not mark
        return mark

    def _read_call(self, recipient: str) -> Steps[str]:
        name = recipient.removeprefix(FUNCTIONS)
        if not self._is_asked:
            raise BadCall(f"it calls {name!r}, and tool_choice is none")
        self._calls.begin(name if recipient.startswith(FUNCTIONS) else recipient)
        char = yield from self._source.skip_space()
        if char == "<" and (mark := (yield from self._source.choose(*_BODY.texts))):
            self._calls.arguments("{}")
        else:
            yield from read_arguments(self._source, self._calls.arguments)
            yield from self._source.skip_space()
            mark = yield from self._source.choose(*_BODY.texts)
        self._calls.end()
        return mark or END

    def _lines(self, emit: Emit) -> Emit:
        """Return an emitter that separates what it emits from what was emitted that way before."""
        has_told = False

        def told(text: str) -> None:
            nonlocal has_told
            if not has_told and emit in self._begun:
                emit("\n")
            has_told = True
            self._begun.add(emit)
            emit(text)

        return told


def _open_head(prompt_end: str) -> str:
    """Return the head of the message that a prompt leaves open for its text; "": none."""
    start = prompt_end.rfind(START)
    head = prompt_end[start:] if start >= 0 else ""
    return head if head.rstrip().endswith(MESSAGE) else ""
