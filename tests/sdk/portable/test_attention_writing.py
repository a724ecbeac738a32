"""Keys and values find their places, as they are or prepared on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.attention import copy_kv, decode_rows_of, make_batch, make_kv, make_rows

from tokenspeed.ops import OPERATORS
from tokenspeed_sdk import AttentionBatch, KVView
from tokenspeed_sdk.portable.attention.backend import PortablePagedAttention
from tokenspeed_sdk.portable.attention.preparing import HeadNorm

SHAPES = [(15, 1), (16, 1), (0, 3), (14, 4)]


def make_step(
    dtype: torch.dtype = torch.float32, *, shapes: list[tuple[int, int]] = SHAPES, dim: int = 16
) -> tuple[PortablePagedAttention, AttentionBatch, KVView, list[torch.Tensor]]:
    """Return a backend of 6 and 3 heads, a batch, its cache and q, k, v that lie in one tensor."""
    batch = make_batch(make_rows(shapes, block_tokens=16, seed=3), block_tokens=16)
    blocks = int(batch.block_tables.max()) + 1
    kv = make_kv(blocks, kv_heads=3, head_dim=dim, block_tokens=16, dtype=dtype)
    backend = PortablePagedAttention(
        num_heads=6,
        num_kv_heads=3,
        head_dim=dim,
        block_tokens=16,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    random = torch.Generator().manual_seed(1)
    joined = torch.randn(int(batch.query_start[-1]), 12, dim, generator=random).to(dtype)
    return backend, batch, kv, list(joined.split([6, 3, 3], dim=1))


def written(kv: KVView, batch: AttentionBatch, k: torch.Tensor, v: torch.Tensor) -> KVView:
    """Return a copy of the cache after the write."""
    after = copy_kv(kv, kv.k.dtype)
    OPERATORS["kv.write"].signature(k, v, after, batch)
    return after


def test_a_write_changes_the_cells_of_the_steps_tokens_alone() -> None:
    backend, batch, kv, (_, k, v) = make_step(torch.bfloat16)
    want = written(kv, batch, k, v)
    backend.write(k, v, kv, backend.plan(batch))
    assert kv.k.equal(want.k)
    assert kv.v.equal(want.v)


def test_rows_on_the_device_are_written_and_padded_ones_go_to_the_sentinel() -> None:
    backend, batch, kv, (_, k, v) = make_step(shapes=[(15, 1), (16, 1), (0, 1)])
    want = written(kv, batch, k, v)
    want.k[0, :, 0], want.v[0, :, 0] = k[2], v[2]
    plan = backend.plan_decode(decode_rows_of(batch, padding=1))
    backend.write(torch.cat([k, k[2:]]), torch.cat([v, v[2:]]), kv, plan)
    assert kv.k.equal(want.k)
    assert kv.v.equal(want.v)


def test_rows_without_query_tokens_take_none_of_their_neighbours() -> None:
    backend, batch, kv, (_, k, v) = make_step(shapes=[(5, 3), (9, 2), (20, 4)])
    starts = batch.query_start.copy()
    starts[2] = starts[1]  # the second row has none, the third has its two as well
    contexts = batch.context_tokens.copy()
    contexts[2] -= 2
    batch = replace(batch, query_start=starts, context_tokens=contexts)
    batch.positions_T[3:5] = torch.tensor([18, 19])
    want = written(kv, batch, k, v)
    backend.write(k, v, kv, backend.plan(batch))
    assert kv.k.equal(want.k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("dim", "turned"), [(16, 16), (20, 12), (64, 64)])
def test_preparation_is_norm_rotation_and_write(dtype: torch.dtype, dim: int, turned: int) -> None:
    backend, batch, kv, (q, k, v) = make_step(dtype, dim=dim)
    random = torch.Generator().manual_seed(4)
    table = torch.randn(40, turned, generator=random).to(dtype)
    angles = OPERATORS["rotary.angles"].signature(batch.positions_T, table)
    q_norm, k_norm = (
        HeadNorm(torch.randn(dim, generator=random).to(dtype), 1e-5, centre) for centre in (0, 1)
    )

    def prepared(x: torch.Tensor, norm: HeadNorm) -> torch.Tensor:
        weight = norm.weight_H.double() + norm.centre
        x = OPERATORS["norm.rms"].signature(x.double(), weight, eps=norm.eps)
        return OPERATORS["rotary.apply"].signature(x, *(angle.double() for angle in angles))

    want = written(copy_kv(kv, torch.float64), batch, prepared(k, k_norm), v.double())
    plan = backend.plan(batch)
    got = backend.prepare(q, k, v, kv, plan, q_norm=q_norm, k_norm=k_norm, rotary=angles)
    relative, absolute = OPERATORS["norm.rms"].tolerance[str(dtype).removeprefix("torch.")]
    torch.testing.assert_close(got.double(), prepared(q, q_norm), rtol=relative, atol=absolute)
    torch.testing.assert_close(kv.k.double(), want.k, rtol=relative, atol=absolute)
    assert kv.v.double().equal(want.v)


def test_preparation_without_norms_and_rotation_stores_what_it_is_given() -> None:
    backend, batch, kv, (q, k, v) = make_step(torch.bfloat16, shapes=[(15, 1), (3, 1)])
    want = written(kv, batch, k, v)
    got = backend.prepare(q, k, v, kv, backend.plan_decode(decode_rows_of(batch)))
    assert got.equal(q)
    assert got.is_contiguous()
    assert kv.k.equal(want.k)
    assert kv.v.equal(want.v)


def test_queries_are_rotated_without_norms() -> None:
    backend, batch, kv, (q, k, v) = make_step(shapes=[(15, 1), (3, 1)])
    table = torch.randn(40, 16, generator=torch.Generator().manual_seed(4))
    angles = OPERATORS["rotary.angles"].signature(batch.positions_T, table)
    got = backend.prepare(q, k, v, kv, backend.plan(batch), rotary=angles)
    torch.testing.assert_close(got, OPERATORS["rotary.apply"].signature(q, *angles))
