"""Random operations against the naive oracle: what any schedule must keep true."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from tests.support.device_memory import OracleError
from tests.support.scheduler_driver import Driver
from tests.support.scheduler_oracle import PlanCopy

FIRST_SEED = int(os.environ.get("TOKENSPEED_TEST_SEED", "1"))
"""A failure names its seed: set TOKENSPEED_TEST_SEED to it to see it again first."""
OPERATIONS_PER_SEED = 500


def play(first_seed: int, num_seeds: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + num_seeds):
        driver = Driver(seed)
        driver.run(OPERATIONS_PER_SEED)
        counts.update(driver.counts)
        counts["cached_tokens"] += driver.oracle.num_cached_tokens
    return counts


@pytest.mark.parametrize("part", range(4))
def test_no_row_ever_sees_another_requests_tokens(part: int) -> None:
    counts = play(FIRST_SEED + 25 * part, 25)
    for name in ("submitted", "refused", "planned", "committed", "abort", "stop", "retracted"):
        assert counts[name] > 10, f"{name} hardly ever happened: {counts}"
    assert counts["cached_tokens"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_no_row_ever_sees_another_requests_tokens_long(part: int) -> None:
    play(1_000_000 + 100 * part, 100)


def swap_blocks(plan: PlanCopy) -> None:
    """A row reads another row's block."""
    updates = plan.arrays["block_updates"]
    if len({slot for slot, group, *_ in updates.tolist() if group == 0}) >= 2:
        first = updates[updates[:, 1] == 0]
        updates[updates[:, 1] == 0, 3] = first[::-1, 3]


def shift_context(plan: PlanCopy) -> None:
    """A row claims one more cached token than there is."""
    plan.arrays["context_tokens"][-1] += 1


def drop_copy(plan: PlanCopy) -> None:
    """A copy on write is forgotten."""
    plan.arrays["copies"] = plan.arrays["copies"][:0]


def drop_update(plan: PlanCopy) -> None:
    """A block-table entry is forgotten."""
    plan.arrays["block_updates"] = plan.arrays["block_updates"][:-1]


def wrong_token(plan: PlanCopy) -> None:
    """A query token is another one."""
    plan.arrays["token_ids"][0] = 7


def share_written_block(plan: PlanCopy) -> None:
    """Every new block of group 0 is the same one."""
    updates = plan.arrays["block_updates"]
    updates[updates[:, 1] == 0, 3] = updates[updates[:, 1] == 0, 3][:1].repeat(
        int((updates[:, 1] == 0).sum())
    )


@pytest.mark.parametrize(
    "tamper",
    [swap_blocks, shift_context, drop_copy, drop_update, wrong_token, share_written_block],
)
def test_a_planted_fault_is_noticed(tamper: object) -> None:
    assert callable(tamper)
    noticed = 0
    for seed in range(12):
        try:
            Driver(seed, tamper=tamper).run(200)
        except OracleError:
            noticed += 1
    assert noticed >= 3
