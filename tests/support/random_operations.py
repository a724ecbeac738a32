"""Random operations on a scheduler, from one seed: a simulated device beside it, a replay after."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.support.call_log import CallLog
from tests.support.naive_requests import NaiveRequests
from tests.support.naive_tenants import TENANTS, NaiveTenants
from tests.support.plan_copies import PlanCopy, entries_of, result_arrays
from tests.support.random_choices import RandomChoices
from tests.support.random_scenarios import Scenario, choose_scenario
from tests.support.simulated_device import SimulatedDevice
from tests.support.simulated_memory import OracleError, PrefixTrie, require

from tokenspeed.errors import CapacityError, RequestError
from tokenspeed.scheduler import Scheduler

MAX_DRAIN_STEPS = 20_000
MOST_STALLED = 400
LIVE_COUNTS = (
    "waiting", "loading", "prefilling", "decoding", "retracting", "retracted", "draining",
    "blocks_used",
)  # fmt: skip

Tamper = Callable[[PlanCopy], None]


@dataclass(slots=True)
class RandomRun:
    """Plays random operations.

    Args:
        tamper: changes a plan's copy before the device sees it, to prove that the checks look.
    """

    seed: int
    tamper: Tamper | None = None
    scenario: Scenario = field(init=False)
    requests: NaiveRequests = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    num_operations: int = 0
    _chance: random.Random = field(init=False)
    _scheduler: Scheduler = field(init=False)
    _device: SimulatedDevice = field(init=False)
    _log: CallLog = field(init=False)
    _choices: RandomChoices = field(init=False)
    _out: list[PlanCopy] = field(default_factory=list)
    _now_us: int = 1000
    _next_id: int = 1

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self.scenario = choose_scenario(self._chance)
        self._scheduler = self.scenario.new_scheduler()
        trie = PrefixTrie()
        settings, groups = self.scenario.settings, self.scenario.groups
        self.requests = NaiveRequests(settings, trie)
        self._device = SimulatedDevice(
            settings, groups, self.requests, trie, is_ample=self.scenario.is_ample
        )
        self._log = CallLog(self._scheduler)
        self._choices = RandomChoices(self._chance, self.scenario, self.requests)
        if self.scenario.has_limits:
            num_sets = self._scheduler.num_sets()
            self.requests.tenants = NaiveTenants(num_sets, settings["block_tokens"])

    def run(self, num_operations: int) -> None:
        """Play, then let everything end, then replay on a fresh scheduler."""
        for _ in range(num_operations):
            self.num_operations += 1
            self._operate()
        self._drain()
        self._check_replay()
        self._note_stats()

    def last_calls(self, count: int) -> str:
        """Return the last calls as text."""
        return self._log.last(count)

    # Operations

    def _operate(self) -> None:
        self._now_us += self._chance.randrange(3)
        if self._chance.random() < 0.4:
            self._acknowledge(is_all=False)
        draw = self._chance.random()
        if draw < 0.2:
            if len(self.requests.live) < self.scenario.max_live:
                self._submit()
        elif draw < 0.225:
            self._end("abort" if draw < 0.215 else "stop")
        elif draw < 0.24:
            self._rekey()
        elif draw < 0.245:
            self._set_limits()
        elif draw < 0.265:
            self._release()
        elif draw < 0.32:
            self._propose()
        elif draw < 0.66:
            self._plan()
        else:
            self._commit()
        if self._chance.random() < 0.1:
            self._scheduler.check_invariants()

    def _set_limits(self) -> None:
        tenants = self.requests.tenants
        if tenants is None:
            return
        tenant, floor, cap = tenants.choose(self._chance)
        ended = self._log.call(
            "set_tenant_limits", tenant, floor_blocks=floor, cap_blocks=cap, now_us=self._now_us
        )
        tenants.set(tenant, floor, cap)
        self.requests.limits_changed(ended)
        self._take_ended(dict.fromkeys(ended, "error"))
        self.counts["limits"] += 1
        self.counts["misfits"] += len(ended)

    def _check_tenants(self, *, is_planned: bool = False) -> None:
        tenants = self.requests.tenants
        if tenants is None:
            return
        live = {request.id: request.tenant for request in self.requests.live.values()}
        flying = {key for plan in self._out for key in plan.arrays["request_ids"].tolist()}
        busy = {self.requests.all[key].tenant for key in flying} | set(live.values())
        if self._device.tiers.pending:
            busy |= set(TENANTS)  # somebody who ended may still wait for them
        tenants.check(self._scheduler, live, busy, is_planned=is_planned)

    def _submit(self) -> None:
        chance = self._chance
        session = chance.choice([0, 0, 1, 2, 3])
        request_id = self._next_id if chance.random() < 0.97 else max(self._next_id - 1, 1)
        given = self._choices.options(self._now_us)
        base = self._log.call("session_base", session) if session else None
        if base is not None and chance.random() < 0.7:
            self._submit_turn(request_id, session, base, given)
            return
        prompt = self._choices.prompt()
        outputs = []
        if given["max_new_tokens"] and chance.random() < 0.2:
            room = self.scenario.settings["max_context_tokens"] - len(prompt)
            most = min(room, given["max_new_tokens"], 30)
            outputs = self._choices.tokens(chance.randrange(max(1, most)))
        keywords = {
            **given,
            "session": session,
            "root": chance.choice([0, 1, 2]),
            "output_ids": np.array(outputs, np.int32) if outputs else None,
        }
        keywords |= self._choices.reuse_points(len(prompt))
        if self._accepts("submit", (request_id, np.array(prompt, np.int32)), keywords, prompt):
            self._note_submission(request_id, prompt, outputs, given, session)

    def _submit_turn(
        self, request_id: int, session: int, base: tuple[int, int], given: dict[str, Any]
    ) -> None:
        before = self.requests.last_turns[session]
        require(base[0] == len(before), f"session {session} has base {base}, not {len(before)}")
        new = self._choices.tokens(self._chance.choice([1, 3, 20]))
        arguments = request_id, session, *base, np.array(new, np.int32)
        if self._chance.random() < 0.05:
            wrong = request_id, session, base[0], base[1] ^ 1, np.array(new, np.int32)
            require(not self._accepts("submit_turn", wrong, given, []), "a wrong digest is a base")
        prompt = before + new
        keywords = given | self._choices.reuse_points(len(prompt))
        if self._accepts("submit_turn", arguments, keywords, prompt):
            self.counts["turns"] += 1
            self._note_submission(request_id, prompt, [], given, session)

    def _note_submission(
        self,
        request_id: int,
        prompt: list[int],
        outputs: list[int],
        given: Mapping[str, Any],
        session: int,
    ) -> None:
        stop_ids = given["stop_token_ids"]
        options = {
            **given,
            "session": session,
            "stop_ids": [] if stop_ids is None else stop_ids.tolist(),
        }
        self.requests.submitted(request_id, prompt, outputs, **options)
        self._next_id = max(self._next_id, request_id + 1)
        self.counts["submitted"] += 1
        self._take_ended({})

    def _accepts(
        self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], prompt: list[int]
    ) -> bool:
        """Call; a refusal must have its reason."""
        try:
            self._log.call(name, *arguments, **keywords)
        except RequestError as error:
            fits = 0 < len(prompt) < self.scenario.settings["max_context_tokens"]
            is_known = arguments[0] < self._next_id
            require(not fits or is_known, f"{name} is refused: {error}")
        except CapacityError as error:
            is_full = error.retry_after_s is not None
            num_live, most = len(self.requests.live), self.scenario.settings["max_waiting"]
            require(not is_full or num_live >= most, f"the queue is not full: {error}")
            require(is_full or not self.scenario.is_ample, f"the pool is ample: {error}")
            if self.requests.tenants is not None and not is_full:
                fits = self.requests.can_ever_fit(prompt, keywords)
                require(not fits, f"its tenant may have so much: {error}")
        else:
            return True
        self.counts["refused"] += 1
        return False

    def _end(self, reason: str) -> None:
        known = [*self.requests.live, self._next_id + 5, max(1, self._next_id - 3)]
        request_id = self._chance.choice(known)
        is_live = request_id in self.requests.live
        answer = self._log.call(reason, request_id, now_us=self._now_us)
        require(answer == is_live, f"{reason} of {request_id} returned {answer}")
        self._take_ended({request_id: reason} if is_live else {})
        self.counts[reason] += 1

    def _rekey(self) -> None:
        request_id = self._chance.choice([*self.requests.live, self._next_id + 5])
        keys = {
            "gap_us": self._chance.choice([0, 30, 500]),
            "victim_key": self._chance.randrange(3),
        }
        answer = self._log.call("rekey", request_id, **keys)
        require(answer == (request_id in self.requests.live), f"rekey returned {answer}")

    def _release(self) -> None:
        """Whose session is over loses what it alone left; others find what they found."""
        session = self._chance.choice([0, 1, 2, 3])
        is_live = any(request.session == session for request in self.requests.live.values())
        known = [s for s in (1, 2, 3) if self._log.call("session_base", s) is not None]
        has_base = session in known
        try:
            freed = self._log.call("release", session, now_us=self._now_us)
        except RequestError as error:
            is_busy = is_live or self._out or self._device.tiers.pending
            require(session and is_busy, f"release of {session}: {error}")
            return
        require(not (session and is_live), f"release of {session}, which lives")
        require(freed is not None or not has_base, f"session {session} is not known")
        require(self._log.call("session_base", session) is None, "a released session is a base")
        if has_base:
            self.requests.released(session, known)
            if self.requests.tenants is not None:
                turns = (item for item in self.requests.all.values() if item.session == session)
                self.requests.tenants.gave_up({item.tenant for item in turns})
            self.counts["released"] += freed["tokens"] > 0

    def _propose(self) -> None:
        """Drafts as likely right as wrong."""
        takers = [r for r in self.requests.live.values() if r.max_drafts and not r.device_drafts]
        for request in takers:
            drafts = self._choices.tokens(self._chance.randrange(1, request.max_drafts + 1))
            self._log.call("propose", request.id, np.array(drafts, np.int32))
            request.proposed = drafts
            self.counts["proposed"] += 1

    def _plan(self) -> bool:
        plan = self._log.call("plan", now_us=self._now_us)
        copy = None if plan is None else PlanCopy.of(plan)
        self._log.note_arrays(None if copy is None else copy.arrays)
        self._check_tenants(is_planned=True)
        self._take_ended({})
        self.requests.check_deadlines(self._now_us)
        if copy is None:
            is_busy = self._out or self._device.tiers.pending
            require(is_busy or not self.requests.live, "requests wait, and nothing is under way")
            return False
        require(len(self._out) <= self.scenario.settings["depth"], "too many plans are out")
        self._sample(copy)
        if self.tamper is not None:
            self.tamper(copy)
        self._device.execute(copy)
        self._out.append(copy)
        self.counts["planned"] += 1
        self.counts["transfers"] += len(copy.arrays["transfers"])
        return True

    def _commit(self) -> None:
        if not self._out:
            return
        plan = self._out.pop(0)
        result = self._log.call("commit", plan.step_id, **plan.outcome(), now_us=self._now_us)
        arrays = result_arrays(result)
        self._log.note_arrays(arrays)
        self._device.committed(plan)
        self.requests.committed_rows(plan, entries_of(arrays))
        self._take_ended({})
        self.requests.check_deadlines(self._now_us)
        self._check_tenants()
        self._choices.remember_text()
        self.counts["committed"] += 1

    def _acknowledge(self, *, is_all: bool) -> None:
        """Moves end late, in any order, well or not; a store loses records."""
        tiers = self._device.tiers
        if tiers.pending:
            count = len(tiers.pending)
            ended = self._chance.sample(
                tiers.pending, self._chance.randrange(is_all * count, count + 1)
            )
            rows = []
            for move in ended:
                ok = tiers.end(move, ok=self._chance.random() >= self.scenario.fail_share)
                rows.append((move.transfer_id, int(ok)))
                self.counts["moves"] += 1
                self.counts["moves_failed"] += not ok
            acks = np.array(rows, np.int32).reshape(-1, 2)
            self._log.call("notify", acks, now_us=self._now_us)
        if tiers.records and self._chance.random() < 0.03:
            self._lose_record()

    def _lose_record(self) -> None:
        records = self._device.tiers.records
        del records[self._chance.choice(sorted(records))]
        keys = np.frombuffer(b"".join(sorted(records)), np.uint8).reshape(-1, 16)
        self._log.call("notify_store", keys, self._chance.random() < 0.5)

    # The simulated model and drafter

    def _sample(self, plan: PlanCopy) -> None:
        for row in plan.rows():
            request = self.requests.live.get(row.request_id)
            is_device = request is not None and request.device_drafts
            seen = row.token_ids[len(row.token_ids) - row.num_drafts :]
            drafts = self._choices.tokens(row.num_drafts) if is_device else seen
            plan.drafts.append(drafts)
            plan.sampled.append(self._choices.answer(drafts) if row.output_index >= 0 else [])
            self.counts["accepted"] += max(0, len(plan.sampled[-1]) - 1)
            plan.failed.append(self._chance.random() < 0.004)

    # Ends

    def _drain(self) -> None:
        best, stalled = self._progress(), 0
        for _ in range(MAX_DRAIN_STEPS):
            if not self.requests.live and not self._out:
                break
            self._now_us += 1
            if not self._plan() or self._chance.random() < 0.5:
                self._commit()
            self._acknowledge(is_all=self._chance.random() < 0.3)
            now = self._progress()
            stalled = 0 if now > best else stalled + 1
            best = max(best, now)
            require(stalled < MOST_STALLED, f"no token and no end in {stalled} steps")
        require(not self.requests.live, f"{sorted(self.requests.live)} never ended")
        self._settle()
        self._check_empty()

    def _settle(self) -> None:
        """End all moves; what came back may be handed on to the store."""
        for _ in range(MOST_STALLED):
            self._acknowledge(is_all=True)
            self._plan()
            self._commit()
            if not (self._device.tiers.pending or self._out or self._scheduler.has_work()):
                break

    def _progress(self) -> int:
        return self.requests.num_answered + len(self.requests.all) - len(self.requests.live)

    def _check_empty(self) -> None:
        require(not self._scheduler.has_work(), "work is left although everything ended")
        self._scheduler.check_invariants()
        stats = self._scheduler.stats()
        left = {name: stats[name] for name in LIVE_COUNTS}
        left["transfers_in_flight"] = stats.get("transfers_in_flight", 0)
        require(not any(left.values()), f"left after everything ended: {left}")
        free = stats["blocks_free"] + stats["blocks_cached"]
        require(free == stats["blocks_total"], f"blocks are lost: {stats}")

    def _check_replay(self) -> None:
        self._log.replay(self.scenario.new_scheduler())
        if self.scenario.settings["record_events"]:
            repeated = self.scenario.new_scheduler().replay(self._scheduler.take_record())
            require(repeated >= self.counts["planned"], f"the record has {repeated} plans")

    def _note_stats(self) -> None:
        stats = self._scheduler.stats()
        names = ("retractions", "evictions", "cached_tokens", "loads", "loads_failed", "saved")
        for name in names:
            self.counts[name] += stats[name]
        self.counts["readmitted"] += self._device.num_readmitted
        if self.requests.tenants is not None:
            self.counts["kept"] += self.requests.tenants.num_kept

    def _take_ended(self, allowed: dict[int, str]) -> None:
        result = self._log.call("take_ended")
        is_none = len(result.request_ids) == 0
        arrays = {"request_ids": result.request_ids} if is_none else result_arrays(result)
        self._log.note_arrays(arrays)
        entries = [] if is_none else entries_of(arrays)
        self.requests.took_ended(entries, self._now_us, allowed)


def play(
    seed: int, num_operations: int, *, tamper: Tamper | None = None, shortest: bool = True
) -> Counter[str]:
    """Play one seed; a failure names it and the fewest operations that show it.

    Args:
        shortest: False does not look for fewer operations.
    Raises:
        OracleError: what was wrong, the seed, the scenario and the last calls.
    """
    run, error = _attempt(seed, num_operations, tamper)
    if error is None:
        return run.counts
    low, high = 0 if shortest else run.num_operations, run.num_operations
    while low < high:
        middle = (low + high) // 2
        shorter, its_error = _attempt(seed, middle, tamper)
        if its_error is None:
            low = middle + 1
        else:
            run, error, high = shorter, its_error, middle
    raise OracleError(
        f"seed {seed}, {high} operations and their ends, {run.scenario}:\n"
        f"{type(error).__name__}: {error}\n{run.last_calls(4)}"
    ) from error


def _attempt(
    seed: int, num_operations: int, tamper: Tamper | None
) -> tuple[RandomRun, Exception | None]:
    run = RandomRun(seed, tamper)
    try:
        run.run(num_operations)
    except Exception as error:  # whatever it is, the shortest way to it is what helps
        return run, error
    return run, None
