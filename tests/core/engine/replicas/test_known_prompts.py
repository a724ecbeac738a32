"""A next turn hashes its new blocks only, and has the keys of a prompt hashed anew."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from tests.support.routing import BLOCK_TOKENS, Routing

from tokenspeed.engine.messages import Submit
from tokenspeed.engine.replicas.known_prompts import KnownPrompts
from tokenspeed.sampling.params import SamplingParams
from tokenspeed.scheduler import PrefixKeys, PrefixView

MILLION = 1_000_000


def submit(**changes: Any) -> Submit:
    given = {"request_id": "r", "epoch": 1, "prompt_ids": b"", "stop_token_ids": ()}
    return Submit(params=SamplingParams(), **{**given, **changes})


def anew(tokens: np.ndarray[Any, Any], tenant: int = 0, salt: bytes = b"") -> PrefixKeys:
    keys = PrefixKeys(BLOCK_TOKENS, tenant=tenant, salt=salt)
    keys.extend(tokens)
    return keys


def same(one: PrefixKeys, other: PrefixKeys) -> bool:
    """Whether a view that expects one finds all of the other, and no less."""
    view = PrefixView(1, block_tokens=BLOCK_TOKENS, groups=[("full", 0)])
    view.expect(0, one, True)
    return len(one) == len(other) and view.match(other)[0][2] == len(other)


def test_a_second_turn_of_a_million_tokens_hashes_its_new_blocks_alone() -> None:
    routing = Routing()
    tokens = np.arange(MILLION, dtype=np.int32) % 50_000
    longer = np.concatenate([tokens, np.arange(1000, dtype=np.int32)])
    first = routing.ask(tokens, "s")
    assert first.keys.num_hashed == MILLION // BLOCK_TOKENS
    second = routing.ask(longer, "s")
    assert second.keys.num_hashed == (MILLION + 1000) // BLOCK_TOKENS - MILLION // BLOCK_TOKENS
    assert same(second.keys, anew(longer))
    assert len(first.keys) == MILLION // BLOCK_TOKENS, "the first one's are its own"


def test_keys_are_those_of_a_prompt_hashed_anew_whatever_was_before() -> None:
    draw = random.Random(7)
    known = KnownPrompts(BLOCK_TOKENS)
    last: dict[str, list[int]] = {}
    for _ in range(300):
        session = draw.choice(["", "a", "b"])
        before = last.get(session, [])
        kept = before[: draw.randrange(len(before) + 1)] if draw.random() < 0.5 else before
        tokens = [*kept[:2000], *(draw.randrange(3) for _ in range(draw.randrange(90)))]
        last[session] = tokens
        array = np.asarray(tokens, np.int32)
        assert same(known.keys_of(submit(session=session, owner="o"), array), anew(array))


def test_tenants_salts_and_owners_of_a_session_share_nothing() -> None:
    known = KnownPrompts(BLOCK_TOKENS)
    array = np.arange(64, dtype=np.int32)
    for changes in ({}, {"salt": b"x"}, {"tenant": "t"}, {"owner": "p"}):
        keys = known.keys_of(submit(session="s", **{"owner": "o", **changes}), array)
        assert keys.num_hashed == 4
    assert known.keys_of(submit(session="s", owner="o", salt=b"x"), array).num_hashed == 0


def test_the_oldest_conversations_go_when_memory_is_short() -> None:
    known = KnownPrompts(BLOCK_TOKENS, max_bytes=3 * 64 * 4)
    array = np.arange(64, dtype=np.int32)
    for session in "abcd":
        known.keys_of(submit(session=session), array)
    assert known.keys_of(submit(session="d"), array).num_hashed == 0
    assert known.keys_of(submit(session="b"), array).num_hashed == 0
    assert known.keys_of(submit(session="a"), array).num_hashed == 4
