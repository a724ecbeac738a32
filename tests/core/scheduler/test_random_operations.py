"""Random operations beside a simulated device: what any schedule must keep true."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from tests.support.plan_copies import PlanCopy
from tests.support.random_operations import Tamper, play
from tests.support.simulated_memory import OracleError

FIRST_SEED = int(os.environ.get("TOKENSPEED_TEST_SEED", "1"))
"""A failure names its seed: set TOKENSPEED_TEST_SEED to it to see it again first."""
OPERATIONS_PER_SEED = 250
MET = (
    "submitted", "turns", "refused", "planned", "committed", "abort", "stop", "accepted",
    "released", "retractions", "readmitted", "evictions", "moves", "moves_failed", "loads", "saved",
    "limits",
)  # fmt: skip


def play_seeds(first_seed: int, num_seeds: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + num_seeds):
        counts.update(play(seed, OPERATIONS_PER_SEED))
    return counts


@pytest.mark.parametrize("part", range(2))
def test_no_row_ever_sees_another_requests_tokens(part: int) -> None:
    counts = play_seeds(FIRST_SEED + 50 * part, 50)
    for name in MET:
        assert counts[name] > 3, f"{name} hardly ever happened: {counts}"
    assert counts["cached_tokens"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_no_row_ever_sees_another_requests_tokens_long(part: int) -> None:
    play_seeds(1_000_000 + 200 * part, 200)


def swap_blocks(plan: PlanCopy) -> None:
    """A row reads another row's block."""
    updates = plan.arrays["block_updates"]
    if len({slot for slot, group, *_ in updates.tolist() if group == 0}) >= 2:
        first = updates[updates[:, 1] == 0]
        updates[updates[:, 1] == 0, 3] = first[::-1, 3]


def shift_context(plan: PlanCopy) -> None:
    """A row claims one more cached token than there is."""
    plan.arrays["context_tokens"][-1:] += 1


def drop_copy(plan: PlanCopy) -> None:
    """A copy on write is forgotten."""
    plan.arrays["copies"] = plan.arrays["copies"][:0]


def drop_update(plan: PlanCopy) -> None:
    """A block-table entry is forgotten."""
    plan.arrays["block_updates"] = plan.arrays["block_updates"][:-1]


def wrong_token(plan: PlanCopy) -> None:
    """A query token is another one."""
    plan.arrays["token_ids"][:1] = 7


def share_written_block(plan: PlanCopy) -> None:
    """Every new block of group 0 is the same one."""
    updates = plan.arrays["block_updates"]
    blocks = updates[updates[:, 1] == 0, 3]
    updates[updates[:, 1] == 0, 3] = blocks[:1].repeat(len(blocks))


def swap_states(plan: PlanCopy) -> None:
    """Rows start from each other's state."""
    plan.arrays["state_rows"][:, :, 0] = plan.arrays["state_rows"][::-1, :, 0].copy()


def share_written_state(plan: PlanCopy) -> None:
    """All rows leave their state in the same place."""
    plan.arrays["state_rows"][:, :, 1] = plan.arrays["state_rows"][:1, :, 1]


def store_another_block(plan: PlanCopy) -> None:
    """A block goes to the host from another place."""
    stores = plan.arrays["transfers"][:, 1] == 0
    plan.arrays["transfers"][stores, 3] += 1


def load_from_elsewhere(plan: PlanCopy) -> None:
    """A block comes from another slot of the host."""
    loads = plan.arrays["transfers"][:, 1] == 1
    plan.arrays["transfers"][loads, 4] += 1


def other_drafts(plan: PlanCopy) -> None:
    """Drafts are others than those proposed."""
    start = plan.arrays["query_start"]
    for row in range(plan.num_decode_rows):
        if start[row + 1] - start[row] > 1:
            plan.arrays["token_ids"][start[row + 1] - 1] += 1


@pytest.mark.parametrize(
    "tamper",
    [
        swap_blocks, shift_context, drop_copy, drop_update, wrong_token, share_written_block,
        swap_states, share_written_state, store_another_block, load_from_elsewhere, other_drafts,
    ],
)  # fmt: skip
def test_a_planted_fault_is_noticed(tamper: Tamper) -> None:
    noticed = 0
    for seed in range(60):
        try:
            play(seed, 150, tamper=tamper, shortest=False)
        except OracleError:
            noticed += 1
            if noticed == 3:
                return
    raise AssertionError(f"noticed {noticed} times only")


def test_a_failure_names_its_seed_and_the_fewest_operations() -> None:
    with pytest.raises(OracleError, match=r"seed 3, \d+ operations .*\n.*\n(.*\n)*.*plan\("):
        play(3, 150, tamper=shift_context)
