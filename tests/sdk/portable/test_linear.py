"""Products with dense and encoded weights in Triton, beyond the cases of their operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.portable import portable_offers

from tokenspeed.ops import OPERATORS, packing
from tokenspeed.ops.alone import depends_on_batch
from tokenspeed.ops.compare import compare
from tokenspeed.ops.draw import Draw
from tokenspeed_sdk import Case, Domain, KernelOffer, LinearWeight
from tokenspeed_sdk.portable.linear import tiles

if TYPE_CHECKING:
    from collections.abc import Callable

PACKINGS = tuple(packing.LAYOUTS)


def kernel_of(operator: str) -> Callable[..., Any]:
    found = [
        item
        for item in portable_offers("operator")
        if isinstance(item, KernelOffer) and item.operator == operator
    ]
    assert len(found) == 1
    load: Callable[..., Any] = found[0].load()
    return load


def agrees(operator: str, case: Case, dtype: str = "float32") -> None:
    outcome = compare(OPERATORS[operator], kernel_of(operator), case, dtype=dtype)
    assert outcome.agrees, outcome


def weight_of(name: str, outputs: int, inputs: int) -> LinearWeight:
    return packing.random_weight(name, (outputs, inputs), torch.Generator().manual_seed(1))


def draw_small(rows: int, weight: LinearWeight, seed: int = 2) -> torch.Tensor:
    """Draw rows whose terms' squares sum to 1 at most, which the tolerance is for."""
    x = Draw(Domain(seed=seed)).wide(rows, weight.shape[1])
    largest = (x.double().square() @ packing.decode(weight).T.square()).sqrt().amax()
    return (x / largest).float()


@pytest.mark.parametrize("rows", [1, tiles.FEW_ROWS, tiles.FEW_ROWS + 1])
@pytest.mark.parametrize("inputs", [300, 512])
def test_dense_products_agree_around_the_number_of_rows_that_torch_takes(
    rows: int, inputs: int
) -> None:
    draw = Draw(Domain(seed=rows))
    weight = draw.floats(35, inputs, scale=inputs**-0.5)
    agrees("linear.dense", Case("rows", (draw.beside(rows, inputs), weight, draw.floats(35))))


def test_rows_of_a_dense_product_do_not_depend_on_the_few_beside_them() -> None:
    draw = Draw(Domain("bfloat16"))
    args = (draw.floats(tiles.FEW_ROWS, 512), draw.floats(40, 512, scale=0.04))
    dense = OPERATORS["linear.dense"]
    assert depends_on_batch(dense, kernel_of("linear.dense"), Case("few", args)) == ""


def test_columns_that_stand_apart_are_multiplied_too() -> None:
    draw = Draw(Domain())
    x = draw.floats(48, 3).T
    agrees("linear.dense", Case("transposed", (x, draw.floats(5, 48, scale=0.1))))


@pytest.mark.parametrize("rows", [17, tiles.FEW_HEAD_ROWS, tiles.FEW_HEAD_ROWS + 1])
def test_products_of_heads_agree_around_the_number_of_rows_that_torch_takes(rows: int) -> None:
    draw = Draw(Domain(seed=rows))
    args = (draw.beside(rows, 3, 48, axis=1), draw.floats(3, 20, 48, scale=48**-0.5))
    agrees("linear.heads", Case("heads", args))


@pytest.mark.parametrize("name", PACKINGS)
def test_planes_hold_what_was_stored_in_few_more_bytes(name: str) -> None:
    from tokenspeed_sdk.portable.linear.planes import expand, lay_out

    weight = weight_of(name, 9, 512)
    planes = lay_out(weight)
    dense = torch.empty(4, 512)
    expand(planes, 5, dense)
    # Scales of groups are rounded to half precision.
    torch.testing.assert_close(dense, packing.decode(weight)[5:].float(), rtol=1e-3, atol=1e-3)
    held = sum(
        part.nbytes
        for part in (planes.q, planes.upper, planes.scales, planes.offsets)
        if part is not None
    )
    assert held <= 1.12 * weight.num_bytes


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q8_0"])
def test_inputs_that_end_in_the_middle_of_a_chunk_are_multiplied(name: str) -> None:
    weight = weight_of(name, 5, 96)
    calls = tuple((draw_small(rows, weight),) for rows in (2, 5))
    agrees("linear.packed", Case("96 inputs", (weight, None), calls=calls))


@pytest.mark.parametrize("name", ["q4_1", "q6_k"])
def test_encoded_products_agree_where_the_way_changes(name: str) -> None:
    weight = weight_of(name, 7, 1280)
    few = tiles.FEW_PACKED_ROWS
    rows = (1, 16, 17, few, few + 1)
    calls = tuple((draw_small(count, weight),) for count in rows)
    agrees("linear.packed", Case("rows", (weight, None), calls=calls))


def test_a_large_weight_is_expanded_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenspeed_sdk.portable.linear import packed

    monkeypatch.setattr(packed, "EXPANDED_NUMBERS", 5 * 256)
    weight = weight_of("q4_k", 13, 256)
    bias = Draw(Domain()).floats(13, scale=0.1)
    rows = tiles.FEW_PACKED_ROWS + 1
    case = Case("pieces", (weight, bias), calls=((draw_small(rows, weight),),))
    agrees("linear.packed", case)


def test_a_row_is_looked_up_behind_two_gibibytes_of_others() -> None:
    hidden, row_bytes = 4096, 128 * 34
    words = (1 << 31) // row_bytes + 2
    data = torch.empty(words, row_bytes, dtype=torch.uint8)  # only what is touched takes memory
    last = weight_of("q8_0", 1, hidden)
    data[-1] = last.packed["data"][0]
    table = LinearWeight((words, hidden), None, "q8_0", {"data": data})
    look_up = kernel_of("embedding.packed")(table, torch.float32)
    found = look_up(torch.tensor([words - 1, words]))
    torch.testing.assert_close(found[:1], packing.decode(last).float())
    assert not found[1].any()


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q8_0"])
def test_ties_and_halves_are_encoded_as_they_are_defined(name: str) -> None:
    block = torch.tensor([0.5, -2.0, 2.0, 1.0, -0.5, 0.25, 1.5, -1.5] * 4)
    x = torch.stack([block, -block, block * 127, block / 3])
    assert kernel_of("quantise.encode")(x, name).equal(
        OPERATORS["quantise.encode"].signature(x, name)
    )


@pytest.mark.parametrize("rows", [1, 16, 32, 64])
def test_tiles_fit_the_shared_memory_of_every_gpu(rows: int) -> None:
    for shared_bytes in (64 << 10, tiles.ROOMY_BYTES):
        for outputs in (256, 4096, 6144, 24576):
            tile = tiles.skinny_tiles(rows, outputs, shared_bytes=shared_bytes, is_exact=False)
            stage = (tile.block_m + tile.block_o) * tile.block_k * 2
            assert stage * (tile.num_stages - 1) <= shared_bytes
    tile = tiles.packed_tiles(rows)
    stage = (2 * tile.block_m + tile.block_o) * tile.block_k
    assert stage * (tile.num_stages - 1) <= 64 << 10
