"""Four families of chat templates, small, with what a model of each writes: for continuations.

strips      thinking of answers before the last user message is left out (Qwen3)
keeps       thinking stays in every answer (GLM, MiniMax)
positional  tools stand before the last user message, wherever that is (Mistral)
channels    thinking, answer and calls are messages of their own; an old answer ends in another
            token than a new one (gpt-oss)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_CHATML_HEAD = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{% endif %}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}
{%- set ns = namespace(last=-1) %}{%- for m in messages %}
{%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"""
_CHATML_TURNS = """\
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if KEEP and m.reasoning_content %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
_POSITIONAL = """\
{{- '<s>' }}{%- set ns = namespace(last=-1) %}{%- for m in messages %}
{%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role in ('user', 'system') %}
{%- if tools and loop.index0 == ns.last %}
{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'tool' %}{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
{%- elif m.tool_calls %}
{{- '[TOOL_CALLS][' }}{% for call in m.tool_calls %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- ', "id": "' + call.id + '"}' }}{{- ', ' if not loop.last }}{% endfor %}{{- ']</s>' }}
{%- else %}{{- m.content | trim + '</s>' }}{% endif %}{% endfor %}"""
_CHANNELS = """\
{%- macro old(m, end) %}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + end }}
{%- endmacro %}
{%- set ns = namespace(name=none) %}
{%- if tools %}{{- '<|start|>developer<|message|>' + (tools | tojson) + '<|end|>' }}{% endif %}
{%- for m in messages %}
{%- if m.role in ('user', 'system') %}
{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
{%- elif m.role == 'tool' %}
{%- if ns.name is none %}{{ raise_exception('a tool answers no call') }}{% endif %}
{{- '<|start|>functions.' + ns.name + ' to=assistant<|channel|>commentary<|message|>' }}
{{- m.content | tojson + '<|end|>' }}
{%- elif m.tool_calls %}
{%- set call = m.tool_calls[0].function %}{%- set ns.name = call.name %}
{%- if m.reasoning_content %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.reasoning_content + '<|end|>' }}
{%- endif %}
{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
{{- call.arguments | tojson + '<|call|>' }}
{%- else %}{%- set ns.name = none %}
{{- old(m, '<|return|>' if loop.last and not add_generation_prompt else '<|end|>') }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{% endif %}"""


@dataclass(frozen=True, slots=True)
class Family:
    """A template and its model's habits.

    Args:
        specials: special tokens beside those of the byte tokenizer.
        ends: tokens that end an answer: its text's, its call's.
        answer: what the model writes, with {think} and {text}.
        call: with {think}, {text}, {name} and {arguments}; written as no template would.
        old_end: what the template writes behind an old answer and an old call.
        puts_tools_last: tools come again with each new user message.
    """

    name: str
    template: str
    specials: tuple[str, ...]
    ends: tuple[str, str]
    answer: str
    call: str
    old_end: tuple[str, str]
    puts_tools_last: bool = False

    def write_answer(self, text: str) -> str:
        """Return an answer as the model writes it, with the token that ends it."""
        return self.answer.format(think=THOUGHT, text=text) + self.ends[0]

    def write_call(self, text: str, name: str, arguments: dict[str, Any], call_id: str) -> str:
        """Return a call with a text before it, as far as the format has a place for one.

        Args:
            call_id: nine letters and digits; for formats that write ids.
        """
        spaced = json.dumps(arguments, separators=(" ,", ":  "))
        filled = self.call.format(
            think=THOUGHT, text=text, name=name, arguments=spaced, call_id=call_id
        )
        return filled + self.ends[1]


THOUGHT = "One step\nafter the other."
_THINK = "<think>\n{think}\n</think>\n"
"""With one line end less than the templates have."""
_CALL = '<tool_call>\n{{"name":  "{name}", "arguments":{arguments} }}\n</tool_call>'


def _chatml(name: str, keep: str) -> Family:
    return Family(
        name,
        _CHATML_HEAD + _CHATML_TURNS.replace("KEEP", keep),
        (),
        ("<|im_end|>", "<|im_end|>"),
        _THINK + "{text}",
        _THINK + "{text}" + _CALL,
        ("<|im_end|>\n", "<|im_end|>\n"),
    )


FAMILIES = {
    family.name: family
    for family in (
        _chatml("strips", "loop.index0 > ns.last"),
        _chatml("keeps", "true"),
        Family(
            "positional",
            _POSITIONAL,
            ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
            + ("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
            ("</s>", "</s>"),
            " {text} ",
            '{text}[TOOL_CALLS] [{{"name":"{name}","arguments": {arguments}, "id":"{call_id}"}}]',
            ("</s>", "</s>"),
            puts_tools_last=True,
        ),
        Family(
            "channels",
            _CHANNELS,
            ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"),
            ("<|return|>", "<|call|>"),
            "<|channel|>analysis<|message|>{think}<|end|><|start|>assistant"
            "<|channel|>final<|message|>{text}",
            "<|channel|>analysis<|message|>{think}<|end|><|start|>assistant<|channel|>commentary "
            "to=functions.{name} json<|message|>{arguments} ",
            ("<|end|>", "<|call|>"),
        ),
    )
}
