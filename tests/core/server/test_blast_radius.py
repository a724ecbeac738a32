"""A fault in one of 64 chats ends that chat, whichever call of an API process it is planted in."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.support.apps import App, PlayedStream, Reply

from tokenspeed.server.conversation.rules import NamedRule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenspeed.contracts.conversation import Conversation
    from tokenspeed.contracts.parser import AnswerStart

CHATS = 64
FAULTY = 17
ASKED = re.compile(r"question (\d+)\.")
FAULTS: tuple[BaseException, ...] = (ValueError("planted"), SystemExit("planted"))


class PassingRule:
    """Changes nothing."""

    def apply(self, conversation: Conversation) -> Conversation:
        """Return it as it is."""
        return conversation


class Chats:
    """An application whose engine answers question N with answer N."""

    def __init__(self, folder: Path) -> None:
        self.rule = PassingRule()
        rules = (NamedRule("test/passing", self.rule),)
        self.app = App(folder, rules=rules, turn_memory_mib=1)
        self.app.engine.submit = self._submit  # type: ignore[method-assign]

    def _submit(self, prompt_ids: Any, params: Any, **named: Any) -> PlayedStream:
        text = self.app.engine.tokenizer.decode(prompt_ids, skip_special_tokens=False)
        script = answer_to(int(ASKED.findall(text)[-1]))
        engine = dataclasses.replace(self.app.engine, script=script)
        return PlayedStream(engine, len(prompt_ids), params)

    def ask_all(self) -> list[tuple[int, str]]:
        """Send all chats at once, every other one streamed; return status and text of each."""

        async def ask() -> list[tuple[int, str]]:
            transport = httpx.ASGITransport(self.app.asgi, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await asyncio.gather(*(self._ask(client, i) for i in range(CHATS)))

        return asyncio.run(ask())

    async def _ask(self, client: httpx.AsyncClient, index: int) -> tuple[int, str]:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": f"question {index}."}],
            "stream": index % 2 == 1,
        }
        answer = await client.post("/v1/chat/completions", json=body)
        if not body["stream"] or answer.status_code != 200:
            return answer.status_code, text_of(answer.json())
        events = [data for _, data in Reply(200, answer.headers, answer.text).events()]
        failed = [data for data in events if "error" in data]
        if failed:
            return 500, text_of(failed[0])
        deltas = [data["choices"][0]["delta"] for data in events if data != "[DONE]"]
        return 200, "".join(delta.get("content") or "" for delta in deltas)


def answer_to(index: int) -> str:
    return f"answer {index}"


def text_of(body: dict[str, Any]) -> str:
    """Return what an answer, or an error, says."""
    if "error" in body:
        return str(body["error"]["message"])
    return str(body["choices"][0]["message"]["content"])


def plant(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    fault: BaseException,
    is_its: Callable[..., bool],
) -> None:
    """Make a method raise in the calls that are made for the faulty chat."""
    right = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_its(*args, **kwargs):
            raise fault
        return right(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


def is_asked(conversation: Conversation) -> bool:
    return f"question {FAULTY}." in conversation.messages[-1].text


def of_its_answer(start: AnswerStart) -> bool:
    return f"question {FAULTY}." in start.prompt_end


def in_answer(name: str) -> Callable[..., str]:
    """Plant a fault in a method of the parser of one answer."""

    def into(chats: Chats, monkeypatch: pytest.MonkeyPatch, fault: BaseException) -> str:
        from tests.support.apps import MarkAnswer, MarkParser

        def start(self: MarkParser, start: AnswerStart) -> MarkAnswer:
            answer = right(self, start)
            return (
                type("Faulty", (MarkAnswer,), {name: bad})(False)
                if of_its_answer(start)
                else answer
            )

        def failing(*args: Any) -> Any:
            raise fault

        bad = property(failing) if name == "is_reasoning" else failing
        right = MarkParser.start
        monkeypatch.setattr(MarkParser, "start", start)
        return f"parser test/marks failed at {'feed' if name == 'is_reasoning' else name}"

    into.__name__ = f"in_{name}_of_a_parser"
    return into


def in_start_of_a_parser(
    chats: Chats, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> str:
    from tests.support.apps import MarkParser

    plant(monkeypatch, MarkParser, "start", fault, lambda self, start: of_its_answer(start))
    return "parser test/marks failed at start"


def in_a_client_rule(chats: Chats, monkeypatch: pytest.MonkeyPatch, fault: BaseException) -> str:
    plant(monkeypatch, chats.rule, "apply", fault, is_asked)
    return "client rule test/passing failed"


PLUGIN_CALLS = (
    in_start_of_a_parser,
    in_answer("feed"),
    in_answer("finish"),
    in_answer("is_reasoning"),
    in_a_client_rule,
)


def check(answers: list[tuple[int, str]], words: str) -> None:
    """63 chats are answered right, and one says by name what failed."""
    wanted = [(200, answer_to(index)) for index in range(CHATS)]
    assert answers[:FAULTY] == wanted[:FAULTY]
    assert answers[FAULTY + 1 :] == wanted[FAULTY + 1 :]
    status, said = answers[FAULTY]
    assert status == 500
    assert words in said


@pytest.mark.parametrize("fault", FAULTS, ids=["exception", "exit"])
@pytest.mark.parametrize("call", PLUGIN_CALLS, ids=[call.__name__ for call in PLUGIN_CALLS])
def test_63_of_64_chats_are_answered_right(
    call: Callable[..., str],
    fault: BaseException,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chats = Chats(tmp_path)
    words = call(chats, monkeypatch, fault)
    check(chats.ask_all(), words)


@pytest.mark.parametrize("call", ["find", "remember"])
def test_a_fault_of_the_memory_of_turns_ends_one_chat(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = Chats(tmp_path)
    memory = chats.app.chats._memory
    calls = iter(range(1000))
    plant(monkeypatch, memory, call, ValueError("planted"), lambda *a, **k: next(calls) == 0)
    answers = chats.ask_all()
    failed = [index for index, (status, _) in enumerate(answers) if status != 200]
    assert len(failed) == 1
    assert (
        "the memory of turns failed for this request: ValueError: planted" in answers[failed[0]][1]
    )
    good = [index for index in range(CHATS) if index not in failed]
    assert {answers[index][1] == answer_to(index) for index in good} == {True}


@pytest.mark.parametrize("name", ["render", "encode", "detokenize"])
def test_a_fault_of_our_own_on_the_way_ends_one_chat(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = Chats(tmp_path)
    calls = iter(range(1000))
    once = lambda *args, **kwargs: next(calls) == 0  # noqa: E731
    owners = {
        "render": ("tokenspeed.tokenizer.chat.ChatTemplate", "render"),
        "encode": ("tokenspeed.tokenizer.incremental.EncodeCache", "_encode_piece"),
        "detokenize": ("tokenspeed.tokenizer.answer_text.AnswerText", "push"),
    }
    path, method = owners[name]
    module, _, kind = path.rpartition(".")
    owner = getattr(__import__(module, fromlist=[kind]), kind)
    plant(monkeypatch, owner, method, ValueError("planted"), once)
    answers = chats.ask_all()
    failed = [index for index, (status, _) in enumerate(answers) if status != 200]
    assert len(failed) == 1
    assert "internal error; the server's log has the details" in answers[failed[0]][1]
    good = [index for index in range(CHATS) if index not in failed]
    assert {answers[index][1] == answer_to(index) for index in good} == {True}


def test_what_a_parser_returns_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.apps import MarkAnswer

    from tokenspeed.contracts.parser import ParsedDelta

    wrong: Any = [None, ParsedDelta(content=None), ParsedDelta(tool_calls=("x",))]  # type: ignore[arg-type]
    for bad in wrong:
        monkeypatch.setattr(MarkAnswer, "feed", lambda self, text, bad=bad: bad)
        body = {"model": "m", "messages": [{"role": "user", "content": "question 1."}]}
        chats = Chats(tmp_path)
        answer = chats.app.call("/v1/chat/completions", body)
        assert answer.status == 500
        assert "parser test/marks failed at feed: TypeError" in json.dumps(answer.json())
