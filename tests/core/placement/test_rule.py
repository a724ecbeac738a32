"""Choices over axes become layouts, layouts choices; sizes and segments carry on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.errors import PlacementError
from tokenspeed.placement.graph import Kind, Node, Ref, StepArgument, Value
from tokenspeed.placement.layout import TOKENS, Layout, Segment
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.rule import Cut, Mode, annotated, follow, parse, place, result_parts
from tokenspeed_sdk.conformance.cut_tensors import mesh_of

if TYPE_CHECKING:
    from tokenspeed.placement.layout import Dim
    from tokenspeed.placement.sizes import Parts

T = (TOKENS,)
LINEAR = parse("~T I, O I, ~O -> T O")
ATTENTION = parse("Q N H!, T K H!, T K V!, N -> Q N V!; K<N, T<Q")


def dim(*segments: tuple[int, str]) -> Dim:
    """Return a dimension of (size, axes) segments."""
    return tuple(Segment(size, tuple(axes)) for size, axes in segments)


def tokens(axes: str = "") -> Dim:
    return dim((TOKENS, axes))


def values_of(*parts: Parts) -> list[Value]:
    return [Value(number, item, "float32", "") for number, item in enumerate(parts)]


def qkv(heads: int = 8, kv_heads: int = 2, width: int = 4) -> tuple[Node, list[Value]]:
    rows = (heads * width, kv_heads * width, kv_heads * width)
    node = Node(
        Kind.MODULE,
        "layers.0.self_attn.qkv",
        (Ref(0),),
        (1,),
        rule=LINEAR,
        weights=((rows, (16,)), (rows,)),
        spread={"O": ParallelGroup.ATTN_TP},
        units={"O": (heads, kv_heads, kv_heads)},
        where="llama.py:7",
    )
    return node, values_of((T, (16,)), (T, rows))


def attention(heads: int, kv_heads: int) -> tuple[Node, list[Value]]:
    shapes: list[Parts] = [(T, (count,), (8,)) for count in (heads, kv_heads, kv_heads)]
    node = Node(
        Kind.MODULE,
        "layers.0.self_attn.attend",
        (*map(Ref, range(3)), StepArgument()),
        (3,),
        rule=ATTENTION,
        spread={
            "T": ParallelGroup.ATTN_DP,
            "Q": ParallelGroup.ATTN_CP,
            "N": ParallelGroup.ATTN_TP,
        },
        units={"N": (heads,), "K": (kv_heads,)},
        where="llama.py:9",
    )
    return node, values_of(*shapes)


def test_the_segments_of_a_letter_carry_on() -> None:
    assert result_parts(LINEAR, [(T, (16,)), ((32, 8, 8), (16,))]) == ((T, (32, 8, 8)),)
    conv = parse("T C, C _ -> T C")
    assert result_parts(conv, [(T, (4, 4, 8)), ((16,), (3,))]) == ((T, (4, 4, 8)),)


@pytest.mark.parametrize(
    ("segments", "half"), [((6, 6), (6,)), ((12,), (6,)), ((2, 4, 2, 4), (2, 4))]
)
def test_two_parts_of_a_letter_give_one(segments: tuple[int, ...], half: tuple[int, ...]) -> None:
    assert result_parts(parse("T 2F -> T F"), [(T, segments)]) == ((T, half),)


def test_an_option_says_a_size_that_no_argument_has() -> None:
    rule = parse("T E! -> T X!, T X!; X=routing.top_k")
    options = {"routing": SimpleNamespace(top_k=3)}
    assert result_parts(rule, [(T, (8,))], options) == ((T, (3,)), (T, (3,)))
    with pytest.raises(PlacementError, match="nothing says how large X is"):
        result_parts(rule, [(T, (8,))])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([(T, (16,)), ((8,), (17,))], r"found I of \(17,\) in argument 1, expected \(16,\)"),
        ([(T, (2,), (8,))], "found argument 0 of 3 dimensions, expected 2"),
        ([(T, (16,))] * 4, "found 4 arguments, expected at most 3"),
        ([(T, (6, 10)), ((8,), (10, 6))], r"found I of \(10, 6\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: list[Parts], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        result_parts(LINEAR, arguments)


def test_a_column_parallel_product() -> None:
    node, values = qkv()
    placed = place(node, values, {"a": "O"}, mesh_of(2))
    rows = dim((32, "a"), (8, "a"), (8, "a"))
    x, weight, bias = placed.inputs
    assert x == Layout((tokens(), dim((16, ""))))
    assert weight == Layout((rows, dim((16, ""))))
    assert bias == Layout((rows,))
    assert placed.outputs == (Layout((tokens(), rows)),)


def test_few_kv_heads_are_cut_as_far_as_it_goes() -> None:
    node, values = qkv()
    placed = place(node, values, dict.fromkeys("abc", "O"), mesh_of(2, 2, 2))
    assert placed.outputs[0].dims[1] == dim((32, "abc"), (8, "a"), (8, "a"))


def test_a_row_parallel_product_gives_summands_and_its_bias_is_one() -> None:
    node, values = qkv()
    placed = place(node, values, {"a": "I", "b": "T"}, mesh_of(2, 2))
    x, weight, bias = placed.inputs
    assert x == Layout((tokens("b"), dim((16, "a"))))
    assert weight.dims[1] == dim((16, "a"))
    assert not weight.partial
    assert bias.partial == {"a"}
    assert placed.outputs[0].partial == {"a"}
    assert placed.outputs[0].dims[0] == tokens("b")


def test_summands_go_through_linear_arguments_only() -> None:
    node, values = qkv()
    placed = place(node, values, {"a": Mode.SUMMANDS}, mesh_of(2))
    assert [layout.partial for layout in placed.inputs] == [{"a"}, set(), {"a"}]
    assert placed.outputs[0].partial == {"a"}
    other = Node(Kind.OPERATOR, "norm", (Ref(0),), (1,), rule=parse("... D! -> ... D!"))
    with pytest.raises(PlacementError, match="found summands, expected a linear argument"):
        place(other, values, {"a": Mode.SUMMANDS}, mesh_of(2))


def test_numbers_that_count_a_cut_letter_are_whole() -> None:
    rule = parse("V[T], V D -> T D")
    node = Node(Kind.MODULE, "embed", (Ref(0),), (1,), rule=rule, weights=(((32,), (8,)),))
    placed = place(node, values_of((T,), (T, (8,))), {"a": "V"}, mesh_of(2))
    ids, table = placed.inputs
    assert ids == Layout((tokens(),))
    assert table == Layout((dim((32, "a")), dim((8, ""))))
    assert placed.outputs == (Layout((tokens(), dim((8, ""))), frozenset("a")),)


def test_attention_shares_kv_heads_and_cuts_tokens_by_partition_and_query() -> None:
    node, values = attention(8, 2)
    mesh = build_mesh(Degrees(tp=4, dp=2, cp=2))
    choices = annotated(node, mesh)
    assert choices == {"a": "T", "b": "Q", "c": "K", "d": "N"}
    q, k, v = place(node, values, choices, mesh).inputs
    assert q == Layout((tokens("ab"), dim((8, "cd")), dim((8, ""))))
    assert k == v == Layout((tokens("a"), dim((2, "c")), dim((8, ""))))


def test_a_kv_head_that_all_ranks_share_is_whole() -> None:
    node, values = attention(8, 1)
    mesh = build_mesh(Degrees(tp=4))
    q, k, _ = place(node, values, annotated(node, mesh), mesh).inputs
    assert (q.dims[1], k.dims[1]) == (dim((8, "ab")), dim((1, "")))


@pytest.mark.parametrize(
    ("heads", "tp", "message"),
    [
        ((6, 2), 4, "found 6 units of O over 4 ranks, expected a cut over 1, 2, 3, 6;"),
        ((8, 2), 16, "found 8 units of O over 16 ranks, expected a cut over 1, 2, 4, 8;"),
    ],
)
def test_an_uneven_cut_names_module_place_and_what_is_possible(
    heads: tuple[int, int], tp: int, message: str
) -> None:
    node, values = qkv(*heads)
    mesh = build_mesh(Degrees(tp=tp))
    with pytest.raises(PlacementError, match=message) as caught:
        place(node, values, annotated(node, mesh), mesh)
    assert str(caught.value).startswith("layers.0.self_attn.qkv (llama.py:7) cannot be placed")


def test_a_cut_through_a_whole_dimension_is_refused() -> None:
    node, values = attention(8, 2)
    with pytest.raises(PlacementError, match="found H cut over axis a, expected one of K, N, Q, T"):
        place(node, values, {"a": "H"}, mesh_of(2))


def test_a_steps_tokens_are_cut_over_the_axes_of_their_group_only() -> None:
    node, values = attention(8, 2)
    mesh = build_mesh(Degrees(tp=2, dp=2))
    with pytest.raises(PlacementError, match="tokens T cut over axis b, expected those of attn_dp"):
        place(node, values, {"a": "T", "b": "T"}, mesh)


def test_an_annotation_of_a_letter_that_is_not_there_is_refused() -> None:
    node, _ = qkv()
    wrong = replace(node, spread={"N": ParallelGroup.ATTN_TP})
    message = r"qkv \(llama.py:7\) spreads N over attn_tp, expected one of I, O, T"
    with pytest.raises(PlacementError, match=message):
        annotated(wrong, build_mesh(Degrees(tp=2)))


def test_two_letters_over_one_axis_are_refused() -> None:
    node, _ = qkv()
    wrong = replace(node, spread={"O": ParallelGroup.ATTN_TP, "I": ParallelGroup.DENSE_TP})
    with pytest.raises(PlacementError, match="spreads both O and I over axis a"):
        annotated(wrong, build_mesh(Degrees(tp=2)))


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"a": "O"},
        {"a": "I", "b": "T"},
        {"a": Mode.SUMMANDS, "b": "I"},
        {"a": "T", "b": "T", "c": "T"},
    ],
)
def test_choices_are_read_off_layouts(choices: dict[str, str | Mode]) -> None:
    node, values = qkv()
    mesh = mesh_of(2, 2, 2)
    x = place(node, values, choices, mesh).inputs[0]
    wanted = {axis: choice for axis, choice in choices.items() if choice != "O"}
    assert follow(node, values, [x], mesh) == wanted


def test_choices_of_heads_that_are_cut_in_part() -> None:
    rotary = parse("T N H!, T 1 A! -> T N H!")
    node = Node(Kind.OPERATOR, "rotary", (Ref(0), Ref(1)), (2,), rule=rotary)
    values = values_of((T, (8, 2), (16,)), (T, (1,), (16,)))
    angles = Layout((tokens(), dim((1, "")), dim((16, ""))))
    mesh = mesh_of(2, 2)
    for heads, choices in (
        (dim((8, "ab"), (2, "a")), {"a": "N", "b": "N"}),
        (dim((8, "ab"), (2, "")), {"a": Cut("N", (0,)), "b": "N"}),
        (dim((8, "ab"), (2, "b")), {"a": Cut("N", (0,)), "b": "N"}),
    ):
        x = Layout((tokens(), heads, dim((16, ""))))
        got = follow(node, values, [x, angles], mesh)
        assert got is not None
        assert place(node, values, got, mesh).outputs == (x,)
        assert got == choices or heads[1].axes != ("a",)


@pytest.mark.parametrize(
    "layout",
    [
        Layout((tokens(), dim((8, "a")))),
        Layout((tokens(), dim((8, ""))), frozenset("a")),
        Layout((tokens("a"), dim((8, "b")))),
    ],
)
def test_layouts_that_do_not_go_through_have_no_choices(layout: Layout) -> None:
    node = Node(Kind.OPERATOR, "norm", (Ref(0),), (1,), rule=parse("... D! -> ... D!"))
    assert follow(node, values_of((T, (8,))), [layout], mesh_of(2, 2)) is None


def test_a_sum_over_a_part_of_a_letter_is_refused() -> None:
    node, _ = qkv()
    plain = replace(node, weights=(((8,), (12, 4)),), spread={}, units={})
    with pytest.raises(PlacementError, match="I cut unevenly in its segments"):
        place(plain, values_of((T, (12, 4))), {"a": Cut("I", (0,))}, mesh_of(2))
