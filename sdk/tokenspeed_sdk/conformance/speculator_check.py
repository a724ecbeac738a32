"""A speculator as the engine calls it: what it is given stays, what it gives can be used."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenspeed_sdk import Speculator

REQUESTS = 6
STEPS = 40
MOST = 4


def check_drafts(speculator: Speculator, vocab_size: int) -> None:
    """Drafts are for the requests asked for, no longer than asked, tokens and grades in range."""
    texts = _start(speculator, vocab_size)
    rng = random.Random(1)
    for _ in range(STEPS):
        wanted = {name: rng.randint(1, MOST) for name in texts if rng.random() < 0.8}
        drafts = speculator.propose(wanted)
        assert drafts.keys() <= wanted.keys(), f"drafts for {drafts.keys() - wanted.keys()}"
        for name, draft in drafts.items():
            tokens = [int(token) for token in draft.tokens]
            assert len(tokens) <= wanted[name], f"{len(tokens)} drafts, {wanted[name]} were asked"
            assert all(0 <= token < vocab_size for token in tokens), f"no tokens: {tokens}"
            assert 0 <= draft.grade < speculator.facts.num_grades, f"grade {draft.grade}"
        for name, text in texts.items():
            new = [text[-7 % len(text)]] * rng.randint(1, 2)
            if speculator.facts.observes and name in drafts:
                speculator.observe(name, len(drafts[name].tokens), 0)
            speculator.extend(name, new)
            text.extend(new)


def check_inputs_stay(speculator: Speculator, vocab_size: int) -> None:
    """The tokens of a request are the engine's: a speculator copies what it needs."""
    tokens = np.arange(30, dtype=np.int32) % vocab_size
    before = tokens.copy()
    speculator.start(1, tokens)
    speculator.propose({1: MOST})
    new = [3, 4]
    speculator.extend(1, new)
    speculator.propose({1: MOST})
    speculator.end(1)
    assert np.array_equal(tokens, before), "start's token_ids were written to"
    assert new == [3, 4], "extend's token_ids were written to"


def check_ends(speculator: Speculator, vocab_size: int) -> None:
    """What has ended is forgotten: its id may come again with another text."""
    for round_ in range(50):
        tokens = np.array([round_ % vocab_size, 1, 2], dtype=np.int32)
        speculator.start(7, tokens)
        speculator.propose({7: 1})
        speculator.end(7)


CHECKS: Mapping[str, Callable[[Speculator, int], None]] = {
    "drafts": check_drafts,
    "inputs-stay": check_inputs_stay,
    "ends": check_ends,
}


def _start(speculator: Speculator, vocab_size: int) -> dict[int, list[int]]:
    rng = random.Random(0)
    texts: dict[int, list[int]] = {}
    for name in range(REQUESTS):
        phrase = [rng.randrange(vocab_size) for _ in range(9)]
        texts[name] = phrase * rng.randint(1, 5)
        speculator.start(name, np.array(texts[name], dtype=np.int32))
    return texts
