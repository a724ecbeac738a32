"""Real models cut over real processes answer as on one rank: weights, caches and programs meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.placed_engines import check_equal, even_checkpoint, rank_llm
from tests.support.served_checkpoints import serve_checkpoint

from tokenspeed.errors import PlacementError

if TYPE_CHECKING:
    from pathlib import Path


def test_heads_cut_over_two_ranks_give_the_tokens_of_one(tmp_path: Path) -> None:
    check_equal(even_checkpoint("llama", tmp_path), tp=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("llama", {"pp": 2}),
        ("llama", {"cp": 2}),
        ("deepseek_v3", {"tp": 2, "cp": 2}),
        ("qwen3_next_even", {"cp": 2}),
        ("llama", {"dense_tp": 2}),
        ("qwen3", {"tp": 4}),
        ("qwen3_moe", {"tp": 2, "ep": 2}),
        ("mixtral", {"ep": 2}),
        ("deepseek_v3", {"tp": 2}),
        ("deepseek_v3", {"ep": 2}),
        ("deepseek_v3", {"tp": 2, "pp": 2}),
        ("gpt_oss_even", {"tp": 2}),
        ("gpt_oss_even", {"pp": 2}),
        ("qwen3_next_even", {"tp": 2}),
    ],
)
def test_every_kind_of_cut_gives_the_tokens_of_one_rank(
    name: str, degrees: dict[str, int], tmp_path: Path
) -> None:
    check_equal(even_checkpoint(name, tmp_path), **degrees)


def test_a_model_that_cannot_be_cut_so_names_the_numbers(tmp_path: Path) -> None:
    path = serve_checkpoint("llama", tmp_path)
    with pytest.raises(PlacementError, match=r"found 331 units of V over 2 ranks"):
        rank_llm(path, tp=2)
