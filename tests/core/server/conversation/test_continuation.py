"""A turn that comes back as it was goes on from its own tokens, in four families of templates."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from tests.support.families import FAMILIES, Family
from tests.support.scripted import byte_tokenizer
from tokenizers import AddedToken

from tokenspeed.contracts.conversation import Conversation, Message, Tool, ToolCall
from tokenspeed.contracts.parser import ToolCallDelta
from tokenspeed.engine.messages import ModelInfo, Terms
from tokenspeed.server.conversation.chat_prompts import ChatPrompts
from tokenspeed.server.conversation.prompts import Prompt, PromptReader
from tokenspeed.server.conversation.rules import ClientRules
from tokenspeed.server.conversation.turn_memory import TurnMemory
from tokenspeed.server.metrics import TurnMetrics
from tokenspeed.server.pieces import Piece
from tokenspeed.tokenizer.chat import ChatTemplate
from tokenspeed.tokenizer.incremental import EncodeCache
from tokenspeed.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOLS = (Tool("bash", "runs", {"type": "object", "properties": {"cmd": {"type": "string"}}}),)
SYSTEM, USER = Message("system", ("Be kind.",)), Message("user", ("Fix it.",))
NEXT = Message("user", ("And now?",))
ARGUMENTS = '{"n": 1.0,   "cmd":"ls \\u00e9 \\"x\\"", "deep": {"b":[1, 2],"a":null}}'
"""As no template would write it."""


class Model:
    """A template family's tokenizer and prompts, and a model that writes what a test says."""

    def __init__(
        self, family: Family, *, has_snapshots: bool = False, max_prompt_tokens: int = 100_000
    ) -> None:
        backend = byte_tokenizer()
        backend.add_special_tokens([AddedToken(text, special=True) for text in family.specials])
        self.family = family
        self.tokenizer = Tokenizer(backend, name="m")
        self.ends = tuple(backend.token_to_id(end) for end in family.ends)
        info = ModelInfo(
            name="m", path="", architecture="", vocab_size=300, max_context_tokens=1 << 20,
            max_prompt_tokens=max_prompt_tokens, eos_token_ids=self.ends,
            has_snapshots=has_snapshots,
        )  # fmt: skip
        reader = PromptReader(
            self.tokenizer,
            template=ChatTemplate(family.template),
            cache=EncodeCache(self.tokenizer),
            model=info,
        )
        self.memory = TurnMemory(1 << 20)
        self.metrics = TurnMetrics(CollectorRegistry())
        self.prompts = ChatPrompts(
            reader, rules=ClientRules(), memory=self.memory, model=info,
            end_texts=family.ends, metrics=self.metrics,
        )  # fmt: skip

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def prompt(self, *messages: Message, tools: tuple[Tool, ...] = TOOLS, **terms: Any) -> Prompt:
        async def read() -> Prompt:
            chat = await self.prompts.clean(Conversation(messages, tools))
            return await self.prompts.read(chat, Terms(**terms))

        return asyncio.run(read())

    def plain(self, *messages: Message, tools: tuple[Tool, ...] = TOOLS) -> list[int]:
        """Return the prompt that a stranger's conversation gets."""
        return list(self.prompt(*messages, tools=tools, salt=b"stranger").token_ids)

    def say(
        self, prompt: Prompt, written: str, answer: Message, *, finish: str = "stop"
    ) -> list[int]:
        """Answer a prompt; return prompt and output without the token that ended it."""
        end = self.ends[bool(answer.tool_calls)]
        output = self.ids(written) + ([end] if finish == "stop" else [])
        assert prompt.next_turn is not None
        recorder = prompt.next_turn.recorder(
            prompt.token_ids, prompt.reuse_points, frozenset(self.ends)
        )
        recorder.push(output[:2], Piece(reasoning=answer.reasoning, num_tokens=2))
        calls = tuple(
            ToolCallDelta(i, call.call_id, call.name, call.arguments)
            for i, call in enumerate(answer.tool_calls)
        )
        rest = output[2:]
        last = Piece("".join(answer.content), "", calls, len(rest), finish_reason=finish)
        recorder.push(rest, last)
        return [*prompt.token_ids, *(output[:-1] if finish == "stop" else output)]

    def answer(self, prompt: Prompt, text: str = "Done.") -> tuple[Message, list[int]]:
        message = Message("assistant", (text,), "I think.")
        written = self.family.answer.format(think="I think.", text=text)
        return message, self.say(prompt, written, message)

    def call(self, prompt: Prompt, call_id: str = "call_1") -> tuple[Message, list[int]]:
        call = ToolCall(call_id, "bash", ARGUMENTS)
        message = Message("assistant", (), "I look.", (call,))
        written = self.family.call.format(
            think="I look.", text="", name="bash", arguments=ARGUMENTS, call_id=call_id
        )
        return message, self.say(prompt, written, message)

    def counts(self) -> dict[str, float]:
        refused = {
            sample.labels["reason"]: sample.value
            for metric in self.metrics.refused.collect()
            for sample in metric.samples
            if sample.name.endswith("_total") and sample.value
        }
        return {"continued": self.metrics.continued._value.get(), **refused}


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    return Model(request.param)


