"""Chooses the replica of a request: where its first token is expected soonest.

    expected time to first token
        = (tokens ahead + tokens of the prompt that are not cached there + loads) / speed
        + a wait for a place, where all are taken

A turn goes on where its session's prefix is, unless that replica is so far behind that another one
would answer much sooner without the prefix. What begins anew goes nowhere where much more of
running and resting conversations lies than on the mean of all replicas: else everything that shares
a system prompt would crowd where it was first. Ties go to the lowest number. Decides only: what it
chose is sent by `fleet.py`.
Source: the bound on load is that of Consistent Hashing with Bounded Loads, Mirrokni et al. 2016,
applied to tokens; our choice within it is by time, not by hash.
Thread: the asyncio loop's of its API process only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.engine.replicas.homes import Homes
from tokenspeed.engine.replicas.known_prompts import KnownPrompts
from tokenspeed.engine.requests import number_of
from tokenspeed.scheduler import PrefixView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.engine.messages import EngineStats, KvChanges, ModelInfo, Submit
    from tokenspeed.scheduler import PrefixKeys

BOUND = 1.25
"""Most tokens of a replica that may begin more conversations, over the mean of all."""
STAY = 4.0
"""A session moves when its time at home is worse than the best one by more than this factor: what
it computes again elsewhere takes the place of what others would find there."""
LOAD_COST = 1 / 16
"""Time of loading a token from the host or a store, in times of computing it."""
FIRST_SPEED = 5000.0
"""Tokens a second, until some were seen."""
MIN_SAMPLE_TOKENS = 256
"""Requests with less to do tell more of steps than of speed."""
FIRST_HOLD_S = 5.0
"""How long a request keeps its place, until some were seen."""
LEARNING = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a router must know of the replicas, which are all alike."""

    max_running: int
    max_step_tokens: int


@dataclass(slots=True)
class Load:
    """What a replica has to do.

    Args:
        own_queued, own_live: of this process: tokens before a first token, requests.
        nameless: tokens of its live prompts that are no session's.
        other_queued, other_live: of other API processes, as of the last statistics.
    """

    own_queued: int = 0
    own_live: int = 0
    nameless: int = 0
    other_queued: int = 0
    other_live: int = 0

    @property
    def queued(self) -> int:
        """Prompt tokens that are to be computed before a new request's."""
        return self.own_queued + self.other_queued

    @property
    def live(self) -> int:
        """Requests that run or wait."""
        return self.own_live + self.other_live


