"""Communicators that share sizes: measured once, one table on every rank, kept on disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from tokenspeed.config.schema import EngineConfig
from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.contracts.registration import Offer
from tokenspeed.engine.choices import Choices
from tokenspeed.engine.ranks import message_sizes
from tokenspeed.engine.ranks.group_seat import ALONE, GroupSeat
from tokenspeed.engine.ranks.message_sizes import (
    SIZES,
    agreed_times,
    kept_notes,
    shape_of,
    table_of,
    told,
)
from tokenspeed.engine.ranks.sized_communicator import SizedCommunicator
from tokenspeed.engine.sizes import EngineSizes
from tokenspeed.errors import EngineError
from tokenspeed.kernels.evidence import EvidenceFile
from tokenspeed.kernels.selection import select
from tokenspeed.ops.ranks import on_ranks
from tokenspeed.plugins import load_plugins
from tokenspeed_reference.communicator import ThreadCommunicator
from tokenspeed_reference.device import CpuRuntime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GROUP = "2 ranks, 1 hosts, float32"
SMALL, LARGE = "t/small", "t/large"
PACE_S = 0.05
"""Longer than a busy machine keeps a thread waiting in most calls."""


class Paced(ThreadCommunicator):
    """Waits as long as its pace says for a tensor's bytes, and counts its calls."""

    pace: Callable[[int], float] = staticmethod(lambda num_bytes: 0.0)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[tuple[str, int]] = []

    def all_reduce(self, x: torch.Tensor, *, reduction: str = "sum") -> torch.Tensor:
        time.sleep(self.pace(x.numel() * x.element_size()))
        self.calls.append(("all_reduce", x.numel() * x.element_size()))
        return super().all_reduce(x, reduction=reduction)


class FastWhenSmall(Paced):
    pace = staticmethod(lambda num_bytes: 0.0 if num_bytes < 1 << 17 else PACE_S)


class FastWhenLarge(Paced):
    pace = staticmethod(lambda num_bytes: PACE_S if num_bytes < 1 << 17 else 0.0)


class Fused(ThreadCommunicator):
    features = frozenset({"all_reduce_add_rms_norm", "graph_safe", "late_errors"})

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = self.all_reduce(x) + residual
        return total * weight + eps, total

    def check(self) -> None:
        raise EngineError("this group broke")


def pair(rank: ThreadCommunicator) -> dict[str, Any]:
    """Return two communicators of the ranks of a third."""
    options: dict[str, Any] = {
        "rank": rank.rank,
        "size": rank.size,
        "device": torch.device("cpu"),
        "timeout_s": 20.0,
    }
    name = rank._group.name
    return {
        SMALL: FastWhenSmall(rendezvous=f"{name}-small", **options),
        LARGE: FastWhenLarge(rendezvous=f"{name}-large", **options),
    }


