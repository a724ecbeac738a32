"""Views of cut tensors: the parts of the view, whatever the view; what must be whole is named."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tokenspeed.errors import PlacementError
from tokenspeed.placement.graph import Kind, Node, Ref
from tokenspeed.placement.layout import TOKENS, Layout, Segment
from tokenspeed.placement.views import VIEWS, local_arguments, view_layout, view_parts
from tokenspeed_sdk.conformance.cut_tensors import assert_held, held, mesh_of

if TYPE_CHECKING:
    from tokenspeed.placement.layout import Dim

NUM_TOKENS = 5
SEEDS = 40
AXES = ((), ("a",), ("b",), ("a", "b"))


def node_of(target: str, *arguments: Any, tensors: int = 1) -> Node:
    given = (*map(Ref, range(tensors)), *arguments)
    return Node(Kind.VIEW, target, given, (9,), where="model.py:3")


def apply(target: str, tensors: list[torch.Tensor], arguments: tuple[Any, ...]) -> Any:
    """Do a view with torch."""
    if target == "cat":
        return torch.cat(tensors, *arguments)
    if target == "getitem":
        return tensors[0][arguments[0]]
    if target == "mT":
        return tensors[0].mT
    return getattr(tensors[0], target)(*arguments)


def listed(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


class Case:
    """A random view of a tensor of tokens, heads and features."""

    def __init__(self, target: str, seed: int) -> None:
        self.random = random.Random(f"{target} {seed}")
        self.target = target
        heads = tuple(
            4 * self.random.choice((1, 2, 3)) for _ in range(self.random.choice((1, 1, 2, 3)))
        )
        self.heads = heads
        self.is_flat = self.random.random() < 0.5
        self.width = self.random.choice((2, 3, 4))
        self.layouts = [self.layout() for _ in range(1 if target != "cat" else 2)]
        self.arguments: tuple[Any, ...] = getattr(self, f"of_{target}", tuple)()

    def layout(self) -> Layout:
        scale = self.width if self.is_flat else 1
        heads = tuple(Segment(count * scale, self.random.choice(AXES)) for count in self.heads)
        tokens = self.random.choice(((), ("c",)))
        last: tuple[Dim, ...] = () if self.is_flat else (self.features(),)
        partial = frozenset(self.random.choice(("", "p")))
        return Layout(((Segment(TOKENS, tokens),), heads, *last), partial)

    def features(self) -> Dim:
        return (
            Segment(self.width, self.random.choice(((), (), ("d",) if self.width == 3 else ()))),
        )

    def of_view(self) -> tuple[Any, ...]:
        count, width = sum(self.heads), self.width
        shapes = [(-1, count, width), (-1, count // 2, 2 * width), (-1, count * width)]
        shapes += [(-1, count // 2, 2, width), (-1, 1, count, width), (-1, count * width, 1)]
        shape = self.random.choice(shapes)
        return self.random.choice(((shape,), shape))

    def of_flatten(self) -> tuple[Any, ...]:
        return (-2,) if not self.is_flat else (1,)

    def of_split_with_sizes(self) -> tuple[Any, ...]:
        sizes = [segment.size for segment in self.layouts[0].dims[1]]
        if len(sizes) > 2 and self.random.random() < 0.5:
            sizes = [sizes[0] + sizes[1], *sizes[2:]]
        elif self.random.random() < 0.3:
            sizes = [sizes[0] // 2, sizes[0] - sizes[0] // 2, *sizes[1:]]
        return tuple(sizes), self.random.choice((1, 1 - len(self.layouts[0].dims)))

    def of_unbind(self) -> tuple[Any, ...]:
        return (-1,)

    def of_unsqueeze(self) -> tuple[Any, ...]:
        return (self.random.choice((1, 2, -1, -2)),)

    def of_transpose(self) -> tuple[Any, ...]:
        return 0, 1

    def of_to(self) -> tuple[Any, ...]:
        return (torch.float64,)

    def of_cat(self) -> tuple[Any, ...]:
        first = self.layouts[0]
        heads = tuple(replace(segment, axes=self.random.choice(AXES)) for segment in first.dims[1])
        self.layouts = [first, replace(first, dims=(first.dims[0], heads, *first.dims[2:]))]
        return (self.random.choice((1, 1 - len(first.dims))),)

    def of_getitem(self) -> tuple[Any, ...]:
        first = self.layouts[0].dims[1][0].size
        return (
            self.random.choice(
                (
                    (slice(None), None),
                    (..., None),
                    (slice(None), slice(first)),
                    (slice(None), slice(first, None)),
                    (slice(None), slice(1, first - 1), None),
                    (slice(None), 0),
                    (..., -1),
                    None,
                )
            ),
        )


@pytest.mark.parametrize("target", sorted(VIEWS))
def test_the_view_of_parts_is_the_part_of_the_view(target: str) -> None:
    done = 0
    mesh = mesh_of(2, 2, 2, 3)
    for seed in range(SEEDS):
        case = Case(target, seed)
        print("seed", seed, case.layouts, case.arguments)  # shown where it fails
        node = node_of(target, *case.arguments, tensors=len(case.layouts))
        try:
            layouts = view_layout(node, case.layouts, mesh)
            local = local_arguments(node, case.layouts, mesh)
        except PlacementError:
            continue
        done += 1
        tensors = [
            torch.rand(
                [
                    NUM_TOKENS if dim[0].size == TOKENS else sum(segment.size for segment in dim)
                    for dim in layout.dims
                ],
                dtype=torch.float64,
            )
            for layout in case.layouts
        ]
        whole = listed(apply(target, tensors, case.arguments))
        plain = [replace(layout, partial=frozenset()) for layout in layouts]
        got = []
        for rank in range(mesh.world):
            own = [
                held(x, layout, mesh, rank) for x, layout in zip(tensors, case.layouts, strict=True)
            ]
            got.append(listed(apply(target, own, local)))
        for number, (expected, layout) in enumerate(zip(whole, plain, strict=True)):
            assert_held([results[number] for results in got], expected, layout, mesh)
            assert layouts[number].partial == case.layouts[0].partial
    assert done > SEEDS // 6


@pytest.mark.parametrize("target", sorted(VIEWS))
def test_the_parts_of_a_view_are_those_of_its_layout(target: str) -> None:
    mesh = mesh_of(2, 2, 2, 3)
    for seed in range(SEEDS):
        case = Case(target, seed)
        node = node_of(target, *case.arguments, tensors=len(case.layouts))
        parts = [
            tuple(tuple(segment.size for segment in dim) for dim in layout.dims)
            for layout in case.layouts
        ]
        try:
            layouts = view_layout(node, case.layouts, mesh)
        except PlacementError:
            continue
        sizes = [
            tuple(tuple(segment.size for segment in dim) for dim in layout.dims)
            for layout in layouts
        ]
        assert list(view_parts(target, parts, case.arguments)) == sizes


def test_heads_of_a_fused_projection_keep_their_segments() -> None:
    mesh = mesh_of(2, 2)
    fused = Layout(
        (
            (Segment(TOKENS),),
            (Segment(64, ("a", "b")), Segment(16, ("a",)), Segment(16, ("a",))),
        )
    )
    node = node_of("view", -1, 12, 8)
    (heads,) = view_layout(node, [fused], mesh)
    assert heads.dims[1] == (
        Segment(8, ("a", "b")),
        Segment(2, ("a",)),
        Segment(2, ("a",)),
    )
    assert local_arguments(node, [fused], mesh) == (-1, 4, 8)
    split = node_of("split_with_sizes", (8, 2, 2), 1)
    q, k, _ = view_layout(split, [heads], mesh)
    assert (q.dims[1], k.dims[1]) == ((Segment(8, ("a", "b")),), (Segment(2, ("a",)),))
    assert local_arguments(split, [heads], mesh) == ((2, 1, 1), 1)
    (flat,) = view_layout(node_of("flatten", -2), [q], mesh)
    assert flat.dims[1] == (Segment(64, ("a", "b")),)


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [
        ("view", (-1, 12), r"model.py:3: .* found dimension 2 \(3\) cut over b, expected it whole"),
        ("view", (-1, 5, 3), "found a view of T x 4 x 3 as T x 5 x 3, expected 12 elements"),
        ("flatten", (0, 1), "expected tokens in front as before"),
        ("flatten", (-2,), r"found dimension 2 \(3\) cut over b"),
        ("split_with_sizes", ((1, 3), 1), r"found dimension 1 \(4\) cut over a, expected it whole"),
        ("split_with_sizes", ((1, 2), 1), r"found parts \(1, 2\) of dimension 1, expected 4"),
        ("split_with_sizes", ((1, 2), 0), "found parts .* of dimension 0"),
        ("unbind", (2,), r"found dimension 2 \(3\) cut over b"),
        ("getitem", ((slice(None), slice(None, None, 2)),), "found a slice of every 2"),
        ("getitem", ((0,),), "found dimension 0 of tokens taken apart"),
        ("expand", (3,), "expand is no view; known are cat, contiguous"),
    ],
)
def test_a_view_that_a_layout_does_not_permit_says_what_must_be_whole(
    target: str, arguments: tuple[Any, ...], message: str
) -> None:
    layout = Layout(((Segment(TOKENS),), (Segment(4, ("a",)),), (Segment(3, ("b",)),)))
    with pytest.raises(PlacementError, match=message):
        view_layout(node_of(target, *arguments), [layout], mesh_of(2, 3))


def test_joined_tensors_lie_alike() -> None:
    one = Layout(((Segment(TOKENS),), (Segment(4, ("a",)),)))
    other = Layout(((Segment(TOKENS, ("a",)),), (Segment(4),)))
    with pytest.raises(PlacementError, match="expected one layout but for dimension 1"):
        view_layout(node_of("cat", -1, tensors=2), [one, other], mesh_of(2))
