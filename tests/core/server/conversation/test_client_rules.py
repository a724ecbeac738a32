"""Each rule against client noise undoes its noise, once, and nothing that a user wrote."""

from __future__ import annotations

import dataclasses
import random

import pytest
from tests.support.chats import chat, line, shuffled, tools
from tests.support.scripted import CHAT_TEMPLATE
from tests.support.templates import QWEN3_LIKE

from tokenspeed.contracts.client_rule import ClientRule, TemplateFacts
from tokenspeed.contracts.conversation import Conversation, Message, Tool
from tokenspeed.server.conversation.client_rules.attribution import Attribution
from tokenspeed.server.conversation.client_rules.blocks import Blocks
from tokenspeed.server.conversation.client_rules.cache_markers import CacheMarkers
from tokenspeed.server.conversation.client_rules.order import Order
from tokenspeed.server.conversation.client_rules.system_in_place import SystemInPlace
from tokenspeed.server.conversation.rules import ClientRules, NamedRule
from tokenspeed.server.conversation.template_facts import facts_of
from tokenspeed.tokenizer.chat import ChatTemplate

HOISTS = TemplateFacts(keeps_system_in_place=False)
MADE = (Attribution, CacheMarkers, SystemInPlace, Blocks, Order)
RULES = {made.__name__: made(HOISTS) for made in MADE}
ALL = ClientRules([NamedRule(name, rule) for name, rule in RULES.items()])


def said(*messages: Message, offered: tuple[Tool, ...] = ()) -> Conversation:
    return Conversation(messages, offered)


USER = Message("user", ("hi",))
REMINDER = Message("system", ("be brief",))


# ---- what holds for all of them


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_applied_again_changes_nothing(rule: ClientRule) -> None:
    for seed in range(300):
        once = rule.apply(chat(random.Random(seed)))
        assert rule.apply(once) is once, f"seed {seed}"


def test_all_rules_applied_again_change_nothing() -> None:
    for seed in range(300):
        once = ALL.apply(chat(random.Random(seed)))
        assert ALL.apply(once) is once, f"seed {seed}"


@pytest.mark.parametrize("rule", [*RULES.values(), ALL], ids=[*RULES, "all"])
def test_what_users_and_tools_and_the_assistant_wrote_stays(rule: ClientRule) -> None:
    for seed in range(300):
        before = chat(random.Random(seed))
        after = rule.apply(before)
        for role in ("user", "tool"):
            kept = "\0".join(m.text for m in after.messages if m.role in ("user", "tool"))
            place = 0
            for message in before.messages:
                for block in message.content if message.role == role else ():
                    place = kept.find(block, place)
                    assert place >= 0, f"seed {seed}: {block!r} is gone or moved"
        own = [m for m in after.messages if m.role == "assistant"]
        written = [m for m in before.messages if m.role == "assistant"]
        for one, other in zip(own, written, strict=True):
            assert "".join(one.content) == "".join(other.content), f"seed {seed}"
            assert (one.reasoning, one.tool_calls) == (other.reasoning, other.tool_calls)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_quiet_conversation_is_handed_back_as_it_is(rule: ClientRule) -> None:
    quiet = said(Message("system", ("be kind",)), USER, offered=(Tool("bash"),))
    assert rule.apply(quiet) is quiet


# ---- attribution


def test_two_sessions_of_claude_code_read_the_same_behind_their_line() -> None:
    rng = random.Random(1)
    heads = [
        Attribution(HOISTS).apply(said(Message("system", (line(rng), "You are", "a coder")), USER))
        for _ in range(2)
    ]
    assert heads[0] == heads[1] == said(Message("system", ("You are", "a coder")), USER)


def test_the_line_is_cut_off_a_joined_prompt_and_without_a_checksum() -> None:
    for text in (
        f"{line(random.Random(2))}\n\nYou are",
        "x-anthropic-billing-header: a=b;\nYou are",
    ):
        after = Attribution(HOISTS).apply(said(Message("system", (text,)), USER))
        assert after.messages[0].content == ("You are",)


def test_a_prompt_that_was_only_the_line_is_gone() -> None:
    assert Attribution(HOISTS).apply(
        said(Message("system", (line(random.Random(3)),)), USER)
    ) == said(USER)


def test_the_line_stays_wherever_it_is_no_head() -> None:
    quoted = line(random.Random(4))
    for conversation in (
        said(Message("user", (quoted,))),
        said(Message("system", (f"This is one: {quoted}",)), USER),
        said(Message("system", ("Look:", quoted)), USER),
        said(USER, Message("system", (quoted,))),
    ):
        assert Attribution(HOISTS).apply(conversation) is conversation


