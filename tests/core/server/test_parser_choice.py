"""Parsers are chosen by a model's chat template and type, or by name, and work together."""

from __future__ import annotations

import pytest
from tests.support.dialogue import HERMES_TEMPLATE

from tokenspeed.contracts.conversation import Tool, ToolChoice
from tokenspeed.contracts.parser import ParsedDelta
from tokenspeed.errors import CapabilityError
from tokenspeed.parsers.deepseek import CALLS, SEPARATOR
from tokenspeed.plugins import load_plugins
from tokenspeed.server.parser_choice import ParserChooser
from tokenspeed.server.parsers import ChosenParsers
from tokenspeed.tokenizer.chat import ChatTemplate

TOOL = Tool("now")
IM = "<|im_start|>assistant"
THINK = "{{ '<think>' }}{{ '</think>' }}"


def choose(
    source: str | None, model_type: str = "", *, tools: str = "auto", reasoning: str = "auto"
) -> ChosenParsers:
    template = None if source is None else ChatTemplate(source)
    registry = load_plugins((), role="api")
    chooser = ParserChooser(registry, template=template, model_type=model_type)
    return chooser.choose(tools=tools, reasoning=reasoning)


def pins(chosen: ChosenParsers) -> tuple[str, ...]:
    return tuple(pin.removeprefix("core/") for _, pin in chosen.pins)


@pytest.mark.parametrize(
    ("marks", "model_type", "tools", "reasoning"),
    [
        (IM + "<tool_call>", "qwen2", "hermes", "none"),
        (IM + "<tool_call>" + THINK, "qwen3", "hermes", "qwen3"),
        (
            IM + "<tool_call><function=x><parameter=y>" + THINK,
            "qwen3_5",
            "qwen3_coder",
            "qwen3",
        ),
        (
            "<|observation|><tool_call><arg_key><arg_value>" + THINK,
            "glm4_moe",
            "glm45",
            "glm",
        ),
        ("", "llama", "llama3_json", "none"),
        ('{"name": x, "parameters": dictionary of argument name}', "", "llama3_json", "none"),
        ("[func_name1(params_name1=1)]", "llama4", "pythonic", "none"),
        ("[TOOL_CALLS]", "mistral", "mistral", "none"),
        ("[TOOL_CALLS][ARGS]", "mistral3", "mistral_named", "none"),
        (
            "<\uff5cAssistant\uff5c>" + CALLS + SEPARATOR + "```json" + THINK,
            "deepseek_v3",
            "deepseek_v3",
            "deepseek_r1",
        ),
        (CALLS + SEPARATOR, "deepseek_v3", "deepseek_v31", "deepseek_r1"),
        ("<|im_middle|><|tool_calls_section_begin|>" + THINK, "kimi_k2", "kimi_k2", "kimi"),
        ("<tool_calls>", "minimax", "minimax_m1", "none"),
        ("<minimax:tool_call>" + THINK, "minimax_m2", "minimax_m2", "minimax"),
        ("<|start|><|channel|><|message|>", "gpt_oss", "gpt_oss", "gpt_oss"),
        ("no marks", "other", "none", "none"),
        ("no marks" + THINK, "other", "none", "think"),
    ],
)
def test_the_template_and_the_type_tell_the_parsers(
    marks: str, model_type: str, tools: str, reasoning: str
) -> None:
    source = "{% if tools %}{{ tools }}{% endif %}{{ messages }}" + marks
    assert pins(choose(source, model_type)) == (tools, reasoning)


def test_a_template_that_knows_no_tools_has_no_parser_of_calls_and_says_so() -> None:
    chosen = choose("{{ messages }}<tool_call>", "qwen3")
    assert pins(chosen) == ("none", "qwen3")
    assert "knows no tools" in chosen.refusal
    assert "knows no tools" in choose("{{ messages }}", tools="hermes").refusal
    assert "knows no tools" in choose(None).refusal
    assert "--tool-parser none" in choose(HERMES_TEMPLATE, tools="none").refusal
    assert "--tool-parser NAME" in choose("{{ tools }}").refusal
    assert choose(HERMES_TEMPLATE).refusal == ""


def test_names_win_and_wrong_ones_are_refused_with_those_there_are() -> None:
    chosen = choose(HERMES_TEMPLATE, tools="core/kimi_k2", reasoning="none")
    assert pins(chosen) == ("kimi_k2", "none")
    with pytest.raises(CapabilityError, match=r"tool_parser 'hermse' is not .* mean 'core/hermes'"):
        choose(HERMES_TEMPLATE, tools="hermse")
    with pytest.raises(CapabilityError, match=r"reasoning_parser 'hermes' is not offered"):
        choose(HERMES_TEMPLATE, reasoning="hermes")


def test_two_offers_read_one_answer_together() -> None:
    chosen = choose(HERMES_TEMPLATE, "qwen3")
    assert chosen.form is not None
    assert chosen.form.pin == "core/qwen3 + core/hermes"
    assert chosen.form.parses == {"reasoning", "tool_calls"}
    answer = chosen.form.start("<think>\n", tools=(TOOL,))
    parsed, was_reasoning = answer.feed('I call <tool_call>{"name": "now", "arguments": {}}')
    assert (parsed.reasoning, was_reasoning) == ("I call ", True)
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("now", "{}")]
    assert parsed.tool_calls[0].call_id.startswith("call_")
    assert answer.finish() == ParsedDelta()


def test_one_offer_that_reads_both_is_loaded_once() -> None:
    form = choose("{{ tools }}<|start|><|channel|><|message|>").form
    assert form is not None
    assert form.pin == "core/gpt_oss"
    assert form.parses == {"reasoning", "tool_calls"}


def test_a_grammar_holds_behind_the_reasoning_unless_the_prompt_closed_it() -> None:
    form = choose(HERMES_TEMPLATE, "qwen3").form
    assert form is not None
    assert form.language_start("<|im_start|>assistant\n") == "</think>"
    assert form.language_start("<think>\n\n</think>\n\n") == ""
    assert form.language_start("", of_calls=True) == "</think>"
    assert form.structure((TOOL,), ToolChoice()) is not None
    channels = choose("{{ tools }}<|start|><|channel|><|message|>").form
    assert channels is not None
    assert channels.language_start("<|start|>assistant") == "<|channel|>final<|message|>"
    assert channels.language_start("<|start|>assistant", of_calls=True) == ""
    plain = choose(HERMES_TEMPLATE, reasoning="none", tools="pythonic").form
    assert plain is not None
    assert plain.structure((TOOL,), ToolChoice()) is None
    assert plain.language_start("x") == ""
