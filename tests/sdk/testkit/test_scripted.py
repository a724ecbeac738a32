"""The scripted model: its answers are a function of the prefix, and cache mistakes change them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.plans import Row, make_plan
from tests.support.scripted import IM_END, write_scripted_model

from tokenspeed.contracts.model import ModelContext
from tokenspeed.errors import ConfigError
from tokenspeed.executor import Executor, InlineLink
from tokenspeed.kv import Arena, solve_layout
from tokenspeed.sampling import SamplingParams
from tokenspeed_reference.attention import PagedAttention
from tokenspeed_reference.sampler import PhiloxSampler
from tokenspeed_sdk.testkit.no_weights import NoWeights
from tokenspeed_sdk.testkit.prefix_hash import FULL
from tokenspeed_sdk.testkit.scripted import EntryClass

BLOCK_TOKENS = 16
CPU = torch.device("cpu")


def config_of(folder: Path, **fields: Any) -> dict[str, Any]:
    """config.json of a scripted model."""
    text = (write_scripted_model(folder, **fields) / "config.json").read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(text)
    return config


def make_executor(config: dict[str, Any]) -> Executor:
    """A real executor with a small arena over the scripted model."""
    (group,) = groups = EntryClass.cache_groups(config)
    attention = PagedAttention(
        num_heads=1,
        num_kv_heads=1,
        head_dim=group.fields[0].shape[1],
        block_tokens=BLOCK_TOKENS,
        dtype=torch.float32,
        device=CPU,
    )
    context = ModelContext(
        kernels=None,  # type: ignore[arg-type]
        attention={FULL: attention},
        dtype=torch.float32,
        device=CPU,
        max_context_tokens=256,
    )
    layout = solve_layout(groups, block_tokens=BLOCK_TOKENS, dtype="float32", arena_bytes=1 << 17)
    storage = torch.zeros(layout.total_bytes, dtype=torch.uint8)
    executor = Executor(
        EntryClass(config, context),
        arena=Arena(layout, storage),
        attention={FULL: attention},
        sampler=PhiloxSampler(device=CPU, vocab_size=config["vocab_size"]),
        max_running=2,
        max_context_tokens=256,
        block_tokens=BLOCK_TOKENS,
        vocab_size=config["vocab_size"],
        link=InlineLink(CPU),
    )
    for request_id in (0, 1):
        executor.add_request(
            request_id,
            torch.zeros(1, dtype=torch.int32).numpy(),
            torch.zeros(0, dtype=torch.int32).numpy(),
            SamplingParams(temperature=0.0, seed=0),
            (),
        )
    return executor


def next_token(
    executor: Executor, prompt: list[int], *, chunk: int, blocks: list[int], step_id: int = 0
) -> int:
    """Prefill a prompt in chunks into the given blocks and return the sampled token."""
    token = -1
    for start in range(0, len(prompt), chunk):
        part = prompt[start : start + chunk]
        is_last = start + chunk >= len(prompt)
        row = Row(0, part, context_tokens=start, output_index=0 if is_last else -1)
        updates = [(0, 0, index, block) for index, block in enumerate(blocks)]
        plan = make_plan(
            [row],
            step_id=step_id,
            admitted=[(0, 0)] if start == 0 else [],
            block_updates=updates if start == 0 else [],
        )
        executor.launch(plan)
        token = int(executor.collect().tokens[0])
    return token


def test_the_next_token_depends_on_every_token_and_on_no_chunking(tmp_path: Path) -> None:
    executor = make_executor(config_of(tmp_path, hash_tokens=0))
    prompt = [index * 31 % 256 for index in range(50)]
    whole = next_token(executor, prompt, chunk=50, blocks=[1, 2, 3, 4])
    assert {
        next_token(executor, prompt, chunk=chunk, blocks=[8, 6, 5, 7]) for chunk in (1, 7, 16)
    } == {whole}
    changed = {
        next_token(
            executor,
            [*prompt[:at], prompt[at] + 1, *prompt[at + 1 :]],
            chunk=50,
            blocks=[1, 2, 3, 4],
        )
        for at in range(0, 50, 7)
    }
    assert len(changed - {whole}) >= 6


def test_a_wrong_block_changes_the_answer(tmp_path: Path) -> None:
    executor = make_executor(config_of(tmp_path, hash_tokens=0))
    prompt = [index * 31 % 256 for index in range(50)]
    right = next_token(executor, prompt, chunk=50, blocks=[1, 2, 3, 4])
    executor.launch(
        make_plan(
            [Row(0, prompt[48:], context_tokens=48, output_index=0)],
            admitted=[(0, 0)],
            block_updates=[(0, 0, index, block) for index, block in enumerate([1, 5, 3, 4])],
        )
    )
    assert int(executor.collect().tokens[0]) != right


def test_a_script_is_followed_by_output_index_and_ends_with_eos(tmp_path: Path) -> None:
    executor = make_executor(config_of(tmp_path, script=[5, 6]))
    tokens = []
    for index in range(3):
        executor.launch(
            make_plan(
                [Row(0, [1], context_tokens=index, output_index=index)],
                num_decode_rows=1,
                admitted=[(0, 0)] if index == 0 else [],
                block_updates=[(0, 0, 0, 1)],
            )
        )
        tokens.append(int(executor.collect().tokens[0]))
    assert tokens == [5, 6, IM_END]


def test_nan_fails_only_the_row_that_holds_the_token(tmp_path: Path) -> None:
    executor = make_executor(config_of(tmp_path, nan_on_token=7))
    executor.launch(
        make_plan(
            [Row(0, [7], output_index=0), Row(1, [8], output_index=0, request_id=1)],
            admitted=[(0, 0), (1, 1)],
            block_updates=[(0, 0, 0, 1), (1, 0, 0, 2)],
        )
    )
    result = executor.collect()
    assert result.failed is not None
    assert result.failed.tolist() == [True, False]


def test_an_unknown_mode_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dream"):
        make_executor(config_of(tmp_path, mode="dream"))


def test_the_none_format_takes_only_folders_that_name_it(tmp_path: Path) -> None:
    folder = write_scripted_model(tmp_path / "scripted")
    source = NoWeights().open(folder)
    assert NoWeights().matches(folder)
    assert source.config()["weight_format"] == "none"
    assert list(source.tensors(torch.float32, keep_packed=False)) == []
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert not NoWeights().matches(tmp_path)
    assert not NoWeights().matches(tmp_path / "nowhere")
