"""A session over the vendors' own libraries: python sdk_session.py KIND URL MODEL PROMPT.

Runs with the clients' interpreter, which has none of our packages. Prints the final text.
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


def openai_chat(url: str, model: str, prompt: str) -> str:
    """Stream chat completions with the helper that adds up chunks."""
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x")
    function = {"name": NAME, "description": DESCRIPTION, "parameters": SCHEMA, "strict": True}
    tools: Any = [{"type": "function", "function": function}]
    messages: list[Any] = [{"role": "user", "content": prompt}]
    for _ in range(MAX_TURNS):
        with client.chat.completions.stream(model=model, messages=messages, tools=tools) as stream:
            said = stream.get_final_completion().choices[0].message
        messages.append(
            said.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
        )
        for call in said.tool_calls or []:
            output = shell(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
        if not said.tool_calls:
            return said.content or ""
    raise RuntimeError("the session does not end")


def openai_responses(url: str, model: str, prompt: str) -> str:
    """Stream responses; the server stores the conversation."""
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x")
    tools: Any = [
        {"type": "function", "name": NAME, "description": DESCRIPTION, "parameters": SCHEMA}
    ]
    given: Any = prompt
    previous: Any = openai.NOT_GIVEN
    for _ in range(MAX_TURNS):
        with client.responses.stream(
            model=model, input=given, tools=tools, previous_response_id=previous
        ) as stream:
            response = stream.get_final_response()
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        previous = response.id
        given = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": shell(**json.loads(call.arguments)),
            }
            for call in calls
        ]
    raise RuntimeError("the session does not end")


def anthropic_messages(url: str, model: str, prompt: str) -> str:
    """Stream messages; each prompt is counted before it is sent."""
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="x")
    tools: Any = [{"name": NAME, "description": DESCRIPTION, "input_schema": SCHEMA}]
    messages: list[Any] = [{"role": "user", "content": prompt}]
    for _ in range(MAX_TURNS):
        given: Any = {"model": model, "tools": tools, "messages": messages}
        counted = client.messages.count_tokens(**given).input_tokens
        with client.messages.stream(max_tokens=1000, **given) as stream:
            said = stream.get_final_message()
        usage = said.usage
        read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
        assert usage.input_tokens + (read or 0) + (written or 0) == counted, (usage, counted)
        calls = [block for block in said.content if block.type == "tool_use"]
        if not calls:
            return said.content[-1].text
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": shell(**call.input)}
            for call in calls
        ]
        messages += [
            {"role": "assistant", "content": said.content},
            {"role": "user", "content": results},
        ]
    raise RuntimeError("the session does not end")


def openai_agents(url: str, model: str, prompt: str) -> str:
    """Let the runner of openai-agents do the whole session, over chat completions."""
    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x")
    tool = agents.function_tool(shell)
    served = agents.OpenAIChatCompletionsModel(model=model, openai_client=client)
    agent = agents.Agent(name="agent", instructions="Use tools.", model=served, tools=[tool])
    return str(asyncio.run(agents.Runner.run(agent, prompt)).final_output)


KINDS = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic_messages,
    "openai-agents": openai_agents,
}

if __name__ == "__main__":
    print(KINDS[sys.argv[1]](*sys.argv[2:]))