@dataclass(slots=True)
class Routed:
    """A request and its replica, from the choice to its end.

    Args:
        keys: of the prompt's blocks, which are expected there.
        cached_tokens: that the view promised.
        queued_tokens: that are to be computed before its first token; 0 afterwards.
        work_tokens: the same, with what was ahead of it: what its first token waited for.
    """

    replica: int
    keys: PrefixKeys
    num_tokens: int
    cached_tokens: int
    queued_tokens: int
    work_tokens: int
    started_s: float = 0.0
    session: int = 0


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a replica would do for a request."""

    replica: int
    known_tokens: int
    work_tokens: int
    expected_s: float


class Router:
    """Views, loads and homes of all replicas, and the choice.

    Args:
        num_replicas: up to 16.
        clock: seconds; another one for simulations.
    """

    def __init__(
        self,
        model: ModelInfo,
        limits: Limits,
        num_replicas: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.view = PrefixView(
            num_replicas, block_tokens=model.block_tokens, groups=list(model.cache_groups)
        )
        self.loads = [Load() for _ in range(num_replicas)]
        self.routed = [0] * num_replicas
        self.speed = FIRST_SPEED
        self.hold_s = FIRST_HOLD_S
        self.homes = Homes(num_replicas, clock=clock)
        self._limits = limits
        self._block_tokens = model.block_tokens
        self._prompts = KnownPrompts(model.block_tokens)
        self._numbers = [-1] * num_replicas
        self._clock = clock

    def route(self, message: Submit, here: Sequence[bool]) -> Routed:
        """Choose a replica and count the request as its load until `ended`.

        Args:
            here: which replicas can be asked now; at least one.
        """
        tokens = np.frombuffer(message.prompt_ids, dtype="<i4")
        keys = self._prompts.keys_of(message, tokens)
        session = number_of(message.session, owner=message.owner)
        offers = [
            self._offer(replica, tokens.size, match)
            for replica, match in enumerate(self.view.match(keys))
            if here[replica]
        ]
        chosen = self._choose(offers, self._home(message, session), tokens.size)
        return self._note(chosen, keys, tokens.size, session)

    def first_token(self, routed: Routed) -> None:
        """Note that a prompt is computed."""
        elapsed_s = self._clock() - routed.started_s
        if routed.work_tokens >= MIN_SAMPLE_TOKENS and elapsed_s > 0:
            self.speed += LEARNING * (routed.work_tokens / elapsed_s - self.speed)
        self._dequeue(routed)

    def ended(self, routed: Routed) -> None:
        """Note that a request is no load any more, however it ended."""
        self.displaced(routed)
        self.hold_s += LEARNING * (self._clock() - routed.started_s - self.hold_s)

    def placed(self, routed: Routed, replica: int) -> None:
        """Count a request as the load of a replica."""
        routed.replica = replica
        load = self.loads[replica]
        load.own_live += 1
        load.own_queued += routed.queued_tokens
        load.nameless += 0 if routed.session else routed.num_tokens
        self.view.expect(replica, routed.keys, True)
        self.homes.note(routed.session, replica, routed.num_tokens)

    def displaced(self, routed: Routed) -> None:
        """Count a request as its replica's load no more."""
        self._dequeue(routed)
        load = self.loads[routed.replica]
        load.own_live -= 1
        load.nameless -= 0 if routed.session else routed.num_tokens
        self.view.expect(routed.replica, routed.keys, False)

    def burden(self, replica: int) -> int:
        """Return the tokens of conversations that live on a replica, and of nameless requests."""
        return self.homes.burden(replica) + self.loads[replica].nameless

    def changed(self, replica: int, message: KvChanges) -> bool:
        """Take changes of a replica's cache; False: one was missed, all must be told."""
        if message.is_all:
            self.view.load(replica, message.blocks)
        elif message.number != self._numbers[replica] + 1:
            return self._numbers[replica] < 0  # it is on its way
        else:
            self.view.apply(replica, message.blocks)
        self._numbers[replica] = message.number
        for session, num_tokens in message.turns:
            self.homes.note(session, replica, num_tokens)
        return True

    def counted(self, replica: int, stats: EngineStats) -> bool:
        """Take a replica's statistics; False: a change of its cache was missed."""
        load = self.loads[replica]
        load.other_queued = max(0, stats.queued_tokens - load.own_queued)
        load.other_live = max(0, stats.running + stats.waiting - load.own_live)
        return not 0 <= self._numbers[replica] < stats.kv_number

    def forget(self, replica: int) -> None:
        """Forget what a replica had cached: its engine is gone, or a change was missed."""
        self._numbers[replica] = -1
        self.view.clear(replica)

    def lost(self, replica: int) -> None:
        """Note that a replica's engine is gone with all that it had."""
        self.forget(replica)
        self.homes.forget(replica)
        load = self.loads[replica]
        load.other_queued = load.other_live = 0

    def _offer(self, replica: int, num_tokens: int, match: tuple[int, int, int]) -> _Offer:
        cached, behind, expected = (self._block_tokens * blocks for blocks in match)
        known = min(max(cached, expected), num_tokens - 1)
        load = self.loads[replica]
        work = load.queued + num_tokens - known + int(behind * LOAD_COST)
        # Each running request takes a token of each step.
        num_steps = -(-work // self._limits.max_step_tokens)
        expected_s = (work + num_steps * load.live) / self.speed
        beyond = load.live + 1 - self._limits.max_running
        if beyond > 0:
            expected_s += self.hold_s * beyond / self._limits.max_running
        return _Offer(replica, known, work, expected_s)

    def _home(self, message: Submit, session: int) -> int | None:
        """Return where the session, else who started it, had its last turn."""
        for number in (
            session,
            number_of(message.parent, owner=message.owner),
            number_of(message.root, owner=message.owner),
        ):
            home = self.homes.find(number) if number else None
            if home is not None:
                return home
        return None

    def _choose(self, offers: list[_Offer], home: int | None, num_tokens: int) -> _Offer:
        best = min(offers, key=self._rank)
        at_home = next((offer for offer in offers if offer.replica == home), None)
        others = (offer.known_tokens for offer in offers if offer is not at_home)
        if at_home is not None and at_home.known_tokens > max(others, default=0):
            return at_home if at_home.expected_s <= STAY * best.expected_s else best
        mean = sum(self.burden(offer.replica) for offer in offers) / len(offers)
        limit = BOUND * mean + num_tokens
        fair = [offer for offer in offers if self.burden(offer.replica) <= limit]
        return min(fair, key=self._rank)

    def _rank(self, offer: _Offer) -> tuple[float, int, int]:
        return offer.expected_s, self.burden(offer.replica), offer.replica

    def _note(self, chosen: _Offer, keys: PrefixKeys, num_tokens: int, session: int) -> Routed:
        routed = Routed(
            chosen.replica,
            keys,
            num_tokens,
            cached_tokens=chosen.known_tokens,
            queued_tokens=num_tokens - chosen.known_tokens,
            work_tokens=chosen.work_tokens,
            started_s=self._clock(),
            session=session,
        )
        self.placed(routed, chosen.replica)
        self.routed[chosen.replica] += 1
        return routed

    def _dequeue(self, routed: Routed) -> None:
        self.loads[routed.replica].own_queued -= routed.queued_tokens
        routed.queued_tokens = 0
