"""Answers with tool calls in every format: what a model writes, and what a client must get.

Written from the formats' descriptions, not with the parsers. One seed, one list of answers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenspeed.contracts.conversation import Tool

PROPERTIES: dict[str, Any] = {
    "code": {"type": "string"},
    "path": {"type": "string"},
    "n": {"type": "integer"},
    "ratio": {"type": "number"},
    "ok": {"type": "boolean"},
    "opts": {"type": "object"},
    "items": {"type": "array"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "level": {"$ref": "#/$defs/level"},
    "free": {},
}
SCHEMA = {
    "type": "object",
    "properties": PROPERTIES,
    "$defs": {"level": {"enum": ["low", "high"]}},
}
TOOLS = (Tool("run", parameters=SCHEMA), Tool("get_weather-2.x", parameters=SCHEMA), Tool("now"))
NAMES = [tool.name for tool in TOOLS]

ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"code": "print(1)"},
    {"code": 'say("hi") # \'x\' \\n \\ "', "n": 3},
    {"code": "def f():\n    return {'a': [1]}\n"},
    {"code": "", "ok": True},
    {"code": "\u00e9\u4e2d\U0001f600 \u2581|\uff5c>", "ok": False},
    {"code": "<b>&amp;</b> <tool_cal <func </param [TOOL_ <|chan", "n": -1},
    {"code": "x <tool_call> y <|call|> z [TOOL_CALLS] </think> w", "n": 0},
    {"opts": {"a": {"b": [1, {"c": None}, "}]"]}, "d": "]"}, "n": 12},
    {"items": [], "opts": {}},
    {"items": [1, -2.5, 3e10, "a,b", True, None, [["x"]]], "ratio": 0.1},
    {"ratio": -1.5e-7, "n": 123456789012345678901},
    {"note": None, "level": "low"},
    {"note": "nothing", "free": 5},
    {"note": "null and void", "free": "5 apples"},
    {"free": {"a": [1, 2]}, "note": "None of it"},
    {"free": "[not json", "note": "{"},
    {"path": "a\tb", "level": "high", "free": False},
]
TEXTS = [
    "",
    "",
    "Sure.",
    "Look:\n\n1. here",
    'A {"name": "x"}, [1] and <b> < 3',
    "\u4f60\u597d \U0001f600",
]
THOUGHTS = [
    "I need the weather.",
    'Use <tool_call> or [TOOL_CALLS]?\nNo: {"name": 1}',
    "a < b, </thin and\n\nmore",
]

Call = tuple[str, dict[str, Any]]


def encode(value: Any) -> str:
    """Return JSON as most models write it."""
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes calls in one format.

    Args:
        calls: all calls of one turn.
        marks: never part of content.
        closers: what a model may skip at the end of the answer without making the call unclear.
        cannot: texts that no value can hold.
        only_head: calls are found at the head of an answer only, and nothing follows them.
    """

    calls: Callable[[Sequence[Call]], str]
    marks: tuple[str, ...]
    closers: tuple[str, ...] = ()
    cannot: tuple[str, ...] = ()
    only_head: bool = False

    @property
    def opens(self) -> str:
        """Return the text that calls begin with."""
        return self.calls([("now", {})]).partition("now")[0].split("\n")[0]


def _each(write: Callable[[Call], str], between: str = "\n") -> Callable[[Sequence[Call]], str]:
    return lambda calls: between.join(write(call) for call in calls)


def _around(before: str, write: Callable[[Call], str], after: str, between: str = "") -> Any:
    return lambda calls: before + between.join(write(call) for call in calls) + after


def _object(call: Call, key: str = "arguments") -> str:
    return encode({"name": call[0], key: call[1]})


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else encode(value)


def _coder(call: Call) -> str:
    pairs = "".join(
        f"<parameter={key}>\n{_python_word(value)}\n</parameter>\n"
        for key, value in call[1].items()
    )
    return f"<tool_call>\n<function={call[0]}>\n{pairs}</function>\n</tool_call>"


def _python_word(value: Any) -> str:
    """Return a value as templates with `| string` write it: Python's words for constants."""
    return str(value) if value is None or isinstance(value, bool) else _plain(value)


def _glm(call: Call) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{_plain(value)}</arg_value>\n"
        for key, value in call[1].items()
    )
    return f"<tool_call>{call[0]}\n{pairs}</tool_call>"


def _invoke(call: Call) -> str:
    pairs = "".join(
        f'<parameter name="{key}">{_plain(value)}</parameter>\n' for key, value in call[1].items()
    )
    return f'<invoke name="{call[0]}">\n{pairs}</invoke>\n'


