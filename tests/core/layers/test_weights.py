"""Every checkpoint tensor is taken once, checked, and none is left over."""

from __future__ import annotations

import pytest
import torch
from tests.support.model_contexts import plain

from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.errors import CheckpointError
from tokenspeed.layers import WeightSlot, fill_slots, shared_slot


def make_slots() -> tuple[dict[str, WeightSlot], dict[str, LinearWeight]]:
    taken: dict[str, LinearWeight] = {}
    slots = {
        name: WeightSlot((2, 3), lambda weight, name=name: taken.update({name: weight}))  # type: ignore[misc]
        for name in ("layer.q_proj.weight", "layer.k_proj.weight")
    }
    return slots, taken


def test_every_slot_gets_its_tensor_in_any_order() -> None:
    slots, taken = make_slots()
    q, k = plain(torch.zeros(2, 3)), plain(torch.ones(2, 3))
    fill_slots(slots, [("layer.k_proj.weight", k), ("layer.q_proj.weight", q)])
    assert taken == {"layer.q_proj.weight": q, "layer.k_proj.weight": k}


def test_a_missing_tensor_is_named() -> None:
    slots, _ = make_slots()
    with pytest.raises(CheckpointError, match=r"lacks 1 of 2 tensors: layer\.k_proj\.weight"):
        fill_slots(slots, [("layer.q_proj.weight", plain(torch.zeros(2, 3)))])


def test_an_unknown_tensor_is_named_with_the_nearest_known_one() -> None:
    slots, _ = make_slots()
    with pytest.raises(CheckpointError, match=r"q_prj\.weight.*nearest is layer\.q_proj\.weight"):
        fill_slots(slots, [("layer.q_prj.weight", plain(torch.zeros(2, 3)))])


def test_a_wrong_shape_names_both_shapes() -> None:
    slots, taken = make_slots()
    with pytest.raises(CheckpointError, match=r"\(3, 2\).*\(2, 3\)"):
        fill_slots(slots, [("layer.q_proj.weight", plain(torch.zeros(3, 2)))])
    assert not taken


def test_a_repeated_tensor_is_refused() -> None:
    slots, _ = make_slots()
    weight = plain(torch.zeros(2, 3))
    with pytest.raises(CheckpointError, match="twice"):
        fill_slots(slots, [("layer.q_proj.weight", weight)] * 2)


def test_ignored_endings_are_skipped_but_known_names_are_not() -> None:
    slots, taken = make_slots()
    weight = plain(torch.zeros(2, 3))
    names = ("layer.q_proj.weight", "x.inv_freq", "layer.k_proj.weight")
    fill_slots(slots, [(name, weight) for name in names], ignored=("inv_freq",))
    assert len(taken) == 2


def test_a_shared_slot_hands_one_tensor_to_both() -> None:
    taken: list[LinearWeight] = []
    slot = shared_slot(WeightSlot((1,), taken.append), WeightSlot((1,), taken.append))
    weight = plain(torch.zeros(1))
    slot.accept(weight)
    assert taken == [weight, weight]
