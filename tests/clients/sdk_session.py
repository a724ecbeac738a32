"""A session over the vendors' own libraries: python sdk_session.py KIND URL MODEL PROMPT...

Runs with the clients' interpreter, which has none of our packages. Prints the text that answers
each prompt. Tools are not strict: the language of strict calls has one spelling, and the tests'
model has its own.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

NAME = "shell"
DESCRIPTION = "Runs a command."
SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}
MAX_TURNS = 6


def shell(command: str) -> str:
    """Run a command; return what it prints."""
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout


class OpenAiChat:
    """Streams chat completions with the helper that adds up chunks."""

    def __init__(self, url: str, model: str) -> None:
        import openai

        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="x")
        function = {"name": NAME, "description": DESCRIPTION, "parameters": SCHEMA}
        tools: Any = [{"type": "function", "function": function}]
        self._fixed: Any = {
            "model": model,
            "tools": tools,
            "stream_options": {"include_usage": True},
        }
        self._messages: list[Any] = []

    def ask(self, prompt: str) -> str:
        """Go on until the model calls nothing."""
        self._messages.append({"role": "user", "content": prompt})
        for _ in range(MAX_TURNS):
            given = {**self._fixed, "messages": self._messages}
            with self._client.chat.completions.stream(**given) as stream:
                said = stream.get_final_completion().choices[0].message
            kept = said.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
            self._messages.append(kept)
            for call in said.tool_calls or []:
                output = shell(**json.loads(call.function.arguments))
                self._messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
            if not said.tool_calls:
                return said.content or ""
        raise RuntimeError("the session does not end")


class OpenAiResponses:
    """Streams responses; the server stores the conversation."""

    def __init__(self, url: str, model: str) -> None:
        import openai

        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="x")
        tools: Any = [
            {"type": "function", "name": NAME, "description": DESCRIPTION, "parameters": SCHEMA}
        ]
        self._fixed: Any = {"model": model, "tools": tools}
        self._previous: Any = openai.NOT_GIVEN

    def ask(self, prompt: str) -> str:
        """Go on until the model calls nothing."""
        given: Any = prompt
        for _ in range(MAX_TURNS):
            with self._client.responses.stream(
                **self._fixed, input=given, previous_response_id=self._previous
            ) as stream:
                response = stream.get_final_response()
            self._previous = response.id
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return str(response.output_text)
            given = [
                {
                    "type": "function_call_output",
                    "call_id": call.call_id,
                    "output": shell(**json.loads(call.arguments)),
                }
                for call in calls
            ]
        raise RuntimeError("the session does not end")


class AnthropicMessages:
    """Streams messages; the first prompt is counted before it is sent.

    A later one may be longer than what is counted: it goes on from the model's own tokens.
    """

    def __init__(self, url: str, model: str) -> None:
        import anthropic

        self._client = anthropic.Anthropic(base_url=url, api_key="x")
        tools: Any = [{"name": NAME, "description": DESCRIPTION, "input_schema": SCHEMA}]
        self._fixed: Any = {"model": model, "tools": tools}
        self._messages: list[Any] = []

    def ask(self, prompt: str) -> str:
        """Go on until the model calls nothing."""
        self._messages.append({"role": "user", "content": prompt})
        for _ in range(MAX_TURNS):
            given = {**self._fixed, "messages": self._messages}
            is_first = len(self._messages) == 1
            counted = self._client.messages.count_tokens(**given).input_tokens if is_first else 0
            with self._client.messages.stream(max_tokens=1000, **given) as stream:
                said = stream.get_final_message()
            if is_first:
                assert _prompt_tokens(said.usage) == counted, (said.usage, counted)
            self._messages.append({"role": "assistant", "content": said.content})
            calls = [block for block in said.content if block.type == "tool_use"]
            if not calls:
                return str(said.content[-1].text)
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": shell(**call.input)}
                for call in calls
            ]
            self._messages.append({"role": "user", "content": results})
        raise RuntimeError("the session does not end")


def _prompt_tokens(usage: Any) -> int:
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    return int(usage.input_tokens + (read or 0) + (written or 0))


class OpenAiAgents:
    """Lets the runner of openai-agents do it all, over chat completions."""

    def __init__(self, url: str, model: str) -> None:
        import agents
        import openai

        agents.set_tracing_disabled(True)
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x")
        served = agents.OpenAIChatCompletionsModel(model=model, openai_client=client)
        tool = agents.function_tool(shell, strict_mode=False)
        self._agent = agents.Agent(
            name="agent", instructions="Use tools.", model=served, tools=[tool]
        )
        self._run = agents.Runner.run
        self._items: list[Any] = []

    def ask(self, prompt: str) -> str:
        """Go on until the model calls nothing."""
        said = {"role": "user", "content": prompt}
        result = asyncio.run(self._run(self._agent, [*self._items, said]))
        self._items = result.to_input_list()
        return str(result.final_output)


KINDS = {
    "openai-chat": OpenAiChat,
    "openai-responses": OpenAiResponses,
    "anthropic": AnthropicMessages,
    "openai-agents": OpenAiAgents,
}

if __name__ == "__main__":
    kind, url, model, *prompts = sys.argv[1:]
    session = KINDS[kind](url, model)
    for prompt in prompts:
        print(session.ask(prompt))