def _python_call(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def _bar(name: str) -> str:
    return f"<\uff5ctool\u2581{name}\uff5c>"


CALL, SEP, CALL_END = _bar("call\u2581begin"), _bar("sep"), _bar("call\u2581end")
CALLS, CALLS_END = _bar("calls\u2581begin"), _bar("calls\u2581end")


def _v3(call: Call) -> str:
    return f"{CALL}function{SEP}{call[0]}\n```json\n{encode(call[1])}\n```{CALL_END}"


def _v31(call: Call) -> str:
    return f"{CALL}{call[0]}{SEP}{encode(call[1])}{CALL_END}"


def _kimi(calls: Sequence[Call]) -> str:
    each = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>"
        f"{encode(arguments)}<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{each}<|tool_calls_section_end|>"


WRITERS: Mapping[str, Writer] = {
    "hermes": Writer(
        _each(lambda call: f"<tool_call>\n{_object(call)}\n</tool_call>"),
        ("<tool_call>", "</tool_call>"),
        ("\n</tool_call>",),
    ),
    "qwen3_coder": Writer(
        _each(_coder),
        ("<tool_call>", "</tool_call>", "<function=", "</function>", "</parameter>"),
        ("\n</tool_call>",),
        ("</parameter>",),
    ),
    "glm45": Writer(
        _each(_glm), ("<tool_call>", "</tool_call>", "</arg_value>"), (), ("</arg_value>",)
    ),
    "llama3_json": Writer(
        _each(lambda call: _object(call, "parameters"), "; "), ("<|python_tag|>",), only_head=True
    ),
    "llama3_json tagged": Writer(
        _around("<|python_tag|>", lambda call: _object(call, "parameters"), "", "; "),
        ("<|python_tag|>",),
    ),
    "pythonic": Writer(
        _around("[", _python_call, "]", ", "), ("<|python_start|>",), only_head=True
    ),
    "pythonic tagged": Writer(
        _around("<|python_start|>[", _python_call, "]<|python_end|>", ", "),
        ("<|python_start|>", "<|python_end|>"),
        ("<|python_end|>",),
    ),
    "pythonic lines": Writer(
        _around("<function_calls>\n", _python_call, "\n</function_calls>", "\n"),
        ("<function_calls>", "</function_calls>"),
        ("\n</function_calls>",),
    ),
    "mistral": Writer(_around("[TOOL_CALLS] [", _object, "]", ", "), ("[TOOL_CALLS]",)),
    "mistral v11": Writer(
        _each(lambda call: f"[TOOL_CALLS]{call[0]}[CALL_ID]a1b2c3d4e[ARGS]{encode(call[1])}", ""),
        ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    ),
    "mistral_named v13": Writer(
        _each(lambda call: f"[TOOL_CALLS]{call[0]}[ARGS]{encode(call[1])}", ""),
        ("[TOOL_CALLS]", "[ARGS]"),
    ),
    "deepseek_v3": Writer(
        _around(CALLS, _v3, CALLS_END, "\n"), (CALLS, CALLS_END, CALL, CALL_END), (CALLS_END,)
    ),
    "deepseek_v31": Writer(
        _around(CALLS, _v31, CALLS_END),
        (CALLS, CALLS_END, CALL, CALL_END),
        (CALLS_END, CALL_END + CALLS_END),
    ),
    "kimi_k2": Writer(
        _kimi,
        ("<|tool_calls_section_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
        ("<|tool_calls_section_end|>", "<|tool_call_end|><|tool_calls_section_end|>"),
    ),
    "minimax_m1": Writer(
        _around("<tool_calls>\n", _object, "\n</tool_calls>", "\n"),
        ("<tool_calls>", "</tool_calls>"),
        ("\n</tool_calls>",),
    ),
    "minimax_m2": Writer(
        _around("<minimax:tool_call>\n", _invoke, "</minimax:tool_call>"),
        ("<minimax:tool_call>", "</minimax:tool_call>", "</invoke>", "</parameter>"),
        ("</minimax:tool_call>", "\n</minimax:tool_call>"),
        ("</parameter>",),
    ),
}
"""Format, or a form of it -> how it is written; the name's first word is the parser's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    Args:
        text: what the model wrote.
        content, calls: what a client must get.
        reasoning: the same, for formats that have it.
    """

    text: str
    content: str
    calls: tuple[Call, ...]
    reasoning: str = ""


def answers(name: str, count: int, *, seed: int = 1) -> list[Answer]:
    """Return well-formed answers, some without the closing marks that may be missing."""
    chance = random.Random(f"{name} {seed}")
    return [_answer(WRITERS[name], chance) for _ in range(count)]


def thinking_answers(name: str, count: int, *, seed: int = 1) -> list[Answer]:
    """Return answers that begin with reasoning in tags, some closed by a call only."""
    chance = random.Random(f"{name} {seed} thinking")
    found = []
    while len(found) < count:
        answer = _answer(WRITERS[name], chance)
        thought = chance.choice(THOUGHTS)
        calls_first = answer.text.lstrip().startswith(WRITERS[name].opens)
        close = "\n" if calls_first and chance.random() < 0.7 else "\n</think>\n\n"
        text = f"<think>\n{thought}{close}{answer.text}"
        found.append(Answer(text, answer.content, answer.calls, thought))
    return found


def harmony_answers(count: int, *, seed: int = 1) -> list[Answer]:
    """Return answers of gpt-oss: messages on channels."""
    chance = random.Random(f"harmony {seed}")
    return [_harmony(chance) for _ in range(count)]


def _harmony(chance: random.Random) -> Answer:
    thoughts = [chance.choice(THOUGHTS) for _ in range(chance.choice((0, 1, 1, 2)))]
    texts = [text for text in (chance.choice(TEXTS),) if text]
    calls = tuple(_calls(WRITERS["hermes"], chance)) if chance.random() < 0.7 else ()
    ended = chance.choice(("<|end|>", "<|end|>", ""))
    messages = [f"<|channel|>analysis<|message|>{thought}{ended}" for thought in thoughts]
    channel = "commentary" if calls else "final"
    messages += [f"<|channel|>{channel}<|message|>{text}<|end|>" for text in texts]
    for name, arguments in calls:
        head = chance.choice(
            (
                f"<|channel|>commentary to=functions.{name} <|constrain|>json",
                f" to=functions.{name}<|channel|>commentary json",
                f"<|channel|>analysis to=functions.{name} code",
            )
        )
        messages.append(f"{head}<|message|>{encode(arguments)}<|call|>")
    text = "<|start|>assistant".join(messages)
    if text.startswith(" to="):
        text = "<|start|>assistant" + text
    text = text.removesuffix("<|call|>")  # a stop token: the answer ends with it unseen
    return Answer(text, "\n".join(texts), calls, "\n".join(thoughts))


def _answer(writer: Writer, chance: random.Random) -> Answer:
    groups = [_calls(writer, chance) for _ in range(chance.choice((0, 1, 1, 1, 1, 1, 2)))]
    if writer.only_head:
        groups = groups[:1]
    texts = [chance.choice(TEXTS) for _ in range(len(groups) + 1)]
    if writer.only_head and groups:
        texts = ["", ""]
    spaces = [chance.choice(("", "\n", "\n\n")) for _ in groups]
    text = texts[0]
    for space, group, after in zip(spaces, groups, texts[1:], strict=True):
        text += space + writer.calls(group) + space + after
    closer = next((mark for mark in writer.closers if text.endswith(mark)), "")
    if closer and chance.random() < 0.5:
        text = text.removesuffix(closer)
    calls = tuple(call for group in groups for call in group)
    return Answer(text, "\n".join(part for part in texts if part), calls)


def _calls(writer: Writer, chance: random.Random) -> list[Call]:
    able = [
        item
        for item in ARGUMENTS
        if not any(mark in str(value) for mark in writer.cannot for value in item.values())
    ]
    count = chance.choice((1, 1, 1, 1, 2, 3))
    return [(chance.choice(NAMES), chance.choice(able)) for _ in range(count)]


def damaged(texts: Sequence[str], marks: Sequence[str], count: int, *, seed: int = 1) -> list[str]:
    """Return texts that were cut short, lost a mark or a character, or have one too many."""
    chance = random.Random(f"{seed} {texts[0]}")
    return [_damage(chance.choice(texts), marks, chance) for _ in range(count)]


def _damage(text: str, marks: Sequence[str], chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    kind = chance.choice(("cut", "cut", "mark lost", "character lost", "mark added", "changed"))
    if kind == "cut":
        return text[:at]
    if kind == "mark lost":
        return text.replace(chance.choice(marks), "", 1)
    if kind == "mark added":
        return text[:at] + chance.choice(marks) + text[at:]
    if kind == "changed":
        return text[:at] + chance.choice("{}[]\"'<>=,:\n\\") + text[at:]
    return text[:at] + text[at + 1 :]
