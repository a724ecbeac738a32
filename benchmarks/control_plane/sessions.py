"""Agentic sessions: equal ones, made up, in an order that no engine sways; and their ideals."""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict

from figures import SEED, random_tokens

SHARED_TOKENS = 15_000
SERVICE_S = 6.0
Order = list[tuple[int, int]]


class Session:
    """One agent: a shared prefix, its own part, then turns of an answer and a tool's output."""

    def __init__(
        self, sid: int, shared: list[int], own: int, turns: int, out: int, tool: int, seed: int
    ) -> None:
        rng = random.Random(seed * 1_000_003 + sid)
        self.sid, self.turns, self.out, self.tool = sid, turns, out, tool
        self.head = len(shared) + own
        self.stream = shared + random_tokens(rng, own + turns * (out + tool))
        self.latency_s = [rng.lognormvariate(1.6, 1.2) for _ in range(turns)]  # median 5 s
        self.start_s = rng.uniform(0, 120)
        self.when_s: list[float] = []

    def prompt(self, turn: int) -> list[int]:
        """The whole prompt of a turn."""
        return self.stream[: self.head + turn * (self.out + self.tool)]

    def output(self, turn: int) -> list[int]:
        """What the model answers in a turn."""
        start = self.head + turn * (self.out + self.tool)
        return self.stream[start : start + self.out]

    def new_ids(self, turn: int) -> list[int]:
        """What a turn's prompt adds to prompt and answer of the turn before it."""
        start = self.head + (turn - 1) * (self.out + self.tool) + self.out
        return self.stream[start : self.head + turn * (self.out + self.tool)]


def make_sessions(
    count: int = 64,
    turns: int = 30,
    own: int = 35_000,
    out: int = 300,
    tool: int = 700,
    seed: int = SEED,
) -> tuple[list[Session], Order, int]:
    """Sessions, the order of their turns, and their working set in tokens.

    A turn arrives when the one before it ended (6 s of service) plus its tool's latency.
    """
    shared = random_tokens(random.Random(seed), SHARED_TOKENS)
    sessions = [Session(sid, shared, own, turns, out, tool, seed) for sid in range(count)]
    heap = [(session.start_s, session.sid, 0) for session in sessions]
    heapq.heapify(heap)
    order: Order = []
    while heap:
        now_s, sid, turn = heapq.heappop(heap)
        sessions[sid].when_s.append(now_s)
        order.append((sid, turn))
        if turn + 1 < turns:
            next_s = now_s + SERVICE_S + sessions[sid].latency_s[turn]
            heapq.heappush(heap, (next_s, sid, turn + 1))
    return sessions, order, SHARED_TOKENS + count * (own + turns * (out + tool))


def ideal_lru(
    sessions: list[Session], order: Order, pool_tokens: int | None, block_tokens: int
) -> float:
    """Hit rate of a block LRU over the same order, tails first; pool_tokens None: unlimited.

    Token-granular trees count in blocks of 16: close enough, and 16 times quicker.
    """
    block = max(block_tokens, 16)
    capacity = None if pool_tokens is None else pool_tokens // block
    cached: OrderedDict[tuple[int, int], None] = OrderedDict()
    hit = total = 0
    for sid, turn in order:
        session = sessions[sid]
        prompt = session.head + turn * (session.out + session.tool)
        keys = [
            (-1, i) if (i + 1) * block <= SHARED_TOKENS else (sid, i)
            for i in range((prompt + session.out) // block)
        ]
        limit = (prompt - 1) // block
        hit += block * next((i for i, key in enumerate(keys[:limit]) if key not in cached), limit)
        total += prompt
        for key in reversed(keys):  # the tail is the oldest, the head the youngest
            cached[key] = None
            cached.move_to_end(key)
        while capacity is not None and len(cached) > capacity:
            cached.popitem(last=False)
    return hit / total


def ideal_next_use(sessions: list[Session], order: Order, pool_tokens: int) -> float:
    """Hit rate of evicting whoever returns last (knows the future), in whole tokens."""
    never = len(order)
    returns, seen = [never] * len(order), dict[int, int]()
    for place in range(len(order) - 1, -1, -1):
        sid = order[place][0]
        returns[place] = seen.get(sid, never)
        seen[sid] = place
    resident, next_use = dict[int, int](), dict[int, int]()
    used = hit = total = 0
    for place, (sid, turn) in enumerate(order):
        session = sessions[sid]
        prompt = session.head + turn * (session.out + session.tool)
        have = resident.get(sid, 0)
        hit += (SHARED_TOKENS if place else 0) + min(have, prompt - SHARED_TOKENS)
        total += prompt
        resident[sid] = prompt + session.out - SHARED_TOKENS
        used += resident[sid] - have
        next_use[sid] = returns[place]
        while used > pool_tokens - SHARED_TOKENS:
            last = max((other for other in resident if other != sid), key=next_use.__getitem__)
            cut = min(resident[last], used - (pool_tokens - SHARED_TOKENS))
            resident[last] -= cut
            used -= cut
            if not resident[last]:
                del resident[last]
    return hit / total