def x_of() -> torch.Tensor:
    return torch.ones(SIZES[-1] // 4)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_sizes, "ROUNDS", 3)
    monkeypatch.setattr(message_sizes, "CALLS", 1)
    monkeypatch.setattr(message_sizes, "OPERATIONS", ("all_reduce",))
    monkeypatch.setattr(message_sizes, "SIZES", (1 << 10, 1 << 16, 1 << 18))


def measured(rank: ThreadCommunicator, file: EvidenceFile | None) -> Any:
    both = pair(rank)
    times = agreed_times(both, both[SMALL], GROUP, file, x_of(), lambda: None)
    calls = len(both[LARGE].calls)
    for communicator in both.values():
        communicator.close()
    return times, calls


@pytest.mark.usefixtures("quick")
def test_each_size_goes_to_who_was_measured_to_be_faster_on_every_rank() -> None:
    first, second = on_ranks(ThreadCommunicator, [None, None], lambda rank, _: measured(rank, None))
    assert first[0] == second[0]
    ((edge, small), (rest, large)) = table_of(first[0])["all_reduce"]
    assert (small, large, rest) == (SMALL, LARGE, 0)
    assert 1 << 16 < edge < 1 << 18


@pytest.mark.usefixtures("quick")
def test_what_was_measured_is_kept_and_not_measured_again(tmp_path: Path) -> None:
    def run(rank: ThreadCommunicator, _: None) -> Any:
        file = EvidenceFile({"device": "cpu"}, tmp_path) if rank.rank == 0 else None
        return measured(rank, file)

    once = on_ranks(ThreadCommunicator, [None, None], run)
    again = on_ranks(ThreadCommunicator, [None, None], run)
    assert [times for times, _ in again] == [times for times, _ in once]
    assert [calls for _, calls in again] == [0, 0]
    (line,) = kept_notes(EvidenceFile({"device": "cpu"}, tmp_path))
    assert line.startswith(f"communicator of {GROUP}: all_reduce up to 131072 bytes by {SMALL}, ")


@pytest.mark.usefixtures("quick")
def test_times_of_other_communicators_are_measured_anew(tmp_path: Path) -> None:
    file = EvidenceFile({"device": "cpu"}, tmp_path)
    for num_bytes in message_sizes.SIZES:
        file.shapes[shape_of("all_reduce", num_bytes, GROUP)] = {SMALL: 1.0, "t/other": 2.0}
    results = on_ranks(
        ThreadCommunicator,
        [None, None],
        lambda rank, _: measured(rank, file if rank.rank == 0 else None),
    )
    assert all(calls > 0 for _, calls in results)


@pytest.mark.usefixtures("quick")
def test_a_rank_with_another_table_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ThreadCommunicator.broadcast

    def damaged(self: ThreadCommunicator, x: torch.Tensor, *, root: int = 0) -> torch.Tensor:
        got = whole(self, x, root=root)
        return got + 1 if self.rank == 1 and x.dtype == torch.uint8 else got

    monkeypatch.setattr(ThreadCommunicator, "broadcast", damaged)
    with pytest.raises(EngineError, match="differs on rank 1 from rank 0's"):
        on_ranks(ThreadCommunicator, [None, None], lambda rank, _: measured(rank, None))


def times_of(*winners: str) -> dict[str, dict[str, float]]:
    """Return times by which these win, at one size each."""
    return {
        shape_of("all_reduce", size, GROUP): {pin: 1e-5 * (1 + (pin != won)) for pin in ("a", "b")}
        for size, won in zip(SIZES, winners, strict=False)
    }


def test_neighbours_that_one_serves_are_one_step_and_the_last_has_no_end() -> None:
    table = table_of(times_of("a", "a", "b"))["all_reduce"]
    assert [pin for _, pin in table] == ["a", "b"]
    assert SIZES[1] < table[0][0] < SIZES[2]
    assert table[1][0] == 0
    assert table_of(times_of("a", "a"))["all_reduce"] == [(0, "a")]
    (line,) = told(times_of("b"))
    assert line == "all_reduce of any size above by b (measured: 1024 bytes: a 20.0 us, b 10.0 us)"


def test_calls_go_by_size_and_what_has_none_to_the_base() -> None:
    def run(rank: ThreadCommunicator, _: None) -> Any:
        both = pair(rank)
        table = {"all_reduce": [(100, SMALL), (0, LARGE)]}
        sized = SizedCommunicator(LARGE, both, table)
        sums = [float(sized.all_reduce(torch.ones(count)).sum()) for count in (25, 26, 1)]
        rows = sized.all_gather(torch.full((rank.rank + 1, 2), 1.0), sizes=[1, 2])
        part = sized.reduce_scatter(torch.ones(4, 1))
        sized.barrier()
        assert sized.broadcast(torch.tensor([float(rank.rank)]), root=1).tolist() == [1.0]
        moved = sized.all_to_all(torch.ones(2, 1), send_sizes=[1, 1], receive_sizes=[1, 1])
        sized.close()
        shapes = (tuple(rows.shape), tuple(part.shape), tuple(moved.shape))
        return sums, shapes, [len(item.calls) for item in both.values()]

    for sums, shapes, calls in on_ranks(ThreadCommunicator, [None, None], run):
        assert sums == [50.0, 52.0, 2.0]
        assert shapes == ((3, 2), (2, 1), (2, 1))
        assert calls == [2, 1]


def test_features_of_one_are_those_of_the_whole_where_a_method_is_enough() -> None:
    def run(rank: ThreadCommunicator, _: None) -> Any:
        fused = Fused(
            rank=rank.rank,
            size=rank.size,
            rendezvous=f"{rank._group.name}-fused",
            device=torch.device("cpu"),
            timeout_s=20.0,
        )
        plain = pair(rank)
        sized = SizedCommunicator(SMALL, {**plain, "t/fused": fused}, {})
        ones = torch.ones(1, 2)
        normed, total = sized.all_reduce_add_rms_norm(ones, ones, ones * 2, eps=0.5)
        with pytest.raises(EngineError, match="this group broke"):
            sized.check()
        sized.close()
        return sized.features, normed.tolist(), total.tolist()

    for features, normed, total in on_ranks(ThreadCommunicator, [None, None], run):
        assert features == {"all_reduce_add_rms_norm", "late_errors"}
        assert (normed, total) == ([[6.5, 6.5]], [[3.0, 3.0]])


REFERENCE = load_plugins(("reference",), role="engine")


@pytest.mark.parametrize(
    ("seat", "pin"),
    [
        (ALONE, "reference/threads"),
        (GroupSeat(0, 2, "g", processes=False), "reference/threads"),
        (GroupSeat(0, 2, "g"), "reference/gloo"),
        (GroupSeat(0, 2, "tcp://h:1/g", hosts=2), "reference/gloo"),
    ],
)
def test_threads_serve_threads_and_gloo_serves_processes(seat: GroupSeat, pin: str) -> None:
    traits = {"device": "cpu", "dtype": "float32", **seat.traits()}
    offers = REFERENCE.offers("communicator")
    decision = select("communicator", offers, traits, preferences=seat.wishes())
    assert decision.winner.pin == pin


class Source:
    """A registry with two communicators between threads."""

    def __init__(self) -> None:
        self.operators: dict[str, Any] = {}
        self.plugins = ()
        self._offers = tuple(
            RegisteredOffer(
                "t",
                "1.0",
                Offer(
                    "communicator",
                    name,
                    load,
                    band="PORTABLE",
                    requires={
                        "device": ("*",),
                        "arch": ("*",),
                        "dtype": ("*",),
                        "ranks": ("threads",),
                    },
                ),
            )
            for name, load in (("large", FastWhenLarge), ("small", FastWhenSmall))
        )

    def offers(self, slot: str) -> Any:
        return self._offers if slot == "communicator" else ()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("pins", "is_shared"), [((), True), (("communicator=t/small",), False)])
