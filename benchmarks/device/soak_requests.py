"""The requests of the soak: how they are drawn, and how each of them has to end."""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenspeed.engine.channel import LOCAL_CLIENT, Client, LocalChannel
from tokenspeed.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.engine.messages import FromEngine, ToEngine

FIRST_ID = 10
"""Token ids below are left alone: some are special."""
POISON = 9
"""Token whose embedding is NaN: the model was written with `nan_on_token`."""


class SoakError(Exception):
    """Something was left behind, or a request did not end as it should."""


class Clients(LocalChannel):
    """Several API processes at once; those in `gone` take no message any more."""

    def __init__(self) -> None:
        super().__init__()
        self.posted: deque[tuple[Client, ToEngine]] = deque()
        self.gone: set[Client] = set()

    def receive(self, wait_ms: int) -> Sequence[tuple[Client, ToEngine]]:
        """Return what was posted."""
        if not self.posted and wait_ms > 0:
            time.sleep(min(wait_ms, 1) / 1000)
        messages = tuple(self.posted)
        self.posted.clear()
        return messages

    def send(self, client: Client, message: FromEngine) -> bool:
        """Hand over one message, unless its client is gone."""
        if client in self.gone:
            return False
        self.outbox.append(message)
        return True


@dataclass(slots=True)
class Asked:
    """One request and what became of it.

    Args:
        fate: "" to go on to its end, else "abort" or "leave".
        fate_turn: turn of the loop in which the fate comes.
    """

    request_id: str
    prompt: list[int]
    params: SamplingParams
    client: Client = LOCAL_CLIENT
    fate: str = ""
    fate_turn: int = 0
    tokens: list[int] = field(default_factory=list)
    reason: str = ""
    error: str = ""

    @property
    def is_sample(self) -> bool:
        """Whether it can be asked again for the same tokens."""
        plain = self.params.temperature == 0 and self.params.repetition_penalty == 1
        return plain and self.reason == "length" and not self.params.logit_bias

    def check(self) -> None:
        """Compare how it ended with how it had to.

        Raises:
            SoakError: it ended otherwise.
        """
        read = [*self.prompt, *self.tokens[:-1]] if self.reason == "length" else self.prompt
        count, stops = len(self.tokens), self.params.stop_token_ids
        if self.reason == "error":
            is_right = "NaN" in self.error and POISON in [*self.prompt, *self.tokens]
        elif self.reason == "length":
            is_right = count == self.params.max_tokens and POISON not in read
        elif self.reason == "stop":
            is_right = self.tokens[-1] in stops and count > self.params.min_tokens
        else:
            is_right = self.reason == self.fate == "abort"
        if not is_right:
            raise SoakError(
                f"{self.request_id} ended with {self.reason!r} ({self.error}) after {count} of "
                f"{self.params.max_tokens} tokens; fate {self.fate!r}, prompt of "
                f"{len(self.prompt)}, poisoned: {POISON in self.prompt}"
            )


class Maker:
    """Draws requests; what ended before is material for second turns."""

    def __init__(self, vocab_size: int, longest_tokens: int, *, seed: int) -> None:
        self._random = random.Random(seed)
        self._vocab_size = vocab_size
        self._longest = longest_tokens
        lengths = [self._random.randint(20, max(21, longest_tokens // 4)) for _ in range(8)]
        self._shared = [self._draw(length) for length in lengths]
        self.ended: deque[list[int]] = deque(maxlen=32)

    def make(self, number: int, turn: int) -> Asked:
        """Draw one; `turn` is that of the loop."""
        rng = self._random
        request = Asked(f"r{number}", self._prompt(), self._params())
        chance = rng.random()
        if chance < 0.15:
            request.fate = "abort" if chance < 0.1 else "leave"
            request.fate_turn = turn + rng.choice([0, 1, 2, rng.randint(3, 60)])
        if request.fate == "leave":
            request.client = request.request_id.encode()
        return request

    def _prompt(self) -> list[int]:
        rng = self._random
        chance = rng.random()
        if chance < 0.5:
            prompt = self._draw(rng.randint(1, 50))
        elif chance < 0.75:
            prompt = rng.choice(self._shared) + self._draw(rng.randint(1, 40))
        elif chance < 0.9 and self.ended:
            prompt = rng.choice(self.ended) + self._draw(rng.randint(1, 20))
        elif chance < 0.98:
            prompt = self._draw(rng.randint(50, max(51, self._longest // 8)))
        else:
            prompt = self._draw(rng.randint(self._longest // 2, self._longest))
        if rng.random() < 0.02:
            # First: what a prompt's early chunks left in the cache is found by who begins alike.
            prompt.insert(0, POISON)
        return prompt[: self._longest]

    def _params(self) -> SamplingParams:
        rng = self._random
        fields: dict[str, Any] = {"max_tokens": rng.choice([1, 2, 8, 16, 32, rng.randint(33, 96)])}
        fields |= rng.choice(
            (
                {"temperature": 0.0},
                {"temperature": 0.0},
                {"temperature": 1.0},
                {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
                {"temperature": 0.0, "repetition_penalty": 1.2, "presence_penalty": 0.5},
                {"temperature": 1.2, "frequency_penalty": 0.3, "logit_bias": {FIRST_ID: 3.0}},
            )
        )
        if rng.random() < 0.1:
            stops = tuple(rng.sample(range(FIRST_ID, self._vocab_size), 20))
            fields |= {"stop_token_ids": stops, "min_tokens": min(2, fields["max_tokens"])}
        if rng.random() < 0.1:
            fields["logprobs"] = 3
        return SamplingParams(ignore_eos=True, seed=rng.getrandbits(62), **fields)

    def _draw(self, count: int) -> list[int]:
        return self._random.choices(range(FIRST_ID, self._vocab_size), k=count)
