"""Vocabularies that no number of ranks divides: the logits of one rank, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.placed_runs import check_logits, placed_logits, plain_run
from tests.support.tiny_checkpoints import make_prompts
from tests.support.traced_models import even, model_class, random_weights

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.layers.cut import cut
from tokenspeed.layers.weights import WeightSlot
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.shards import RankShards
from tokenspeed.placement.vocabulary import padded_config, padded_size

VOCAB = 331
SPREAD = {"V": ParallelGroup.VOCAB_TP}


@pytest.mark.parametrize("degrees", [Degrees(tp=2), Degrees(tp=4), Degrees(tp=2, dp=2)], ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_an_odd_vocabulary_gives_the_logits_of_one_rank(name: str, degrees: Degrees) -> None:
    config: dict[str, Any] = {**even(name), "vocab_size": VOCAB}
    config["tie_word_embeddings"] = name == "qwen2"
    served = model_class(config)
    plain = plain_run(
        served, config, random_weights, make_prompts([5, 21]), num_tokens=4, chunk_tokens=8
    )
    ranks = placed_logits(served, config, random_weights, plain.fed, build_mesh(degrees))
    assert ranks[0][0][0].shape[-1] == VOCAB
    check_logits(plain, ranks, degrees)


@pytest.mark.parametrize(("rows", "parts"), [(331, 2), (331, 4), (5, 4), (8, 4), (1, 4)])
def test_parts_put_together_are_the_tensor_and_zeros(rows: int, parts: int) -> None:
    table = torch.randn(rows, 3)
    packed = LinearWeight((rows, 3), None, "p", {"data": torch.ones(rows, 2, dtype=torch.uint8)})
    padded = padded_size(rows, parts)
    slot = WeightSlot((rows, 3), lambda _: None, "V D", SPREAD, padded={"V": padded})
    mesh = build_mesh(Degrees(tp=parts))
    found = []
    for weight in (LinearWeight((rows, 3), table), packed):
        cuts = [cut("x", weight, slot, RankShards(mesh, rank, range(1))) for rank in range(parts)]
        assert {own.shape for own in cuts} == {(padded // parts, 3)}
        found.append(cuts)
    whole = torch.cat([own.plain for own in found[0] if own.plain is not None])
    assert whole[:rows].equal(table)
    assert whole.shape == (padded, 3)
    assert not whole[rows:].any()
    data = torch.cat([own.packed["data"] for own in found[1]])
    assert (data.shape, int(data.sum())) == ((padded, 2), 2 * rows)


def test_a_vocabulary_that_divides_is_left_alone() -> None:
    config = {"vocab_size": 336}
    assert padded_config(config, build_mesh(Degrees(tp=4))) is config
    assert padded_config({"vocab_size": VOCAB}, build_mesh(Degrees(tp=4))) == {"vocab_size": 332}
    assert padded_config({"vocab_size": VOCAB}, build_mesh(Degrees(ep=4)))["vocab_size"] == VOCAB
