"""Templates render as transformers' apply_chat_template renders them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.texts import trained_bpe

from tokenspeed.errors import ConfigError, RequestError
from tokenspeed.tokenizer import ChatTemplate
from tokenspeed.tokenizer.sandbox import ChatEnvironment

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}\
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- for tool in tools %}
        {{- "\n" }}{{ tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\n" }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages %}
    {%- if message.role == "tool" %}{{- '<tool_response>' + message.content + '</tool_response>' }}
    {%- elif message.tool_calls %}
        {%- for call in message.tool_calls %}
            {{- '<tool_call>' }}{{ call.function | tojson(indent=2) }}{{- '</tool_call>' }}
        {%- endfor %}
    {%- else %}
        {%- if message.reasoning_content %}
            {{- '<think>' + message.reasoning_content + '</think>' }}
        {%- endif %}
        {{- message.role ~ ': ' ~ message.content }}
    {%- endif %}
    {% if loop.index0 == ns.last %}{% continue %}{% endif %}

{%- endfor %}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think></think>' }}{% endif %}"""

PARTS = """{{- bos_token }}
{% for message in messages %}
    {% if message['content'] is string %}
{{ message['role'] }}|{{ message['content'] | trim }}
    {% else %}
        {% for part in message['content'] %}
            {% if part['type'] == 'text' %}
{{ part['text'] }}
            {% endif %}
        {% endfor %}
    {% endif %}
    {% generation %}
{{ message.role }}
    {% endgeneration %}
{% endfor %}
{% if documents is none %}no documents{% endif %}{{ strftime_now('%Y') }}"""

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief> & 'kind' \u4f60"},
    {"role": "user", "content": "  hi \n", "name": None},
    {"role": "assistant", "content": "ok", "thinking": "hm", "tool_calls": None},
    {"role": "user", "content": "bye"},
]
CALLS: list[dict[str, Any]] = [
    {"role": "user", "content": "call"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"x": "\u00e9"}}}
        ],
    },
    {"role": "tool", "content": "42"},
]
PARTED: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def transformers_text(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained_bpe(), bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    text: str = tokenizer.apply_chat_template(
        messages, chat_template=source, tokenize=False, **options
    )
    return text


@pytest.mark.parametrize(
    ("source", "messages", "options"),
    [
        (CHATML, CHAT, {"add_generation_prompt": True}),
        (CHATML, CHAT[1:], {"add_generation_prompt": False}),
        (TOOLS, CHAT, {"add_generation_prompt": True}),
        (TOOLS, CALLS, {"add_generation_prompt": True, "tools": [TOOL], "enable_thinking": False}),
        (PARTS, CHAT, {"add_generation_prompt": True}),
        (PARTS, PARTED, {"add_generation_prompt": True}),
    ],
)
def test_text_equals_transformers(
    source: str, messages: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    specials = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    ours = ChatTemplate(source, variables=specials).render(messages, **options)
    assert ours == transformers_text(source, messages, **options)


def test_text_parts_are_joined_where_the_template_reads_strings() -> None:
    joined = [{"role": "user", "content": "a\nb"}]
    template = ChatTemplate(CHATML)
    assert template.render(PARTED) == template.render(joined)


@pytest.mark.parametrize("part", [{"type": "image_url"}, "text", {"type": "text", "text": 3}])
def test_parts_that_are_not_text_are_refused(part: object) -> None:
    with pytest.raises(RequestError, match=r"messages\[0\]") as caught:
        ChatTemplate(PARTS).render([{"role": "user", "content": [part]}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + missing.deep }}", "missing"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ''.__class__.__mro__ }}", "__class__"),
    ],
)
def test_a_failing_template_is_a_request_error_with_its_message(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


def test_a_broken_template_is_a_config_error_with_its_line() -> None:
    with pytest.raises(ConfigError, match="template of tiny: line 2"):
        ChatTemplate("a\n{% if %}", name="tiny")


def test_the_messages_of_the_caller_are_left_alone() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": None}]
    before = repr(messages)
    ChatTemplate(CHATML).render(messages)
    assert repr(messages) == before


GROWING = "{% set ns = namespace(x='abcdefgh') %}{% for i in range(60) %}SET{% endfor %}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for a in range(9999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "0.05 s"),
        ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
         "0.05 s"),
        ("{% for a in range(9999) %}{{ 'x' * 500 }}{% endfor %}", "at most 100000"),
        ("{{ 'x' * 10**9 }}", "at most 100000"),
        ("{{ [0] * 10**9 }}", "at most 100000"),
        ("{{ 10 ** (10 ** 9) }}", "power"),
        ("{{ 'x'.center(10**9) }}", "at most 100000"),
        (GROWING.replace("SET", "{% set ns.x = ns.x ~ ns.x %}"), "at most 100000"),
        (GROWING.replace("SET", "{% set ns.x = (1, 'a' ~ (ns.x ~ ns.x))[1] %}"), "at most 100000"),
        (GROWING.replace("SET", "{% set ns.x = ns.x + ns.x %}"), "at most 100000"),
        (GROWING.replace("SET", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
         "at most 100000"),
    ],
)  # fmt: skip
def test_a_template_that_does_too_much_is_ended(source: str, message: str) -> None:
    bounds = ChatEnvironment(max_cpu_s=0.05, max_chars=100_000)
    with pytest.raises(RequestError, match=message):
        ChatTemplate(source, environment=bounds).render([{"role": "user", "content": "x"}])


def test_the_budget_of_one_rendering_is_not_the_next_ones() -> None:
    template = ChatTemplate(CHATML, environment=ChatEnvironment(max_cpu_s=0.5, max_chars=200))
    texts = {template.render([{"role": "user", "content": "x"}]) for _ in range(50)}
    assert len(texts) == 1


def test_loop_variables_are_those_of_the_list() -> None:
    source = (
        "{% for m in messages recursive %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}"
        "{% if m.role %}{{ loop(m.content) }}{% endif %}{% else %}none{% endfor %}"
        "{% for x in nothing %}{% else %}empty{% endfor %}"
        "{% for m in messages if m.role != 'user' %}{{ loop.revindex }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "ab"}, {"role": "system", "content": "c"}]
    text = transformers_text(source, messages)
    assert ChatTemplate(source).render(messages) == text
    assert "1/2False" in text


def test_the_reason_of_a_refusal_is_short() -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate("{{ raise_exception(messages[0].content) }}").render(
            [{"role": "user", "content": "x" * 100_000}]
        )
    assert len(str(caught.value)) < 1000


def test_any_name_can_be_a_template_variable() -> None:
    text = ChatTemplate("{{ func }}{{ context }}").render([], self=1, func=2, context=3, args=4)
    assert text == "23"


@pytest.mark.parametrize("source", ["{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "{{ x | nope }}"])
def test_a_template_that_cannot_be_compiled_is_a_config_error(source: str) -> None:
    with pytest.raises(ConfigError, match=r"template of the model.*chat_template\.jinja"):
        ChatTemplate(source)