# ---- blocks and markers


def test_several_blocks_are_the_lines_of_one_text() -> None:
    cut = said(Message("user", ("a", "b")), Message("tool", ("c", "d"), tool_call_id="1"))
    one = Blocks(HOISTS).apply(cut)
    assert [message.content for message in one.messages] == [("a\nb",), ("c\nd",)]
    answer = said(USER, Message("assistant", ("a", "b")))
    assert Blocks(HOISTS).apply(answer) is answer


def test_a_moved_marker_leaves_nothing_behind() -> None:
    marked = Tool("bash", parameters={"type": "object", "cache_control": {"type": "ephemeral"}})
    named = Tool("bash", parameters={"properties": {"cache_control": {"type": "string"}}})
    before = said(Message("user", ("hi", "")), offered=(marked, named))
    after = CacheMarkers(HOISTS).apply(before)
    assert after == said(USER, offered=(Tool("bash", parameters={"type": "object"}), named))


# ---- order


def test_200_shuffles_of_tools_and_keys_are_one_prompt() -> None:
    template = ChatTemplate(QWEN3_LIKE)
    rng = random.Random(5)
    base = tools(rng, 6)
    prompts, schemas = set(), set()
    for _ in range(200):
        mixed = [dataclasses.replace(t, parameters=shuffled(rng, t.parameters)) for t in base]
        rng.shuffle(mixed)
        ordered = Order(HOISTS).apply(said(USER, offered=tuple(mixed))).tools
        schemas.add(str(mixed))
        shown = [{"name": t.name, "parameters": t.parameters} for t in ordered]
        prompts.add(template.render([{"role": "user", "content": "hi"}], tools=shown))
    assert (len(schemas), len(prompts)) == (200, 1)


def test_order_keeps_what_json_means() -> None:
    for seed in range(50):
        before = said(USER, offered=tools(random.Random(seed), 4))
        after = Order(HOISTS).apply(before)
        assert sorted(after.tools, key=lambda t: t.name) == sorted(
            before.tools, key=lambda t: t.name
        )
        assert list(after.tools[0].parameters)[:2] == ["type", "properties"]


def test_arrays_keep_their_order() -> None:
    kept = Tool("t", parameters={"enum": ["b", "a"], "required": ["z", "a"]})
    assert Order(HOISTS).apply(said(USER, offered=(kept,))).tools == (kept,)


# ---- system messages


def test_templates_are_tried_out() -> None:
    hoisting = (
        "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
        "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    )
    refusing = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    facts = [
        facts_of(ChatTemplate(text)) for text in (CHAT_TEMPLATE, QWEN3_LIKE, hoisting, refusing)
    ]
    assert [fact.keeps_system_in_place for fact in facts] == [True, True, False, False]
    assert facts_of(None).keeps_system_in_place


def test_a_template_that_keeps_the_place_is_given_the_system_message() -> None:
    conversation = said(USER, REMINDER)
    assert SystemInPlace(TemplateFacts()).apply(conversation) is conversation


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((USER, REMINDER), [("user", ("hi", "R"))]),
        (
            (REMINDER, USER, REMINDER, REMINDER),
            [("system", ("be brief",)), ("user", ("hi", "R", "R"))],
        ),
        (
            (USER, Message("assistant", ("yes",)), REMINDER, USER),
            [("user", ("hi",)), ("assistant", ("yes",)), ("user", ("R", "hi"))],
        ),
        (
            (USER, Message("assistant", ("yes",)), REMINDER),
            [("user", ("hi",)), ("assistant", ("yes",)), ("user", ("R",))],
        ),
        (
            (USER, Message("tool", ("out",)), REMINDER, USER),
            [("user", ("hi",)), ("tool", ("out", "R")), ("user", ("hi",))],
        ),
    ],
)
def test_elsewhere_it_joins_its_neighbour(
    before: tuple[Message, ...], after: list[tuple[str, tuple[str, ...]]]
) -> None:
    reminder = "<system-reminder>\nbe brief\n</system-reminder>"
    found = SystemInPlace(HOISTS).apply(said(*before)).messages
    shown = [(m.role, tuple(c.replace(reminder, "R") for c in m.content)) for m in found]
    assert shown == after


def test_a_later_turn_begins_as_the_one_before_it() -> None:
    for seed in range(200):
        whole = chat(random.Random(seed))
        for end in range(1, len(whole.messages)):
            if whole.messages[end].role == "assistant":  # what follows a prompt is an answer
                head = dataclasses.replace(whole, messages=whole.messages[:end])
                shorter = ALL.apply(head).messages
                assert ALL.apply(whole).messages[: len(shorter)] == shorter, f"seed {seed}"
