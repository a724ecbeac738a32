"""What a collective costs: its link's latency, and its bytes over the link's bandwidth."""

from __future__ import annotations

import pytest

from tokenspeed.errors import ConfigError
from tokenspeed.placement.cost import CostModel, Link, local_elements
from tokenspeed.placement.layout import TOKENS, Layout, Segment
from tokenspeed.placement.mesh import Degrees, build_mesh


def test_a_link_takes_latency_and_bytes_over_bandwidth() -> None:
    assert Link(latency_us=5, gbytes_per_s=100).time_us(1_000_000) == pytest.approx(5 + 10)


@pytest.mark.parametrize(("latency", "bandwidth"), [(-1, 1), (1, 0), (0, -3)])
def test_a_link_that_cannot_be_is_refused(latency: float, bandwidth: float) -> None:
    with pytest.raises(ConfigError, match=r"cannot be; .*measured figures"):
        Link(latency, bandwidth)


def test_a_group_that_leaves_its_host_uses_the_slow_link() -> None:
    mesh = build_mesh(Degrees(tp=4, dp=4))
    cost = CostModel(ranks_per_host=8)
    names = [axis.name for axis in mesh.axes]
    assert cost.link(mesh, names[2:]) == cost.inside
    assert cost.link(mesh, names[1:]) == cost.inside
    assert cost.link(mesh, names[:1]) == cost.between
    assert cost.link(mesh, names) == cost.between
    assert CostModel(ranks_per_host=6).link(mesh, names[2:]) == cost.between


def test_elements_of_a_rank_count_cut_tokens_as_fractions() -> None:
    mesh = build_mesh(Degrees(tp=4))
    segments = (Segment(8, ("a", "b")), Segment(4, ("a",)))
    assert local_elements(Layout(((Segment(TOKENS),), segments)), mesh) == 2 + 2
    assert local_elements(Layout(((Segment(TOKENS, ("a",)),), (Segment(6),))), mesh) == 3
