"""Moves between tiers on several ranks: each moves its part of a block, rank 0 hears of all.

    plan ---> every rank starts its part            RankMoves: what ended on a worker, after each
    LOOK ---> between plans: what has ended?        plan and whenever it is asked

A move has ended when it has on every rank, and went well if it did on every one: what is missing on
one is computed again on all.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.contracts.kv_store import KEY_BYTES
from tokenspeed.engine.ranks.messages import RankMoves

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenspeed.engine.ranks.group import RankGroup
    from tokenspeed.executor.transfers import TierTransfers

LOOK_GAP_S = 1e-3
"""Least time between two looks: workers answer between their steps."""


class RankTransfers:
    """Rank 0's view of the moves of all ranks. Thread: the engine's.

    Args:
        own: rank 0's movers, which the executor starts.
        group: of the ranks, all of which have said that they are ready.
    """

    def __init__(self, own: TierTransfers, group: RankGroup) -> None:
        self._own = own
        self._group = group
        self._reports: dict[int, list[bool]] = {}  # transfer id -> of the ranks that have ended it
        self._lost: list[bytes] = []
        self._steps_seen = 0
        self._looked_s = 0.0

    def poll(self) -> NDArray[np.int32]:
        """Return (N, 2) (transfer id, ok) of what ended on every rank since the last poll.

        Raises:
            RankFailure: a rank is gone.
        """
        self._take()
        for transfer_id, ok in self._own.poll().tolist():
            self._reports.setdefault(transfer_id, []).append(bool(ok))
        done = [key for key, oks in self._reports.items() if len(oks) == self._group.world]
        ended = [(key, all(self._reports.pop(key))) for key in done]
        self._look()
        return np.array(ended, dtype=np.int32).reshape(-1, 2)

    def is_busy(self) -> bool:
        """Say whether anything started has not been reported."""
        return bool(self._reports) or self._own.is_busy()

    def stored_keys(self) -> NDArray[np.uint8]:
        """Return (N, KEY_BYTES) keys of the records that every rank's store has."""
        common = set(_split(self._own.stored_keys().tobytes()))
        for keys in self._group.stored_keys():
            common &= set(_split(keys))
        return _rows(sorted(common))

    def lost_keys(self) -> NDArray[np.uint8]:
        """Return (N, KEY_BYTES) keys that some rank's store dropped since the last call."""
        self._take()
        lost, self._lost = self._lost, []
        return _rows(sorted({*lost, *_split(self._own.lost_keys().tobytes())}))

    def close(self) -> None:
        """Finish what this rank's store has under way; the others do so when they are ended."""
        self._own.close()

    def _take(self) -> None:
        """Take in what the workers have said."""
        for message in self._group.take_moves():
            self._lost += _split(message.lost_keys)
            for transfer_id, ok in message.ended:
                self._reports.setdefault(transfer_id, []).append(ok)

    def _look(self) -> None:
        """Ask the workers, if something is under way and no plan lets them say it anyway."""
        steps, self._steps_seen = self._steps_seen, self._group.progress.steps
        now_s = time.monotonic()
        if self.is_busy() and steps == self._steps_seen and now_s > self._looked_s + LOOK_GAP_S:
            self._looked_s = now_s
            self._group.look()


class MovesReporter:
    """A worker's end: says what has ended. Thread: the one that carries out plans."""

    def __init__(self, transfers: TierTransfers, tell: Callable[[RankMoves], None]) -> None:
        self._transfers = transfers
        self._tell = tell

    def report(self) -> None:
        """Say what ended since the last time, if anything did."""
        lost = self._transfers.lost_keys()  # first, for the reason in EventLoop._acknowledge
        ended = self._transfers.poll()
        if len(lost) or len(ended):
            pairs = tuple((transfer_id, bool(ok)) for transfer_id, ok in ended.tolist())
            self._tell(RankMoves(ended=pairs, lost_keys=lost.tobytes()))


def _split(keys: bytes) -> list[bytes]:
    return [keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)]


def _rows(keys: list[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, KEY_BYTES)
