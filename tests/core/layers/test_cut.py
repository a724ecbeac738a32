"""A rank's part of a checkpoint tensor: segments, shared units, summands, packed blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.model_contexts import plain

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.errors import CheckpointError, PlacementError
from tokenspeed.layers import WeightSlot, fill_slots
from tokenspeed.layers.cut import cut
from tokenspeed.ops import packing
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.shards import RankShards

TP, EP = ParallelGroup.ATTN_TP, ParallelGroup.MOE_EP


def ranks(**degrees: int) -> list[RankShards]:
    mesh = build_mesh(Degrees(**degrees))
    return [RankShards(mesh, rank, range(1)) for rank in range(mesh.world)]


def slot(shape: tuple[int, ...], letters: str, spread: dict[str, Any], **more: Any) -> WeightSlot:
    return WeightSlot(shape, lambda _: None, letters, spread, **more)


def parts(weight: LinearWeight, own: WeightSlot, **degrees: int) -> list[Any]:
    return [cut("w", weight, own, shards).plain for shards in ranks(**degrees)]


def test_rows_columns_and_experts_are_cut_by_their_letters() -> None:
    tensor = torch.arange(4 * 6 * 8).view(4, 6, 8)
    own = slot((4, 6, 8), "E O I", {"E": EP, "I": ParallelGroup.MOE_TP})
    found = parts(plain(tensor), own, tp=4, ep=2)
    for rank, part in enumerate(found):
        expert, column = rank // 2 * 2, rank % 2 * 4
        assert torch.equal(part, tensor[expert : expert + 2, :, column : column + 4])


def test_each_segment_is_cut_by_itself_and_few_heads_are_shared() -> None:
    tensor = torch.arange(8 + 2 + 2).view(12, 1)
    own = slot((12, 1), "O I", {"O": TP}, parts={"O": (8, 2, 2)}, units={"O": (8, 2, 2)})
    found = [part.flatten().tolist() for part in parts(plain(tensor), own, tp=4)]
    assert found == [[0, 1, 8, 10], [2, 3, 8, 10], [4, 5, 9, 11], [6, 7, 9, 11]]


def test_a_count_means_equal_segments() -> None:
    tensor = torch.arange(8)
    own = slot((8,), "2F", {"F": TP})
    assert [part.tolist() for part in parts(plain(tensor), own, tp=2)] == [
        [0, 1, 4, 5],
        [2, 3, 6, 7],
    ]


def test_what_is_added_to_a_sum_is_with_the_first_rank() -> None:
    tensor = torch.ones(6)
    own = slot((6,), "O", {"I": TP}, added="I")
    assert [part.sum().item() for part in parts(plain(tensor), own, dp=2, tp=2)] == [6, 0, 6, 0]


def test_a_tensor_that_nobody_cuts_is_handed_on_as_it_is() -> None:
    weight = plain(torch.ones(3, 5))
    own = slot((3, 5), "O I", {})
    assert all(cut("w", weight, own, shards) is weight for shards in ranks(tp=4))


def test_an_uneven_cut_is_refused_with_its_numbers() -> None:
    own = slot((6, 4), "O I", {"O": TP}, units={"O": (4,)})
    with pytest.raises(PlacementError, match=r"tensor w: 6 of dimension O .* 4 equal parts"):
        parts(plain(torch.ones(6, 4)), own, tp=4)


@pytest.mark.parametrize("layout", packing.LAYOUTS)
def test_packed_tensors_are_cut_at_rows_and_between_blocks(layout: str) -> None:
    inputs = 2 * packing.LAYOUTS[layout].block_inputs
    weight = packing.random_weight(layout, (8, inputs), torch.Generator().manual_seed(1))
    dense = packing.decode(weight)
    for letters, dim in (("O _", 0), ("_ I", 1)):
        own = slot((8, inputs), letters, {"O": TP, "I": TP})
        found = [cut("w", weight, own, shards) for shards in ranks(tp=2)]
        assert [part.shape for part in found] == [part.shape for part in dense.chunk(2, dim)]
        assert torch.equal(torch.cat([packing.decode(part) for part in found], dim), dense)


def test_a_cut_through_a_packed_block_is_refused_with_its_numbers() -> None:
    weight = packing.random_weight("q8_0", (2, 96), torch.Generator().manual_seed(1))
    own = slot((2, 96), "O I", {"I": TP})
    with pytest.raises(CheckpointError, match=r"q8_0 in blocks of 32 .* 96 inputs at 48"):
        cut("w", weight, own, ranks(tp=2)[0])


def test_a_packing_that_nobody_here_knows_is_cut_at_rows_only() -> None:
    parts_of = {"codes": torch.ones(4, 8), "scales": torch.ones(4, 1)}
    weight = LinearWeight((4, 16), None, "acme_3bit", parts_of)
    rows = cut("w", weight, slot((4, 16), "O I", {"O": TP}), ranks(tp=2)[1])
    assert (rows.shape, rows.packed["scales"].shape) == ((2, 16), (2, 1))
    with pytest.raises(CheckpointError, match="acme_3bit and its 16 inputs are to be cut"):
        cut("w", weight, slot((4, 16), "O I", {"I": TP}), ranks(tp=2)[1])


def test_slots_of_other_ranks_are_neither_filled_nor_missed() -> None:
    taken: list[LinearWeight] = []
    slots = {
        "mine": WeightSlot((4,), taken.append, "O", {"O": TP}),
        "other": WeightSlot((4,), taken.append, is_held=False),
    }
    weights = [("other", plain(torch.ones(4))), ("mine", plain(torch.arange(4.0)))]
    for given in (weights, weights[1:]):
        assert fill_slots(slots, given, shards=ranks(tp=2)[1]) == 2 * 4
    assert [weight.plain.tolist() for weight in taken if weight.plain is not None] == [[2, 3]] * 2
