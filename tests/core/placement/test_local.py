"""What one rank caches and which experts it has: the declared groups, cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.traced_models import PUBLISHED, model_class

from tokenspeed.contracts.model import CacheGroup, expert_groups_of
from tokenspeed.errors import ConfigError
from tokenspeed.kv import Arena, solve_layout
from tokenspeed.placement.local import local_cache_groups, local_expert_group
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.shards import RankShards


def cached(name: str, layers: range, rank: int = 0, **degrees: int) -> tuple[CacheGroup, ...]:
    shards = RankShards(build_mesh(Degrees(**degrees)), rank, layers)
    return local_cache_groups(model_class(PUBLISHED[name]).cache_groups(PUBLISHED[name]), shards)


def shapes(groups: tuple[CacheGroup, ...]) -> dict[str, Any]:
    return {f"{group.name}.{field.name}": field.shape for group in groups for field in group.fields}


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_kv_heads_are_cut_as_far_as_they_go(tp: int, heads: int) -> None:
    for rank in range(tp):
        found = shapes(cached("llama-3.3-70b", range(80), rank, tp=tp))
        assert found == {"full.k": (heads, 128), "full.v": (heads, 128)}


def test_a_latent_is_whole_on_every_rank() -> None:
    groups = cached("deepseek-v3", range(61), tp=8)
    assert shapes(groups) == {"full.latent": (1, 576)}


def test_states_are_cut_by_key_heads() -> None:
    groups = cached("qwen3-next-80b", range(48), tp=8)
    assert shapes(groups) == {
        "full.k": (1, 256),
        "full.v": (1, 256),
        "state.conv": (1024, 3),
        "state.recurrent": (4, 128, 128),
    }


def test_a_stage_caches_its_own_layers() -> None:
    groups = cached("gpt-oss-120b", range(18, 36), pp=2, tp=2)
    assert [group.layers for group in groups] == [(*range(19, 36, 2),), (*range(18, 36, 2),)]
    assert [group.name for group in cached("gpt-oss-120b", range(1), pp=2)] == ["window"]


def test_an_arena_of_a_stage_has_views_of_its_layers() -> None:
    groups = cached("gpt-oss-120b", range(20, 24), pp=2)
    layout = solve_layout(
        groups, block_tokens=16, dtype="float32", arena_bytes=1 << 24, first_layer=20
    )
    arena = Arena(layout, torch.zeros(layout.total_bytes, dtype=torch.uint8))
    assert [*arena.layer_views()] == [21, 23, 20, 22]
    with pytest.raises(ConfigError, match="every layer from 0 once"):
        solve_layout(groups, block_tokens=16, dtype="float32", arena_bytes=1 << 24)


def test_data_parallel_ranks_have_all_heads_of_their_own_requests() -> None:
    assert shapes(cached("llama-3.3-70b", range(80), dp=4, tp=2))["full.k"] == (4, 128)


def test_experts_and_their_features_are_cut() -> None:
    config = PUBLISHED["deepseek-v3"]
    (group,) = expert_groups_of(model_class(config), config)
    mesh = build_mesh(Degrees(tp=8, ep=4))
    found = local_expert_group(group, RankShards(mesh, 5, range(30, 61)))
    assert (found.num_experts, found.features, found.hidden_size) == (64, 1024, 7168)
    assert found.layers == (*range(30, 61),)
    assert found.routing == group.routing
