"""An attention backend against the reference's in float64, over steps that meet every edge.

Legend: T query tokens, N query heads, K kv heads, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tokenspeed_sdk import KVView
from tokenspeed_sdk.conformance.tolerance import assert_close
from tokenspeed_sdk.testkit.paged_steps import Row, make_batch, make_kv, make_rows

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


@dataclass(frozen=True, slots=True)
class Step:
    """One step's inputs, of the geometry's dtype, on the host.

    Args:
        sinks_N, softcap: as `attend` takes them.
    """

    batch: AttentionBatch
    kv: KVView
    q_TNH: torch.Tensor
    k_TKH: torch.Tensor
    v_TKH: torch.Tensor
    sinks_N: torch.Tensor | None
    softcap: float


def make_step(rows: list[Row], geometry: Geometry, traits: Mapping[str, Any]) -> Step:
    """Fill a step of these rows with noise; the cache holds noise too, also where nothing is."""
    batch = make_batch(rows, block_tokens=geometry.block_tokens, window=int(traits["window"]))
    kv = make_kv(
        1 + max(max(row.blocks) for row in rows),
        kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        block_tokens=geometry.block_tokens,
        dtype=geometry.dtype,
    )
    random = torch.Generator().manual_seed(1)
    num_tokens = int(batch.query_start[-1])

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(geometry.dtype)

    q_TNH = noise(num_tokens, geometry.num_heads, geometry.head_dim)
    k_TKH, v_TKH = (noise(num_tokens, geometry.num_kv_heads, geometry.head_dim) for _ in range(2))
    sinks_N = noise(geometry.num_heads) if traits["sinks"] else None
    return Step(batch, kv, q_TNH, k_TKH, v_TKH, sinks_N, float(traits["softcap"]))


def run_step(
    backend: AttentionBackend, step: Step, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, KVView]:
    """Plan, write and attend in this dtype on this device; return result and cache."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, dtype, copy=True)

    kv = KVView(moved(step.kv.k), moved(step.kv.v))
    metadata = backend.plan(step.batch)
    backend.write(moved(step.k_TKH), moved(step.v_TKH), kv, metadata)
    result = backend.attend(
        moved(step.q_TNH),
        kv,
        metadata,
        scale=step.q_TNH.shape[-1] ** -0.5,
        sinks_N=None if step.sinks_N is None else moved(step.sinks_N),
        softcap=step.softcap,
    )
    return result, kv


def check_attention(
    backend: AttentionBackend, geometry: Geometry, traits: Mapping[str, Any], *, seed: int
) -> None:
    """Compare written cells and results of several steps.

    Args:
        traits: window, sinks and softcap of the request.
    Raises:
        AssertionError: says which step and element differ.
    """
    exact = _exact(geometry)
    for number, shapes in enumerate(shapes_of_steps(geometry.block_tokens)):
        rows = make_rows(shapes, block_tokens=geometry.block_tokens, seed=seed + number)
        step = make_step(rows, geometry, traits)
        expected, exact_kv = run_step(exact, step, torch.float64, torch.device("cpu"))
        result, kv = run_step(backend, step, geometry.dtype, geometry.device)
        what = f"step {number} of rows {shapes} with {dict(traits)}"
        assert_close(kv.k, exact_kv.k, f"{what}: keys in the cache after write")
        assert_close(kv.v, exact_kv.v, f"{what}: values in the cache after write")
        assert_close(result, expected, f"{what}: result of attend")


def check_rows_are_independent(
    backend: AttentionBackend, geometry: Geometry, traits: Mapping[str, Any], *, seed: int
) -> None:
    """A row's result is bitwise the same alone, in a batch, and the second time."""
    shapes = list(shapes_of_steps(geometry.block_tokens))[-1]
    rows = make_rows(shapes, block_tokens=geometry.block_tokens, seed=seed)
    step = make_step(rows, geometry, traits)
    whole, _ = run_step(backend, step, geometry.dtype, geometry.device)
    again, _ = run_step(backend, step, geometry.dtype, geometry.device)
    assert torch.equal(whole, again), f"two equal steps of rows {shapes} differ with {dict(traits)}"
    starts = step.batch.query_start.tolist()
    for number, row in enumerate(rows):
        query = slice(starts[number], starts[number + 1])
        batch = make_batch([row], block_tokens=geometry.block_tokens, window=step.batch.window)
        part = replace(
            step,
            batch=batch,
            q_TNH=step.q_TNH[query],
            k_TKH=step.k_TKH[query],
            v_TKH=step.v_TKH[query],
        )
        alone, _ = run_step(backend, part, geometry.dtype, geometry.device)
        assert torch.equal(alone, whole[query]), f"row {row} differs in a batch of one"


def _exact(geometry: Geometry) -> Any:
    from tokenspeed_reference.attention import PagedAttention

    return PagedAttention(
        num_heads=geometry.num_heads,
        num_kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        block_tokens=geometry.block_tokens,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )
