"""Pipeline stages: equal shares of layers, what is repeated, what is passed on."""

from __future__ import annotations

import pytest
from tests.support.graphs import decoder

from tokenspeed.errors import ConfigError
from tokenspeed.placement.stages import cut_into_stages, layers_of_stages


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [(8, 2, [4, 4]), (7, 2, [4, 3]), (10, 4, [2, 3, 3, 2]), (61, 4, [15, 16, 15, 15]), (3, 1, [3])],
)
def test_stages_have_equal_shares_and_the_last_one_none_too_many(
    layers: int, stages: int, counts: list[int]
) -> None:
    spans = layers_of_stages(layers, stages)
    assert [len(span) for span in spans] == counts
    assert [layer for span in spans for layer in span] == [*range(layers)]


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"4 pipeline stages for 3 layers: .*set pp to 3 or less"):
        layers_of_stages(3, 4)


def test_angles_are_computed_in_every_stage_and_the_embedding_in_the_first() -> None:
    graph = decoder(4)
    first, last = cut_into_stages(graph, 2)
    assert [node.target for node in first.nodes if node.layer < 0] == ["rotary", "embedding"]
    assert [node.target for node in last.nodes if node.layer < 0] == ["rotary", "norm"]
    assert {node.layer for node in first.nodes} == {-1, 0, 1}
    assert first.received == ()
    assert first.results == last.received
    assert len(last.received) == 2, "what is to be added, and the residual stream"
    assert last.results == graph.outputs
    own = [node.outputs for stage in (first, last) for node in stage.nodes]
    assert len(own) == len(graph.nodes) + 1


def test_a_graph_without_layers_is_the_last_stages() -> None:
    graph = decoder(0, has_norm=False)
    first, last = cut_into_stages(graph, 2)
    assert first.nodes == ()
    assert last.nodes == graph.nodes
    assert last.received == ()
