"""Which partition of data-parallel attention a request lives in: where it costs least.

    cost = tokens of the prompt that are not cached there, and those of others that come first
         + DECODE_TOKENS for each live request more than where the fewest are
         + the tokens of blocks that are lacking

Of two that cost the same, where its session, else the family's first session, had its last turn;
then where most blocks are free; then the first. So a turn follows its conversation, and a child its
parent's prefix, unless those that are there already outweigh what the prefix saves.

What is cached where is read from each scheduler's own events, as routers do it.
Thread: the engine's only. Cost: O(blocks of the prompt) for each partition and request.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed._core import PrefixKeys, PrefixView

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tokenspeed._core import EventBatch

DECODE_TOKENS = 64
"""Tokens of prefill that are worth one live request less: every step waits for the partition that
has the most to decode."""
MAX_HOMES = 4096
"""Sessions whose partition is remembered."""


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """What a partition has.

    Args:
        live: requests that run or wait.
        queued_tokens: of prompts without a first token, that were not cached when they came.
        free_blocks: of `block_tokens` tokens that nobody holds.
    """

    live: int
    queued_tokens: int
    free_blocks: int


class PartitionChoice:
    """Views and homes of all partitions, and the choice.

    Args:
        groups: (kind, window) of each cache group.
    """

    def __init__(
        self, num_partitions: int, *, block_tokens: int, groups: Sequence[tuple[str, int]]
    ) -> None:
        self._block_tokens = block_tokens
        self._views = [
            PrefixView(1, block_tokens=block_tokens, groups=list(groups))
            for _ in range(num_partitions)
        ]
        self._homes: OrderedDict[int, int] = OrderedDict()

    def keys_of(self, prompt_ids: NDArray[np.int32], *, tenant: int, salt: bytes) -> PrefixKeys:
        """Return the names of a prompt's blocks."""
        keys = PrefixKeys(self._block_tokens, tenant=tenant, salt=salt)
        keys.extend(prompt_ids)
        return keys

    def changed(self, partition: int, batch: EventBatch) -> None:
        """Note what changed in a partition's cache."""
        self._views[partition].apply(0, batch.packed())

    def ranked(
        self,
        keys: PrefixKeys,
        num_tokens: int,
        loads: Sequence[PartitionLoad],
        *,
        sessions: Sequence[int] = (),
    ) -> list[tuple[int, int]]:
        """Return (partition, tokens to compute there) for each, the best first.

        Args:
            num_tokens: of the prompt.
            sessions: numbers of those whose home counts, the nearest first; 0 is none.
        """
        home = next((self._homes[s] for s in sessions if s in self._homes), -1)
        fewest = min(load.live for load in loads)

        ranked = []
        for partition, load in enumerate(loads):
            ((cached, _, expected),) = self._views[partition].match(keys)
            known = min(num_tokens, max(cached, expected) * self._block_tokens)
            missing = num_tokens - known
            # What others are about to compute for it too is no queue before it.
            queued = max(0, load.queued_tokens - max(0, known - cached * self._block_tokens))
            wanted = -(-(missing + load.queued_tokens) // self._block_tokens)
            lacking = max(0, wanted - load.free_blocks) * self._block_tokens
            cost = missing + queued + lacking + DECODE_TOKENS * (load.live - fewest)
            ranked.append((cost, partition != home, -load.free_blocks, partition, missing))
        return [(partition, missing) for *_, partition, missing in sorted(ranked)]

    def placed(self, partition: int, keys: PrefixKeys, *, session: int) -> None:
        """Note where a request is: its blocks are about to be computed there."""
        self._views[partition].expect(0, keys, True)
        if session:
            self._homes[session] = partition
            self._homes.move_to_end(session)
            if len(self._homes) > MAX_HOMES:
                self._homes.popitem(last=False)

    def ended(self, partition: int, keys: PrefixKeys) -> None:
        """Note that a request has ended."""
        self._views[partition].expect(0, keys, False)

    def forget(self, session: int) -> None:
        """Forget a session that was released."""
        self._homes.pop(session, None)

    @property
    def homes(self) -> Mapping[int, int]:
        """Session -> partition of its last turn."""
        return self._homes
