"""A scripted model that walks through a dialogue with tools: for tests of agents' clients.

The user's text and each tool's answer must bring the marker once: the commands that the script has
tools run spell it in two pieces, so that only what they print holds it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.scripted import byte_tokenizer, write_scripted_model
from tokenizers import AddedToken

MARKER = "[[step]]"
SAY_MARKER = "printf '[[%s]]' step"
"""Shell command that prints the marker and does not hold it."""

HERMES_TEMPLATE = """
{%- set head = messages[0]['content'] + '\n' if messages[0]['role'] == 'system' else '' -%}
{%- if tools %}
    {{- '<|im_start|>system\n' + head + '<tools>\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + '\n' }}
    {%- endfor %}
    {{- '</tools><|im_end|>\n' }}
{%- elif head %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- endif %}
{%- for message in (messages[1:] if head else messages) %}
    {%- if message['role'] == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message['content'] + '\n</tool_response>' }}
    {%- else %}
        {{- '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}
        {%- for call in message['tool_calls'] or [] %}
            {{- '\n' if message['content'] or not loop.first }}
            {{- '<tool_call>\n{"name": "' + call['function']['name'] + '", "arguments": ' }}
            {{- call['function']['arguments'] | tojson + '}\n</tool_call>' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\n' if add_generation_prompt }}"""
"""Tools and calls as Qwen's templates write them."""


def hermes_call(name: str, arguments: dict[str, Any]) -> str:
    """Return a call as the model writes it."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def write_dialogue_model(
    folder: Path,
    answers: Sequence[str],
    *,
    template: str = HERMES_TEMPLATE,
    specials: Sequence[str] = (),
    ends: Sequence[str] = ("<|im_end|>",),
    **fields: Any,
) -> Path:
    """Write a model folder for `--plugins sdk` and return it.

    Args:
        answers: by the number of markers in the prompt; may hold the token that ends them.
        specials: special tokens of the template, beside those of the byte tokenizer.
        ends: tokens that end an answer.
        fields: of config.json.
    """
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    tokenizer.add_tokens([MARKER])
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in answers]
    marker = tokenizer.token_to_id(MARKER)
    dialogue = {"mode": "dialogue", "marker": marker, "answers": ids}
    fields = {"max_position_embeddings": 1 << 18, **dialogue, **fields}
    write_scripted_model(folder, tokenizer=tokenizer, **fields)
    texts = {"eos_token": ends[0], "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(texts), encoding="utf-8")
    stops = {"eos_token_id": [tokenizer.token_to_id(end) for end in ends]}
    (folder / "generation_config.json").write_text(json.dumps(stops), encoding="utf-8")
    return folder
