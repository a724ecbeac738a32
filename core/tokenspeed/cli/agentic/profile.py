"""The published profile of coding agents as a workload, made from a seed.

About 63,000 prompt tokens in the mean and over 70,000 at the 99th percentile, 300 output tokens,
about 1,000 new tokens a turn, a tool's pause before each, over 90 % of each prompt seen before;
some turns start sub-agents, some sessions are compacted.
Source: published workload descriptions of agent benchmarks (InferenceX agentic, AIPerf agent code).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tokenspeed.cli.agentic.workload import Kind, Part, Session, Turn, Workload

CHARS_PER_TOKEN = 4.0
"""Of the text below with tokenizers of 50,000 to 250,000 tokens, about."""

_SYSTEM_TOKENS = 20_000
_FIRST_TOKENS = 35_500
_NEW_TOKENS = 1_000
_OUTPUT_TOKENS = 300
_TURNS = 12
_SUB_AGENT_SHARE = 0.03
_SUB_AGENT_TURNS = 4
_SUB_AGENT_TOKENS = 3_000
_COMPACTION_SHARE = 0.25
_TOOL_PAUSE_S = 3.0
_WORDS = 4_096
_SYLLABLES = ("ba", "con", "de", "er", "for", "ing", "lo", "mat", "ne", "or", "pre", "sta", "ti")


@dataclass(frozen=True, slots=True)
class Profile:
    """What to make.

    Args:
        num_sessions: top-level sessions.
        scale: of prompt and output sizes; 1 is the published profile.
        pause_scale: of the client's pauses; 0: none.
        turns: of a session, before its compaction.
        chars_per_token: how long a text of so many tokens is.
    """

    num_sessions: int
    seed: int = 0
    scale: float = 1.0
    pause_scale: float = 1.0
    turns: int = _TURNS
    chars_per_token: float = CHARS_PER_TOKEN


def coding_agents(profile: Profile) -> Workload:
    """Return the workload of a profile."""
    maker = _Maker(profile)
    sessions = tuple(maker.session(f"s{number}") for number in range(profile.num_sessions))
    return Workload(f"coding-agents-seed-{profile.seed}", sessions, profile.scale)


class _Maker:
    """Draws sessions. One stream of random numbers, so that equal seeds make equal bytes."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._rng = random.Random(f"coding-agents/{profile.seed}")
        self._words = [self._word() for _ in range(_WORDS)]
        self._system = Part("system", self._text(_SYSTEM_TOKENS))

    def session(self, name: str) -> Session:
        """Draw a session: system and task, then turns of tool answers."""
        turns = [self._opening(_FIRST_TOKENS)]
        children: dict[int, tuple[Session, ...]] = {}
        length = 2
        for index in range(1, self._profile.turns):
            if self._rng.random() < _SUB_AGENT_SHARE:
                children[index - 1] = (self._sub_agent(f"{name}.{index}"),)
            turns.append(self._turn(length + 1))
            length += 2
        if self._rng.random() < _COMPACTION_SHARE:
            turns += self._compacted(length + 1)
        return Session(name, tuple(turns), children)

    def _sub_agent(self, name: str) -> Session:
        turns = [self._opening(_SUB_AGENT_TOKENS, kind="sub-agent")]
        for index in range(1, _SUB_AGENT_TURNS):
            turns.append(self._turn(1 + 2 * index, kind="sub-agent"))
        return Session(name, tuple(turns))

    def _compacted(self, length: int) -> list[Turn]:
        """Return the call that asks for a summary, and the first turn that goes on from it."""
        summary = Part("user", self._text(200))
        call = Turn(length, (summary,), self._answer(), self._output(), 0.0, "compaction")
        going_on = (Part("user", call.reply + "\n" + self._text(_NEW_TOKENS)),)
        return [call, Turn(1, going_on, self._answer(), self._output(), self._pause())]

    def _opening(self, tokens: int, *, kind: Kind = "turn") -> Turn:
        task = Part("user", self._text(self._around(tokens, 0.03)))
        new = (self._system, task)
        return Turn(0, new, self._answer(), self._output(), 0.0, kind)

    def _turn(self, history: int, *, kind: Kind = "turn") -> Turn:
        tool = Part("user", self._text(self._around(_NEW_TOKENS, 0.3)))
        pause_s = self._pause()
        return Turn(history, (tool,), self._answer(), self._output(), pause_s, kind)

    def _pause(self) -> float:
        return self._profile.pause_scale * self._rng.expovariate(1 / _TOOL_PAUSE_S)

    def _output(self) -> int:
        return max(2, round(self._around(_OUTPUT_TOKENS, 0.2) * self._profile.scale))

    def _answer(self) -> str:
        return self._text(_OUTPUT_TOKENS)

    def _around(self, tokens: float, sigma: float) -> float:
        return max(1.0, self._rng.gauss(tokens, sigma * tokens))

    def _text(self, tokens: float) -> str:
        """Return words, so many characters long that they are about `tokens` tokens."""
        wanted = max(8, round(tokens * self._profile.scale * self._profile.chars_per_token))
        words: list[str] = []
        length = 0
        while length < wanted:
            words.append(self._rng.choice(self._words))
            length += len(words[-1]) + 1
        return " ".join(words)[:wanted]

    def _word(self) -> str:
        return "".join(self._rng.choices(_SYLLABLES, k=self._rng.randint(1, 3)))
