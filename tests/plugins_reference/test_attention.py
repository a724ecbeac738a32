"""The paged backend agrees with the plain definition, and no row feels another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.support.attention import Row, copy_kv, make_batch, make_kv, make_rows

from tokenspeed.contracts.attention import AttentionBackend, KVView
from tokenspeed.ops.kv import paged_attention, write_kv
from tokenspeed_reference import attention_chunks
from tokenspeed_reference.attention import PagedAttention
from tokenspeed_reference.attention_native import NativePagedAttention

SCALE = 0.2
SHAPES = {
    "one decode in one block": [(5, 1)],
    "one decode over blocks": [(37, 1)],
    "first token ever": [(0, 1)],
    "decodes of equal length": [(20, 1)] * 4,
    "decodes of mixed length": [(33, 1), (3, 1), (20, 1), (3, 1), (64, 1)],
    "prompt": [(0, 40)],
    "chunk after a prefix": [(23, 30)],
    "prompts, chunks and decodes": [(0, 17), (31, 2), (16, 16), (40, 1), (2, 1), (40, 1)],
    "last prompt token alone": [(15, 1), (0, 3)],
}


Backend = type[PagedAttention] | type[NativePagedAttention]
BACKENDS = [PagedAttention, NativePagedAttention]
both_backends = pytest.mark.parametrize("backend", BACKENDS, ids=lambda item: item.__name__)


def make_backend(
    backend: Backend, *, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> AttentionBackend:
    return backend(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        block_tokens=16,
        dtype=dtype,
        device=torch.device("cpu"),
    )


def run(
    rows: Sequence[Row],
    kv: KVView,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    kind: Backend,
) -> torch.Tensor:
    q, k, v = qkv
    backend = make_backend(
        kind, heads=q.shape[1], kv_heads=k.shape[1], head_dim=q.shape[2], dtype=q.dtype
    )
    plan = backend.plan(make_batch(rows, block_tokens=16))
    backend.write(k, v, kv, plan)
    return backend.attend(q, kv, plan, scale=SCALE)


def make_qkv(
    rows: Sequence[Row], heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    tokens = sum(row.queries for row in rows)
    q = torch.randn(tokens, heads, head_dim, generator=random).to(dtype)
    k = torch.randn(tokens, kv_heads, head_dim, generator=random).to(dtype)
    return q, k, torch.randn(tokens, kv_heads, head_dim, generator=random).to(dtype)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype", "backend"),
    [
        *[(6, 2, 16, torch.float32, backend) for backend in BACKENDS],
        *[(4, 4, 8, torch.float32, backend) for backend in BACKENDS],
        *[(8, 1, 64, torch.float32, backend) for backend in BACKENDS],
        (6, 2, 16, torch.bfloat16, PagedAttention),
        (6, 2, 16, torch.float16, PagedAttention),
    ],
)
def test_backend_agrees_with_the_definition(
    shapes: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    backend: Backend,
) -> None:
    rows = make_rows(shapes, block_tokens=16, seed=3)
    kv = make_kv(40, kv_heads=kv_heads, head_dim=head_dim, block_tokens=16, dtype=dtype)
    qkv = make_qkv(rows, heads, kv_heads, head_dim, dtype)
    expected_kv, batch = copy_kv(kv, torch.float64), make_batch(rows, block_tokens=16)
    write_kv.signature(qkv[1].double(), qkv[2].double(), expected_kv, batch)
    expected = paged_attention.signature(qkv[0].double(), expected_kv, batch, scale=SCALE)
    got = run(rows, kv, qkv, backend)
    assert got.dtype == dtype
    assert torch.equal(kv.k.double(), expected_kv.k)
    assert torch.equal(kv.v.double(), expected_kv.v)
    relative, absolute = paged_attention.tolerance[str(dtype).removeprefix("torch.")]
    torch.testing.assert_close(got.double(), expected, rtol=relative, atol=absolute)


def test_long_chunks_in_query_tiles_agree_with_the_definition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_chunks, "MASK_ELEMENTS", 16 * 50)
    for backend in BACKENDS:
        test_backend_agrees_with_the_definition(
            [(30, 50), (10, 33)], 6, 2, 16, torch.float32, backend
        )


@both_backends
def test_a_decode_row_is_bitwise_the_same_alone_and_among_others(backend: Backend) -> None:
    shapes = [(40, 1), (7, 1), (40, 1), (90, 1), (12, 20), (0, 33)]
    rows = make_rows(shapes, block_tokens=16, seed=5)
    kv = make_kv(40, kv_heads=2, head_dim=16, block_tokens=16, dtype=torch.float32)
    q, k, v = make_qkv(rows, 6, 2, 16, torch.float32)
    together = run(rows, kv, (q, k, v), backend)
    start = 0
    for row in rows:
        tokens = slice(start, start + row.queries)
        start = tokens.stop
        alone = run([row], kv, (q[tokens], k[tokens], v[tokens]), backend)
        assert torch.equal(alone, together[tokens])


@both_backends
def test_queries_may_stand_beside_keys_in_one_tensor(backend: Backend) -> None:
    rows = make_rows([(40, 1), (7, 1), (12, 20)], block_tokens=16, seed=5)
    kv = make_kv(40, kv_heads=2, head_dim=16, block_tokens=16, dtype=torch.float32)
    q, k, v = make_qkv(rows, 6, 2, 16, torch.float32)
    beside_q, beside_k = torch.cat((q, k), dim=1).split((6, 2), dim=1)
    assert torch.equal(
        run(rows, kv, (beside_q, beside_k, v), backend), run(rows, kv, (q, k, v), backend)
    )


@both_backends
def test_stale_nan_cells_never_reach_a_result(backend: Backend) -> None:
    rows = make_rows([(20, 1), (5, 1), (10, 15), (0, 3)], block_tokens=16, seed=2)
    clean = make_kv(12, kv_heads=2, head_dim=16, block_tokens=16, dtype=torch.float32)
    dirty = copy_kv(clean, torch.float32)
    for row in rows:
        dirty.k[list(row.blocks)] = torch.nan
        dirty.v[list(row.blocks)] = torch.nan
        for position in range(row.context):
            block, offset = row.blocks[position // 16], position % 16
            dirty.k[block, :, offset] = clean.k[block, :, offset]
            dirty.v[block, :, offset] = clean.v[block, :, offset]
    dirty.k[0] = dirty.v[0] = torch.nan
    qkv = make_qkv(rows, 6, 2, 16, torch.float32)
    assert torch.equal(run(rows, dirty, qkv, backend), run(rows, clean, qkv, backend))


@both_backends
def test_one_chunk_and_many_give_the_same_attention(backend: Backend) -> None:
    blocks = (3, 1, 2, 5)
    qkv = make_qkv([Row(0, 50, blocks)], 6, 2, 16, torch.float32)
    kv = make_kv(8, kv_heads=2, head_dim=16, block_tokens=16, dtype=torch.float32)
    whole = run([Row(0, 50, blocks)], kv, qkv, backend)
    parts = []
    for start, stop in ((0, 13), (13, 14), (14, 48), (48, 50)):
        q, k, v = (x[start:stop] for x in qkv)
        parts.append(run([Row(start, stop - start, blocks)], kv, (q, k, v), backend))
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-6)
