"""Drafts of running requests: asked of the speculator after each commit, handed to the scheduler.

The speculator may fail: what it raises or returns wrongly is counted, and after MAX_FAILURES times
it is detached. Its drafts are verified whatever they are, so the answers stay right.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed.engine.committed import new_tokens
from tokenspeed.errors import EngineError
from tokenspeed.log import LOGGER
from tokenspeed.speculation.pace import Chances, StepCost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tokenspeed.contracts.speculator import Draft, Speculator
    from tokenspeed.contracts.step import StepPlan, StepResult
    from tokenspeed.scheduler import CommitResult, Scheduler

MAX_FAILURES = 3
"""Failures after which a speculator is detached."""
STEP_SHARE = 4
"""Drafts take at most one part in so many of a step's tokens: prompts are filled beside them."""


@dataclass(slots=True)
class _Request:
    """A request that may draft.

    Args:
        token_ids: of its prompt, and outputs of before a resume; dropped when it is started.
        is_paused: the scheduler knows that there are no drafts for now, and plans it ahead.
        drafts, grade: what was proposed for its next tokens; all of it, verified or not.
    """

    token_ids: tuple[NDArray[np.int32], ...]
    chances: Chances
    is_started: bool = False
    is_paused: bool = False
    drafts: Sequence[int] = ()
    grade: int = 0


@dataclass(slots=True)
class DraftCounts:
    """What came of drafts so far; drafted and accepted tokens are the scheduler's to count."""

    rows: int = 0
    rows_drafted: int = 0
    proposed: int = 0
    failures: int = 0
    seconds: float = 0.0
    last_failure: str = ""


