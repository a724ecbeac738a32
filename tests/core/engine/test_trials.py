"""Trials: a candidate is timed on what was seen, laid out as it demands, however often."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.attention import Row, make_batch

from tokenspeed.contracts.attention import AttentionBatch, CacheDemand, KVView
from tokenspeed.contracts.model import CacheField, CacheGroup, gqa_fields
from tokenspeed.engine.trials import attention_step, time_sample
from tokenspeed.engine.watched import WatchedAttention
from tokenspeed.kernels.spying import Sample, Watch
from tokenspeed.kv import Arena, solve_layout
from tokenspeed_reference.attention import PagedAttention

GROUPS = (
    CacheGroup("full", "full", (0, 2, 3), gqa_fields(2, 8)),
    CacheGroup("state", "state", (1,), (CacheField("s", (100,)),)),
)
RUNTIME: Any = SimpleNamespace(allocate_arena=partial(torch.zeros, dtype=torch.uint8))
DEMANDS = {
    "whole blocks": CacheDemand(),
    "pages": CacheDemand(page_tokens=8),
    "packed pages": CacheDemand(page_tokens=4, packed=True, orders=("layer_major",)),
    "pages as large as blocks": CacheDemand(page_tokens=16, packed=True),
}


class OnPages(PagedAttention):
    """Reads pages as if they were blocks."""

    def plan(self, batch: AttentionBatch) -> Any:
        if batch.page_tables is None:
            return super().plan(batch)
        return super().plan(
            replace(batch, block_tables=batch.page_tables, block_tokens=batch.page_tokens)
        )


def backend() -> Any:
    return OnPages(
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        block_tokens=16,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def solve(demand: CacheDemand) -> Any:
    return solve_layout(
        GROUPS,
        block_tokens=16,
        dtype="float32",
        arena_bytes=2**18,
        demands={"full": demand},
    )


def watched_step(
    window: int, rows: list[Row], demand: CacheDemand
) -> tuple[WatchedAttention, torch.Tensor]:
    """Run one step of a watched backend over a cache of noise; return its result too."""
    random = torch.Generator().manual_seed(3)
    layout = solve(demand)
    arena = Arena(layout, torch.zeros(layout.total_bytes, dtype=torch.uint8))
    arena.storage.view(torch.float32).normal_(generator=random)
    kv = arena.views()[0]
    assert isinstance(kv, KVView)
    batch = make_batch(rows, block_tokens=16, window=window)
    ids = layout.page_ids(0)
    if ids is not None:
        steps = torch.arange(ids.num_pages).numpy() * ids.step
        pages = batch.block_tables[:, :, None] * ids.per_block + steps
        tables = pages.reshape(len(rows), -1).astype("int32")
        batch = replace(batch, page_tables=tables, page_tokens=ids.page_tokens)
    watch = Watch()
    watch.phase = "prompt"
    watched = WatchedAttention(backend(), {}, watch)
    num_tokens = int(batch.query_start[-1])
    k, v = (torch.randn(num_tokens, 2, 8, generator=random) for _ in range(2))
    q = torch.randn(num_tokens, 4, 8, generator=random)
    metadata = watched.plan(batch)
    watched.write(k, v, kv, metadata)
    result = watched.attend(q, kv, metadata, scale=0.3)
    for tensor in (k, v, q, arena.storage):  # the sample has copies
        tensor.zero_()
    return watched, result


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("other", DEMANDS)
@pytest.mark.parametrize("own", DEMANDS)
def test_a_step_gives_the_same_in_whatever_layout_its_sample_is_laid_out(
    own: str, other: str, window: int
) -> None:
    rows = [
        Row(37, 1, (9, 2, 5)),
        Row(64, 1, (6, 1, 12, 14, 3)),
        Row(0, 21, (7, 4)),
        Row(33, 5, (10, 11, 13)),
    ]
    watched, expected = watched_step(window, rows, DEMANDS[own])
    ((shape, sample),) = watched.samples.items()
    num_blocks = 10 if window else 13
    assert shape == f"2 of 4 rows, 28 tokens, {num_blocks} blocks"
    assert sample.calls == {"prompt": 1}
    step = attention_step(backend(), sample, solve(DEMANDS[other]), "full", RUNTIME)
    for _ in range(2):  # writing again changes nothing
        torch.testing.assert_close(step(), expected)


def test_steps_of_a_growing_answer_are_one_shape_until_it_takes_another_block() -> None:
    watch = Watch()
    watched = WatchedAttention(backend(), {}, watch)
    for context in range(28, 34):
        watch.phase = "" if context == 28 else "decode"
        watched.plan(make_batch([Row(context, 1, (1, 2, 3))], block_tokens=16))
    assert {shape: sample.calls for shape, sample in watched.samples.items()} == {
        "1 of 1 rows, 1 tokens, 2 blocks": {"decode": 3},
        "1 of 1 rows, 1 tokens, 3 blocks": {"decode": 2},
    }


def test_a_sample_is_timed_on_fresh_copies_of_its_arguments() -> None:
    watch = Watch()
    watch.phase = "decode"
    x = torch.ones(3)
    watch.note("request", "op", ((x,), {}), None)
    x.zero_()
    ((_, sample),) = watch.samples["request"].items()
    seen: list[float] = []
    waits: list[int] = []

    def double(x: torch.Tensor) -> None:
        seen.append(float(x.sum()))
        x.mul_(2)

    assert time_sample(double, sample, lambda: waits.append(len(seen))) > 0
    assert set(seen) == {3.0}
    assert sample.calls == {"decode": 1}
    calls = range(len(seen))
    assert waits == [count for call in calls for count in (call, call + 1)]  # before and after


def test_a_kernel_that_prepares_another_is_timed_in_what_it_prepared() -> None:
    calls: list[str] = []

    def prepare(name: str) -> Any:
        calls.append(f"prepare {name}")
        return lambda value: calls.append(f"run {value}")

    time_sample(prepare, Sample(((7,), {}), (("w",), {}), {"decode": 1}))
    assert calls[0] == "prepare w"
    assert set(calls[1:]) == {"run 7"}
    assert len(calls) > 3
