"""What each rank of two GPUs does for the tests and figures of collectives."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed_sdk.testkit.rank_processes import RankState

REPEATS = 20
"""Calls of one timed batch; the median of BATCHES batches counts."""
BATCHES = 9


def captured_sums(state: RankState, name: str, count: int, replays: int) -> list[float]:
    """Capture an all-reduce into a graph, and replay it with new numbers each time."""
    group, x = state.groups[name], torch.zeros(count, device=state.device)
    group.all_reduce(x.clone())  # compiles and connects
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = group.all_reduce(x.clone())
    found = []
    for replay in range(replays):
        x.fill_(float(replay + state.rank))
        graph.replay()
        assert float(y.min()) == float(y.max())
        found.append(float(y[0]))
    torch.cuda.synchronize()
    group.check()
    return found


def many_sums(state: RankState, name: str, seed: int, calls: int) -> int:
    """Reduce tensors of random sizes without a pause; returns the number of wrong results."""
    group = state.groups[name]
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 300_000, (calls,), generator=generator).tolist()
    wrong = torch.zeros((), dtype=torch.int64, device=state.device)
    for call, size in enumerate(sizes):
        ramp = torch.arange(size, device=state.device) % 97
        x = (ramp + call % 13 + state.rank).float()
        wanted = sum((ramp + call % 13 + rank).float() for rank in range(group.size))
        wrong += (group.all_reduce(x) != wanted).sum()
    return int(wrong)


def reducers(state: RankState, rendezvous: str) -> dict[str, Any]:
    """Return the ways to sum a tensor: our communicators, and what torch itself has."""
    import torch.distributed as dist

    ways: dict[str, Any] = {
        name: group.all_reduce for name, group in state.groups.items() if name in ("nccl", "peer")
    }
    if not dist.is_initialized():
        dist.init_process_group(
            "nccl",
            init_method=rendezvous,
            rank=state.rank,
            world_size=next(iter(state.groups.values())).size,
            device_id=state.device,
        )

    def plain(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    ways["torch.distributed"] = plain
    try:
        ways["torch symm_mem one_shot"] = _symmetric()
    except Exception as error:  # not every build or machine has it
        print(f"torch symm_mem: {type(error).__name__}: {error}")
    return ways


def _symmetric() -> Any:
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

    name = dist.group.WORLD.group_name
    buffer = symmetric.empty(1 << 20, dtype=torch.uint8, device=torch.device("cuda"))
    symmetric.rendezvous(buffer, name)

    def reduce(x: torch.Tensor) -> torch.Tensor:
        inside = buffer[: x.numel() * x.element_size()].view(x.dtype).view(x.shape)
        inside.copy_(x)
        return torch.ops.symm_mem.one_shot_all_reduce(inside, "sum", name)

    reduce(torch.ones(256, dtype=torch.bfloat16, device="cuda"))
    reduce.most_bytes = 1 << 20  # type: ignore[attr-defined]
    return reduce


def joined_by_choice(state: RankState, rendezvous: str) -> tuple[str, list[str], float]:
    """Join a group as a start does; returns what it is, who serves which sizes, and a sum."""
    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.engine.choices import Choices
    from tokenspeed.engine.ranks.group_seat import GroupSeat
    from tokenspeed.engine.sizes import EngineSizes
    from tokenspeed.plugins import load_plugins
    from tokenspeed_nvidia.device import CudaRuntime

    registry = load_plugins(("nvidia", "reference"), role="engine")
    choices = Choices(EngineConfig(model="none"), registry)
    sizes = EngineSizes("bfloat16", 16, 64, 64, 100, 2)
    runtime = CudaRuntime(state.rank)
    joined = choices.communicator(sizes, runtime, GroupSeat(state.rank, 2, rendezvous))
    total = float(joined.all_reduce(torch.ones(1, device=state.device)))
    joined.close()
    record = choices.decisions["communicator"].record
    return type(joined).__name__, list(record.get("sizes", ())), total


def figures(state: RankState, rendezvous: str, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Time every way at every size of bfloat16, eager and replayed; microseconds a call."""
    ways, rows = reducers(state, rendezvous), []
    for num_bytes in sizes:
        x = torch.randn(num_bytes // 2, device=state.device).to(torch.bfloat16)
        able = {
            name: way
            for name, way in ways.items()
            if num_bytes <= getattr(way, "most_bytes", 1 << 40)
        }
        row: dict[str, Any] = {"bytes": num_bytes, "eager_us": {}, "graph_us": {}}
        for name, way in able.items():
            row["eager_us"][name] = _timed(partial(_repeat, way, x))
            try:
                row["graph_us"][name] = _replayed(way, x)
            except RuntimeError as error:
                print(f"{name} at {num_bytes} bytes is not captured: {error}")
        rows.append(row)
    return rows


def _repeat(way: Any, x: torch.Tensor) -> None:
    for _ in range(REPEATS):
        way(x)


def _replayed(way: Any, x: torch.Tensor) -> float:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        _repeat(way, x)
    found = _timed(graph.replay)
    del graph
    return found


def _timed(batch: Any) -> float:
    """Return microseconds of one call, where `batch` makes REPEATS; the median."""
    for _ in range(3):
        batch()
    torch.cuda.synchronize()
    times = []
    for _ in range(BATCHES):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        batch()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) * 1e3 / REPEATS)
    return round(statistics.median(times), 2)


def fused_figures(
    state: RankState, name: str, rows: Sequence[int], features: int
) -> list[dict[str, Any]]:
    """Time the fused reduction with residual and norm against the two steps, replayed."""
    group, found = state.groups[name], []
    weight = torch.randn(features, device=state.device).to(torch.bfloat16)
    for count in rows:
        x = torch.randn(count, features, device=state.device).to(torch.bfloat16)
        residual = torch.randn_like(x)

        def fused(_: Any, x: Any = x, residual: Any = residual) -> None:
            group.all_reduce_add_rms_norm(x, residual, weight, eps=1e-6)

        def apart(_: Any, x: Any = x, residual: Any = residual) -> None:
            total = residual + group.all_reduce(x)
            torch.nn.functional.rms_norm(total, (features,), weight, 1e-6)

        found.append(
            {"rows": count, "fused_us": _replayed(fused, x), "apart_us": _replayed(apart, x)}
        )
    return found
