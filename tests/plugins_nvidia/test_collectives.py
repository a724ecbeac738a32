"""Collectives between two GPUs: their definitions, graphs, ranks that fail, and how long they take.

Run by `make gpu-check` on a machine that has two, or alone: `make gpu-check ARGS="--only
collectives"`. The figures are written to $COLLECTIVES_JSON, where that is set.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support import gpu_collectives as work

from tokenspeed_nvidia import _nccl, _ordered, _peer
from tokenspeed_sdk.conformance.communicator_check import check_faults, outcomes
from tokenspeed_sdk.testkit.rank_processes import Failure, RankProcesses

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.needs_nvidia,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed"),
    pytest.mark.timeout(180),
]

LOADS = {"nccl": _nccl, "peer": _peer, "nccl_ordered": _ordered}
for variable, value in (
    ("NCCL_NVLS_ENABLE", "0"),
    ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
    ("NVSHMEM_DISABLE_NVLS", "1"),
):
    os.environ.setdefault(variable, value)  # no multicast: it is not asked for here
KIB, MIB = 1 << 10, 1 << 20
FIGURE_BYTES = [KIB * 4**step for step in range(9)]
WITHIN = 1.3
"""Of the best that is available, for messages up to SMALL_BYTES."""
SMALL_BYTES = 256 * KIB


@pytest.fixture(scope="module", params=LOADS)
def two(request: pytest.FixtureRequest) -> Iterator[RankProcesses]:
    with RankProcesses(LOADS[request.param], 2, device="cuda") as ranks:
        assert ranks.join("group") == [None, None]
        yield ranks


@pytest.fixture(scope="module")
def peer() -> Iterator[RankProcesses]:
    with RankProcesses(_peer, 2, device="cuda") as ranks:
        assert ranks.join("group") == [None, None]
        yield ranks


def values(results: list[Any]) -> list[Any]:
    assert not [item for item in results if isinstance(item, Failure)], results
    return results


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_collective_is_its_definition(two: RankProcesses, dtype: str) -> None:
    found = list(outcomes(two, {"dtype": (dtype,)}, dtype, seed=3))
    assert len(found) > 10
    assert [outcome for outcome in found if not outcome.agrees] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 7, 2048, 2049, 262144, 524288, 700001])
def test_sums_have_the_same_bits_on_both_ranks(
    two: RankProcesses, dtype: torch.dtype, count: int
) -> None:
    torch.manual_seed(count)
    inputs = [torch.randn(count).to(dtype) for _ in range(2)]
    wanted = (inputs[0].float() + inputs[1].float()).to(dtype)
    for got in values(two.call("group", "all_reduce", [((x,), {}) for x in inputs])):
        assert torch.equal(got, wanted)


def test_rows_of_uneven_counts_are_exchanged(two: RankProcesses) -> None:
    inputs = [torch.full((count, 3), float(rank)) for rank, count in enumerate((5, 0))]
    for got in values(two.call("group", "all_gather", [((x,), {"sizes": [5, 0]}) for x in inputs])):
        assert torch.equal(got, inputs[0])
    table = [[2, 7], [0, 1]]
    given: list[Any] = [
        (
            (torch.full((sum(table[rank]), 3), float(rank)),),
            {"send_sizes": table[rank], "receive_sizes": [row[rank] for row in table]},
        )
        for rank in range(2)
    ]
    first, second = values(two.call("group", "all_to_all", given))
    assert first.tolist() == [[0.0] * 3] * 2
    assert second.tolist() == [[0.0] * 3] * 7 + [[1.0] * 3]


def test_a_captured_reduction_sums_what_is_there_at_each_replay(two: RankProcesses) -> None:
    for count in (1000, 100_000):
        for found in values(two.run(work.captured_sums, [("group", count, 7)] * 2)):
            assert found == [2.0 * replay + 1.0 for replay in range(7)]


def test_many_reductions_of_any_size_in_a_row_are_right(two: RankProcesses) -> None:
    assert values(two.run(work.many_sums, [("group", 11, 2000)] * 2)) == [0, 0]


def test_a_barrier_and_a_broadcast(two: RankProcesses) -> None:
    values(two.call("group", "barrier", [((), {})] * 2))
    inputs = [torch.full((9,), float(rank)) for rank in range(2)]
    for got in values(two.call("group", "broadcast", [((x,), {"root": 1}) for x in inputs])):
        assert got.tolist() == [1.0] * 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 128), (7, 4096), (128, 2880), (200, 1024)])
def test_a_fused_reduction_is_the_norm_of_the_sum(
    peer: RankProcesses, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(shape).to(dtype) for _ in range(2)]
    residual, weight = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    summed = (inputs[0].float() + inputs[1].float()).to(dtype)
    total = residual + summed
    normed = torch.nn.functional.rms_norm(total.float(), shape[1:], weight.float(), 1e-6)
    given: list[Any] = [((x, residual, weight), {"eps": 1e-6}) for x in inputs]
    for got, got_total in values(peer.call("group", "all_reduce_add_rms_norm", given)):
        assert torch.equal(got_total, total)
        error = (got.float() - normed).norm() / normed.norm()
        assert error < (1e-6 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("name", ["nccl", "peer"])
def test_a_rank_that_fails_is_named_on_the_other_in_time(name: str) -> None:
    with RankProcesses(LOADS[name], 2, device="cuda") as ranks:
        check_faults(ranks)


def test_small_reductions_take_little_longer_than_the_best_there_is() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    with RankProcesses(_peer, 2, device="cuda") as ranks:
        assert ranks.join("peer") == [None, None]
        ranks._load = _nccl
        assert ranks.join("nccl") == [None, None]
        rows, _ = values(ranks.run(work.figures, [(address, FIGURE_BYTES)] * 2))
        fused, _ = values(ranks.run(work.fused_figures, [("peer", [1, 8, 64], 4096)] * 2))
    print(table_of(rows, fused))
    if path := os.environ.get("COLLECTIVES_JSON"):
        found = {"all_reduce_bfloat16": rows, "all_reduce_add_rms_norm": fused}
        Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    late = [
        (row["bytes"], kind, ours, times)
        for row in rows
        if row["bytes"] <= SMALL_BYTES
        for kind, times in (("graph", row["graph_us"]),)
        if (ours := min(times["nccl"], times["peer"])) > WITHIN * min(times.values())
    ]
    assert late == []


def test_a_start_shares_the_sizes_by_what_both_ranks_measured() -> None:
    with RankProcesses(_nccl, 2, device="cuda") as ranks:
        given = [(f"chosen-{os.getpid()}",)] * 2
        first, second = values(ranks.run(work.joined_by_choice, given))
    assert first == second
    kind, lines, total = first
    print("\n".join(lines))
    assert kind == "SizedCommunicator"
    assert total == 2.0
    (reduces,) = (line for line in lines if line.startswith("all_reduce "))
    assert "nvidia/peer" in reduces


def table_of(rows: list[dict[str, Any]], fused: list[dict[str, Any]]) -> str:
    lines = ["all-reduce of bfloat16, two GPUs, microseconds a call (eager / replayed)"]
    for row in rows:
        cells = [
            f"{name} {row['eager_us'][name]:.1f} / {row['graph_us'].get(name, float('nan')):.1f}"
            for name in row["eager_us"]
        ]
        lines.append(f"{row['bytes']:>9}  " + "   ".join(cells))
    return "\n".join([*lines, *map(str, fused)])
