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


def asked_on(said: Chat, *contents: str) -> Chat:
    """Go on from a chat with an answer and what its user says next."""
    roles: tuple[Role, ...] = ("assistant", "user")
    more = tuple(Message(r, (text,)) for r, text in zip(roles, contents, strict=True))
    messages = (*said.conversation.messages, *more)
    return cleaned(Conversation(messages, said.conversation.tools), ClientRules())


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


# ---- compaction as clients write it: the forms of their requests, in words of our own

ASKS = "Sum this up. Think first. Then, write the <state_snapshot> XML."


def test_a_turn_that_asks_for_the_form_of_a_summary_is_a_child() -> None:
    sessions = Sessions()
    main = identify(sessions, chat(*TURN, tools=TOOLS))
    shared = chat(*TURN, "finished", ASKS, tools=TOOLS)
    child = Identity(f"{main.session}:compaction", main.session, main.session)
    assert identify(sessions, shared) == child
    alone = chat("You sum up.", *TURN[1:], "finished", ASKS)  # asked again, in another way
    assert identify(sessions, alone) == child
    assert identify(sessions, chat(*TURN, "finished", "more", tools=TOOLS)) == main


def test_a_client_started_anew_compacts_what_nobody_has_seen() -> None:
    asked = identify(Sessions(), chat("code", "fix", "done", ASKS, tools=TOOLS))
    name_ = name("code", "fix")
    assert asked == Identity(f"{name_}:compaction", name_, name_)


def test_a_summary_that_is_asked_for_twice_is_one_child_whatever_the_client_left_out() -> None:
    sessions = Sessions()
    main = identify(sessions, chat("code", "fix", "done", "It is noon. more", tools=TOOLS))
    for ask in (f"You sum up. {ASKS}", ASKS):
        asked = chat("code", "fix", "done", "more", "finished", ask, tools=TOOLS)
        assert identify(sessions, asked).session == f"{main.session}:compaction"
    alone = chat("You sum up.", "fix", "done", "more", "finished", ASKS)
    assert identify(sessions, alone).session == f"{main.session}:compaction"


def test_a_named_session_that_asks_for_a_summary_compacts_itself() -> None:
    sessions = Sessions()
    identify(sessions, chat(*TURN, tools=TOOLS), headers=HEADERS)
    asked = chat(*TURN, "finished", ASKS, tools=TOOLS)
    assert identify(sessions, asked, headers=HEADERS) == Identity("c:compaction", "c", "c")


@pytest.mark.parametrize(
    "said",
    [
        ("code", f"{ASKS}", "done", "more"),
        ("code", "<state_snapshot>All is done.</state_snapshot>" + "Go on. " * 20),
        ("code", "fix", "done", "Why does it write <state_snapshot>? " + "Tell me. " * 20),
    ],
)
def test_a_summary_sent_back_and_talk_of_its_form_are_turns(said: tuple[str, ...]) -> None:
    found = identify(Sessions(), chat(*said, tools=TOOLS), headers=HEADERS)
    assert found == Identity("c")


def test_what_goes_on_behind_its_own_compaction_is_no_child_of_it() -> None:
    sessions = Sessions()
    main = identify(sessions, chat("code", "fix", "done", "more", tools=TOOLS))
    asked = chat("code", "fix", "done", "more", "and", ASKS, tools=TOOLS)
    identify(sessions, asked)
    assert identify(sessions, asked_on(asked, "a summary", "Go on."), owner="") == main


QUOTED = "So far:\n<conversation>\n[User]: fix\n[Assistant]: done\n</conversation>\nSum it up."


def opencode(sessions: Sessions, *contents: str, **fields: Any) -> Identity:
    headers = {"x-session-id": "s", "x-session-affinity": "s"}
    return identify(sessions, chat(*contents, **fields), headers=headers)


def test_a_text_that_quotes_the_session_is_a_child() -> None:
    sessions = Sessions()
    opencode(sessions, "code", "fix", tools=TOOLS)
    opencode(sessions, *TURN, tools=TOOLS)
    assert opencode(sessions, "You sum up.", QUOTED) == Identity("s:compaction", "s", "s")
    assert opencode(sessions, "code", "So far?", "done", "Go on.", tools=TOOLS) == Identity("s")
    again = QUOTED.replace("fix", "Go on.")
    assert opencode(sessions, "You sum up.", again) == Identity("s:compaction", "s", "s")


@pytest.mark.parametrize(
    "said", [("You name chats.", "fix"), ("You sum up.", "Sum up what was not said.")]
)
def test_a_text_without_a_quotation_is_of_the_session(said: tuple[str, ...]) -> None:
    sessions = Sessions()
    opencode(sessions, *TURN, tools=TOOLS)
    assert opencode(sessions, *said) == Identity("s")


def test_a_quotation_is_no_sign_where_there_were_no_tools_or_is_one() -> None:
    sessions = Sessions()
    opencode(sessions, *TURN)
    assert opencode(sessions, "You sum up.", QUOTED) == Identity("s")
    opencode(sessions, *TURN, tools=TOOLS)
    assert opencode(sessions, "You sum up.", QUOTED, tools=TOOLS) == Identity("s")


def test_a_quotation_is_not_looked_for_under_another_salt() -> None:
    sessions, headers = Sessions(), {"x-session-id": "s"}
    turn = chat(*TURN, tools=TOOLS)
    identify(sessions, turn, headers=headers, cache_salt="mine")
    asked = chat("You sum up.", QUOTED)
    assert identify(sessions, asked, headers=headers, cache_salt="yours") == Identity("s")
    found = identify(sessions, asked, headers=headers, cache_salt="mine")
    assert found == Identity("s:compaction", "s", "s")


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
