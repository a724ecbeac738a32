"""What a layout says of itself, on the geometries that models publish; and the page made of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tokenspeed.kv import describe

DOCS = Path(__file__).parents[3] / "docs"


def memory_map() -> Any:
    """The generator of the page and the picture."""
    spec = importlib.util.spec_from_file_location("memory_map", DOCS / "generate_memory_map.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["memory_map"] = module
    spec.loader.exec_module(module)
    return module


MAP = memory_map()


@pytest.mark.parametrize("model", MAP.published(), ids=lambda model: model.title)
def test_published_geometries_waste_less_than_three_percent_a_group(model: Any) -> None:
    layout = MAP.solved(model)
    assert max(group.waste for group in layout.groups) < 0.03
    assert layout.total_bytes > 0.99 * MAP.ARENA_BYTES


@pytest.mark.parametrize(
    ("name", "token_bytes"),
    [
        ("kimi_k3", 24 * 576 * 2),
        ("qwen3_next", 12 * 2 * 2 * 256 * 2),
        ("gpt_oss", 18 * 2 * 8 * 64 * 2),
        ("deepseek_v32", 61 * (576 * 2 + 132)),
        ("qwen3_8b", 36 * 2 * 8 * 128 * 2),
    ],
)
def test_tokens_of_a_gib_are_those_of_the_published_sizes(name: str, token_bytes: int) -> None:
    layout = MAP.solved(getattr(MAP, name)())
    assert 0.995 * 2**30 / token_bytes < layout.tokens_per_gib <= 2**30 / token_bytes


def test_a_snapshot_of_the_k3_like_model_is_as_large_as_sixteen_blocks_of_its_history() -> None:
    mla, kda = MAP.solved(MAP.kimi_k3()).groups
    assert (mla.packing, kda.packing) == (16, 1)
    assert kda.payload_bytes == 69 * (12 * 128 * 128 * 4 + 3 * 12 * 128 * 3 * 2) == 56_171_520


def test_on_one_rank_the_k3_like_models_states_are_split_into_three_groups() -> None:
    layout = MAP.solved(MAP.kimi_k3(ranks=1))
    assert [(group.name, len(group.layers)) for group in layout.groups[1:]] == [
        ("kda.0", 23),
        ("kda.1", 23),
        ("kda.2", 23),
    ]
    assert layout.groups[0].packing == 43


def test_the_text_names_bytes_waste_and_tokens_of_every_group() -> None:
    layout = MAP.solved(MAP.kimi_k3())
    lines = describe(layout).splitlines()
    assert lines[0] == (
        f"arena 60.0 GiB, {layout.num_physical_blocks:,} physical blocks x 56,623,104 bytes, "
        "block_major, 38,836 tokens/GiB"
    )
    assert lines[1].endswith("24 layers of latent 576 bfloat16, waste 0.0%")
    assert lines[2].startswith("  kda: 1 x 56,623,104 bytes of one snapshot, 69 layers of state")
    assert lines[2].endswith("waste 0.8%")


def test_the_page_and_the_picture_are_those_of_the_solver() -> None:
    hint = "run: python docs/generate_memory_map.py"
    text = (DOCS / "memory-layout.md").read_text(encoding="utf-8")
    assert MAP.page(text) == text, hint
    assert MAP.picture() == (DOCS / "memory-map.svg").read_text(encoding="utf-8"), hint