def result(call_id: str = "call_1", text: str = "a.txt") -> Message:
    return Message("tool", (text,), tool_call_id=call_id, name="bash")


def resent(message: Message) -> Message:
    """The same turn as a client of another making sends it back."""
    calls = tuple(
        dataclasses.replace(call, arguments=json.dumps(json.loads(call.arguments), sort_keys=True))
        for call in message.tool_calls
    )
    return dataclasses.replace(message, tool_calls=calls)


def without_reasoning(message: Message) -> Message:
    return dataclasses.replace(message, reasoning="")


# ---- what is spliced


def test_after_an_answer_the_prompt_is_its_tokens_and_what_the_template_adds(model: Model) -> None:
    answer, tokens = model.answer(model.prompt(SYSTEM, USER))
    plain = model.plain(SYSTEM, USER, answer, NEXT)
    found = list(model.prompt(SYSTEM, USER, answer, NEXT).token_ids)
    rest = found[len(tokens) :]
    assert found[: len(tokens)] == tokens
    assert rest == plain[len(plain) - len(rest) :], "it ends as the template has it"
    assert rest[: len(model.ids(model.family.old_end[0]))] == model.ids(model.family.old_end[0])
    assert found != plain, "the template alone would have written another prompt"


def test_after_a_call_too_whatever_closes_it(model: Model) -> None:
    call, tokens = model.call(model.prompt(SYSTEM, USER))
    plain = model.plain(SYSTEM, USER, call, result())
    found = list(model.prompt(SYSTEM, USER, resent(call), result()).token_ids)
    rest = found[len(tokens) :]
    assert found[: len(tokens)] == tokens
    assert rest == plain[len(plain) - len(rest) :]
    assert rest[: len(model.ids(model.family.old_end[1]))] == model.ids(model.family.old_end[1])
    assert found != plain


def test_a_long_session_keeps_every_token_it_was_given(model: Model) -> None:
    said = [SYSTEM, USER]
    tokens: list[int] = []
    for turn in range(6):
        prompt = model.prompt(*said)
        assert list(prompt.token_ids[: len(tokens)]) == tokens
        if turn % 3 < 2:
            message, tokens = model.call(prompt, f"call_{turn}")
            said += [resent(message), result(f"call_{turn}", f"out {turn}")]
        else:
            message, tokens = model.answer(prompt, f"Done {turn}.")
            said += [without_reasoning(message), NEXT]
    assert model.counts() == {"continued": 5}
    assert len(model.memory) == 6
    held = model.memory.num_bytes - 6 * 700
    assert held == 4 * len(tokens), "nodes hold only what their parents lack"


def test_a_turn_is_continued_with_its_reasoning_or_without(model: Model) -> None:
    answer, tokens = model.answer(model.prompt(SYSTEM, USER))
    for same in (answer, without_reasoning(answer)):
        found = model.prompt(SYSTEM, USER, same, NEXT).token_ids
        assert list(found[: len(tokens)]) == tokens