def test_a_start_measures_rivals_of_one_band_and_a_pin_leaves_one(
    pins: tuple[str, ...], is_shared: bool
) -> None:
    sizes = EngineSizes("float32", 16, 64, 64, 100, 2)

    def run(rank: ThreadCommunicator, _: None) -> Any:
        choices = Choices(EngineConfig(model="none", pins=pins), cast("Any", Source()))
        name = f"{rank._group.name}-shared"
        seat = GroupSeat(rank.rank, rank.size, name, name="attn_tp", processes=False)
        joined = choices.communicator(sizes, CpuRuntime(), seat)
        total = float(joined.all_reduce(torch.ones(1)))
        joined.close()
        return type(joined), total, choices.decisions["communicator.attn_tp"].record

    for kind, total, record in on_ranks(ThreadCommunicator, [None, None], run):
        assert kind is (SizedCommunicator if is_shared else FastWhenSmall)
        assert total == 2.0
        assert ("sizes" in record) is is_shared
        reasons = {entry["offer"]: entry["reason"] for entry in record["candidates"]}
        if is_shared:
            assert record["winner"] == LARGE
            assert reasons[SMALL] == "it serves the sizes at which it was measured to be faster"
            assert record["sizes"][0].startswith(f"all_reduce up to 131072 bytes by {SMALL}, ")
