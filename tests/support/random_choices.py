"""What a random run asks for: prompts that share prefixes, options, drafts, answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.support.naive_requests import NaiveRequests
from tests.support.random_scenarios import Scenario

VOCABULARY = 3
STOP_ID = 7
MOSTLY_ONE = (0,) * 8 + (1, 2)
"""Tenants: they share nothing, and prefixes are to be shared often."""


class RandomChoices:
    """Draws from one source of chance.

    Args:
        requests: prompts continue what they say.
    """

    def __init__(self, chance: random.Random, scenario: Scenario, requests: NaiveRequests) -> None:
        self._chance = chance
        self._scenario = scenario
        self._requests = requests
        self._context: int = scenario.settings["max_context_tokens"]
        self._texts = [self.tokens(self._context) for _ in range(3)]

    def tokens(self, count: int) -> list[int]:
        """Return that many tokens."""
        return [self.token() for _ in range(count)]

    def token(self) -> int:
        """Return a token; few differ, so that sequences often share prefixes."""
        return STOP_ID if self._chance.random() < 0.03 else self._chance.randrange(VOCABULARY)

    def prompt(self) -> list[int]:
        """Return a prompt; rarely one that is too long."""
        chance, context = self._chance, self._context
        flying = [request for request in self._requests.live.values() if request.num_uncommitted]
        if flying and chance.random() < 0.4:
            # What is being computed right now is the most dangerous prefix to share.
            return (flying[-1].tokens + self.tokens(3))[: context - 1]
        text = chance.choice(self._texts)
        longest = chance.choice([24, len(text) // 2, len(text), len(text)])
        shared = text[: chance.randrange(0, longest + 1)]
        prompt = shared + self.tokens(chance.choice([0, 1, 2, 20]))
        return prompt[: chance.choice([context - 1, context - 1, context - 1, context])]

    def options(self, now_us: int) -> dict[str, Any]:
        """Return the keywords of a submission."""
        chance, context = self._chance, self._context
        stop_ids = chance.choice([[], [], [], [STOP_ID], [0]])
        drafts = 0 if self._scenario.has_state else chance.choice([0, 0, 0, 2, 4])
        return {
            "max_new_tokens": chance.choice([0, 0, 1, 20, 40, context]),
            "min_new_tokens": chance.choice([0, 0, 0, 3]),
            "stop_token_ids": np.array(stop_ids, np.int32) if stop_ids else None,
            "priority": chance.choice([0, 0, 0, 1, -1]),
            "salt": chance.choice([b"", b"", b"", b"a"]),
            "match_prefix": chance.random() < 0.9,
            "deadline_us": now_us + chance.randrange(1, 400) if chance.random() < 0.1 else 0,
            "tenant": chance.choice([0, 1, 2, 2] if self._scenario.has_limits else MOSTLY_ONE),
            "gap_us": chance.choice([0, 0, 20, 400]),
            "queue_key": chance.choice([0, 0, 1]),
            "victim_key": chance.choice([0, 0, 1]),
            "retain_us": chance.choice([0, 0, 0, 50, 2000]),
            "max_queue_us": chance.choice([0, 0, 0, 0, 100]),
            "max_drafts": drafts,
            "device_drafts": drafts > 0 and chance.random() < 0.5,
            "now_us": now_us,
        }

    def reuse_points(self, num_prompt: int) -> dict[str, Any]:
        """Return the keyword for a prompt of this length, or none."""
        if num_prompt < 4 or self._chance.random() < 0.5:
            return {}
        points = self._chance.sample(range(1, num_prompt + 1), self._chance.randrange(1, 4))
        return {"reuse_points": np.array(sorted(points), np.int32)}

    def answer(self, drafts: Sequence[int]) -> list[int]:
        """Return the model's tokens: the drafts as far as they are right, and one more."""
        tokens: list[int] = []
        for draft in drafts:
            token = draft if self._chance.random() < 0.5 else self.token()
            tokens.append(token)
            if token != draft:
                return tokens
        return [*tokens, self.token()]

    def remember_text(self) -> None:
        """Later prompts continue what was said: a second turn."""
        if self._requests.live and self._chance.random() < 0.05:
            request = self._chance.choice(list(self._requests.live.values()))
            self._texts[self._chance.randrange(3)] = list(request.tokens)
