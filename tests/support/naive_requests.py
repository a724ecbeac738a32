"""Requests as a naive reader of the contract keeps them: tokens, limits, ends, and what was cached.

Nothing here predicts a schedule: which requests run when is the scheduler's choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.naive_tenants import NaiveTenants
from tests.support.plan_copies import Entry, PlanCopy, end_of_match
from tests.support.simulated_memory import OracleError, PrefixTrie, require


@dataclass(slots=True)
class NaiveRequest:
    """A request.

    Args:
        tokens: prompt and outputs, sampled but uncommitted ones included.
        nodes: the prefix after each of `tokens`.
        max_outputs: None: as many as the pool holds, whose size is not known yet.
        is_open_ended: it asked for as many as fit.
        num_committed: tokens that a commit made final.
        written: tokens whose content executed steps have written, or a match brought.
        damage: how another request overwrote what this one reads; "" for not.
        ideal: tokens of it that any request had committed when it was first admitted.
    """

    id: int
    root: int
    num_prompt: int
    max_outputs: int | None
    min_outputs: int
    stop_ids: frozenset[int]
    deadline_us: int
    queue_deadline_us: int
    match_prefix: bool
    session: int
    max_drafts: int
    device_drafts: bool
    tenant: int
    is_open_ended: bool
    tokens: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    num_committed: int = 0
    slot: int = -1
    written: int = 0
    num_uncommitted: int = 0
    was_admitted: bool = False
    has_failed: bool = False
    has_answered: bool = False
    matched: int = 0
    ideal: int = 0
    damage: str = ""
    ended: str = ""

    @property
    def num_outputs(self) -> int:
        """Output tokens, the uncommitted ones included."""
        return len(self.tokens) - self.num_prompt


class NaiveRequests:
    """All requests of one scheduler, live and ended."""

    def __init__(self, config: Mapping[str, Any], trie: PrefixTrie) -> None:
        self._config = config
        self._trie = trie
        self.live: dict[int, NaiveRequest] = {}
        self.all: dict[int, NaiveRequest] = {}
        self.committed: set[int] = set()
        self.last_turns: dict[int, list[int]] = {}
        self.nodes_of_turns: dict[int, list[int]] = {}
        self.uncertain: set[int] = set()
        """Prefixes that went with a session, unless somebody else's blocks hold them too."""
        self.capacity: int | None = None
        self.tenants: NaiveTenants | None = None
        self.totals = {"cached_tokens": 0, "created_tokens": 0, "recomputed_tokens": 0}
        self.num_answered = 0

    def submitted(
        self, request_id: int, prompt: Sequence[int], outputs: Sequence[int], **given: Any
    ) -> None:
        """Note an accepted request."""
        in_context = self._config["max_context_tokens"] - len(prompt)
        wanted, now_us = given["max_new_tokens"], given["now_us"]
        max_outputs = min(wanted, in_context) if wanted else None
        if not wanted and self.tenants is not None:
            fits = self.tenants.capacity(given["tenant"]) - len(prompt)
            max_outputs = min(max(fits, 1), in_context)
        queue_us = given["max_queue_us"] or self._config["max_queue_us"]
        request = NaiveRequest(
            id=request_id,
            root=self._trie.root(b"%d/%b" % (given["tenant"], given["salt"])),
            num_prompt=len(prompt),
            max_outputs=max_outputs,
            min_outputs=given["min_new_tokens"],
            stop_ids=frozenset(given["stop_ids"]),
            deadline_us=given["deadline_us"],
            queue_deadline_us=now_us + queue_us if queue_us else 0,
            match_prefix=given["match_prefix"] and self._config["prefix_cache"],
            session=given["session"],
            max_drafts=given["max_drafts"],
            device_drafts=given["device_drafts"],
            tenant=given["tenant"],
            is_open_ended=not wanted,
        )
        self.append(request, [*prompt, *outputs])
        request.num_committed = len(request.tokens)
        self.live[request_id] = self.all[request_id] = request

    def can_ever_fit(self, prompt: Sequence[int], given: Mapping[str, Any]) -> bool:
        """Say whether a submission fits what its tenant may have. REQUIRES: there are tenants."""
        assert self.tenants is not None
        in_context = self._config["max_context_tokens"] - len(prompt)
        wanted = min(given["max_new_tokens"] or 1, in_context)
        return len(prompt) + wanted <= self.tenants.capacity(given["tenant"])

    def limits_changed(self, ended: Sequence[int]) -> None:
        """Check who ended because figures changed; cut those that asked for what fits."""
        assert self.tenants is not None
        for request in self.live.values():
            room = self.tenants.capacity(request.tenant) - request.num_prompt
            assert request.max_outputs is not None
            where = f"request {request.id} with room for {room} of {request.max_outputs}"
            if request.max_outputs <= room:
                require(request.id not in ended, f"{where} was ended")
            elif request.id in ended:
                has_room = room > request.num_outputs + request.max_drafts
                require(not (request.is_open_ended and has_room), f"{where} was ended")
            else:
                is_cut = request.is_open_ended and room > request.num_committed - request.num_prompt
                require(is_cut, f"{where} goes on")
                request.max_outputs = room

    def append(self, request: NaiveRequest, tokens: Sequence[int]) -> None:
        """Add tokens to a request."""
        parent = request.nodes[-1] if request.nodes else request.root
        request.tokens += tokens
        request.nodes += self._trie.chain(parent, tokens)

    def ideal_match(self, request: NaiveRequest) -> int:
        """Return the tokens that a perfect cache of all that was committed would have."""
        if not request.match_prefix:
            return 0
        longest = len(request.tokens) - 1
        for index in range(longest):
            if request.nodes[index] not in self.committed:
                return index
        return longest

    def sure_match(self, request: NaiveRequest) -> int:
        """Return the tokens that no release can have taken away."""
        ideal = self.ideal_match(request)
        for index in range(ideal):
            if request.nodes[index] in self.uncertain:
                return index
        return ideal

    def released(self, session: int, known: Sequence[int]) -> None:
        """Note that a session is over: what another one's last turn or a request has stays.

        Args:
            known: sessions whose last turn is remembered.
        """
        own = self.nodes_of_turns.pop(session)
        others = [self.nodes_of_turns[other] for other in known if other != session]
        kept = {node for nodes in others for node in nodes[:-1]}
        for request in self.live.values():
            kept.update(request.nodes[: request.num_committed - 1])
        self.uncertain.update(node for node in own if node not in kept)
        del self.last_turns[session]

    def took_ended(self, entries: Sequence[Entry], now_us: int, allowed: Mapping[int, str]) -> None:
        """Check what ended outside a commit: asked for in `allowed`, a timeout, or no room left."""
        for entry in entries:
            request = self.live.get(entry.request_id)
            if request is None:
                raise OracleError(f"request {entry.request_id} ended twice")
            where = f"request {request.id} ended outside a commit, {entry.reason!r}"
            require(not entry.tokens and entry.row == -1, f"{where}, with tokens")
            if allowed.get(request.id) != entry.reason:
                require(self._may_end(request, entry.reason, now_us), f"{where}, for no reason")
            self.end(request, entry.reason)
        for request_id, reason in allowed.items():
            require(request_id not in self.live, f"{reason} of {request_id} was not reported")

    def check_deadlines(self, now_us: int) -> None:
        """Nobody outlives a deadline after a plan or commit."""
        for request in self.live.values():
            late = 0 < request.deadline_us <= now_us
            require(not late, f"request {request.id} outlived its deadline")

    def committed_rows(self, plan: PlanCopy, entries: Sequence[Entry]) -> None:
        """Make a step's tokens final and compare the result with them."""
        wanted = [self._commit_row(plan, row.index) for row in plan.rows()]
        expected = [entry for entry in wanted if entry is not None]
        require(
            len(expected) == len(entries),
            f"step {plan.step_id} committed {entries}, expected {expected}",
        )
        for seen, entry in zip(entries, expected, strict=True):
            self._check_entry(plan.step_id, seen, entry)

    def end(self, request: NaiveRequest, reason: str) -> None:
        """Note that a request ended; its session's next turn builds on what is final."""
        request.ended = reason
        del self.live[request.id]
        if request.session:
            self.last_turns[request.session] = request.tokens[: request.num_committed]
            self.nodes_of_turns[request.session] = request.nodes[: request.num_committed]

    def _may_end(self, request: NaiveRequest, reason: str, now_us: int) -> bool:
        if reason == "timeout":
            is_queued_too_long = 0 < request.queue_deadline_us <= now_us
            is_late = 0 < request.deadline_us <= now_us
            return is_late or (is_queued_too_long and not request.was_admitted)
        has_all = request.max_outputs is not None and request.num_outputs >= request.max_outputs
        return reason == "length" and (has_all or self._is_full(request, len(request.tokens)))

    def _is_full(self, request: NaiveRequest, total: int) -> bool:
        """Say whether there is no room; the pool's size is learnt from the first that fills it."""
        if total >= self._config["max_context_tokens"]:
            return True
        if request.max_outputs is None and self.capacity is None:
            self.capacity = total
        return request.max_outputs is None and total == self.capacity

    def _commit_row(self, plan: PlanCopy, row: int) -> Entry | None:
        request = self.all[int(plan.arrays["request_ids"][row])]
        sampled, place = plan.sampled[row], plan.places[row]
        begin, end = plan.arrays["query_start"][row : row + 2].tolist()
        num_rejected = len(plan.drafts[row]) - max(0, len(sampled) - 1)
        request.num_uncommitted -= 1
        request.has_failed |= plan.failed[row]
        if not request.has_failed:
            written = request.nodes[place : place + end - begin - num_rejected]
            self.committed.update(written)
            self.uncertain.difference_update(written)
        if request.ended:
            return None
        if plan.failed[row]:
            return Entry(request.id, (), "error", -1, row)
        if not sampled:
            return None
        request.proposed = []
        return self._commit_tokens(request, sampled, row)

    def _commit_tokens(self, request: NaiveRequest, sampled: Sequence[int], row: int) -> Entry:
        tokens: list[int] = []
        reason = ""
        for token in sampled:
            tokens.append(token)
            request.num_committed += 1
            reason = self._reason_after(request, token)
            if reason:
                break
        cached = -1 if request.has_answered else min(request.matched, request.num_prompt)
        request.has_answered = True
        return Entry(request.id, tuple(tokens), reason, cached, row)

    def _reason_after(self, request: NaiveRequest, token: int) -> str:
        count = request.num_committed - request.num_prompt
        if count > request.min_outputs and token in request.stop_ids:
            return "stop"
        is_last = request.max_outputs is not None and count >= request.max_outputs
        return "length" if is_last else ""

    def _check_entry(self, step_id: int, seen: Entry, wanted: Entry) -> None:
        where = f"step {step_id}, request {wanted.request_id}: committed {seen}, expected {wanted}"
        names = ("request_id", "tokens", "row")
        require(all(getattr(seen, n) == getattr(wanted, n) for n in names), where)
        request = self.live[seen.request_id]
        if seen.reason != wanted.reason:
            total = request.num_committed
            is_open = request.max_outputs is None and wanted.reason == ""
            require(is_open and seen.reason == "length" and self._is_full(request, total), where)
        elif request.max_outputs is None and not seen.reason:
            total = request.num_committed
            full = total >= self._config["max_context_tokens"] or total == self.capacity
            require(not full, f"{where}, and there is no room for more")
        require((seen.cached >= 0) == (wanted.cached >= 0) == (seen.report is not None), where)
        self.num_answered += len(seen.tokens)
        if seen.report is not None:
            self._check_report(request, seen, wanted, where)
        if seen.reason:
            self.end(request, seen.reason)

    def _check_report(self, request: NaiveRequest, seen: Entry, wanted: Entry, where: str) -> None:
        assert seen.report is not None
        cached, created, recomputed, position, _ = seen.report
        why = end_of_match(seen.report)
        has_tiers = self._config["host_blocks"] > 0
        require(cached == seen.cached <= min(request.ideal, request.num_prompt), where)
        require(has_tiers or cached == wanted.cached, where)
        require(cached + created + recomputed == request.num_prompt, f"{where}: sums")
        require(min(created, recomputed) >= 0 and position >= cached, where)
        require((why == "disabled") == (not request.match_prefix), f"{where}: {why}")
