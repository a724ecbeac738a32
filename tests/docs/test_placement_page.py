"""What docs/placement.md shows of layouts and of the refusal is what comes out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.support.source_tree import ROOT

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.errors import PlacementError
from tokenspeed.ops import OPERATORS
from tokenspeed.placement.graph import Kind, Node, Ref, StepArgument, Value
from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.rule import annotated, parse, place
from tokenspeed.placement.views import local_arguments, view_layout

if TYPE_CHECKING:
    from tokenspeed.placement.layout import Layout

TEXT = (ROOT / "docs" / "placement.md").read_text(encoding="utf-8")
MESH = build_mesh(Degrees(tp=4))


def node_of(target: str, name: str, tensors: int, **fields: object) -> Node:
    rule = parse(OPERATORS[name].placement)
    inputs = (*map(Ref, range(tensors)), StepArgument())
    return Node(Kind.MODULE, target, inputs, (9,), rule=rule, **fields)  # type: ignore[arg-type]


def placed(node: Node, *heads: tuple[int, ...]) -> tuple[Layout, ...]:
    values = [Value(number, ((TOKENS,), *own), "", "") for number, own in enumerate(heads)]
    return place(node, values, annotated(node, MESH), MESH).outputs


def test_the_fused_projection_is_viewed_and_split_on_each_rank_as_shown() -> None:
    rows = (64 * 128, 2 * 128, 2 * 128)
    qkv = node_of(
        "qkv",
        "linear.dense",
        1,
        weights=((rows, (8192,)),),
        spread={"O": ParallelGroup.ATTN_TP},
        units={"O": (64, 2, 2)},
    )
    layouts = placed(qkv, ((8192,),))
    shown = [" | ".join(f"{part.size} over {' '.join(part.axes)}" for part in layouts[0].dims[1])]
    view = Node(Kind.VIEW, "view", (Ref(0), -1, 68, 128), (1,))
    assert f"on a rank: view{local_arguments(view, layouts, MESH)}" in TEXT
    heads = view_layout(view, layouts, MESH)
    shown.append(" | ".join(f"{part.size} over {' '.join(part.axes)}" for part in heads[0].dims[1]))
    split = Node(Kind.VIEW, "split_with_sizes", (Ref(0), (66, 2), 1), (1,))
    assert f"on a rank: {local_arguments(split, heads, MESH)[0]}" in TEXT
    for line in shown:
        assert f"[{line}]" in TEXT


def test_the_refusal_is_the_one_shown() -> None:
    attend = node_of(
        "layers.0.self_attn.attend",
        "attention.paged",
        3,
        spread={"N": ParallelGroup.ATTN_TP},
        units={"N": (24,), "K": (6,)},
        where="llama.py:137",
    )
    with pytest.raises(PlacementError) as caught:
        placed(attend, *(((count,), (128,)) for count in (24, 6, 6)))
    assert str(caught.value) in re.sub(r"\s+", " ", TEXT)
