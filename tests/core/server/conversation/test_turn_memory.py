"""The memory of turns: what it finds is what it was told, within its budget, whatever it forgot."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field

import pytest

from tokenspeed.server.conversation.fingerprint import MessagePrint, digest
from tokenspeed.server.conversation.turn_memory import TURN_BYTES, TurnMemory

SCOPE = digest(b"scope")


def user(text: str) -> MessagePrint:
    return MessagePrint(digest(text.encode()), b"", is_assistant=False)


def turn(text: str, reasoning: str = "") -> MessagePrint:
    return MessagePrint(digest(text.encode()), reasoning.encode(), is_assistant=True)


def remembered(
    memory: TurnMemory, said: list[MessagePrint], answer: MessagePrint, output: list[int]
) -> array[int]:
    """Answer a conversation; return the prompt."""
    place = memory.find(SCOPE, said)
    prompt = place.turn.token_ids() if place.turn else array("i", [1, 2, 3])
    prompt.extend([50 + len(said)] * 4)
    memory.remember(place, prompt, output, answer, continues=place.turn is not None)
    return prompt


@dataclass
class Told:
    """A conversation, and the tokens of it that the memory was told, by number of messages."""

    said: list[MessagePrint]
    tokens: dict[int, list[int]] = field(default_factory=dict)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_found_is_what_was_told_and_never_more_than_fits(seed: int) -> None:
    rng = random.Random(seed)
    budget = rng.choice([3, 10, 40]) * TURN_BYTES
    memory = TurnMemory(budget)
    told = [Told([user(f"chat {index}")]) for index in range(6)]
    for step in range(300):
        chat = rng.choice(told)
        if rng.random() < 0.15 and len(chat.said) > 3:  # another branch of it
            kept = rng.randrange(1, len(chat.said) // 2) * 2 + 1
            chat = Told(chat.said[:kept], {n: t for n, t in chat.tokens.items() if n <= kept})
            told.append(chat)
        place = memory.find(SCOPE, chat.said)
        if place.turn is not None:
            assert list(place.turn.token_ids()) == chat.tokens[place.index + 1], f"step {step}"
            assert place.turn.num_tokens == len(chat.tokens[place.index + 1])
        output = [rng.randrange(50) for _ in range(rng.randrange(1, 40))]
        answer = turn(f"answer {step}", rng.choice(["", "thought"]))
        prompt = remembered(memory, chat.said, answer, output)
        chat.said.append(answer)
        chat.tokens[len(chat.said)] = [*prompt, *output]
        chat.said.append(user(f"question {step}"))
        assert memory.num_bytes <= budget
        assert memory.num_bytes == sum(one.num_bytes for one in memory._lru)
        assert set(memory._turns.values()) <= set(memory._lru)
        assert all(one.parent in memory._lru for one in memory._lru if one.parent)


def test_nothing_is_forgotten_that_fits() -> None:
    memory = TurnMemory(1 << 20)
    said = [user("a")]
    for index in range(100):
        remembered(memory, said, turn(f"{index}"), [index] * 10)
        said += [turn(f"{index}"), user("more")]
    assert len(memory) == 100
    place = memory.find(SCOPE, said)
    assert (place.index, place.refused) == (199, "")
    assert place.turn is not None
    assert memory.num_bytes == 4 * place.turn.num_tokens + 100 * TURN_BYTES


def test_the_turn_that_was_not_asked_for_longest_goes_first() -> None:
    memory = TurnMemory(3 * (TURN_BYTES + 4 * 8))
    for name in "abc":
        remembered(memory, [user(name)], turn("x"), [7])
    memory.find(SCOPE, [user("a"), turn("x")])
    remembered(memory, [user("d")], turn("x"), [7])
    found = {name: memory.find(SCOPE, [user(name), turn("x")]).turn is not None for name in "abcd"}
    assert found == {"a": True, "b": False, "c": True, "d": True}


def test_a_turn_larger_than_the_budget_is_not_taken() -> None:
    memory = TurnMemory(TURN_BYTES + 40)
    remembered(memory, [user("a")], turn("x"), list(range(100)))
    assert (len(memory), memory.num_bytes) == (0, 0)


def test_of_two_answers_with_one_meaning_the_later_is_found() -> None:
    memory = TurnMemory(1 << 20)
    said = [user("a")]
    remembered(memory, said, turn("x", "first"), [1])
    remembered(memory, [*said, turn("x", "first"), user("b")], turn("y"), [5])
    remembered(memory, said, turn("x", "second"), [2])
    later = memory.find(SCOPE, [*said, turn("x")])
    assert later.turn is not None
    assert later.turn.token_ids()[-1] == 2
    assert memory.find(SCOPE, [*said, turn("x", "first")]).refused == "reasoning"
    below = memory.find(SCOPE, [*said, turn("x"), user("b"), turn("y")])
    assert below.turn is later.turn, "what followed the first has its thinking in it"
    assert below.refused == "unknown"


def test_why_a_turn_is_not_found() -> None:
    memory = TurnMemory(1 << 20)
    remembered(memory, [user("a")], turn("x", "why"), [1])
    reasons = {
        said[-1].body: memory.find(SCOPE, said).refused
        for said in ([user("a"), turn("y")], [user("b"), turn("x")], [user("a")])
    }
    assert list(reasons.values()) == ["edited", "unknown", ""]
    assert memory.find(digest(b"other"), [user("a"), turn("x")]).refused == "unknown"


def test_changes_are_told() -> None:
    told: list[tuple[int, int]] = []
    memory = TurnMemory(1 << 20, lambda turns, size: told.append((turns, size)))
    remembered(memory, [user("a")], turn("x"), [1])
    assert told == [(1, TURN_BYTES + 4 * 8)]
