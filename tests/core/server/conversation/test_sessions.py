"""Which conversation a request is a turn of."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers

from tokenspeed.server.conversation.sessions import session_of
from tokenspeed.server.openai.conversation import conversation_of
from tokenspeed.server.openai.schemas import ChatRequest, CompletionRequest


def chat(*contents: str, **fields: Any) -> str:
    roles = ["system", "user", "assistant", "user", "assistant", "user"]
    messages = [
        {"role": role, "content": text} for role, text in zip(roles, contents, strict=False)
    ]
    body = ChatRequest.model_validate({"model": "m", "messages": messages, **fields})
    return session_of(body, Headers(), conversation_of(body))


def test_later_turns_of_a_chat_are_of_its_session() -> None:
    first = chat("be kind", "hello")
    assert first
    assert chat("be kind", "hello", "hi", "how are you?") == first


def test_other_beginnings_are_other_sessions() -> None:
    names = {chat("a", "b"), chat("a", "c"), chat("d", "b"), chat("ab", "")}
    assert len(names) == 4


def test_the_clients_key_is_taken_at_its_word() -> None:
    key = chat("a", "b", prompt_cache_key="k")
    assert chat("c", "d", prompt_cache_key="k") == key
    assert key != chat("a", "b")


def test_a_plain_completion_is_a_turn_only_with_a_key() -> None:
    def session(**fields: Any) -> str:
        return session_of(CompletionRequest(model="m", prompt="p", **fields), Headers())

    assert session() == ""
    assert session(prompt_cache_key="k") == "k"


def test_a_chat_without_a_user_has_no_session() -> None:
    assert chat("only a system prompt") == ""
