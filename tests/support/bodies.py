"""A fine body for each route that takes one, without the model's name."""

from __future__ import annotations

from typing import Any

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
MARK = {"type": "ephemeral"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "Be."},
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": MARK}]},
            {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "out"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "tool_choice": "auto", "max_tokens": 9, "stop": ["x"], "reasoning_effort": "low",
        "logit_bias": {"1": 2}, "stream_options": {"include_usage": True},
    },
    "/v1/completions": {"prompt": ["a", "b"], "max_tokens": 3, "logprobs": 1, "n": 2},
    "/v1/messages": {
        "system": [{"type": "text", "text": "Be.", "cache_control": MARK}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "", "signature": "tsp1pAAAA"},
                {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"x": [1]}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [
                    {"type": "text", "text": "out"}]}]},
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}, {"type": "bash_20250124", "name": "b"}],
        "tool_choice": {"type": "auto"}, "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "low"}, "max_tokens": 9, "stop_sequences": ["x"],
    },
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [], "encrypted_content": "tsp1pAAAA"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "out"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}, {"type": "web_search"},
                  {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]}],
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}}, "metadata": {"k": "v"}, "max_output_tokens": 9,
        "previous_response_id": None, "instructions": "Be.", "tool_choice": "auto",
    },
    "/tokenize": {"messages": [{"role": "user", "content": "x"}]},
    "/detokenize": {"tokens": [1, 2, 3]},
}  # fmt: skip
