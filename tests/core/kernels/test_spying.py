"""Watched kernels: one that fails gives its place to the next best, and those it prepared too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.offers import kernel

from tokenspeed.contracts.kernel import Band
from tokenspeed.kernels.rules import Rules
from tokenspeed.kernels.spying import SpyBinder, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

CPU = {"device": "cpu", "dtype": "float32"}


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


def bound(best: Callable[..., Any], second: Callable[..., Any], **rules: Any) -> tuple[Any, Watch]:
    """Bind "op" with a kernel of a high band and a plain one, watched in a decode step."""
    offers = (
        kernel("a/best", band=Band.PERFORMANT, load=lambda: best),
        kernel("b/second", load=lambda: second),
    )
    watch = Watch()
    watch.phase = "decode"
    source: Any = SimpleNamespace(kernel_offers=lambda name: offers)
    operator: Any = SimpleNamespace(name="op")
    return SpyBinder(source, CPU, Rules(**rules), watch).bind(operator), watch


@pytest.mark.parametrize("error", [RuntimeError("no such tile"), SystemExit(3)])
def test_a_kernel_that_fails_gives_its_place_to_the_next_best(error: BaseException) -> None:
    spied, watch = bound(raising(error), lambda x: 2 * x)
    assert [spied(3), spied(3)] == [6, 6]
    ((shape, sample),) = watch.samples.popitem()[1].items()
    assert shape.startswith("op|")
    assert sample.calls == {"decode": 2}


def test_the_next_best_prepares_anew_when_what_was_prepared_fails() -> None:
    spied, _ = bound(lambda w: raising(ValueError(w)), lambda w: lambda x: f"{w} {x}")
    layers = [spied("first"), spied("second")]
    assert [layer("x") for layer in layers] == ["first x", "second x"]


def test_the_last_one_and_a_pinned_one_raise_what_they_raise() -> None:
    spied, _ = bound(raising(RuntimeError("one")), raising(RuntimeError("two")))
    with pytest.raises(RuntimeError, match="two"):
        spied(1)
    pinned, _ = bound(raising(RuntimeError("one")), len, pins={"op": "a/best"})
    with pytest.raises(RuntimeError, match="one"):
        pinned(1)
