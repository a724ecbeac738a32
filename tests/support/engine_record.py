"""What an engine did for each request, from its own record (`serve --record`): the truth of usage.

The record holds every call of the scheduler. Repeating the calls on a scheduler of the test's own
gives back what each commit said: prompt, output, tokens taken from the cache. Read on from where
the last call ended, so that a server's sessions can be looked at one by one.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed.errors import CapacityError, RequestError
from tokenspeed.scheduler import MATCH_ENDS, Scheduler
from tokenspeed.scheduler.record import UNHEARD, read_record, scheduler_config

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tokenspeed.scheduler import CommitResult

MAGIC = b"TSR2"
SUBMIT, TURN, ABORT, STOP, REKEY, PROPOSE, PLAN, COMMIT = range(8)
SUBMISSION = (
    "max_new_tokens", "min_new_tokens", "priority", "match_prefix", "deadline_us", "session",
    "root", "tenant", "gap_us", "queue_key", "victim_key", "retain_us", "max_queue_us",
    "max_drafts", "device_drafts",
)  # fmt: skip
"""Numbers of a submission, behind its lists."""
FLAGS = ("match_prefix", "device_drafts")
END_TIMEOUT_S = 60


@dataclass(slots=True)
class Served:
    """One request, as the engine saw it.

    Args:
        cached: prompt tokens taken from the cache; -1: it never came that far.
        end: why the match with the cache ended there.
        is_over: it got its last token, or was stopped or aborted.
    """

    prompt: NDArray[np.int32]
    output: list[int] = field(default_factory=list)
    cached: int = -1
    end: str = ""
    is_over: bool = False

    @property
    def counts(self) -> tuple[int, int, int]:
        """Tokens of the prompt, of them cached, and of the output."""
        return len(self.prompt), self.cached, len(self.output)

    @property
    def kept(self) -> NDArray[np.int32]:
        """What the next turn can find: all but the token that was sampled last."""
        return np.concatenate([self.prompt, np.array(self.output[:-1], np.int32)])


def shared_tokens(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Return how many tokens two texts begin with in common."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


class EngineRecord:
    """Follows the record of a running server.

    Args:
        path: what `--record` names.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        record = read_record(path)
        assert record is not None, f"{path} is no record"
        self._start = path.stat().st_size - len(record.stream)
        self._scheduler = Scheduler(scheduler_config({**record.settings, **UNHEARD}))
        self._next = 0
        self._served: dict[int, Served] = {}
        self._new: list[Served] = []

    def take(self) -> list[Served]:
        """Return the requests since the last call in order of arrival, each at its end."""
        deadline_s = time.monotonic() + END_TIMEOUT_S
        while True:
            self._follow()
            if all(one.is_over for one in self._new):
                break
            assert time.monotonic() < deadline_s, [one.counts for one in self._new]
            time.sleep(0.05)
        found, self._new = self._new, []
        return found

    def _follow(self) -> None:
        reader = Reader(self._path.read_bytes()[self._start :], self._next or len(MAGIC))
        while not reader.is_at_end:
            self._repeat(reader)
            self._next = reader.place

    def _repeat(self, reader: Reader) -> None:
        call = reader.byte()
        if call == SUBMIT:
            self._submit(reader)
        elif call in (ABORT, STOP):
            self._end(reader.number(), is_abort=call == ABORT, now_us=reader.number())
        elif call == REKEY:
            key, gap_us, victim_key = reader.numbers(3).tolist()
            self._scheduler.rekey(key, gap_us=gap_us, victim_key=victim_key)
        elif call == PLAN:
            self._scheduler.plan(now_us=reader.number())
            reader.number()  # the plan's digest
        elif call == COMMIT:
            self._commit(reader)
        else:
            raise AssertionError(
                f"call {call}: drafts, turns by delta, tiers and limits are not read here"
            )

    def _submit(self, reader: Reader) -> None:
        key = reader.number()
        prompt, outputs, stops, points, salt = (reader.list() for _ in range(5))
        values: dict[str, Any] = dict(
            zip(SUBMISSION, reader.numbers(len(SUBMISSION)).tolist(), strict=True)
        )
        values |= {name: bool(values[name]) for name in FLAGS}
        now_us = reader.number()
        with contextlib.suppress(RequestError, CapacityError):  # refused then as now
            self._scheduler.submit(
                key,
                prompt.astype(np.int32),
                output_ids=outputs.astype(np.int32),
                stop_token_ids=stops.astype(np.int32),
                reuse_points=points.astype(np.int32),
                salt=salt.astype(np.int8).tobytes(),
                **values,
                now_us=now_us,
            )
            self._served[key] = Served(prompt.astype(np.int32))
            self._new.append(self._served[key])

    def _end(self, key: int, *, is_abort: bool, now_us: int) -> None:
        end = self._scheduler.abort if is_abort else self._scheduler.stop
        end(key, now_us=now_us)
        if key in self._served:
            self._served[key].is_over = True

    def _commit(self, reader: Reader) -> None:
        step = reader.number()
        tokens, accepted, failed = (reader.list() for _ in range(3))
        assert not len(accepted), "drafts are not read here"
        result = self._scheduler.commit(
            step,
            tokens.astype(np.int32),
            failed=failed.astype(np.bool_) if len(failed) else None,
            now_us=reader.number(),
        )
        self._note(result)
        self._note(self._scheduler.take_ended())

    def _note(self, result: CommitResult) -> None:
        keys = result.request_ids.tolist()
        for entry, key in enumerate(keys):
            one = self._served[key]
            one.output += result.tokens[entry : entry + 1][: result.num_tokens[entry]].tolist()
            one.is_over = one.is_over or bool(result.finish_reasons[entry])
        for entry, cached, _, _, _, reason in result.reports.tolist():
            one = self._served[keys[entry]]
            one.cached, one.end = cached, MATCH_ENDS[reason]


class Reader:
    """Reads a record's integers: zigzag, seven bits a byte, the lowest first."""

    def __init__(self, data: bytes, place: int) -> None:
        self._bytes = np.frombuffer(data, dtype=np.uint8)
        self.place = place

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left."""
        return self.place >= len(self._bytes)

    def byte(self) -> int:
        """Read what says which call follows."""
        self.place += 1
        return int(self._bytes[self.place - 1])

    def number(self) -> int:
        """Read one integer."""
        return int(self.numbers(1)[0])

    def list(self) -> NDArray[np.int64]:
        """Read a list: its length, then its integers."""
        return self.numbers(self.number())

    def numbers(self, count: int) -> NDArray[np.int64]:
        """Read so many integers."""
        if not count:
            return np.zeros(0, np.int64)
        found = self._bytes[self.place : self.place + 10 * count]
        ends = np.flatnonzero(found < 0x80)[:count]
        assert len(ends) == count, "the record is cut off"
        found = found[: ends[-1] + 1]
        starts = np.concatenate([[0], ends[:-1] + 1])
        shifts = 7 * (np.arange(len(found)) - np.repeat(starts, np.diff([*starts, len(found)])))
        bits = (found & 0x7F).astype(np.uint64) << shifts.astype(np.uint64)
        values = np.add.reduceat(bits, starts)
        self.place += len(found)
        halves = (values >> np.uint64(1)).astype(np.int64)
        return halves ^ -(values & np.uint64(1)).astype(np.int64)
