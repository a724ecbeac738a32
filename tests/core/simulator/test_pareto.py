"""The front of the Pareto plot, and the plain word when it cannot be drawn."""

from __future__ import annotations

import sys

import pytest

from tokenspeed.errors import ConfigError
from tokenspeed.simulator.pareto import check_plotting, front


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    points = [(10, 100), (20, 80), (15, 70), (30, 10), (20, 60)]
    assert front(points) == [0, 1, 3]


def test_a_missing_plotting_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        check_plotting()
