"""Paged attention in Triton where the cases of its operators do not reach."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.attention import (
    Row,
    decode_rows_of,
    make_batch,
    make_kv,
    make_rows,
    poison_unseen,
)

from tokenspeed.ops import OPERATORS
from tokenspeed.ops.alone import depends_on_batch
from tokenspeed.ops.compare import cases_within
from tokenspeed_sdk import AttentionBatch, Domain, KVView, SharedPrefixes
from tokenspeed_sdk.portable.attention.backend import PortablePagedAttention
from tokenspeed_sdk.portable.attention.tuning import Cut, Device, cut_for

PAGED = OPERATORS["attention.paged"]
SMALL = Cut(row_parts=4, row_tokens=16, processors=1, chunk_programs=12, chunk_tokens=16)
"""Cuts caches of a few tiles into parts, more of them than programs."""
MAP_NORESERVE = 0x4000
"""Of Linux: address space without memory behind it, until it is written."""
Shapes = Sequence[tuple[int, int]]


def make_backend(
    kv: KVView, num_heads: int, dtype: torch.dtype = torch.float32, cut: Cut = SMALL
) -> PortablePagedAttention:
    return PortablePagedAttention(
        num_heads=num_heads,
        num_kv_heads=kv.k.shape[1],
        head_dim=kv.k.shape[3],
        v_head_dim=kv.v.shape[3],
        block_tokens=kv.k.shape[2],
        dtype=dtype,
        device=torch.device("cpu"),
        cut=cut,
    )


def make_case(
    shapes: Shapes,
    *,
    ratio: int = 2,
    kv_heads: int = 1,
    head_dim: int = 16,
    block_tokens: int = 16,
    window: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, KVView, AttentionBatch]:
    """Return queries, a cache in which only what they see is a number, and the batch."""
    rows = make_rows(shapes, block_tokens=block_tokens, seed=1)
    batch = make_batch(rows, block_tokens=block_tokens, window=window)
    blocks = 1 + max((block for row in rows for block in row.blocks), default=0)
    kv = make_kv(
        blocks, kv_heads=kv_heads, head_dim=head_dim, block_tokens=block_tokens, dtype=dtype
    )
    poison_unseen(kv, batch)
    random = torch.Generator().manual_seed(2)
    q = torch.randn(int(batch.query_start[-1]), ratio * kv_heads, head_dim, generator=random)
    return q.to(dtype), kv, batch


def assert_attends(
    got: torch.Tensor, q: torch.Tensor, kv: KVView, batch: AttentionBatch, **options: Any
) -> None:
    wide = {
        name: value.double() if isinstance(value, torch.Tensor) else value
        for name, value in options.items()
    }
    want = PAGED.signature(q.double(), KVView(kv.k.double(), kv.v.double()), batch, **wide)
    relative, absolute = PAGED.tolerance[str(q.dtype).removeprefix("torch.")]
    assert got.dtype == q.dtype
    torch.testing.assert_close(got.double(), want, rtol=relative, atol=absolute)


def check(
    shapes: Shapes, *, sinks: bool = False, softcap: float = 0.0, cut: Cut = SMALL, **sizes: Any
) -> None:
    q, kv, batch = make_case(shapes, **sizes)
    options: dict[str, Any] = {"scale": 0.4, "softcap": softcap}
    if sinks:
        options["sinks_N"] = torch.linspace(-2, 5, q.shape[1]).to(q.dtype)
    backend = make_backend(kv, q.shape[1], q.dtype, cut)
    got = backend.attend(q, kv, backend.plan(batch), **options)
    assert_attends(got, q, kv, batch, **options)


@pytest.mark.parametrize("ratio", [1, 7, 16])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_heads_of_any_number_share_keys(ratio: int, kv_heads: int) -> None:
    check([(40, 1), (3, 2)], ratio=ratio, kv_heads=kv_heads)


def test_more_query_heads_than_a_tile_takes_are_cut_into_shares() -> None:
    check([(20, 1), (3, 2)], ratio=71)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_heads_of_any_size_are_attended(head_dim: int) -> None:
    check([(17, 1), (15, 3)], head_dim=head_dim, dtype=torch.bfloat16)


@pytest.mark.parametrize(("block_tokens", "length"), [(16, 100), (32, 70), (256, 700)])
def test_blocks_of_any_size_are_read(block_tokens: int, length: int) -> None:
    check([(length, 1), (length - 3, 2)], block_tokens=block_tokens)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 127])
def test_a_decode_row_of_any_length_is_cut_into_parts(length: int) -> None:
    check([(length - 1, 1)])


@pytest.mark.parametrize("window", [1, 15, 16, 17, 40])
def test_a_window_ends_anywhere(window: int) -> None:
    check([(63, 1), (16, 1), (30, 20)], window=window, sinks=True)


def test_a_short_chunk_on_a_long_prefix_is_cut_into_parts() -> None:
    check([(150, 3), (0, 40), (90, 17)], ratio=3, kv_heads=2, sinks=True, softcap=2.0)


def test_parts_of_a_windowed_chunk_that_some_queries_do_not_see_take_no_weight() -> None:
    check([(100, 60)], window=20, cut=replace(SMALL, chunk_programs=40))


def test_memory_of_partial_results_is_bounded_by_more_launches() -> None:
    q, kv, batch = make_case([(60, 2), (50, 3), (70, 2)])
    bounded = make_backend(kv, 2, cut=replace(SMALL, chunk_bytes=2000))
    plan = bounded.plan(batch)
    assert len(plan.chunks.launches) > 1
    assert all(launch.num_slots * 2 * 17 * 4 <= 2000 for launch in plan.chunks.launches)
    once = make_backend(kv, 2)
    got = bounded.attend(q, kv, plan, scale=0.3)
    assert got.equal(once.attend(q, kv, once.plan(batch), scale=0.3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_are_summed_in_float32(dtype: torch.dtype) -> None:
    check([(100, 1), (50, 20)], dtype=dtype, ratio=4, sinks=True)


def test_values_of_another_width_than_keys_are_attended() -> None:
    q, kv, batch = make_case([(40, 1), (20, 5)], head_dim=32)
    kv = KVView(kv.k, kv.v[..., :20])
    backend = make_backend(kv, 2)
    got = backend.attend(q, kv, backend.plan(batch), scale=0.3)
    assert_attends(got, q, kv, batch, scale=0.3)


def test_a_step_without_rows_gives_nothing() -> None:
    q, kv, batch = make_case([(1, 1)])
    none = replace(
        batch,
        query_start=np.zeros(1, np.int32),
        context_tokens=np.zeros(0, np.int32),
        num_decode_rows=0,
        block_tables=batch.block_tables[:0],
        positions_T=batch.positions_T[:0],
    )
    backend = make_backend(kv, 2)
    plan = backend.plan(none)
    backend.write(q[:0, :1], q[:0, :1], kv, plan)
    assert backend.attend(q[:0], kv, plan, scale=1.0).shape == (0, 2, 16)


def test_a_row_is_computed_alike_in_every_batch() -> None:
    for case in cases_within(PAGED, Domain("float32", None, 3)):
        if "then prompts" in case.name and case.traits.get("gqa_ratio") == 3:
            heads = case.args[0].shape[1]

            def attend(q: torch.Tensor, kv: KVView, batch: AttentionBatch, **options: Any) -> Any:
                backend = make_backend(kv, heads)  # noqa: B023
                return backend.attend(q, kv, backend.plan(batch), **options)

            assert not depends_on_batch(PAGED, attend, case)
            return
    pytest.fail("no such case")


def test_rows_on_the_device_are_attended_as_those_of_a_batch() -> None:
    q, kv, batch = make_case([(70, 1), (0, 1), (15, 1), (16, 1)])
    kv.k[0], kv.v[0] = 0.0, 0.0  # padded rows read the sentinel's first cell
    backend = make_backend(kv, 2)
    plan = backend.plan_decode(decode_rows_of(batch, padding=2))
    got = backend.attend(torch.cat([q, q[:2]]), kv, plan, scale=0.4)
    assert got[:4].equal(backend.attend(q, kv, backend.plan(batch), scale=0.4))
    assert not got[4:].isnan().any()


def test_metadata_of_rows_serves_whatever_they_hold_later() -> None:
    q, kv, batch = make_case([(70, 1), (15, 1)], window=30)
    rows = decode_rows_of(batch)
    backend = make_backend(kv, 2)
    later = rows.lengths_R.clone(), rows.slots_R.clone()
    rows.lengths_R.fill_(1)
    plan = backend.plan_decode(rows)
    rows.lengths_R.copy_(later[0].flip(0))
    rows.slots_R.copy_(later[1].flip(0))
    got = backend.attend(q.flip(0), kv, plan, scale=0.4)
    assert_attends(got.flip(0), q, kv, batch, scale=0.4)


@pytest.mark.parametrize("ratio", [2, 12])
def test_what_rows_share_is_read_once_and_counts_as_if_each_had_read_it(ratio: int) -> None:
    shared, own = (1, 2, 3, 4, 5), iter(range(6, 40))
    contexts = [80, 95, 96, 100, 111] * 4
    made = [
        Row(context, 1, (*shared, *(next(own) for _ in range(context // 16 - 4))))
        for context in contexts
    ]
    alone = Row(33, 1, (45, 46, 47))
    batch = make_batch([*made[:9], alone, *made[9:]], block_tokens=16)
    kv = make_kv(48, kv_heads=2, head_dim=16, block_tokens=16, dtype=torch.float32)
    poison_unseen(kv, batch)
    q = torch.randn(21, 2 * ratio, 16, generator=torch.Generator().manual_seed(5))
    order = [row for row in range(21) if row != 9]
    covered = [0 if row == 9 else 80 for row in range(21)]
    sharing = SharedPrefixes(
        order_R=torch.tensor([*order, 0], dtype=torch.int32),
        tiles=torch.tensor([[0, 16, 80], [16, 4, 80], [0, 0, 0]], dtype=torch.int32),
        tokens_R=torch.tensor(covered, dtype=torch.int32),
    )
    backend = make_backend(kv, 2 * ratio)
    rows = replace(decode_rows_of(batch), shared=sharing)
    sinks = torch.linspace(-1, 3, 2 * ratio)
    got = backend.attend(q, kv, backend.plan_decode(rows), scale=0.4, sinks_N=sinks)
    assert_attends(got, q, kv, batch, scale=0.4, sinks_N=sinks)


def test_what_rows_share_is_left_to_each_where_a_window_hides_it() -> None:
    q, kv, batch = make_case([(70, 1), (40, 1)], window=9)
    nothing = torch.zeros(2, dtype=torch.int32)
    wrong = SharedPrefixes(nothing, torch.tensor([[0, 2, 32]], dtype=torch.int32), nothing + 32)
    backend = make_backend(kv, 2)
    rows = replace(decode_rows_of(batch), shared=wrong)
    assert_attends(
        backend.attend(q, kv, backend.plan_decode(rows), scale=1.0), q, kv, batch, scale=1.0
    )


def test_offsets_into_the_cache_are_64_bit() -> None:
    block_stride, tokens, dim = (1 << 30) + 16, 16, 16
    room = mmap.mmap(-1, 7 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    arena = torch.frombuffer(room, dtype=torch.float16)
    shape, stride = (4, 2, tokens, dim), (block_stride, tokens * dim, dim, 1)
    far = KVView(arena.as_strided(shape, stride), arena[4096:].as_strided(shape, stride))
    near = make_kv(4, kv_heads=2, head_dim=dim, block_tokens=tokens, dtype=torch.float16)
    batch = make_batch([Row(15, 1, (3,)), Row(0, 20, (2, 1))], block_tokens=tokens)
    q, k, v = torch.randn(3, 21, 2, dim, generator=torch.Generator().manual_seed(0)).half()
    backend = make_backend(near, 2, torch.float16)
    results = []
    for kv in (near, far):
        for cache in (kv.k, kv.v):
            cache[3] = torch.linspace(-1, 1, tokens)[:, None]
        plan = backend.plan(batch)
        backend.write(k, v, kv, plan)
        results.append(backend.attend(q, kv, plan, scale=0.5))
        assert kv.k[2, :, 3].equal(k[4])
    assert results[0].equal(results[1])


def test_one_long_row_fills_a_large_device() -> None:
    device = Device(processors=132, shared_bytes=227 << 10)
    for kv_heads in (1, 2, 4, 8):
        cut = cut_for(device, kv_heads)
        programs = kv_heads * min(cut.row_parts, 32768 // cut.row_tokens)
        assert programs >= min(132, 64 * kv_heads)
