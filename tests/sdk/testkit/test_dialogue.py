"""The scripted dialogue: the prompt's markers choose the answer, whatever the cache did."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.dialogue import HERMES_TEMPLATE, MARKER, hermes_call, write_dialogue_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.tokenizer.chat import ChatTemplate

CALL = hermes_call("sh", {"command": "ls"})
ANSWERS = ("nothing asked", CALL, "the end")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = write_dialogue_model(tmp_path_factory.mktemp("dialogue") / "model", ANSWERS)
    with LLM(str(folder), plugins="sdk", kv_gib=0.05, block_tokens=16) as llm:
        yield llm


@pytest.mark.parametrize(("markers", "answer"), [(0, 0), (1, 1), (2, 2), (5, 2)])
def test_the_markers_of_a_prompt_choose_the_answer(llm: LLM, markers: int, answer: int) -> None:
    prompt = "x" * 100 + f"ab{MARKER}" * markers + "y" * 70
    for _ in range(2):  # the second time from the cache
        (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=200))
        assert output.text == ANSWERS[answer]


def test_a_long_prompt_in_chunks_keeps_its_count(llm: LLM) -> None:
    prompt = f"{MARKER}" + "z" * 10_000 + f"{MARKER}" + "z" * 5_000
    (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=20))
    assert output.text == ANSWERS[2]


def test_the_template_writes_tools_and_calls() -> None:
    tools = [{"type": "function", "function": {"name": "sh", "parameters": {}}}]
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "sh", "arguments": {"command": "ls"}},
    }
    chat = [
        {"role": "user", "content": f"go {MARKER}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "a\nb", "tool_call_id": "c"},
    ]
    text = ChatTemplate(HERMES_TEMPLATE).render(chat, tools=tools)
    assert f"<|im_start|>assistant\n{CALL}<|im_end|>\n" in text
    assert "<|im_start|>user\n<tool_response>\na\nb\n</tool_response><|im_end|>\n" in text
    assert text.startswith("<|im_start|>system\n<tools>\n{")
    assert text.endswith("<|im_start|>assistant\n")
