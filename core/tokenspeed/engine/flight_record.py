"""Who was in flight: a shared-memory file that names the requests of uncommitted steps.

The engine writes it before a step runs and clears it at commit, so that after a kill -9 or a
segmentation fault the next engine can tell which requests were being computed. Also says since when
the engine has been at what it does, which is how the supervisor notices one that hangs, and how
API processes answer for its health while it cannot.

    header   int64[5]: magic, max_running, and three times in us of the monotonic clock, 0: not so:
             the running step began; work is there and no step was completed; the loop's turn began
    lanes    2 x int32[1 + 2 * max_running]: number of rows, slots, output indices (step_id % 2)
    ids      max_running x 64 bytes: length, then the request id of the slot
    entering 64 x 64 bytes: likewise, requests that are being taken in, or wait for their grammar
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tokenspeed.contracts.step import StepPlan

MAX_REQUEST_ID_BYTES = 63
_MAGIC = 0x54534652
_HEADER_BYTES = 40
_STEP, _WORK, _TURN = 2, 3, 4
_ID_BYTES = MAX_REQUEST_ID_BYTES + 1
NUM_ENTERING = 64
"""Requests that are named while they are taken in; of more at a time the rest is not."""


def record_of(folder: Path) -> Path:
    """Return where the record of a server's engine lies in the server's folder."""
    return folder / "flight_record"


class FlightRecord:
    """The record of one engine. Thread: the engine's only; readers may look at any time."""

    def __init__(self, path: Path, max_running: int) -> None:
        path.write_bytes(bytes(_size(max_running)))
        self._map = _open(path)
        self._header = np.frombuffer(self._map, dtype=np.int64, count=5)
        self._lanes, ids = _views(self._map, max_running)
        self._ids, self._entering = ids[:max_running], ids[max_running:]
        self._header[:2] = (_MAGIC, max_running)
        self._has_work = False
        self._free = list(range(NUM_ENTERING))
        self._places: dict[str, int] = {}

    def enter(self, request_id: str) -> None:
        """Note a request that is being taken in."""
        if self._free and request_id not in self._places:
            self._places[request_id] = self._free.pop()
            self._entering[self._places[request_id]] = _packed(request_id)

    def leave(self, request_id: str) -> None:
        """Say that a request was taken in, or refused."""
        place = self._places.pop(request_id, None)
        if place is not None:
            self._entering[place, 0] = 0
            self._free.append(place)

    def name_slot(self, slot: int, request_id: str) -> None:
        """Note which request holds a slot from now on."""
        self._ids[slot] = _packed(request_id)

    def begin(self, plan: StepPlan) -> None:
        """Write the rows of a step that is about to run."""
        lane, rows = self._lanes[plan.step_id & 1], plan.num_rows
        lane[1 : 1 + rows] = plan.slots
        lane[1 + rows : 1 + 2 * rows] = plan.output_index
        lane[0] = rows  # last: a torn write must not name slots of an older step
        self._header[_STEP] = _now_us()

    def end(self, step_id: int) -> None:
        """Clear a step at its commit."""
        now_us = _now_us()
        self._lanes[step_id & 1, 0] = 0
        self._header[_STEP] = now_us if self._lanes[~step_id & 1, 0] else 0
        self._header[_WORK] = now_us

    def enter_turn(self) -> None:
        """Note that the loop has something to do, be it a message only."""
        now_us = _now_us()
        self._header[_TURN] = now_us
        if not self._has_work:
            self._header[_WORK] = now_us

    def leave_turn(self, *, has_work: bool) -> None:
        """Note that the loop's turn is over.

        Args:
            has_work: a step is due: requests are there that can be computed.
        """
        self._header[_TURN] = 0
        self._has_work = has_work
        if not has_work:
            self._header[_WORK] = 0


def read_suspects(path: Path) -> dict[str, int]:
    """Return request id -> output index of the requests in flight when the writer died.

    The index of a request that was being taken in is -1. An unreadable or missing record names
    nobody.
    """
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    max_running = _max_running(data)
    if max_running < 0:
        return {}
    lanes, ids = _views(data, max_running)
    suspects: dict[str, int] = {}
    for lane in lanes:
        rows = int(lane[0])
        for slot, index in zip(lane[1 : 1 + rows], lane[1 + rows : 1 + 2 * rows], strict=True):
            request_id = _unpacked(ids[slot])
            suspects[request_id] = max(suspects.get(request_id, -1), int(index))
    for name in ids[max_running:]:
        if name[0]:
            suspects.setdefault(_unpacked(name), -1)
    return suspects


@dataclass(frozen=True, slots=True)
class Doing:
    """For how many seconds an engine has been at what it does; 0.0: it is not.

    Args:
        step_s: a step is running.
        work_s: work has been there and no step was completed.
        turn_s: the loop has been in one turn: it takes no messages meanwhile.
    """

    step_s: float = 0.0
    work_s: float = 0.0
    turn_s: float = 0.0


def read_doing(path: Path) -> Doing:
    """Return what the writer is at; nothing if the record is missing or unreadable."""
    try:
        with path.open("rb") as file:
            header = np.frombuffer(file.read(_HEADER_BYTES), dtype=np.int64).tolist()
    except (OSError, ValueError):
        return Doing()
    if len(header) < 5 or header[0] != _MAGIC:
        return Doing()
    now_us = _now_us()
    return Doing(*(max(0, now_us - since) / 1e6 if since else 0.0 for since in header[_STEP:]))


def _packed(request_id: str) -> NDArray[np.uint8]:
    encoded = request_id.encode()
    padded = bytes((len(encoded),)) + encoded.ljust(MAX_REQUEST_ID_BYTES, b"\0")
    return np.frombuffer(padded, dtype=np.uint8)


def _unpacked(name: NDArray[np.uint8]) -> str:
    return bytes(name[1 : 1 + int(name[0])]).decode()


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _size(max_running: int) -> int:
    lanes_bytes = 8 * (1 + 2 * max_running)
    return _HEADER_BYTES + lanes_bytes + _ID_BYTES * (max_running + NUM_ENTERING)


def _max_running(data: bytes) -> int:
    if len(data) < _HEADER_BYTES:
        return -1
    magic, max_running = np.frombuffer(data, dtype=np.int64, count=2)
    return int(max_running) if magic == _MAGIC and len(data) == _size(int(max_running)) else -1


def _open(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def _views(
    data: mmap.mmap | bytes, max_running: int
) -> tuple[
    np.ndarray[tuple[int, ...], np.dtype[np.int32]], np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
]:
    lane = 1 + 2 * max_running
    lanes = np.frombuffer(data, dtype=np.int32, count=2 * lane, offset=_HEADER_BYTES)
    ids = np.frombuffer(data, dtype=np.uint8, offset=_HEADER_BYTES + 8 * lane)
    return lanes.reshape(2, lane), ids.reshape(max_running + NUM_ENTERING, _ID_BYTES)
