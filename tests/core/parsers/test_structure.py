"""The language of strict calls holds what the format's parser reads, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.parser_answers import WRITERS

from tokenspeed.contracts.conversation import Tool, ToolChoice
from tokenspeed.parsers.formats import FORMATS
from tokenspeed.plugins.targets import resolve

xgrammar = pytest.importorskip("xgrammar")

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = (Tool("weather", parameters=SCHEMA, strict=True), Tool("now"))
GOOD = ("weather", {"city": "Paris \u00e9", "days": 3})
FREE = ("now", {"zone": "x"})
BAD = ("weather", {"city": "Paris", "days": "x"})
UNKNOWN = ("rain", {})
END = 256
WHOLE = ["hermes", "qwen3_coder", "glm45", "llama3_json", "mistral", "mistral_named v13"]
WHOLE += ["deepseek_v3", "deepseek_v31", "kimi_k2", "minimax_m2"]


def accepts(name: str, text: str, choice: ToolChoice) -> bool:
    """Say whether an answer may be this text and end there."""
    parser: Any = resolve(FORMATS[name.split()[0]].path)()
    spec = parser.structure(TOOLS, choice)
    assert spec.kind == "structural_tag"
    vocabulary = [bytes([byte]) for byte in range(END)] + [b"</s>"]
    info = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[END])
    compiled = xgrammar.GrammarCompiler(info).compile_structural_tag(spec.text)
    matcher = xgrammar.GrammarMatcher(compiled)
    return bool(matcher.accept_string(text) and matcher.accept_token(END))


@pytest.mark.parametrize("name", WHOLE)
def test_calls_as_the_model_writes_them_belong_to_it(name: str) -> None:
    write = WRITERS[name].calls
    for choice in (ToolChoice(), ToolChoice("required")):
        assert accepts(name, write([GOOD]), choice)
        assert accepts(name, write([GOOD, FREE]), choice)
        assert not accepts(name, write([BAD]), choice)
        assert not accepts(name, write([UNKNOWN]), choice)


@pytest.mark.parametrize("name", WHOLE)
def test_text_and_other_tools_belong_to_it_only_where_they_may(name: str) -> None:
    write = WRITERS[name].calls
    assert accepts(name, "It rains.", ToolChoice())
    assert not accepts(name, "It rains.", ToolChoice("required"))
    named = ToolChoice("named", "now")
    assert accepts(name, write([FREE]), named)
    assert not accepts(name, write([GOOD]), named)
    assert not accepts(name, write([FREE, GOOD]), ToolChoice("required", parallel=False))


def test_of_channels_the_head_of_a_call_is_demanded() -> None:
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    head = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    for choice in (ToolChoice(), ToolChoice("required")):
        assert accepts("gpt_oss", thought + head + '{"city": "x", "days": 1}', choice)
        assert not accepts("gpt_oss", thought + head + '{"city": 1}', choice)
    final = "<|channel|>final<|message|>Hi"
    assert accepts("gpt_oss", thought + final, ToolChoice())
    assert not accepts("gpt_oss", thought + final, ToolChoice("required"))
