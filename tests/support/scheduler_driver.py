"""Random operations on a scheduler, from one seed, with the oracle beside it and a replay after."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support.device_memory import OracleError, require
from tests.support.scheduler_oracle import RESULT_ARRAYS, PlanCopy, SchedulerOracle

from tokenspeed import _core
from tokenspeed.errors import CapacityError, RequestError

BLOCK_TOKENS = 16
VOCABULARY = 3
MAX_DRAIN_STEPS = 20_000
LIVE_COUNTS = ("waiting", "prefilling", "decoding", "retracted", "draining", "blocks_used")


@dataclass(slots=True)
class Scenario:
    """What one seed chose."""

    settings: dict[str, Any]
    packing: tuple[int, ...]
    is_ample: bool
    max_live: int

    def new_scheduler(self) -> Any:
        """Build a fresh scheduler of this scenario."""
        settings = dict(self.settings)
        share_tokens = settings.pop("share_tokens")
        groups = [
            _core.GroupSpec(
                name=f"group{index}",
                packing=packing,
                share_tokens=share_tokens if index == 0 else 1,
            )
            for index, packing in enumerate(self.packing)
        ]
        return _core.Scheduler(_core.SchedulerConfig(groups=groups, **settings))


def choose_scenario(chance: random.Random) -> Scenario:
    """Choose sizes: pools from the smallest possible to one that is never short."""
    packing = chance.choice([(1,), (3,), (1, 1), (1, 3), (2, 5), (4, 1)])
    context = chance.choice([40, 96, 200])
    max_running = chance.choice([1, 2, 4, 8, 8])
    blocks = -(-context // BLOCK_TOKENS)
    alone = sum(-(-blocks // size) for size in packing)
    share = chance.choice([0.6, 1.0, 1.3, 1.5, 2.0, 2.5, 0.0])
    is_ample = share == 0.0
    usable = 60 * alone * (max_running + 1) if is_ample else max(len(packing), int(alone * share))
    settings = {
        "block_tokens": BLOCK_TOKENS,
        "num_physical_blocks": 1 + usable,
        "max_running": max_running,
        "max_waiting": chance.choice([2, 64, 64, 64, 64, 64]),
        "max_step_tokens": chance.choice([1, 5, 16, 33, 64, 64, 512]),
        "max_context_tokens": context,
        "depth": chance.choice([0, 1]),
        "prefix_cache": chance.random() < 0.85,
        "hash_seed": chance.choice([0, 7]),
        "share_tokens": chance.choice([1, 1, 4, 16]),
    }
    return Scenario(settings, packing, is_ample, max_live=chance.choice([3, 8, 24]))


@dataclass(slots=True)
class Driver:
    """Plays random operations.

    Args:
        tamper: changes a plan's copy before the oracle sees it, to prove that the oracle looks.
    """

    seed: int
    tamper: Callable[[PlanCopy], None] | None = None
    scenario: Scenario = field(init=False)
    oracle: SchedulerOracle = field(init=False)
    counts: dict[str, int] = field(default_factory=dict)
    _chance: random.Random = field(init=False)
    _scheduler: Any = field(init=False)
    _log: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = field(default_factory=list)
    _out: list[PlanCopy] = field(default_factory=list)
    _now_us: int = 1000
    _next_id: int = 0
    _num_retractions: int = 0
    _texts: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self.scenario = choose_scenario(self._chance)
        self._scheduler = self.scenario.new_scheduler()
        self.oracle = SchedulerOracle(
            self.scenario.settings, self.scenario.packing, is_ample=self.scenario.is_ample
        )
        context = self.scenario.settings["max_context_tokens"]
        self._texts = [self._random_tokens(context) for _ in range(3)]

    def run(self, num_operations: int) -> None:
        """Play, then let everything end, then replay on a fresh scheduler.

        Raises:
            OracleError: with the seed and scenario.
        """
        try:
            for _ in range(num_operations):
                self._operate()
            self._drain()
            self._replay()
        except Exception as error:
            raise OracleError(f"seed {self.seed}, {self.scenario}: {error}") from error

    def _operate(self) -> None:
        self._now_us += self._chance.randrange(3)
        draw = self._chance.random()
        if draw < 0.2:
            if len(self.oracle.live) < self.scenario.max_live:
                self._submit()
        elif draw < 0.21:
            self._end("abort")
        elif draw < 0.215:
            self._end("stop")
        elif draw < 0.62:
            self._plan()
        else:
            self._commit()
        if self._chance.random() < 0.1:
            self._scheduler.check_invariants()

    def _submit(self) -> None:
        context = self.scenario.settings["max_context_tokens"]
        prompt = self._random_prompt(context)
        chance = self._chance
        request_id = self._next_id if chance.random() < 0.97 else max(self._next_id - 1, 0)
        max_new_tokens = chance.choice([0, 0, 1, 20, 40, context])
        room = context - len(prompt) if max_new_tokens == 0 else max_new_tokens
        outputs = self._random_tokens(chance.randrange(0, max(1, min(room, 30))))
        if chance.random() < 0.8:
            outputs = []
        given = {
            "max_new_tokens": max_new_tokens,
            "min_new_tokens": chance.choice([0, 0, 0, 3]),
            "priority": chance.choice([0, 0, 0, 1, -1]),
            "salt": chance.choice([b"", b"", b"", b"a"]),
            "match_prefix": chance.random() < 0.9,
            "deadline_us": self._now_us + chance.randrange(1, 400) if chance.random() < 0.1 else 0,
        }
        stop_ids = chance.choice([[], [], [], [], [7], [0]])
        refusal = self._expected_refusal(request_id, prompt, max_new_tokens, outputs)
        accepted = self._call_submit(request_id, prompt, outputs, stop_ids, given, refusal)
        if accepted:
            self.oracle.submitted(request_id, prompt, outputs, stop_ids=stop_ids, **given)
            self._next_id = max(self._next_id, request_id + 1)
            self._take_ended({})

    def _expected_refusal(
        self, request_id: int, prompt: list[int], max_new_tokens: int, outputs: list[int]
    ) -> type[Exception] | None:
        in_context = len(prompt) + 1 <= self.scenario.settings["max_context_tokens"]
        if not prompt or not in_context or request_id in self.oracle.live:
            return RequestError
        if self.oracle.resolve_max_outputs(len(prompt), max_new_tokens) is None:
            return CapacityError
        return None

    def _call_submit(
        self,
        request_id: int,
        prompt: list[int],
        outputs: list[int],
        stop_ids: list[int],
        given: Mapping[str, Any],
        refusal: type[Exception] | None,
    ) -> bool:
        arguments = {
            **given,
            "output_ids": np.array(outputs, np.int32) if outputs else None,
            "stop_token_ids": np.array(stop_ids, np.int32) if stop_ids else None,
            "now_us": self._now_us,
        }
        try:
            self._call("submit", request_id, np.array(prompt, np.int32), **arguments)
        except (RequestError, CapacityError) as error:
            is_full = isinstance(error, CapacityError) and error.retry_after_s is not None
            if is_full:
                require(self.scenario.settings["max_waiting"] < 64, f"queue is full: {error}")
            elif request_id not in self.oracle.live and not self._is_draining(request_id):
                require(refusal is type(error), f"refused, expected {refusal}: {error}")
            self._count("refused")
            return False
        require(refusal is None, f"request {request_id} should be refused with {refusal}")
        self._count("submitted")
        return True

    def _is_draining(self, request_id: int) -> bool:
        return any(request_id in plan.arrays["request_ids"] for plan in self._out)

    def _end(self, reason: str) -> None:
        known = [*self.oracle.live, self._next_id + 5, max(0, self._next_id - 3)]
        request_id = self._chance.choice(known)
        is_live = request_id in self.oracle.live
        answer = self._call(reason, request_id, now_us=self._now_us)
        require(answer == is_live, f"{reason} of {request_id} returned {answer}")
        self._take_ended({request_id: reason} if is_live else {})
        self._count(reason)

    def _plan(self) -> bool:
        plan = self._call("plan", now_us=self._now_us)
        copy = None if plan is None else PlanCopy.of(plan)
        self._log[-1] = (*self._log[-1][:3], None if copy is None else copy.arrays)
        self._take_ended({})
        self._note_counts(copy)
        self.oracle.check_deadlines(self._now_us)
        if copy is None:
            if len(self._out) <= self.scenario.settings["depth"]:
                self.oracle.check_idle(len(self._out), self._now_us)
            return False
        require(len(self._out) <= self.scenario.settings["depth"], "too many plans are out")
        self._sample(copy)
        if self.tamper is not None:
            self.tamper(copy)
        self.oracle.execute(copy)
        self._out.append(copy)
        self._count("planned")
        return True

    def _commit(self) -> None:
        if not self._out:
            return
        plan = self._out.pop(0)
        failed = plan.failed if plan.failed.any() else None
        result = self._call("commit", plan.step_id, plan.tokens, failed=failed, now_us=self._now_us)
        self._log[-1] = (*self._log[-1][:3], _arrays(result))
        self.oracle.committed(plan, result)
        self._take_ended({})
        self._note_counts(None)
        self.oracle.check_deadlines(self._now_us)
        self._remember_text()
        self._count("committed")

    def _sample(self, plan: PlanCopy) -> None:
        tokens = [
            self._random_token() if index >= 0 else -1
            for index in plan.arrays["output_index"].tolist()
        ]
        plan.tokens = np.array(tokens, np.int32)
        plan.failed = np.array([self._chance.random() < 0.004 for _ in tokens], np.bool_)

    def _drain(self) -> None:
        for _ in range(MAX_DRAIN_STEPS):
            if not self.oracle.live and not self._out:
                break
            self._now_us += 1
            if not self._plan() or self._chance.random() < 0.5:
                self._commit()
        require(not self.oracle.live, f"requests {sorted(self.oracle.live)} never ended")
        require(not self._scheduler.has_work(), "work is left although everything ended")
        self._scheduler.check_invariants()
        stats = self._scheduler.stats()
        left = {name: stats[name] for name in LIVE_COUNTS}
        require(not any(left.values()), f"left after everything ended: {left}")
        require(
            stats["blocks_free"] + stats["blocks_cached"] == stats["blocks_total"],
            f"blocks are lost: {stats}",
        )

    def _replay(self) -> None:
        """The same calls on a fresh scheduler give the same arrays."""
        again = self.scenario.new_scheduler()
        for number, (name, arguments, keywords, wanted) in enumerate(self._log):
            try:
                result = getattr(again, name)(*arguments, **keywords)
            except (RequestError, CapacityError) as error:
                require(wanted == str(error), f"replay, call {number}: {error}")
                continue
            if isinstance(wanted, dict):
                require(result is not None, f"replay, call {number} {name}: nothing")
                for array, values in wanted.items():
                    same = getattr(result, array).tobytes() == values.tobytes()
                    require(same, f"replay, call {number} {name}: {array} differs")
            else:
                require(result == wanted, f"replay, call {number} {name}: {result}")

    # Helpers

    def _call(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        try:
            result = getattr(self._scheduler, name)(*arguments, **keywords)
        except (RequestError, CapacityError) as error:
            self._log.append((name, arguments, keywords, str(error)))
            raise
        self._log.append((name, arguments, keywords, result))
        return result

    def _take_ended(self, allowed: dict[int, str]) -> None:
        result = self._call("take_ended")
        self._log[-1] = (*self._log[-1][:3], _arrays(result))
        self.oracle.took_ended(result, self._now_us, allowed)

    def _note_counts(self, plan: PlanCopy | None) -> None:
        stats = self._scheduler.stats()
        self.oracle.num_evictions = stats["evictions"]
        new = stats["retractions"] - self._num_retractions
        if new:
            self._num_retractions = stats["retractions"]
            self.oracle.retracted(self._scheduler.state()["requests"], new, plan)
            self.counts["retracted"] = self.counts.get("retracted", 0) + new

    def _random_prompt(self, context: int) -> list[int]:
        chance = self._chance
        flying = [request for request in self.oracle.live.values() if request.num_uncommitted]
        if flying and chance.random() < 0.4:
            # What is being computed right now is the most dangerous prefix to share.
            return (flying[-1].tokens + self._random_tokens(3))[: context - 1]
        text = chance.choice(self._texts)
        longest = chance.choice([24, len(text) // 2, len(text), len(text)])
        shared = text[: chance.randrange(0, longest + 1)]
        prompt = shared + self._random_tokens(chance.choice([0, 1, 2, 20]))
        return prompt[: chance.choice([context - 1, context - 1, context - 1, context])]

    def _random_tokens(self, count: int) -> list[int]:
        return [self._random_token() for _ in range(count)]

    def _random_token(self) -> int:
        return 7 if self._chance.random() < 0.03 else self._chance.randrange(VOCABULARY)

    def _remember_text(self) -> None:
        """Later prompts continue what was said: a second turn."""
        if self.oracle.live and self._chance.random() < 0.05:
            request = self._chance.choice(list(self.oracle.live.values()))
            self._texts[self._chance.randrange(3)] = list(request.tokens)

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


def _arrays(result: Any) -> dict[str, NDArray[Any]]:
    return {name: np.array(getattr(result, name)) for name in RESULT_ARRAYS}
