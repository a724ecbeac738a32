"""Who was in flight: a shared-memory file that names the requests of uncommitted steps.

The engine writes it before a step runs and clears it at commit, so that after a kill -9 or a
segmentation fault the next engine can tell which requests were being computed. Also says since when
a step has been running, which is how the supervisor notices an engine that hangs.

    header   int64[4]: magic, max_running, start of the running step (us, 0: none), unused
    lanes    2 x int32[1 + 2 * max_running]: number of rows, slots, output indices (step_id % 2)
    ids      max_running x 64 bytes: length, then the request id of the slot
"""

from __future__ import annotations

import mmap
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.contracts.step import StepPlan

MAX_REQUEST_ID_BYTES = 63
_MAGIC = 0x54534652
_HEADER_BYTES = 32
_ID_BYTES = MAX_REQUEST_ID_BYTES + 1


class FlightRecord:
    """The record of one engine. Thread: the engine's only; readers may look at any time."""

    def __init__(self, path: Path, max_running: int) -> None:
        path.write_bytes(bytes(_size(max_running)))
        self._map = _open(path)
        self._header = np.frombuffer(self._map, dtype=np.int64, count=4)
        self._lanes, self._ids = _views(self._map, max_running)
        self._header[:2] = (_MAGIC, max_running)

    def name_slot(self, slot: int, request_id: str) -> None:
        """Note which request holds a slot from now on."""
        encoded = request_id.encode()
        self._ids[slot] = np.frombuffer(
            bytes((len(encoded),)) + encoded.ljust(MAX_REQUEST_ID_BYTES, b"\0"), dtype=np.uint8
        )

    def begin(self, plan: StepPlan) -> None:
        """Write the rows of a step that is about to run."""
        lane, rows = self._lanes[plan.step_id & 1], plan.num_rows
        lane[1 : 1 + rows] = plan.slots
        lane[1 + rows : 1 + 2 * rows] = plan.output_index
        lane[0] = rows  # last: a torn write must not name slots of an older step
        self._header[2] = time.monotonic_ns() // 1000

    def end(self, step_id: int) -> None:
        """Clear a step at its commit."""
        self._lanes[step_id & 1, 0] = 0
        self._header[2] = 0


def read_suspects(path: Path) -> dict[str, int]:
    """Return request id -> output index of the requests in flight when the writer died.

    An unreadable or missing record names nobody.
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
            name = bytes(ids[slot])
            request_id = name[1 : 1 + name[0]].decode()
            suspects[request_id] = max(suspects.get(request_id, -1), int(index))
    return suspects


def step_age_s(path: Path) -> float:
    """Return for how many seconds the current step has been running; 0.0: none is."""
    try:
        header = np.frombuffer(path.read_bytes()[:_HEADER_BYTES], dtype=np.int64)
    except OSError:
        return 0.0
    if len(header) < 4 or not header[2]:
        return 0.0
    return float((time.monotonic_ns() // 1000 - header[2]) / 1e6)


def _size(max_running: int) -> int:
    return _HEADER_BYTES + 8 * (1 + 2 * max_running) + _ID_BYTES * max_running


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
    return lanes.reshape(2, lane), ids.reshape(max_running, _ID_BYTES)
