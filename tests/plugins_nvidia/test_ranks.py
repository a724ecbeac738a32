"""Engines over two GPUs of one host answer as one rank on the CPU does.

Run by `make gpu-check` on a machine that has two, or alone: `make gpu-check ARGS="--only ranks"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tests.support.placed_engines import check_equal, even_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.needs_nvidia,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed"),
    pytest.mark.timeout(180),
]


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("llama", {"tp": 2}),
        ("llama", {"pp": 2}),
        ("llama", {"cp": 2}),
        ("llama", {"dp": 2}),
        ("qwen3_moe", {"dp": 2, "ep": 2}),
        ("qwen3_moe", {"tp": 2}),
        ("qwen3_moe", {"tp": 2, "ep": 2}),
        ("deepseek_v3", {"tp": 2}),
        ("deepseek_v3", {"ep": 2}),
        ("gpt_oss_even", {"tp": 2}),
        ("qwen3_next_even", {"tp": 2}),
        ("deepseek_v3", {"dp": 2, "ep": 2}),
    ],
)
def test_two_gpus_give_the_tokens_of_one_rank(
    name: str, degrees: dict[str, int], tmp_path: Path
) -> None:
    check_equal(even_checkpoint(name, tmp_path), plugins="nvidia,reference", **degrees)