def test_the_edges_of_a_text_mean_nothing(model: Model) -> None:
    answer, tokens = model.answer(model.prompt(SYSTEM, USER), "\n\nDone.\n")
    trimmed = dataclasses.replace(answer, content=("Done.",))
    found = model.prompt(SYSTEM, USER, trimmed, NEXT).token_ids
    assert list(found[: len(tokens)]) == tokens


def test_two_branches_go_on_from_one_turn(model: Model) -> None:
    answer, tokens = model.answer(model.prompt(SYSTEM, USER))
    for words in ("left", "right"):
        prompt = model.prompt(SYSTEM, USER, answer, Message("user", (words,)))
        assert list(prompt.token_ids[: len(tokens)]) == tokens
        model.answer(prompt, words)
    assert len(model.memory) == 3


def test_an_earlier_turn_is_continued_where_a_later_one_is_strange(model: Model) -> None:
    answer, tokens = model.answer(model.prompt(SYSTEM, USER))
    strange = Message("assistant", ("Said elsewhere.",))
    found = list(model.prompt(SYSTEM, USER, answer, NEXT, strange, NEXT).token_ids)
    assert found[: len(tokens)] == tokens
    rest = model.tokenizer.decode(found[len(tokens) :], skip_special_tokens=False)
    assert rest.count("And now?") == 2
    assert "Said elsewhere." in rest
    assert model.counts() == {"continued": 1, "unknown": 1}


def test_parallel_calls_are_one_turn() -> None:
    model = Model(FAMILIES["strips"])
    prompt = model.prompt(SYSTEM, USER)
    calls = tuple(ToolCall(f"c{i}", "bash", f'{{"n":{i}}}') for i in range(3))
    tokens = model.say(prompt, "<tool_call>x</tool_call>" * 3, Message("assistant", (), "", calls))
    said = (Message("assistant", ("",), "", calls), *(result(f"c{i}") for i in range(3)))
    found = list(model.prompt(SYSTEM, USER, *said).token_ids)
    rest = model.tokenizer.decode(found[len(tokens) :], skip_special_tokens=False)
    assert found[: len(tokens)] == tokens
    assert rest.startswith("<|im_end|>\n<|im_start|>user\n<tool_response>\na.txt")
    swapped = (Message("assistant", (), "", calls[::-1]), *said[1:])
    assert list(model.prompt(SYSTEM, USER, *swapped).token_ids)[: len(tokens)] != tokens


# ---- what is not


