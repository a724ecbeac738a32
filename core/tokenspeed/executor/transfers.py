"""Carries out a plan's transfers between the tiers and reports each when its bytes have arrived.

    device block  <--- copies --->  tier slot (host memory)  <--- KVStore --->  record

Copies off the device run in stream order before the step's own writes, so that a block's next owner
may write it at once; copies onto it run beside the step. What failed is reported as failed: the
control plane then counts nothing as stored, and computes again what did not come back.
Called by the event loop's thread only; a store's threads are its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.contracts.faults import Faults
from tokenspeed.contracts.kv_store import KEY_BYTES
from tokenspeed.contracts.step import LOAD, PUT, STORE
from tokenspeed.executor.copy_lanes import Batch, copy_lanes
from tokenspeed.kv.tiers import tier_bytes
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from tokenspeed.contracts.kv_store import KVStore
    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.kv import ArenaLayout

NO_FAULTS = Faults(0)


class TierTransfers:
    """The movers of one rank.

    Args:
        arena: (bytes,) uint8, device; the KV arena.
        host: (bytes,) uint8, host; pinned where the device needs it.
        layout: of the arena; the host has physical blocks like it.
        layer_ranges: into how many parts a load is cut.
        store: behind the host tier; None: there is none.
        faults: injected into copies, for tests. A corrupted copy is not told from a good one and
            therefore not injected here; stores checksum what they keep.
    """

    def __init__(
        self,
        arena: torch.Tensor,
        host: torch.Tensor,
        *,
        layout: ArenaLayout,
        layer_ranges: int = 1,
        store: KVStore | None = None,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self._groups = tier_bytes(layout, arena, host, layer_ranges)
        self._host_bytes = memoryview(host.numpy())  # type: ignore[arg-type]
        self._store = store
        self._faults = faults
        self._stores, self._loads = copy_lanes(arena.device)
        self._tickets: dict[int, int] = {}  # of the store -> transfer id
        self._waiting: list[tuple[int, int, bool]] = []  # polls left, transfer id, ok

    def start(self, plan: StepPlan) -> None:
        """Start everything that the plan moves; call it before the step's copies and forward."""
        if len(plan.transfers):
            rows = plan.transfers.tolist()
            self._copy([row for row in rows if row[1] == STORE])
            self._copy([row for row in rows if row[1] == LOAD])
        if len(plan.store_moves):
            self._move(plan)

    def poll(self) -> NDArray[np.int32]:
        """Return (N, 2) (transfer id, ok) of what ended since the last poll; never blocks."""
        for lane in (self._stores, self._loads):
            for transfer_id, delay_polls in lane.take_done():
                self._waiting.append((delay_polls, transfer_id, True))
        if self._store is not None:
            for done in self._store.poll():
                self._waiting.append((0, self._tickets.pop(done.ticket), done.ok))
        if not self._waiting:
            return np.empty((0, 2), dtype=np.int32)
        due = [(transfer_id, ok) for polls, transfer_id, ok in self._waiting if polls == 0]
        self._waiting = [(polls - 1, key, ok) for polls, key, ok in self._waiting if polls > 0]
        return np.array(due, dtype=np.int32).reshape(-1, 2)

    def is_busy(self) -> bool:
        """Say whether anything started has not been reported."""
        lanes = (self._stores, self._loads)
        return bool(self._waiting or self._tickets) or any(lane.is_busy() for lane in lanes)

    def stored_keys(self) -> NDArray[np.uint8]:
        """Return (N, KEY_BYTES) keys of the store's records."""
        return _key_rows([] if self._store is None else self._store.keys())

    def lost_keys(self) -> NDArray[np.uint8]:
        """Return (N, KEY_BYTES) keys that the store dropped since the last call."""
        return _key_rows([] if self._store is None else self._store.take_lost())

    def close(self) -> None:
        """Finish what the store has under way."""
        if self._store is not None:
            self._store.close()

    def _copy(self, rows: Sequence[Sequence[int]]) -> None:
        """Copy (transfer id, direction, group, device block, tier slot, layer range) rows."""
        if not rows:
            return
        lane = self._stores if rows[0][1] == STORE else self._loads
        with lane.batch() as batch:
            for row in rows:
                fault = self._faults.draw()
                if fault.fails or not self._copy_block(batch, row):
                    self._waiting.append((fault.delay_polls, row[0], False))
                else:
                    batch.note(row[0], fault.delay_polls)

    def _copy_block(self, batch: Batch, row: Sequence[int]) -> bool:
        """Start one row's copies; False if the device refuses them. The rest goes on."""
        _, direction, group, block, slot, layer_range = row
        ranges = self._groups[group].ranges
        try:
            for parts in ranges if layer_range < 0 else (ranges[layer_range],):
                for part in parts:
                    device, host = part.device[block], part.host[slot]
                    batch.copy(*((host, device) if direction == STORE else (device, host)))
        except RuntimeError as error:
            LOGGER.error("transfer %d failed: %s", row[0], error)
            return False
        return True

    def _move(self, plan: StepPlan) -> None:
        assert self._store is not None, "the plan moves records and there is no store"
        keys, tags = plan.store_keys, plan.store_tokens
        for row, (transfer_id, direction, group, slot) in enumerate(plan.store_moves.tolist()):
            start = slot * self._groups[group].slot_bytes
            data = self._host_bytes[start : start + self._groups[group].used_bytes]
            key, tag = keys[row].tobytes(), tags[row].tobytes()
            move = self._store.put if direction == PUT else self._store.get
            self._tickets[move(key, tag, data)] = transfer_id


def _key_rows(keys: Sequence[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, KEY_BYTES)
