"""From one layout to another: the cheapest row of collectives, and what a rank sends for it."""

from __future__ import annotations

from itertools import product

import pytest

from tokenspeed.placement.cost import CostModel, Link
from tokenspeed.placement.layout import TOKENS, Layout, Segment
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.moves import Mover
from tokenspeed.placement.program import Collective

MESH = build_mesh(Degrees(tp=4))
FAST = Link(latency_us=5, gbytes_per_s=100)
SLOW = Link(latency_us=20, gbytes_per_s=10)
D = 8


def layout(tokens: str = "", features: str = "", partial: str = "") -> Layout:
    """Return the layout of (T, 8), cut over the axes named."""
    dims = (Segment(TOKENS, tuple(tokens)),), (Segment(D, tuple(features)),)
    return Layout(dims, frozenset(partial))


def steps(
    before: Layout, after: Layout, *, tokens: int = 64, cost: CostModel | None = None
) -> list:
    path = Mover(MESH, cost or CostModel(FAST, SLOW), tokens).path(before, after, 2)
    assert path is not None
    assert [one.after for one in path.steps[:-1]] == [one.before for one in path.steps[1:]]
    return [(one.collective.value, "".join(one.axes), one.bytes_per_token) for one in path.steps]


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        (layout(partial="ab"), layout(), [("all_reduce", "ab", 2 * 3 / 4 * D * 2)]),
        (layout(partial="ab"), layout("ab"), [("reduce_scatter", "ab", 3 / 4 * D * 2)]),
        (layout("ab"), layout(), [("all_gather", "ab", 3 / 4 * D * 2)]),
        (layout("ab"), layout("a"), [("all_gather", "b", 1 / 2 * D * 2 / 2)]),
        (layout("a", partial="b"), layout("ab"), [("reduce_scatter", "b", D / 2)]),
        (layout(features="ab"), layout(), [("all_gather", "ab", 3 / 4 * D * 2)]),
        (layout(), layout("ab"), [("slice", "a", 0), ("slice", "b", 0)]),
        (layout(), layout(partial="a"), [("first", "a", 0)]),
        (layout("a"), layout("a"), []),
        (
            layout("a"),
            layout(features="a"),
            [("all_gather", "a", 1 / 2 * D * 2), ("slice", "a", 0)],
        ),
    ],
)
def test_a_rank_sends_the_ring_figures(before: Layout, after: Layout, wanted: list) -> None:
    assert steps(before, after) == wanted


def test_a_part_is_summed_after_it_was_cut() -> None:
    assert steps(layout(partial="b"), layout("a")) == [
        ("slice", "a", 0),
        ("all_reduce", "b", 2 * 1 / 2 * D * 2 / 2),
    ]


def test_what_is_cut_and_a_summand_is_scattered_and_joined_at_once() -> None:
    taken = steps(layout("a", partial="b"), layout(), tokens=10_000)
    assert [name for name, *_ in taken] in (["reduce_scatter", "all_gather"],
                                             ["all_reduce", "all_gather"])  # fmt: skip
    assert sum(sent for *_, sent in taken) == D * 2


def test_segments_are_joined_one_by_one() -> None:
    cut = Layout(((Segment(TOKENS),), (Segment(8, ("a", "b")), Segment(2, ("a",)))))
    whole = Layout(((Segment(TOKENS),), (Segment(8), Segment(2))))
    assert steps(cut, whole) == [("all_gather", "ab", 3 / 4 * 8 * 2), ("all_gather", "a", 2)]


def test_sums_between_hosts_are_of_the_parts_of_one_host() -> None:
    cost = CostModel(FAST, SLOW, ranks_per_host=2)
    taken = steps(layout(partial="ab"), layout(), tokens=100_000, cost=cost)
    assert [(name, axes) for name, axes, _ in taken] == [
        ("reduce_scatter", "b"),
        ("all_reduce", "a"),
        ("all_gather", "b"),
    ]
    assert [name for name, *_ in steps(layout(partial="ab"), layout(), tokens=1, cost=cost)] == [
        "all_reduce"
    ]


def test_every_layout_becomes_every_other_one_in_the_time_that_is_said() -> None:
    cost = CostModel(FAST, SLOW, ranks_per_host=2)
    mover = Mover(MESH, cost, 64)
    layouts = [
        layout(tokens, features, partial)
        for tokens, features, partial in product(("", "a", "b", "ab", "ba"), repeat=3)
        if len({*tokens, *features, *partial}) == len(tokens + features + partial)
    ]
    assert len(layouts) > 15
    for before, after in product(layouts, repeat=2):
        path = mover.path(before, after, 2)
        assert path is not None, (before, after)
        now, time_us = before, 0.0
        for step in path.steps:
            assert step.before == now
            now = step.after
            if step.collective not in (Collective.SLICE, Collective.FIRST):
                link = SLOW if "a" in step.axes else FAST
                time_us += link.time_us(step.bytes_per_token * 64)
        assert now == after
        assert time_us == pytest.approx(path.time_us)
