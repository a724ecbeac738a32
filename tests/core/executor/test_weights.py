"""Loading reports stored bytes tensor by tensor and ends at the total."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tests.support.model_contexts import plain

from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.executor import load_weights

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping


class ListedSource:
    """A weight source over tensors in memory; remembers how it was asked."""

    def __init__(self, weights: list[LinearWeight], total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.bytes_read = 0
        self.asked: tuple[torch.dtype, bool] | None = None
        self._weights = weights

    def config(self) -> Mapping[str, Any]:
        """Return nothing: no model is built from it."""
        return {}

    def tensors(
        self, dtype: torch.dtype, *, keep_packed: bool
    ) -> Iterator[tuple[str, LinearWeight]]:
        """Yield the tensors by number."""
        self.asked = (dtype, keep_packed)
        for index, weight in enumerate(self._weights):
            self.bytes_read = self.total_bytes * (index + 1) // len(self._weights)
            yield str(index), weight

    def close(self) -> None:
        """Hold nothing."""


class KeepingModel:
    """Takes tensors and keeps their names."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def load_weights(self, weights: Iterator[tuple[str, LinearWeight]]) -> None:
        """Keep the names."""
        self.names = [name for name, _ in weights]


def load(source: ListedSource) -> tuple[list[tuple[int, int]], list[str]]:
    calls: list[tuple[int, int]] = []
    model: Any = KeepingModel()
    load_weights(
        model,
        source,
        dtype=torch.float32,
        device=torch.device("cpu"),
        keep_packed=True,
        progress=lambda done, total: calls.append((done, total)),
    )
    return calls, model.names


def test_progress_counts_what_the_source_read_and_ends_at_the_total() -> None:
    packed = LinearWeight((4, 32), None, "q8_0", {"data": torch.zeros(4, 34, dtype=torch.uint8)})
    source = ListedSource([plain(torch.zeros(10)), packed], total_bytes=176)
    calls, names = load(source)
    assert names == ["0", "1"]
    assert calls == [(88, 176), (176, 176), (176, 176)]
    assert source.asked == (torch.float32, True)


def test_without_a_callback_tensors_are_loaded_all_the_same() -> None:
    model: Any = KeepingModel()
    source = ListedSource([plain(torch.zeros(1))], total_bytes=4)
    load_weights(model, source, dtype=torch.float32, device=torch.device("cpu"), keep_packed=False)
    assert model.names == ["0"]


class SkippingSource(ListedSource):
    """A source that leaves tensors unread."""

    def tensors(
        self, dtype: torch.dtype, *, keep_packed: bool, skip: Container[str] = ()
    ) -> Iterator[tuple[str, LinearWeight]]:
        """Yield the others."""
        found = super().tensors(dtype, keep_packed=keep_packed)
        return ((name, weight) for name, weight in found if name not in skip)


class PartialModel(KeepingModel):
    """Of a rank that has no use for tensor 1."""

    def skipped_weights(self) -> frozenset[str]:
        """Name it."""
        return frozenset({"1"})


def test_what_other_ranks_hold_is_not_read_where_the_source_can_leave_it() -> None:
    weights = [plain(torch.zeros(1)) for _ in range(3)]
    for source, read in (
        (SkippingSource(weights, 12), ["0", "2"]),
        (ListedSource(weights, 12), ["0", "1", "2"]),
    ):
        model: Any = PartialModel()
        load_weights(
            model, source, dtype=torch.float32, device=torch.device("cpu"), keep_packed=False
        )
        assert model.names == read


def test_bytes_are_those_of_the_parts_that_the_rank_has_loaded() -> None:
    weights = [plain(torch.zeros(8)), plain(torch.zeros(8))]
    model: Any = KeepingModel()
    options = {"dtype": torch.float32, "device": torch.device("cpu"), "keep_packed": False}
    assert load_weights(model, ListedSource(weights, 64), **options) == 64  # type: ignore[arg-type]
    model.held_bytes = 48
    assert load_weights(model, ListedSource(weights, 64), **options) == 48  # type: ignore[arg-type]
