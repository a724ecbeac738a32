"""What models really write when they go wrong: read where its meaning is clear, else a bad call."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tokenspeed.contracts.conversation import Tool
from tokenspeed.contracts.parser import AnswerStart
from tokenspeed.parsers.formats import FORMATS
from tokenspeed.parsers.think import ThinkParser
from tokenspeed.parsers.together import Together
from tokenspeed.plugins.targets import resolve

if TYPE_CHECKING:
    from tokenspeed.contracts.parser import BadToolCall, Parser

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}
TOOLS = (Tool("f", parameters=SCHEMA), Tool("foo"))
END = "the answer ends inside the call"


def read(parser: Parser, text: str, prompt: str = "") -> tuple[str, str, list[Any], Any]:
    """Return reasoning, content, calls and the bad call of a text fed by characters."""
    answer = parser.start(AnswerStart(prompt, TOOLS))
    deltas = [*(answer.feed(char) for char in text), answer.finish()]
    calls: dict[int, list[str]] = {}
    bad: BadToolCall | None = None
    for delta in deltas:
        bad = bad or delta.bad_call
        for call in delta.tool_calls:
            entry = calls.setdefault(call.index, ["", ""])
            entry[0] += call.name
            entry[1] += call.arguments
    texts = ("".join(d.reasoning for d in deltas), "".join(d.content for d in deltas))
    return (*texts, [tuple(call) for call in calls.values()], bad)


def parser_of(name: str) -> Any:
    return resolve(FORMATS[name].path)()


F, G = '{"name": "f", "arguments": {}}', '{"name": "foo", "arguments": {}}'
CODER = "<function=f>\n<parameter=a>\n"
V31 = "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>"
KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>"
CALL, SEP = "<|tool_call_begin|>", "<\uff5ctool\u2581sep\uff5c>"
KIMI_END = "<|tool_call_end|><|tool_calls_section_end|>"
RIGHT = [
    ("hermes", f"<tool_call>{F}<tool_call>{G}", "", [("f", {}), ("foo", {})]),
    ("hermes", f"<tool_call>\n{F}\n{G}\n</tool_call>", "", [("f", {}), ("foo", {})]),
    ("hermes", f"<tool_call>{F}</tool_call></tool_call>\nok", "ok", [("f", {})]),
    ("hermes", f"a\n\n<tool_call>{F}</tool_call>\n\nb \n", "a\nb \n", [("f", {})]),
    ("hermes", '<tool_call>{"arguments": {"a": "x"}, "name": "f"}', "", [("f", {"a": "x"})]),
    ("hermes", '<tool_call>{"name": "f", "parameters": null}', "", [("f", {})]),
    ("hermes", '<tool_call>{"name": "f"}', "", [("f", {})]),
    ("hermes", '<tool_call>{"id": [1], "name": "f"}', "", [("f", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}', "", [("f", {"a": "x\ny"})]),
    ("hermes", "a < b <tool", "a < b <tool", []),
    ("qwen3_coder", f"{CODER}x\n<parameter=n>\n1\n</function>", "", [("f", {"a": "x", "n": 1})]),
    ("qwen3_coder", f"{CODER}x\n</parameter>\n</tool_call>", "", [("f", {"a": "x"})]),
    ("qwen3_coder", f"{CODER}x </function> </p\n</parameter></function>", "",
     [("f", {"a": "x </function> </p"})]),
    ("glm45", "<tool_call>f</tool_call>", "", [("f", {})]),
    ("glm45", "<tool_call>f\n<arg_key>n</arg_key><arg_value> 1 </arg_value></tool_call>", "",
     [("f", {"n": 1})]),
    ("minimax_m2", '<minimax:tool_call><invoke name="f"></invoke><invoke name="foo"></invoke>', "",
     [("f", {}), ("foo", {})]),
    ("deepseek_v31", f"{V31}f{SEP}{{}}", "", [("f", {})]),
    ("kimi_k2", f"{KIMI}f<|tool_call_argument_begin|>{{}}{KIMI_END}", "", [("f", {})]),
    ("kimi_k2", f"{CALL}functions.f:0<|tool_call_argument_begin|>{{}}", "", [("f", {})]),
    ("mistral", '[TOOL_CALLS]f{"n": 1}', "", [("f", {"n": 1})]),
    ("mistral", "[TOOL_CALLS][]", "", []),
    ("llama3_json", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
    ("llama3_json", '{"items": ["f"]}', '{"items": ["f"]}', []),
    ("llama3_json", 'x {"name": "f"}', 'x {"name": "f"}', []),
    ("llama3_json", '{"type": "function", "name": "f", "parameters": {}}', "", [("f", {})]),
    ("pythonic", "[g(x) for x in y]", "[g(x) for x in y]", []),
    ("pythonic", "[a](http://x)", "[a](http://x)", []),
    ("pythonic", "[f(a='it\\'s', n=-1,)]", "", [("f", {"a": "it's", "n": -1})]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "content", "calls"), RIGHT)
def test_what_is_clear_is_read(name: str, text: str, content: str, calls: list[Any]) -> None:
    _, found, told, bad = read(parser_of(name), text)
    assert bad is None
    assert found == content
    assert [(call, json.loads(arguments)) for call, arguments in told] == calls


WRONG = [
    ("hermes", "<tool_call>f</tool_call>", "'f' stands where '{' must"),
    ("hermes", '<tool_call>{"arguments": {}}', "the call has no name"),
    ("hermes", '<tool_call>{"name": "f", "name": "f"}', "the call has 'name' twice"),
    ("hermes", '<tool_call>{"name": "f", "arguments": "x"}', "the arguments are no JSON object: "),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": \'x\'}}', "the call is no JSON: "),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\d"}}', "the call is no JSON: "),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"n": 01}}', "the call is no JSON: "),
    ("qwen3_coder", f"{CODER}x\n</parameter>\n<parameter=a>", "the argument 'a' is given twice"),
    ("qwen3_coder", "<function=f>\n<parameter=n>\nx\n</parameter>", "the argument 'n' is no JSON"),
    ("qwen3_coder", "x <parameter=a>", "'<parameter=' stands outside a call"),
    ("glm45", "<tool_call>f\nx</tool_call>", "'x' stands where "),
    ("mistral", "[TOOL_CALLS] f is it", "'i' stands where "),
    ("kimi_k2", f"{KIMI}<|tool_call_argument_begin|>{{}}", "the call has no id"),
    ("pythonic", "[f(1)]", "an argument has no name"),
    ("pythonic", "[f(a=b)]", "'b' stands where a value must"),
    ("pythonic", "[f(a=1, a=2)]", "the argument 'a' is given twice"),
    ("llama3_json", "<|python_tag|>f.call()", "'f' stands where '{' must"),
    ("llama3_json", '{"name": "g", "parameters": {}}', "it calls 'g', which is not among the "),
    ("gpt_oss", "<|channel|>commentary to=python<|message|>1", "it calls 'python', which is not "),
    ("gpt_oss", "<|channel|>commentary to=functions.f<|message|>x", "the arguments are no JSON "),
]


@pytest.mark.parametrize(("name", "text", "reason"), WRONG)
def test_what_is_not_is_a_bad_call_that_says_why(name: str, text: str, reason: str) -> None:
    *_, bad = read(parser_of(name), text)
    assert bad is not None
    assert bad.reason.startswith(reason)
    assert not bad.is_unfinished
    assert bad.text in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"n": 1'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\u00'),
        ("qwen3_coder", "<function=f"),
        ("qwen3_coder", f"{CODER}x\n</para"),
        ("qwen3_coder", f"{CODER}x\n</parameter>\n"),
        ("glm45", "<tool_call>f"),
        ("minimax_m2", '<minimax:tool_call><invoke name="f'),
        ("deepseek_v31", f"{V31}f"),
        ("deepseek_v3", f"{V31}func"),
        ("kimi_k2", f"{KIMI}functions.f"),
        ("mistral", "[TOOL_CALLS]f"),
        ("llama3_json", '<|python_tag|>{"name": "f'),
        ("pythonic", "[f(a=1"),
        ("pythonic", "[f(a='x"),
        ("gpt_oss", "<|channel|>commentary to=functions.f<|message|>"),
    ],
)
def test_a_name_or_call_that_is_cut_is_unfinished_and_not_another(name: str, text: str) -> None:
    *_, bad = read(parser_of(name), text)
    assert bad is not None
    assert (bad.reason, bad.text, bad.is_unfinished) == (END, text, True)


def test_a_mark_in_a_thought_is_one_until_it_names_a_tool() -> None:
    both = Together(ThinkParser(), parser_of("hermes"))
    text = f'The <tool_call> tag, <tool_call>{{"x"}}, then <tool_call>{F}</tool_call> so.</think>!'
    reasoning, content, calls, bad = read(both, text, "<think>\n")
    assert reasoning == 'The <tool_call> tag, <tool_call>{"x"}, then '
    assert (content, calls, bad) == ("so.!", [("f", "{}")], None)


def test_a_closed_thought_leaves_its_marks_alone() -> None:
    both = Together(ThinkParser(), parser_of("hermes"))
    text = f"<think>\nUse <tool_call>.\n</think>\n\nOk.\n<tool_call>{F}"
    assert read(both, text) == ("Use <tool_call>.", "Ok.", [("f", "{}")], None)
