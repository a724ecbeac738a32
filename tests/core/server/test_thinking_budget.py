"""Budgets and efforts of thinking in all three APIs, over a model that says a script.

The script goes by the place in the answer, so behind a forced end it goes on where it would be.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.dialogue import MARKER, hermes_call, write_dialogue_model
from tests.support.scripted import byte_tokenizer, write_scripted_model
from tests.support.server import ServerProcess
from tokenizers import AddedToken

from tokenspeed.grammar.thinking import BudgetedThinking
from tokenspeed.parsers.harmony import Harmony
from tokenspeed.server.conversation.thinking import Thinking
from tokenspeed.server.parsers import AnswerFormat
from tokenspeed.tokenizer.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

THOUGHT = "".join(chr(ord("a") + place % 26) for place in range(50))
END = "</think>"
SCRIPT = f"{THOUGHT}{END}\n\nFour."
CUT = THOUGHT[5 + len(END) :] + END + "\n\nFour."
"""What is left for the answer when the thought was ended after 5 tokens."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "<|im_end|>\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)
USER = [{"role": "user", "content": "2 + 2?"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


CALL = hermes_call("f", {"x": 1})
CALLED_BEHIND = f"abcde{'_' * len(END)}{CALL}"
CALLED_WITHIN = f"abc{CALL}"
LONG = "x" * 600 + END + "Four."
ANSWERS = (SCRIPT, CALLED_BEHIND, CALLED_WITHIN, LONG)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("budgets")
    model = write_dialogue_model(
        folder / "m", ANSWERS, template=TEMPLATE, max_position_embeddings=1024
    )
    flags = ("--reasoning-parser", "think", "--tool-parser", "hermes")
    with ServerProcess(model, folder, *flags) as running:
        yield running


def ask_for(script: str) -> list[dict[str, str]]:
    """Return messages whose answer is a script."""
    return [{"role": "user", "content": MARKER * ANSWERS.index(script)}]


def chat(server: ServerProcess, **fields: Any) -> tuple[str | None, str, Any]:
    """Return the thinking, the answer and the usage of a chat."""
    body = {"model": "m", "messages": USER, **fields}
    answer = server.call("/v1/chat/completions", body)
    assert answer.status == 200, answer.body
    message = answer.json()["choices"][0]["message"]
    return message["reasoning_content"], message["content"], answer.json()["usage"]


@pytest.mark.parametrize("field", ["thinking_budget", "thinking_token_budget"])
def test_five_of_fifty_tokens_are_thought_and_then_comes_the_answer(
    field: str, server: ServerProcess
) -> None:
    thought, text, usage = chat(server, **{field: 5})
    assert (thought, text) == (THOUGHT[:5], CUT)
    assert usage["completion_tokens"] == len(SCRIPT) + 1
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 5 + len(END)}


@pytest.mark.parametrize("budget", [50, 51, 57, 58, 10_000])
def test_a_budget_that_is_not_used_up_changes_nothing(budget: int, server: ServerProcess) -> None:
    free = chat(server)
    assert free[:2] == (THOUGHT, "Four.")
    assert chat(server, thinking_budget=budget)[:2] == free[:2]


def test_no_budget_at_all_is_no_thinking(server: ServerProcess) -> None:
    thought, text, _ = chat(server, thinking_budget=0)
    assert (thought, text) == (None, SCRIPT[len(END) :])


def test_streams_of_several_choices_are_cut_alike(server: ServerProcess) -> None:
    body = {"model": "m", "messages": USER, "thinking_budget": 5, "stream": True, "n": 3}
    answer = server.call("/v1/chat/completions", body).body.decode()
    thoughts, texts = [""] * 3, [""] * 3
    for line in answer.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                thoughts[choice["index"]] += choice["delta"].get("reasoning_content") or ""
                texts[choice["index"]] += choice["delta"].get("content") or ""
    assert (thoughts, texts) == ([THOUGHT[:5]] * 3, [CUT] * 3)


def test_messages_have_a_budget_in_their_own_words(server: ServerProcess) -> None:
    asked = {"model": "m", "max_tokens": 500, "messages": USER}
    thinking = {"type": "enabled", "budget_tokens": 5}
    body = server.call("/v1/messages", {**asked, "thinking": thinking}).json()
    assert [block.get("thinking", block.get("text")) for block in body["content"]] == [
        THOUGHT[:5],
        CUT,
    ]
    assert body["usage"]["output_tokens_details"] == {"thinking_tokens": 5 + len(END)}
    adaptive = server.call("/v1/messages", {**asked, "thinking": {"type": "adaptive"}}).json()
    assert adaptive["content"][0]["thinking"] == THOUGHT


def test_responses_take_a_budget_beside_their_effort(server: ServerProcess) -> None:
    asked = {"model": "m", "input": "2 + 2?", "reasoning": {"effort": "low"}}
    body = server.call("/v1/responses", {**asked, "thinking_budget": 5}).json()
    assert [item["content"][0]["text"] for item in body["output"]] == [THOUGHT[:5], CUT]
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 5 + len(END)}