class Drafting:
    """Keeps a speculator informed and asks it. Thread: the engine's only.

    Args:
        name: of the offer, PLUGIN/NAME, for messages.
        max_drafts: most drafts of a request in a step.
        max_step_tokens: most query tokens of a step.
        adapts: verify only as many drafts as pay; False: all of them (for tests).
    """

    def __init__(
        self,
        speculator: Speculator,
        name: str,
        scheduler: Scheduler,
        *,
        max_drafts: int,
        max_step_tokens: int,
        adapts: bool = True,
    ) -> None:
        self.name = name
        self.counts = DraftCounts()
        self.detached_s: float | None = None
        self._max_drafts = max_drafts
        self._most_in_step = max(1, max_step_tokens // STEP_SHARE)
        self._speculator = speculator
        self._scheduler = scheduler
        self._adapts = adapts
        self._num_grades = speculator.facts.num_grades
        self._cost = StepCost()
        self._chances = Chances(self._num_grades)
        self._requests: dict[int, _Request] = {}

    @property
    def max_drafts(self) -> int:
        """Most drafts of a request that is submitted now."""
        return self._max_drafts if self.detached_s is None else 0

    def add(self, key: int, prompt_ids: NDArray[np.int32], output_ids: NDArray[np.int32]) -> None:
        """Note a request that was submitted with `max_drafts`; its tokens are kept, not copied."""
        if self.detached_s is None:
            chances = Chances(self._num_grades, self._chances)
            self._requests[key] = _Request((prompt_ids, output_ids), chances)

    def forget(self, key: int) -> None:
        """Drop a request that ended."""
        request = self._requests.pop(key, None)
        if request is not None and request.is_started:
            self._call(self._speculator.end, key)

    def committed(
        self, plan: StepPlan, result: StepResult, committed: CommitResult, model_s: float
    ) -> None:
        """Learn from a committed step, and draft for the requests that go on.

        Args:
            model_s: time that the step took in the executor.
        """
        if self.detached_s is not None:
            return
        started_s = time.perf_counter()
        if plan.num_decode_rows == plan.num_rows:
            self._cost.observe(plan.num_tokens, model_s)
        new = {
            key: tokens for key, tokens in new_tokens(committed).items() if key in self._requests
        }
        self._observe(plan, result)
        self._learn(new)
        self._propose(new, num_rows=plan.num_rows)
        self.counts.seconds += time.perf_counter() - started_s

    def shown(self) -> dict[str, Any]:
        """Return its part of the engine's picture."""
        counts = self.counts
        return {
            "speculator": self.name,
            "state": "active" if self.detached_s is None else "detached",
            "max_drafts": self._max_drafts,
            "bar": round(self._cost.bar(1), 3),
            "chances": [round(self._chances.chance(g), 3) for g in range(self._num_grades)],
            "rows": counts.rows,
            "rows_drafted": counts.rows_drafted,
            "proposed": counts.proposed,
            "failures": counts.failures,
            "last_failure": counts.last_failure or None,
            "us_per_row": round(1e6 * counts.seconds / counts.rows, 1) if counts.rows else None,
        }

    def alerts(self) -> list[dict[str, Any]]:
        """Return what an administrator should know of: the speculator was detached."""
        if self.detached_s is None:
            return []
        return [
            {
                "name": "speculator_detached",
                "since_s": round(time.monotonic() - self.detached_s, 1),
                "message": f"speculator {self.name} failed {self.counts.failures} times, at last "
                f"with {self.counts.last_failure}; it is detached until the next start and answers "
                "stay the same, only slower; fix its plugin, or leave it out (--speculator '')",
            }
        ]

    def _observe(self, plan: StepPlan, result: StepResult) -> None:
        if not self._speculator.facts.observes or result.accepted is None:
            return
        for row in np.flatnonzero(plan.num_drafts).tolist():
            key = int(plan.request_ids[row])
            if key in self._requests:
                drafted, accepted = int(plan.num_drafts[row]), int(result.accepted[row])
                self._call(self._speculator.observe, key, drafted, accepted)

    def _learn(self, new: Mapping[int, tuple[int, ...]]) -> None:
        for key, tokens in new.items():
            request = self._requests.get(key)
            if request is None:  # detached meanwhile
                return
            if request.is_started:
                if request.drafts:
                    request.chances.learn(request.grade, request.drafts, tokens)
                    request.drafts = ()
                self._call(self._speculator.extend, key, tokens)
            else:
                known = (*request.token_ids, np.array(tokens, dtype=np.int32))
                request.is_started, request.token_ids = True, ()
                self._call(self._speculator.start, key, np.concatenate(known))

    def _propose(self, new: Mapping[int, tuple[int, ...]], *, num_rows: int) -> None:
        wanted = {key: self._max_drafts for key in new if key in self._requests}
        if not wanted:
            return
        drafts = self._call(self._checked, wanted) or {}
        bar, left = self._cost.bar(num_rows), self._most_in_step
        self.counts.rows += len(wanted)
        for key in wanted:
            request = self._requests.get(key)
            if request is None:  # detached meanwhile
                return
            num = 0
            if key in drafts:
                num = self._take(request, drafts[key], bar, left)
                left -= num
            self._hand_over(key, request, num)

    def _take(self, request: _Request, draft: Draft, bar: float, left: int) -> int:
        """Note a draft; return how many of its tokens to verify."""
        request.drafts, request.grade = draft.tokens, draft.grade
        self.counts.proposed += len(draft.tokens)
        num = min(left, len(draft.tokens))
        return request.chances.worth(draft.grade, bar, num) if self._adapts else num

    def _hand_over(self, key: int, request: _Request, num_drafts: int) -> None:
        """Propose the first drafts of a request, or say once that there are none."""
        if num_drafts or not request.is_paused:
            drafts = np.array(request.drafts[:num_drafts], dtype=np.int32)
            with suppress(ValueError):  # it was aborted, or its time is over
                self._scheduler.propose(key, drafts)
            request.is_paused = not num_drafts
        self.counts.rows_drafted += num_drafts > 0

    def _checked(self, wanted: Mapping[int, int]) -> dict[int, Draft]:
        """Ask the speculator.

        Raises:
            EngineError: what it returns are no drafts of these requests.
        """
        drafts = dict(self._speculator.propose(wanted))
        for key, draft in drafts.items():
            is_right = (
                key in wanted
                and len(draft.tokens) <= wanted[key]
                and 0 <= draft.grade < self._num_grades
                and all(0 <= token < 1 << 31 for token in draft.tokens)
            )
            if not is_right:
                raise EngineError(
                    f"propose returned {repr(draft)[:100]} for request {key}; allowed are up to "
                    f"{wanted.get(key, 0)} token ids and a grade below {self._num_grades}; fix it"
                )
        return drafts

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call the speculator; what it raises is counted, and None returned."""
        if self.detached_s is not None:
            return None
        try:
            return method(*arguments)
        except (Exception, SystemExit) as error:  # the latter of a plugin: it ends no process
            self.counts.failures += 1
            self.counts.last_failure = repr(error)[:200]
            LOGGER.warning("speculator %s failed", self.name, exc_info=error)
            if self.counts.failures >= MAX_FAILURES:
                self._detach()
            return None

    def _detach(self) -> None:
        self.detached_s = time.monotonic()
        for key, request in self._requests.items():
            request.drafts = ()
            self._hand_over(key, request, 0)
        self._requests.clear()
        LOGGER.error("%s [%s]", self.alerts()[0]["message"], "speculator-detached")
