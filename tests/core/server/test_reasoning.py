"""Chat answers with `--reasoning-parser think`: messages, deltas, usage, choices, history."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from openai import OpenAI
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRIPT = "I add.\n</think>\n\nFour."
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if think %}<think>\n{% endif %}"
    "{% endif %}"
)
THINKING = {"chat_template_kwargs": {"think": True}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("thinker")
    model = write_scripted_model(folder / "thinker", script=SCRIPT, max_position_embeddings=512)
    config = model / "tokenizer_config.json"
    fields = json.loads(config.read_text()) | {"chat_template": TEMPLATE}
    config.write_text(json.dumps(fields))
    with ServerProcess(model, folder, "--reasoning-parser", "think") as running:
        yield running


def ask(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    messages = fields.pop("messages", [{"role": "user", "content": "2 + 2?"}])
    answer = server.call(
        "/v1/chat/completions", {"model": "thinker", "messages": messages, **fields}
    )
    assert answer.status == 200, answer.body
    body: dict[str, Any] = answer.json()
    return body


def test_a_block_that_the_template_opened_is_reasoning(server: ServerProcess) -> None:
    body = ask(server, **THINKING)
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I add.", "Four.")
    assert body["choices"][0]["finish_reason"] == "stop"
    details = body["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": len("I add.\n</think>")}


def test_without_an_open_block_all_is_content(server: ServerProcess) -> None:
    body = ask(server)
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (None, SCRIPT)
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_deltas_of_several_choices_add_up_to_their_messages(server: ServerProcess) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(
        model="thinker",
        messages=[{"role": "user", "content": "2 + 2?"}],
        n=3,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=THINKING,
    )
    thoughts, contents, usage = [""] * 3, [""] * 3, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            thought = getattr(choice.delta, "reasoning_content", None) or ""
            assert not (thought and contents[choice.index]), "reasoning comes first"
            thoughts[choice.index] += thought
            contents[choice.index] += choice.delta.content or ""
    assert (thoughts, contents) == (["I add."] * 3, ["Four."] * 3)
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 3 * len("I add.\n</think>")


@pytest.mark.parametrize(
    ("stop", "reasoning", "content"), [("add", "I ", ""), ("ur", "I add.", "Fo")]
)
def test_a_stop_string_ends_the_answer_wherever_it_stands(
    server: ServerProcess, stop: str, reasoning: str, content: str
) -> None:
    choice = ask(server, stop=stop, **THINKING)["choices"][0]
    assert choice["message"]["reasoning_content"] == reasoning
    assert choice["message"]["content"] == content
    assert choice["finish_reason"] == "stop"


def test_an_answer_that_is_cut_while_thinking_has_no_content(server: ServerProcess) -> None:
    choice = ask(server, max_tokens=4, **THINKING)["choices"][0]
    assert choice["message"]["reasoning_content"] == "I ad"
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")


def test_an_answer_can_be_sent_back_with_its_reasoning(server: ServerProcess) -> None:
    first = ask(server, **THINKING)["choices"][0]["message"]
    said = [{"role": "user", "content": "2 + 2?"}, first, {"role": "user", "content": "Sure?"}]
    with_it = ask(server, messages=said)["usage"]["prompt_tokens"]
    said[1] = {**first, "reasoning_content": None}
    without = ask(server, messages=said)["usage"]["prompt_tokens"]
    assert with_it - without == len("<think>I add.</think>")


def test_plain_completions_are_left_as_they_are(server: ServerProcess) -> None:
    answer = server.call("/v1/completions", {"model": "thinker", "prompt": "<think>\n"}).json()
    assert answer["choices"][0]["text"] == SCRIPT
    assert "completion_tokens_details" not in answer["usage"]


def test_a_wrong_name_ends_the_start(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", script=SCRIPT)
    flags = ("--plugins", "sdk", "--port", "0", "--reasoning-parser", "thnik")
    done = run_cli("serve", str(model), *flags)
    assert done.returncode == 5
    assert "reasoning_parser 'thnik' is not offered" in done.stderr
    assert "core/think" in done.stderr