EDITS = {
    "argument": lambda m: dataclasses.replace(
        m, tool_calls=(dataclasses.replace(m.tool_calls[0], arguments='{"cmd": "rm"}'),)
    ),
    "call id": lambda m: dataclasses.replace(
        m, tool_calls=(dataclasses.replace(m.tool_calls[0], call_id="call_9"),)
    ),
    "name": lambda m: dataclasses.replace(
        m, tool_calls=(dataclasses.replace(m.tool_calls[0], name="sh"),)
    ),
    "content": lambda m: dataclasses.replace(m, content=("added",)),
    "call added": lambda m: dataclasses.replace(m, tool_calls=m.tool_calls * 2),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_turn_is_rendered_anew(model: Model, edit: Any) -> None:
    call, tokens = model.call(model.prompt(SYSTEM, USER))
    edited = edit(call)
    answer = result(edited.tool_calls[0].call_id)
    found = list(model.prompt(SYSTEM, USER, edited, answer).token_ids)
    assert found == model.plain(SYSTEM, USER, edited, answer)
    assert found[: len(tokens)] != tokens
    assert model.counts() == {"continued": 0, "edited": 1, "unknown": 1}


def test_what_stands_before_a_turn_counts(model: Model) -> None:
    answer, _ = model.answer(model.prompt(SYSTEM, USER))
    other_tools = (dataclasses.replace(TOOLS[0], description="runs fast"),)
    for said, tools in (
        ((Message("system", ("Be rude.",)), USER, answer, NEXT), TOOLS),
        ((SYSTEM, Message("user", ("Fix it!",)), answer, NEXT), TOOLS),
        ((SYSTEM, USER, answer, NEXT), other_tools),
        ((SYSTEM, USER, answer, NEXT), (*TOOLS, *other_tools)),
    ):
        assert list(model.prompt(*said, tools=tools).token_ids) == model.plain(*said, tools=tools)
    assert model.counts()["continued"] == 0


def test_another_reasoning_is_another_turn(model: Model) -> None:
    answer, _ = model.answer(model.prompt(SYSTEM, USER))
    other = dataclasses.replace(answer, reasoning="I think otherwise.")
    assert list(model.prompt(SYSTEM, USER, other, NEXT).token_ids) == model.plain(
        SYSTEM, USER, other, NEXT
    )
    assert model.counts() == {"continued": 0, "reasoning": 1, "unknown": 1}


@pytest.mark.parametrize("terms", [{"salt": b"x"}, {"tenant": "t"}, {"owner": "o"}])
def test_nobody_else_meets_a_turn(model: Model, terms: dict[str, Any]) -> None:
    answer, _ = model.answer(model.prompt(SYSTEM, USER))
    prompt = model.prompt(SYSTEM, USER, without_reasoning(answer), NEXT, **terms)
    assert list(prompt.token_ids) == model.plain(SYSTEM, USER, without_reasoning(answer), NEXT)


def test_a_prompt_that_would_not_fit_is_rendered_anew() -> None:
    family = FAMILIES["strips"]
    whole = Model(family)
    answer, tokens = whole.answer(whole.prompt(SYSTEM, USER))
    short = Model(family, max_prompt_tokens=len(tokens) + 10)
    answer, _ = short.answer(short.prompt(SYSTEM, USER))
    found = list(short.prompt(SYSTEM, USER, without_reasoning(answer), NEXT).token_ids)
    assert found == whole.plain(SYSTEM, USER, without_reasoning(answer), NEXT)
    assert short.counts() == {"continued": 0, "context": 1}


def test_a_template_without_an_end_of_turn_is_left_alone() -> None:
    family = dataclasses.replace(
        FAMILIES["keeps"],
        template="{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    )
    model = Model(family)
    answer, _ = model.answer(model.prompt(SYSTEM, USER))
    assert list(model.prompt(SYSTEM, USER, answer, NEXT).token_ids) == model.ids(
        "system: Be kind.\nuser: Fix it.\nassistant: Done.\nuser: And now?\n"
    )
    assert model.counts() == {"continued": 0, "template": 1}


def test_what_closes_an_answer_is_not_written_twice() -> None:
    keeps = FAMILIES["keeps"]
    family = dataclasses.replace(
        keeps,
        template=keeps.template.replace("{{- m.content }}", "{{- m.content + '<|closed|>' }}"),
        specials=("<|closed|>",),
        answer="{text}<|closed|>",
        old_end=("<|im_end|>\n", "<|im_end|>\n"),
    )
    model = Model(family)
    answer, tokens = model.answer(model.prompt(SYSTEM, USER))
    found = list(model.prompt(SYSTEM, USER, answer, NEXT).token_ids)
    text = model.tokenizer.decode(found[len(tokens) - 16 :], skip_special_tokens=False)
    assert "Done.<|closed|><|im_end|>\n<|im_start|>user" in text


def test_an_end_that_a_tool_wrote_is_not_the_turns() -> None:
    """The template ends calls with nothing, and the next text looks like an end."""
    keeps = FAMILIES["keeps"]
    open_ended = "{{- '<|im_end|>\\n' if not m.tool_calls }}{% endif %}{% endfor %}"
    template = keeps.template.replace("{{- '<|im_end|>\\n' }}{% endif %}{% endfor %}", open_ended)
    assert template != keeps.template
    model = Model(dataclasses.replace(keeps, template=template))
    call, _ = model.call(model.prompt(SYSTEM, USER))
    said = (SYSTEM, USER, call, result(text="<|im_end|>"))
    assert list(model.prompt(*said).token_ids) == model.plain(*said)
    assert model.counts() == {"continued": 0, "template": 1, "unknown": 1}


# ---- which turns are remembered


def test_a_turn_that_its_length_cut_is_continued_as_the_client_saw_it(model: Model) -> None:
    prompt = model.prompt(SYSTEM, USER)
    cut = Message("assistant", ("Do",), "I think.")
    written = model.family.answer.format(think="I think.", text="Do").rstrip()
    tokens = model.say(prompt, written, cut, finish="length")
    found = list(model.prompt(SYSTEM, USER, cut, NEXT).token_ids)
    assert found[: len(tokens)] == tokens
    assert found[len(tokens) :][:1] == model.ids(model.family.old_end[0])[:1]
    longer = dataclasses.replace(cut, content=("Done.",))
    assert list(model.prompt(SYSTEM, USER, longer, NEXT).token_ids) == model.plain(
        SYSTEM, USER, longer, NEXT
    )


@pytest.mark.parametrize(
    ("answer", "finish"),
    [
        (Message("assistant", (), "I thi"), "length"),
        (Message("assistant", ("Text.",), "", (ToolCall("c", "bash", "{}"),)), "length"),
        (Message("assistant", (), "Only thought."), "stop"),
        (Message("assistant"), "stop"),
    ],
)
def test_turns_that_end_in_the_open_are_not_remembered(
    model: Model, answer: Message, finish: str
) -> None:
    model.say(model.prompt(SYSTEM, USER), "some text", answer, finish=finish)
    assert len(model.memory) == 0


def test_a_turn_that_a_stop_string_ended_is_not_remembered(model: Model) -> None:
    prompt = model.prompt(SYSTEM, USER)
    assert prompt.next_turn is not None
    for shown in (3, 4):
        recorder = prompt.next_turn.recorder(
            prompt.token_ids, prompt.reuse_points, frozenset(model.ends)
        )
        recorder.push(model.ids("Done"), Piece("Do", num_tokens=shown, finish_reason="stop"))
    assert len(model.memory) == 0


# ---- recurrent models


def test_reuse_points_of_a_spliced_prompt_lie_where_texts_part() -> None:
    model = Model(FAMILIES["strips"], has_snapshots=True)
    first = model.prompt(SYSTEM, USER)
    answer, tokens = model.answer(first)
    prompt = model.prompt(SYSTEM, USER, answer, NEXT)
    points = prompt.reuse_points
    ids = list(prompt.token_ids)
    assert points[0] == first.reuse_points[0], "the end of system prompt and tools"
    text = model.tokenizer.decode(ids[: points[1]], skip_special_tokens=False)
    assert text.endswith("Done.<|im_end|>\n<|im_start|>user\n"), "the last user message begins"
    text = model.tokenizer.decode(ids[: points[2]], skip_special_tokens=False)
    assert text.endswith("And now?<|im_end|>\n"), "what a template may change comes behind"
    assert len(points) == 3
    assert len(tokens) < points[1] < points[2] < len(ids)


# ---- cost


def test_a_turn_on_100k_tokens_costs_under_10_ms_of_cpu() -> None:
    model = Model(FAMILIES["strips"], max_prompt_tokens=1 << 20)

    async def timed(said: tuple[Message, ...]) -> tuple[Prompt, float]:
        started_s = time.process_time()
        chat = await model.prompts.clean(Conversation(said, TOOLS))
        prompt = await model.prompts.read(chat, Terms())
        return prompt, (time.process_time() - started_s) * 1000

    said, costs = [SYSTEM, USER], []
    for turn in range(30):
        prompt, cost_ms = asyncio.run(timed(tuple(said)))
        costs.append(cost_ms)
        call, _ = model.call(prompt, f"call_{turn}")
        said += [resent(call), result(f"call_{turn}", "line of text\n" * 300)]
    assert len(prompt.token_ids) > 100_000
    assert min(costs[-5:]) < 10, f"CPU ms of the last turns: {costs[-5:]}"
