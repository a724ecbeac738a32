"""An attention backend against the reference's in float64, over steps that meet every edge.

Legend: T query tokens, N query heads, K kv heads, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tokenspeed_sdk import KVView
from tokenspeed_sdk.conformance.tolerance import assert_close
from tokenspeed_sdk.testkit.paged_steps import make_batch, make_kv, make_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tokenspeed_sdk import AttentionBackend, AttentionBatch


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of one comparison."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: torch.dtype
    device: torch.device


def shapes_of_steps(block_tokens: int) -> Iterator[list[tuple[int, int]]]:
    """Yield steps as (tokens in the cache, query tokens) of each row.

    Lengths lie at, before and after the end of a block, alone and mixed with others.
    """
    edge = block_tokens
    yield [(0, 1)]
    yield [(edge - 1, 1), (edge, 1), (edge + 1, 1), (2 * edge, 1), (3 * edge - 1, 1)]
    yield [(0, edge - 1), (0, edge), (0, edge + 1)]
    yield [(edge, 2), (edge - 1, 2), (1, 2 * edge), (edge + 3, edge)]
    yield [(5, 1), (2 * edge, 1), (0, 7), (edge // 2, edge), (3 * edge + 1, 5)]


def check_attention(
    backend: AttentionBackend, geometry: Geometry, traits: Mapping[str, Any], *, seed: int
) -> None:
    """Compare written cells and results of several steps.

    Args:
        traits: window, sinks and softcap of the request.
    Raises:
        AssertionError: says which step and element differ.
    """
    from tokenspeed_reference.attention import PagedAttention

    exact: Any = PagedAttention(
        num_heads=geometry.num_heads,
        num_kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        block_tokens=geometry.block_tokens,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )
    for number, shapes in enumerate(shapes_of_steps(geometry.block_tokens)):
        rows = make_rows(shapes, block_tokens=geometry.block_tokens, seed=seed + number)
        batch = make_batch(rows, block_tokens=geometry.block_tokens, window=int(traits["window"]))
        what = f"step {number} of rows {shapes} with {dict(traits)}"
        num_blocks = 1 + max(max(row.blocks) for row in rows)
        _check_step(backend, exact, geometry, batch, num_blocks, traits, what)


def _check_step(
    backend: AttentionBackend,
    exact: AttentionBackend,
    geometry: Geometry,
    batch: AttentionBatch,
    num_blocks: int,
    traits: Mapping[str, Any],
    what: str,
) -> None:
    kv = make_kv(
        num_blocks,
        kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        block_tokens=geometry.block_tokens,
        dtype=geometry.dtype,
    )
    exact_kv = KVView(kv.k.double(), kv.v.double())
    own_kv = KVView(kv.k.to(geometry.device), kv.v.to(geometry.device))
    random = torch.Generator().manual_seed(1)
    num_tokens = int(batch.query_start[-1])

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(geometry.dtype)

    q_TNH = noise(num_tokens, geometry.num_heads, geometry.head_dim)
    k_TKH, v_TKH = (noise(num_tokens, geometry.num_kv_heads, geometry.head_dim) for _ in range(2))
    sinks_N = noise(geometry.num_heads) if traits["sinks"] else None
    options = {"scale": geometry.head_dim**-0.5, "softcap": float(traits["softcap"])}

    def run(chosen: AttentionBackend, view: KVView, like: torch.Tensor) -> torch.Tensor:
        metadata = chosen.plan(batch)
        chosen.write(k_TKH.to(like), v_TKH.to(like), view, metadata)
        sinks = None if sinks_N is None else sinks_N.to(like)
        return chosen.attend(q_TNH.to(like), view, metadata, sinks_N=sinks, **options)

    expected = run(exact, exact_kv, exact_kv.k.new_empty(0))
    result = run(backend, own_kv, own_kv.k.new_empty(0))
    assert_close(own_kv.k, exact_kv.k, f"{what}: keys in the cache after write")
    assert_close(own_kv.v, exact_kv.v, f"{what}: values in the cache after write")
    assert_close(result, expected, f"{what}: result of attend")
