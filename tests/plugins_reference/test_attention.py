"""The paged backend agrees with the plain definition, and no row feels another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.support.attention import Row, copy_kv, make_batch, make_kv, make_rows

from tokenspeed.contracts.attention import AttentionBackend, KVView
from tokenspeed.ops.attention import paged_attention
from tokenspeed.ops.kv import write_kv
from tokenspeed_reference import attention_prefill
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


@pytest.fixture(params=[PagedAttention, NativePagedAttention], ids=lambda item: item.__name__)
def backend(request: pytest.FixtureRequest) -> Backend:
    kind: Backend = request.param
    return kind


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
    backend: Backend,
    rows: Sequence[Row],
    kv: KVView,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    *,
    window: int = 0,
    **scoring: Any,
) -> torch.Tensor:
    q, k, v = qkv
    made = make_backend(
        backend, heads=q.shape[1], kv_heads=k.shape[1], head_dim=q.shape[2], dtype=q.dtype
    )
    plan = made.plan(make_batch(rows, block_tokens=16, window=window))
    made.write(k, v, kv, plan)
    return made.attend(q, kv, plan, scale=SCALE, **scoring)


def make_qkv(
    rows: Sequence[Row], heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    tokens = sum(row.queries for row in rows)
    q = torch.randn(tokens, heads, head_dim, generator=random).to(dtype)
    k = torch.randn(tokens, kv_heads, head_dim, generator=random).to(dtype)
    return q, k, torch.randn(tokens, kv_heads, head_dim, generator=random).to(dtype)


def check_definition(
    backend: Backend,
    shapes: list[tuple[int, int]],
    *,
    heads: tuple[int, int, int] = (6, 2, 16),
    dtype: torch.dtype = torch.float32,
    window: int = 0,
    **scoring: Any,
) -> None:
    """Compare the backend with the definition; `heads`: query heads, kv heads, head dim."""
    if backend is NativePagedAttention and dtype != torch.float32:
        return  # its offer requires float32
    rows = make_rows(shapes, block_tokens=16, seed=3)
    kv = make_kv(40, kv_heads=heads[1], head_dim=heads[2], block_tokens=16, dtype=dtype)
    qkv = make_qkv(rows, *heads, dtype)
    expected_kv = copy_kv(kv, torch.float64)
    batch = make_batch(rows, block_tokens=16, window=window)
    write_kv.signature(qkv[1].double(), qkv[2].double(), expected_kv, batch)
    wide = {name: x.double() if torch.is_tensor(x) else x for name, x in scoring.items()}
    expected = paged_attention.signature(qkv[0].double(), expected_kv, batch, scale=SCALE, **wide)
    got = run(backend, rows, kv, qkv, window=window, **scoring)
    assert got.dtype == dtype
    assert torch.equal(kv.k.double(), expected_kv.k)
    assert torch.equal(kv.v.double(), expected_kv.v)
    relative, absolute = paged_attention.tolerance[str(dtype).removeprefix("torch.")]
    torch.testing.assert_close(got.double(), expected, rtol=relative, atol=absolute)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("heads", "dtype"),
    [
        ((6, 2, 16), torch.float32),
        ((4, 4, 8), torch.float32),
        ((8, 1, 64), torch.float32),
        ((6, 2, 16), torch.bfloat16),
        ((6, 2, 16), torch.float16),
    ],
)
def test_backend_agrees_with_the_definition(
    backend: Backend, shapes: list[tuple[int, int]], heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    check_definition(backend, shapes, heads=heads, dtype=dtype)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("window", [1, 5, 16, 17, 40])
@pytest.mark.parametrize("sinks", [False, True])
def test_windows_and_sinks_agree_with_the_definition(
    backend: Backend, shapes: list[tuple[int, int]], window: int, sinks: bool
) -> None:
    scoring = {"sinks_N": torch.tensor([0.0, 3.0, -2.0, 9.0, -30.0, 1.0])} if sinks else {}
    check_definition(backend, shapes, window=window, **scoring)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_sinks_and_softcap_agree_with_the_definition(
    backend: Backend, dtype: torch.dtype, softcap: float
) -> None:
    shapes = [shape for group in SHAPES.values() for shape in group][:14]
    sinks = torch.linspace(-3, 4, 6).to(dtype)
    check_definition(backend, shapes, dtype=dtype, sinks_N=sinks, softcap=softcap)
    check_definition(backend, shapes, dtype=dtype, softcap=softcap)


@pytest.mark.parametrize("window", [0, 20])
def test_long_chunks_in_query_tiles_agree_with_the_definition(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(attention_prefill, "MASK_ELEMENTS", 16 * 50)
    shapes = [(30, 50), (10, 33), (0, 70)]
    check_definition(backend, shapes, window=window)


def test_a_decode_row_is_bitwise_the_same_alone_and_among_others(backend: Backend) -> None:
    shapes = [(40, 1), (7, 1), (40, 1), (90, 1), (12, 20), (0, 33)]
    rows = make_rows(shapes, block_tokens=16, seed=5)
    kv = make_kv(40, kv_heads=2, head_dim=16, block_tokens=16, dtype=torch.float32)
    q, k, v = make_qkv(rows, 6, 2, 16, torch.float32)
    together = run(backend, rows, kv, (q, k, v))
    start = 0
    for row in rows:
        tokens = slice(start, start + row.queries)
        start = tokens.stop
        alone = run(backend, [row], kv, (q[tokens], k[tokens], v[tokens]))
        assert torch.equal(alone, together[tokens])


def test_queries_may_stand_beside_keys_in_one_tensor(backend: Backend) -> None:
    rows = make_rows([(40, 1), (7, 1), (12, 20)], block_tokens=16, seed=5)
    kv = make_kv(40, kv_heads=2, head_dim=16, block_tokens=16, dtype=torch.float32)
    q, k, v = make_qkv(rows, 6, 2, 16, torch.float32)
    beside_q, beside_k = torch.cat((q, k), dim=1).split((6, 2), dim=1)
    assert torch.equal(
        run(backend, rows, kv, (beside_q, beside_k, v)), run(backend, rows, kv, (q, k, v))
    )


@pytest.mark.parametrize("window", [0, 7])
def test_stale_nan_cells_never_reach_a_result(backend: Backend, window: int) -> None:
    rows = make_rows([(20, 1), (45, 1), (5, 1), (40, 15), (0, 3)], block_tokens=16, seed=2)
    clean = make_kv(20, kv_heads=2, head_dim=16, block_tokens=16, dtype=torch.float32)
    dirty = copy_kv(clean, torch.float32)
    for row in rows:
        dirty.k[list(row.blocks)] = torch.nan
        dirty.v[list(row.blocks)] = torch.nan
        for position in range(max(0, row.context + 1 - window) if window else 0, row.context):
            block, offset = row.blocks[position // 16], position % 16
            dirty.k[block, :, offset] = clean.k[block, :, offset]
            dirty.v[block, :, offset] = clean.v[block, :, offset]
    dirty.k[0] = dirty.v[0] = torch.nan
    qkv = make_qkv(rows, 6, 2, 16, torch.float32)
    assert torch.equal(
        run(backend, rows, dirty, qkv, window=window), run(backend, rows, clean, qkv, window=window)
    )


def test_table_entries_wholly_before_the_window_are_never_read(backend: Backend) -> None:
    whole, window = Row(60, 1, (3, 1, 2, 5)), 20
    cut = Row(60, 1, (10**6, 10**6, 2, 5))
    kv = make_kv(8, kv_heads=2, head_dim=16, block_tokens=16, dtype=torch.float32)
    qkv = make_qkv([whole], 6, 2, 16, torch.float32)
    assert torch.equal(
        run(backend, [cut], kv, qkv, window=window), run(backend, [whole], kv, qkv, window=window)
    )


def test_one_chunk_and_many_give_the_same_attention(backend: Backend) -> None:
    blocks = (3, 1, 2, 5)
    qkv = make_qkv([Row(0, 50, blocks)], 6, 2, 16, torch.float32)
    kv = make_kv(8, kv_heads=2, head_dim=16, block_tokens=16, dtype=torch.float32)
    whole = run(backend, [Row(0, 50, blocks)], kv, qkv)
    parts = []
    for start, stop in ((0, 13), (13, 14), (14, 48), (48, 50)):
        q, k, v = (x[start:stop] for x in qkv)
        parts.append(run(backend, [Row(start, stop - start, blocks)], kv, (q, k, v)))
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-5, atol=1e-6)
