"""Plans become inputs: block tables patched by deltas, positions, tokens from the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tests.support.plans import Row, make_plan
from tests.support.successor_model import GROUPS, VOCAB_SIZE, RecordingAttention

from tokenspeed.contracts.attention import CacheDemand
from tokenspeed.contracts.model import CacheField, CacheGroup, gqa_fields
from tokenspeed.executor import InlineLink
from tokenspeed.executor.batch import StepBatcher, StepInputs
from tokenspeed.kv import Arena, solve_layout

BLOCK_TOKENS = 16
CPU = torch.device("cpu")


class Batch:
    """A batcher over two cache groups, with what it owns in reach."""

    def __init__(self) -> None:
        layout = solve_layout(GROUPS, block_tokens=BLOCK_TOKENS, dtype="float32", arena_bytes=2**18)
        self.storage = torch.zeros(layout.total_bytes, dtype=torch.uint8)
        self.arena = Arena(layout, self.storage)
        self.backends = {group.name: RecordingAttention() for group in GROUPS}
        self.last_tokens = torch.arange(100, 104)
        self.batcher = StepBatcher(
            self.arena,
            self.backends,
            max_running=4,
            max_context_tokens=100,
            block_tokens=BLOCK_TOKENS,
            vocab_size=VOCAB_SIZE,
            link=InlineLink(CPU),
        )

    def build(self, *args: object, **kwargs: object) -> StepInputs:
        plan: Any = make_plan(*args, **kwargs)
        self.batcher.apply(plan)
        return self.batcher.build(plan, self.last_tokens)

    def table(self, group: str) -> list[list[int]]:
        return self.backends[group].batches[-1].block_tables.tolist()


def test_positions_start_at_each_rows_context() -> None:
    rows = [Row(0, [1], 40), Row(1, [2], 7), Row(2, [3, 4, 5], 0), Row(3, [6, 7], 30)]
    inputs = Batch().build(rows, num_decode_rows=2)
    assert inputs.context.positions_T.tolist() == [40, 7, 0, 1, 2, 30, 31]
    assert inputs.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_positions_of_decodes_are_their_contexts() -> None:
    inputs = Batch().build([Row(2, [1], 9), Row(0, [2], 3)], num_decode_rows=2)
    assert inputs.context.positions_T.tolist() == [9, 3]


def test_tables_keep_earlier_blocks_and_take_new_ones() -> None:
    batch = Batch()
    batch.build([Row(1, [1] * 20)], admitted=[(0, 1)], block_updates=[(1, 0, 0, 5), (1, 0, 1, 6)])
    assert batch.table("full") == [[5, 6]]
    batch.build([Row(1, [1] * 20, 20)], block_updates=[(1, 0, 2, 9), (1, 1, 0, 3)])
    assert batch.table("full") == [[5, 6, 9]]
    assert batch.table("other") == [[3, 0, 0]]


def test_tables_follow_the_rows_slots() -> None:
    batch = Batch()
    updates = [(0, 0, 0, 4), (3, 0, 0, 7), (3, 1, 0, 8)]
    batch.build([Row(3, [1]), Row(0, [1])], num_decode_rows=2, block_updates=updates)
    assert batch.table("full") == [[7], [4]]
    assert batch.table("other") == [[8], [0]]


def test_an_admitted_slot_starts_empty_and_takes_its_updates() -> None:
    batch = Batch()
    batch.build([Row(1, [1] * 40)], admitted=[(0, 1)], block_updates=[(1, 0, 2, 5)])
    batch.build([Row(1, [1] * 40)], admitted=[(0, 1)], block_updates=[(1, 0, 0, 6)])
    assert batch.table("full") == [[6, 0, 0]]


def test_tokens_on_the_device_are_taken_from_the_rows_slot() -> None:
    rows = [Row(2, [-1], 5), Row(0, [11], 5), Row(1, [-1], 5), Row(3, [1, 2, 3])]
    batch = Batch()
    assert batch.build(rows, num_decode_rows=3).token_ids.tolist() == [102, 11, 101, 1, 2, 3]


def test_token_ids_are_clamped_to_the_vocabulary() -> None:
    rows = [Row(0, [VOCAB_SIZE, 2**31 - 1, -5, 0, VOCAB_SIZE - 1])]
    top = VOCAB_SIZE - 1
    assert Batch().build(rows).token_ids.tolist() == [top, top, 0, 0, top]


def test_copies_move_the_leading_tokens_of_every_layer_of_the_group() -> None:
    batch = Batch()
    view = batch.arena.views()[1]
    view.k[3] = 1.0
    view.v[3] = 2.0
    batch.build([Row(0, [1])], copies=[(1, 3, 5, 10)])
    assert view.k[5].sum(dim=(0, 2)).tolist() == [8.0] * 10 + [0.0] * 6
    assert view.v[5].sum(dim=(0, 2)).tolist() == [16.0] * 10 + [0.0] * 6


def test_backends_see_writable_arrays_of_the_step() -> None:
    batch = Batch()
    batch.build([Row(0, [1, 2], 3), Row(1, [1])])
    seen = batch.backends["full"].batches[-1]
    assert seen.query_start.tolist() == [0, 2, 3]
    assert seen.context_tokens.tolist() == [3, 0]
    assert seen.block_tables.dtype == np.int32
    assert seen.query_start.flags.writeable


def test_state_rows_reach_every_layer_of_their_group_and_windows_their_backend() -> None:
    fields = gqa_fields(1, 8)
    groups = (
        CacheGroup("full", "full", (0,), fields),
        CacheGroup("gdn", "state", (1, 2), (CacheField("state", (8,), "float32"),)),
        CacheGroup("window", "window", (3,), fields, window=20),
        CacheGroup("kda", "state", (4,), (CacheField("state", (8,), "float32"),)),
    )
    layout = solve_layout(groups, block_tokens=16, dtype="float32", arena_bytes=2**18)
    backends = {name: RecordingAttention() for name in ("full", "window")}
    batcher = StepBatcher(
        Arena(layout, torch.zeros(layout.total_bytes, dtype=torch.uint8)),
        backends,
        max_running=4,
        max_context_tokens=100,
        block_tokens=16,
        vocab_size=VOCAB_SIZE,
        link=InlineLink(CPU),
    )
    plan = make_plan(
        [Row(1, [1]), Row(0, [2])],
        block_updates=[(1, 0, 0, 5), (0, 2, 0, 6)],
        state_rows=[[(-1, 3), (4, 5)], [(6, 7), (8, 9)]],
    )
    batcher.apply(plan)
    rows = batcher.build(plan, torch.zeros(4, dtype=torch.int64)).context.state_rows
    assert sorted(rows) == [1, 2, 4]
    assert rows[1] is rows[2]
    assert (rows[1].read_R.tolist(), rows[1].write_R.tolist()) == ([-1, 6], [3, 7])
    assert (rows[4].read_R.tolist(), rows[4].write_R.tolist()) == ([4, 8], [5, 9])
    seen = {name: backend.batches[0] for name, backend in backends.items()}
    assert (seen["full"].window, seen["window"].window) == (0, 20)
    assert seen["full"].block_tables.tolist() == [[5], [0]]
    assert seen["window"].block_tables.tolist() == [[0], [6]]


def test_a_backend_that_reads_pages_gets_their_ids_beside_the_blocks() -> None:
    groups = (CacheGroup("full", "full", (0,), gqa_fields(2, 8)),)
    layout = solve_layout(
        groups,
        block_tokens=16,
        dtype="float32",
        arena_bytes=2**18,
        demands={"full": CacheDemand(page_tokens=4)},
    )
    backend, pages = RecordingAttention(), layout.page_ids(0)
    assert pages is not None
    batcher = StepBatcher(
        Arena(layout, torch.zeros(layout.total_bytes, dtype=torch.uint8)),
        {"full": backend},
        max_running=2,
        max_context_tokens=64,
        block_tokens=16,
        vocab_size=VOCAB_SIZE,
        link=InlineLink(CPU),
    )
    plan = make_plan([Row(1, [1] * 20)], block_updates=[(1, 0, 0, 3), (1, 0, 1, 2)])
    batcher.apply(plan)
    batcher.build(plan, torch.zeros(2, dtype=torch.int64))
    batch = backend.batches[0]
    assert batch.page_tokens == 4
    assert batch.page_tables is not None
    expected = [b * pages.per_block + i * pages.step for b in (3, 2) for i in range(4)]
    assert batch.page_tables.tolist() == [expected]
