"""On a GPU: between its start and its results no decode step waits for the device.

Run by `make gpu-check` on a machine that has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.served_checkpoints import serve_checkpoint
from tests.support.tiny_checkpoints import make_prompts

from tokenspeed import LLM, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.needs_nvidia

PROMPTS = make_prompts([7, 33, 60])


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let a call that synchronises raise while a step of decoding rows is launched.

    Yields:
        rows of the steps that were watched.
    """
    from tokenspeed.executor import Executor

    seen: list[int] = []
    launch = Executor.launch

    def watched_launch(executor: Executor, plan: Any) -> None:
        if plan.num_rows == 0 or plan.num_tokens > plan.num_rows:
            launch(executor, plan)
            return
        seen.append(plan.num_rows)
        torch.cuda.set_sync_debug_mode("error")
        try:
            launch(executor, plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Executor, "launch", watched_launch)
    yield seen
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("graphs", ["auto", "off"])
@pytest.mark.parametrize("name", ["llama", "qwen3_next_even"])
def test_a_decode_step_is_launched_without_waiting(
    tmp_path: Path, watched: list[int], name: str, graphs: str
) -> None:
    path = serve_checkpoint(name, tmp_path)
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    with LLM(
        str(path),
        plugins="sdk,nvidia,reference",
        dtype="bfloat16",
        block_tokens=16,
        kv_gib=0.05,
        depth=1,
        graphs=graphs,
    ) as llm:
        llm.generate(PROMPTS, params)
        watched.clear()
        outputs = llm.generate(PROMPTS, params)
    assert all(output.finish_reason == "length" for output in outputs), outputs
    assert sum(watched) > 3 * 20


def test_what_waits_is_told() -> None:
    x = torch.ones(2, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            x.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
