"""Steps of several partitions as messages: what is sent is what arrives, or it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.schedulers import make_scheduler

from tokenspeed.engine.ranks.plan_frames import JoinedDecoder, JoinedEncoder
from tokenspeed.scheduler.joined import JoinedPlan

if TYPE_CHECKING:
    from tokenspeed.scheduler import StepPlan

SLOTS = 4
ARRAYS = ("slots", "query_start", "context_tokens", "output_index", "token_ids", "admitted")
NONE = np.zeros(0, dtype=np.int32)


def segment(num_requests: int) -> StepPlan | None:
    """Return the plan of a partition with so many requests; none of no request."""
    scheduler = make_scheduler()
    for key in range(num_requests):
        scheduler.submit(key + 1, np.arange(10 + key, dtype=np.int32), now_us=1)
    return scheduler.plan(now_us=1)


def joined(*counts: int) -> JoinedPlan:
    return JoinedPlan(1, [segment(count) for count in counts], slots_each=SLOTS)


@pytest.mark.parametrize("counts", [(2, 1), (0, 3), (1, 0), (0, 2, 0)])
def test_a_step_arrives_as_it_was_sent(counts: tuple[int, ...]) -> None:
    plan = joined(*counts)
    encoder = JoinedEncoder(len(counts))
    decoder = JoinedDecoder(len(counts), slots_each=SLOTS)
    extra = np.array([5, 9, 11, 12], dtype=np.int32)
    for _ in range(2):
        found, values = decoder.decode(encoder.encode(plan, extra))
        assert values == extra.tolist()
        assert found.partition_tokens == plan.partition_tokens
        assert [part is None for part in found.segments] == [count == 0 for count in counts]
        for name in ARRAYS:
            assert np.array_equal(getattr(found, name), getattr(plan, name)), name


def test_a_lost_or_damaged_step_is_noticed() -> None:
    encoder, decoder = JoinedEncoder(2), JoinedDecoder(2, slots_each=SLOTS)
    plan = joined(1, 1)
    encoder.encode(plan, NONE)
    message = encoder.encode(plan, NONE)
    with pytest.raises(ValueError, match="plan number 1 came where 0 is due"):
        decoder.decode(message)
    with pytest.raises(ValueError, match="digest"):
        decoder.decode(damaged(JoinedEncoder(2).encode(plan, NONE)))


@pytest.mark.parametrize("size", [0, 7, 24, 100])
def test_a_step_of_another_size_is_refused(size: int) -> None:
    message = JoinedEncoder(2).encode(joined(1, 1), NONE)
    with pytest.raises(ValueError, match=f"a step of {size} bytes"):
        JoinedDecoder(2, slots_each=SLOTS).decode(message[:size])


def test_a_step_of_other_partitions_is_refused() -> None:
    message = JoinedEncoder(3).encode(joined(1, 1, 0), NONE)
    with pytest.raises(ValueError, match=r"has 3 partitions .* and there are 2"):
        JoinedDecoder(2, slots_each=SLOTS).decode(message)


def damaged(message: bytes) -> bytes:
    """Flip a bit of the last array."""
    return message[:-1] + bytes([message[-1] ^ 1])
