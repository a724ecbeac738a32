"""Fused parts multiply as their stacked weights, whatever arrives first and however packed."""

from __future__ import annotations

import weakref
from itertools import permutations

import pytest
import torch
from tests.support.definitions import DefinitionBinder
from tests.support.model_contexts import definition_context, plain

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.layers import Linear, column_parallel
from tokenspeed.ops import packing

NAMES = ("q", "k", "v")
ROWS = (8, 4, 4)


def make_linear(*, bias: bool, in_features: int = 6) -> tuple[Linear, DefinitionBinder]:
    context = definition_context()
    spread = column_parallel(ParallelGroup.ATTN_TP)
    assert isinstance(context.kernels, DefinitionBinder)
    return Linear(context, in_features, ROWS, bias=bias, spread=spread), context.kernels


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_parts_are_fused_in_order_whichever_arrives_first(order: tuple[int, ...]) -> None:
    linear, _ = make_linear(bias=False)
    weights = [torch.randn(rows, 6) for rows in ROWS]
    slots = dict(linear.weight_slots(*NAMES))
    for part in order:
        slots[f"{NAMES[part]}.weight"].accept(plain(weights[part]))
    x = torch.randn(5, 6)
    torch.testing.assert_close(linear(x), x @ torch.cat(weights).T)


def test_biases_are_fused_too() -> None:
    linear, _ = make_linear(bias=True)
    tensors = {name: torch.randn(slot.shape) for name, slot in linear.weight_slots(*NAMES)}
    for name, slot in linear.weight_slots(*NAMES):
        slot.accept(plain(tensors[name]))
    x = torch.randn(5, 6)
    expected = [x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"] for name in NAMES]
    torch.testing.assert_close(linear(x), torch.cat(expected, dim=-1))


def test_parts_are_freed_as_soon_as_they_are_fused() -> None:
    linear, _ = make_linear(bias=False)
    slots = dict(linear.weight_slots(*NAMES))  # held, as a model holds them while it loads
    parts = [plain(torch.zeros(slot.shape)) for slot in slots.values()]
    alive = [weakref.ref(part.plain) for part in parts if part.plain is not None]
    for slot in slots.values():
        slot.accept(parts.pop(0))
    assert [part() for part in alive] == [None, None, None]


def test_a_single_plain_weight_is_used_without_a_copy() -> None:
    context = definition_context()
    linear = Linear(context, 6, (4,), spread=column_parallel(ParallelGroup.ATTN_TP))
    weight = torch.zeros(4, 6)
    for _, slot in linear.weight_slots("o"):
        slot.accept(plain(weight))
    weight.fill_(1.0)
    torch.testing.assert_close(linear(torch.ones(1, 6)), torch.full((1, 4), 6.0))


def fill_packed(linear: Linear, layouts: tuple[str, ...]) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    dense = []
    for (_, slot), layout in zip(linear.weight_slots(*NAMES), layouts, strict=True):
        weight: LinearWeight = packing.random_weight(layout, (slot.shape[0], 256), random)
        dense.append(packing.decode(weight).float())
        slot.accept(weight)
    return dense


def test_parts_of_one_packing_become_one_product() -> None:
    linear, binder = make_linear(bias=False, in_features=256)
    dense = fill_packed(linear, ("q4_1", "q4_1", "q4_1"))
    assert binder.bound == [("linear.packed", {"packing": "q4_1"})]
    x = torch.randn(3, 256)
    torch.testing.assert_close(linear(x), x @ torch.cat(dense).T)


def test_parts_of_different_packings_are_multiplied_side_by_side() -> None:
    linear, binder = make_linear(bias=False, in_features=256)
    dense = fill_packed(linear, ("q4_1", "q4_1", "q8_0"))
    assert [traits["packing"] for _, traits in binder.bound] == ["q4_1", "q8_0"]
    x = torch.randn(3, 256)
    torch.testing.assert_close(linear(x), x @ torch.cat(dense).T)
