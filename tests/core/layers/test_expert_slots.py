"""Slots of experts: choices find them, copies take turns, every rank counts its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.definitions import DefinitionBinder
from tests.support.model_contexts import definition_context
from tests.support.moe_backends import DefinitionExperts
from tests.support.torch_calls import IN_A_STEP, CallsOfModels

from tokenspeed.contracts.moe import ExpertGroup, Routing
from tokenspeed.errors import ConfigError
from tokenspeed.layers import Experts
from tokenspeed.layers.expert_slots import ExpertSlots
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.shards import RankShards

CPU = torch.device("cpu")


def slots(place: int) -> ExpertSlots:
    """Four experts on two ranks of three slots; expert 3 is on both."""
    made = ExpertSlots(4, ranks=2, place=place, spare=1, kernels=DefinitionBinder(), device=CPU)
    made.put((0, 1, 3, 2, 3, 3))
    return made


def test_the_copies_of_an_expert_take_its_tokens_in_turn() -> None:
    chosen_TX = torch.tensor([[3, 0], [3, 1], [3, 2], [2, 3]])
    assert slots(0).slots_of(chosen_TX).tolist() == [[2, 0], [4, 1], [5, 3], [3, 2]]
    assert slots(0).slots_of(chosen_TX[:0]).shape == (0, 2)


def test_ranks_count_what_they_compute_and_begin_anew() -> None:
    chosen_TX = torch.tensor([[3, 0], [3, 1], [3, 2], [2, 3]])
    counts = []
    for place in range(2):
        own = slots(place)
        own_TX = own.own(own.slots_of(chosen_TX))
        assert own_TX.tolist() == (own.slots_of(chosen_TX) - 3 * place).tolist()
        counts += own.take_counts().tolist()
        assert own.take_counts().tolist() == [0, 0, 0]
    assert counts == [1, 1, 2, 2, 1, 1]


def test_a_step_computes_slots_and_counts_with_operators_only() -> None:
    own = slots(1)
    with CallsOfModels() as calls:
        own.own(own.slots_of(torch.tensor([[3, 0], [3, 1]])))
    assert calls.beyond(IN_A_STEP) == {}
    assert own.take_counts().sum() == 1


def test_tables_stay_where_they_are_when_experts_move() -> None:
    own = slots(0)
    tables = (own._slots_EC, own._copies_E, own._counts_S)
    addresses = [table.data_ptr() for table in tables]
    own.put((0, 0, 0, 1, 2, 3))
    assert [t.data_ptr() for t in (own._slots_EC, own._copies_E, own._counts_S)] == addresses
    assert own.slots_of(torch.tensor([[0], [0], [0], [1]])).tolist() == [[0], [1], [2], [3]]


def test_a_backend_that_cannot_move_experts_is_refused_by_name() -> None:
    group = ExpertGroup("experts", (0,), 4, 4, 5, Routing(2))
    shards = RankShards(build_mesh(Degrees(ep=2)), 0, range(1), spare_experts=0)
    context = replace(definition_context(), moe={"experts": DefinitionExperts()}, shards=shards)
    with pytest.raises(ConfigError, match=r"DefinitionExperts .* --eplb-steps"):
        Experts(context, group)
