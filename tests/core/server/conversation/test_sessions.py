"""Which session a request is a turn of, and whose child that one is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from starlette.datastructures import Headers

from tokenspeed.contracts.conversation import Conversation, Message, Tool
from tokenspeed.server.conversation.cleaned import Chat, cleaned
from tokenspeed.server.conversation.identity import Identity, by_headers
from tokenspeed.server.conversation.rules import ClientRules
from tokenspeed.server.conversation.sessions import MAX_SESSIONS, Sessions
from tokenspeed.server.conversation.term_fields import TermFields

if TYPE_CHECKING:
    from tokenspeed.contracts.conversation import Role

ROLES: tuple[Role, ...] = ("system", "user", "assistant", "user", "assistant", "user")
TOOLS = (Tool("bash"),)


def chat(*contents: str, tools: tuple[Tool, ...] = ()) -> Chat:
    messages = tuple(Message(r, (text,)) for r, text in zip(ROLES, contents, strict=False))
    return cleaned(Conversation(messages, tools), ClientRules())


def identify(sessions: Sessions, said: Chat | None, owner: str = "", **fields: Any) -> Identity:
    headers = fields.pop("headers", {})
    return sessions.identify(TermFields(**fields), Headers(headers), owner, said)


def name(*contents: str, **fields: Any) -> str:
    return identify(Sessions(), chat(*contents), **fields).session


# ---- named by its beginning


def test_later_turns_of_a_chat_are_of_its_session() -> None:
    first = name("be kind", "hello")
    assert first.startswith("chat:")
    assert name("be kind", "hello", "hi", "how are you?") == first


def test_other_beginnings_are_other_sessions() -> None:
    assert len({name("a", "b"), name("a", "c"), name("d", "b"), name("ab", "")}) == 4
    assert name("a", "b", cache_salt="x") != name("a", "b")


def test_a_chat_without_a_user_has_no_session() -> None:
    assert identify(Sessions(), chat("only a system prompt")) == Identity()


# ---- named by the client


def test_the_clients_key_is_taken_at_its_word() -> None:
    assert name("a", "b", prompt_cache_key="k") == name("c", "d", prompt_cache_key="k") == "k"


def test_a_plain_completion_is_a_turn_only_with_a_name() -> None:
    assert identify(Sessions(), None) == Identity()
    assert identify(Sessions(), None, prompt_cache_key="k") == Identity("k")
    assert identify(Sessions(), None, headers={"x-session-id": "s"}) == Identity("s")


CODEX = json.dumps({"request_kind": "turn", "thread_id": "t"})
COMPACTS = json.dumps({"request_kind": "compaction", "parent_thread_id": "s"})


@pytest.mark.parametrize(
    ("headers", "session", "parent", "root"),
    [
        ({}, "", "", ""),
        ({"x-dynamo-session-id": "c", "x-session-id": "o"}, "c", "", ""),
        ({"x-dynamo-session-id": "c", "x-dynamo-parent-session-id": "p"}, "c", "p", ""),
        ({"x-dynamo-session-id": "c", "x-dynamo-parent-session-id": "c"}, "c", "", ""),
        ({"x-dynamo-parent-session-id": "p"}, "", "", ""),
        ({"x-session-id": "o", "x-session-affinity": "o"}, "o", "", ""),
        ({"x-session-id": "o2", "x-parent-session-id": "o"}, "o2", "o", ""),
        ({"session-id": "s"}, "s", "", ""),
        ({"session-id": "s", "thread-id": "s", "x-codex-turn-metadata": CODEX}, "s", "", ""),
        ({"session-id": "s", "thread-id": "t"}, "t", "", "s"),
        ({"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "s"}, "t", "s", "s"),
        ({"thread-id": "t", "x-codex-parent-thread-id": "s"}, "t", "s", ""),
        ({"session-id": "s", "x-codex-turn-metadata": "{nonsense"}, "s", "", ""),
        ({"session-id": "s", "x-codex-turn-metadata": COMPACTS}, "s:compaction", "s", ""),
        ({"x-claude-code-session-id": "c"}, "c", "", ""),
        ({"x-claude-code-session-id": "c", "x-claude-code-agent-id": "c"}, "c", "", ""),
        ({"x-claude-code-session-id": "c", "x-claude-code-agent-id": "a"}, "c/a", "c", "c"),
        (
            {
                "x-claude-code-session-id": "c",
                "x-claude-code-agent-id": "b",
                "x-claude-code-parent-agent-id": "a",
            },
            "c/b",
            "c/a",
            "c",
        ),
    ],
)
def test_agents_name_sessions_and_parents_in_their_headers(
    headers: dict[str, str], session: str, parent: str, root: str
) -> None:
    assert by_headers(Headers(headers)) == Identity(session, parent, root)


def test_headers_of_a_child_are_more_than_a_key_that_its_family_shares() -> None:
    headers = {"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "s"}
    sessions = Sessions()
    assert identify(sessions, None, prompt_cache_key="s", headers=headers) == Identity(
        "t", "s", "s"
    )
    assert (
        identify(sessions, None, prompt_cache_key="k", headers={"session-id": "s"}).session == "k"
    )


def test_a_childs_child_descends_from_the_same_root() -> None:
    sessions = Sessions()

    def child(name: str, parent: str) -> Identity:
        headers = {"x-session-id": name, "x-parent-session-id": parent}
        return identify(sessions, None, headers=headers)

    assert child("b", "a") == Identity("b", "a", "a")
    assert child("c", "b") == Identity("c", "b", "a")
    assert identify(sessions, None, headers={"x-session-id": "c"}) == Identity("c", "", "a")


# ---- compaction, told by what was said


def test_a_compaction_call_with_another_system_prompt_is_a_child() -> None:
    sessions = Sessions()
    main = identify(sessions, chat("code", "fix", "done", "more", tools=TOOLS))
    side = identify(sessions, chat("sum up", "fix", "done", "more", "and", "Summarise."))
    assert side.session not in ("", main.session)
    assert (side.parent, side.root) == (main.session, main.session)


def test_a_compaction_call_without_tools_is_a_child() -> None:
    sessions = Sessions()
    main = identify(sessions, chat("code", "fix", "done", "more", tools=TOOLS))
    side = identify(sessions, chat("code", "fix", "done", "more", "and", "Summarise."))
    assert side == Identity(f"{main.session}:compaction", main.session, main.session)


def test_a_named_session_whose_system_prompt_tells_the_time_has_one_name() -> None:
    sessions = Sessions()
    names = set()
    for hour in range(4):
        said = ["fix", *("done", "more") * 3][: 2 * hour + 1]
        turn = chat(f"It is {hour}.", *said, tools=TOOLS)
        names.add(identify(sessions, turn, headers={"x-session-id": "s"}))
    assert names == {Identity("s")}


def test_the_next_turn_is_no_child() -> None:
    sessions = Sessions()
    main = identify(sessions, chat("code", "fix", "done", "more", tools=TOOLS))
    assert identify(sessions, chat("code", "fix", "done", "more", "a", "b", tools=TOOLS)) == main


def test_a_named_session_compacts_into_a_child_too() -> None:
    sessions = Sessions()
    headers = {"x-claude-code-session-id": "c"}
    identify(sessions, chat("code", "fix", "done", "more", tools=TOOLS), headers=headers)
    side = identify(
        sessions, chat("sum", "fix", "done", "more", "x", "Summarise."), headers=headers
    )
    assert side == Identity("c:compaction", "c", "c")


HEADERS = {"x-claude-code-session-id": "c"}
TURN = ("code", "fix", "done", "more")


def test_a_question_in_the_place_of_a_whole_answer_is_a_child_with_the_same_tools_too() -> None:
    sessions = Sessions()
    identify(sessions, chat(*TURN, tools=TOOLS), headers=HEADERS)
    sessions.note_answer("", "c")
    for words in ("Summarise.", "Summarise, and only that."):  # asked again: still beside it
        side = identify(sessions, asked_beside(words), headers=HEADERS)
        assert side == Identity("c:compaction", "c", "c")
        sessions.note_answer("", side.session)
    goes_on = chat("code", "This was summed up.", "so", "and on", tools=TOOLS)
    assert identify(sessions, goes_on, headers=HEADERS) == Identity("c")


def test_what_a_user_says_after_an_answer_that_was_cut_off_is_the_next_turn() -> None:
    sessions = Sessions()
    identify(sessions, chat(*TURN, tools=TOOLS), headers=HEADERS)
    assert identify(sessions, asked_beside("Go on."), headers=HEADERS) == Identity("c")


def test_the_same_question_again_and_an_earlier_place_are_turns() -> None:
    sessions = Sessions()
    identify(sessions, chat(*TURN, tools=TOOLS), headers=HEADERS)
    sessions.note_answer("", "c")
    assert identify(sessions, chat(*TURN, tools=TOOLS), headers=HEADERS) == Identity("c")
    sessions.note_answer("", "c")
    other = chat("code", "fix", "done", "less", tools=TOOLS)
    assert identify(sessions, other, headers=HEADERS) == Identity("c")


def test_an_answer_of_a_session_that_is_forgotten_changes_nothing() -> None:
    sessions = Sessions()
    sessions.note_answer("", "c")
    assert len(sessions) == 0


def asked_beside(words: str) -> Chat:
    """Return the last turn with more words of its user behind it."""
    said = chat(*TURN, tools=TOOLS).conversation
    more = (*said.messages, Message("user", (words,)))
    return cleaned(Conversation(more, said.tools), ClientRules())


def test_names_that_clients_give_are_no_children_of_what_they_repeat() -> None:
    sessions = Sessions()
    said = chat("code", "fix", "done", "more", tools=TOOLS)
    identify(sessions, said, headers={"x-session-id": "one"})
    again = chat("other", "fix", "done", "more", tools=TOOLS)
    assert identify(sessions, again, headers={"x-session-id": "two"}) == Identity("two")


@pytest.mark.parametrize(("owner", "salt"), [("other", ""), ("", "other")])
def test_nobody_elses_chat_is_a_parent(owner: str, salt: str) -> None:
    sessions = Sessions()
    identify(sessions, chat("code", "fix", "done", "more", tools=TOOLS))
    said = chat("sum up", "fix", "done", "more", "and", "Summarise.")
    assert identify(sessions, said, owner, cache_salt=salt).parent == ""


def test_equal_first_words_make_no_family() -> None:
    sessions = Sessions()
    identify(sessions, chat("app one", "hi", "Hello!", "what is rust?"))
    assert identify(sessions, chat("app two", "hi", "Hello!", "what is go?")).parent == ""


def test_the_number_of_sessions_is_bounded() -> None:
    sessions = Sessions()
    for index in range(MAX_SESSIONS + 50):
        identify(sessions, chat("s", f"{index}", "answer", "more"))
    assert len(sessions) == MAX_SESSIONS == len(sessions._last)