def test_no_effort_is_the_switch_of_the_template(server: ServerProcess) -> None:
    thought, text, usage = chat(server, reasoning_effort="none")
    assert (thought, text) == (None, SCRIPT)
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}
    off = {"model": "m", "max_tokens": 500, "messages": USER, "thinking": {"type": "disabled"}}
    assert server.call("/v1/messages", off).json()["content"] == [{"type": "text", "text": SCRIPT}]


def test_an_answer_behind_a_forced_end_is_kept_in_its_language(server: ServerProcess) -> None:
    pytest.importorskip("xgrammar")
    fields = {"thinking_budget": 5, "guided_choice": ["yes", "no"]}
    thought, text, _ = chat(server, **fields)
    assert thought == THOUGHT[:5]
    assert text in ("yes", "no")


def test_two_budgets_that_differ_are_refused(server: ServerProcess) -> None:
    for fields, param in (
        ({"thinking_budget": 5, "thinking_token_budget": 6}, "thinking_token_budget"),
        ({"thinking_budget": -1}, "thinking_budget"),
    ):
        body = {"model": "m", "messages": USER, **fields}
        answer = server.call("/v1/chat/completions", body)
        assert (answer.status, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("script", "budget", "wanted"),
    [
        (CALLED_BEHIND, 5, "abcde"),
        (CALLED_WITHIN, 20, "abc"),  # used up within the call, if that did not end the thought
    ],
)
def test_calls_stand_behind_a_forced_end_and_end_an_open_thought(
    script: str, budget: int, wanted: str, server: ServerProcess
) -> None:
    body = {"model": "m", "messages": ask_for(script), "tools": [TOOL], "thinking_budget": budget}
    message = server.call("/v1/chat/completions", body).json()["choices"][0]["message"]
    assert message["reasoning_content"] == wanted
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}


def test_an_effort_is_a_budget_where_the_template_has_no_word_for_it(
    server: ServerProcess,
) -> None:
    messages = ask_for(LONG)
    thought, text, _ = chat(server, messages=messages, reasoning_effort="minimal", max_tokens=700)
    assert (thought, text) == ("x" * 512, LONG[512 + len(END) :])
    assert chat(server, messages=messages, reasoning_effort="low")[:2] == ("x" * 600, "Four.")


def test_the_words_of_the_template_come_before_budgets() -> None:
    switch, level = "enable_thinking", "reasoning_effort"
    for asked, reads, wanted in (
        (Thinking("low"), (), 1024),
        (Thinking("low"), (level,), None),
        (Thinking("max"), (), None),
        (Thinking("none"), (), 0),
        (Thinking("none"), (switch,), None),
        (Thinking(is_enabled=False), (level,), 0),
        (Thinking("low", budget=7), (level,), 7),
        (Thinking(is_enabled=True), (), None),
    ):
        assert asked.tokens(reads, can_bound=True) == wanted


def test_a_server_that_knows_no_thinking_refuses_a_budget_but_not_a_wish(
    hash_server: ServerProcess,
) -> None:
    asked = {"model": "hashed", "messages": USER, "max_tokens": 4}
    answer = hash_server.call("/v1/chat/completions", {**asked, "thinking_budget": 5})
    assert (answer.status, answer.json()["error"]["param"]) == (400, "thinking_budget")
    assert "know no thinking" in answer.json()["error"]["message"]
    thinking = {"type": "enabled", "budget_tokens": 5}
    for path, fields in (
        ("/v1/messages", {"thinking": thinking}),
        ("/v1/chat/completions", {"reasoning_effort": "low"}),
    ):
        assert hash_server.call(path, {**asked, **fields}).status == 200


def test_channels_of_thinking_have_one_budget_together(tmp_path: Path) -> None:
    marks = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
    backend = byte_tokenizer()
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    tokenizer = load_tokenizer(write_scripted_model(tmp_path / "m", tokenizer=backend))

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    form = AnswerFormat("test/harmony", Harmony())
    budget = form.budget(4, "<|start|>assistant", tokenizer, reads_calls=False)
    assert budget is not None
    thinking = BudgetedThinking(budget)
    thinking.accept(ids("<|channel|>analysis<|message|>abc<|end|><|start|>assistant<|channel|>"))
    assert allowed(thinking) is None
    thinking.accept(ids("analysis<|message|>d"))
    for token in ids("<|end|><|start|>assistant"):
        assert allowed(thinking) == {token}
        thinking.accept((token,))
    assert allowed(thinking) is None
    thinking.accept(ids("<|channel|>"))
    (first,) = ids("a")
    said = allowed(thinking)
    assert said is not None
    assert first not in said
    assert said.issuperset(ids("fc"))
    thinking.accept(ids("final<|message|>It is"))
    assert allowed(thinking) is None
    inside = form.budget(
        1, "<|start|>assistant<|channel|>analysis<|message|>", tokenizer, reads_calls=False
    )
    assert inside is not None
    assert inside.is_open


def allowed(thinking: BudgetedThinking) -> set[int] | None:
    """Return the tokens that may come next; None: all."""
    mask, written = np.zeros((1, 64), np.int32), [False]
    thinking.restrict((), mask, written)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist()) if written[0] else None
