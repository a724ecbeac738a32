"""Decode steps replayed as graphs answer as steps that are launched, token for token.

On the simulated device, whose graphs are recorded calls over the very tensors: what a graph does
not read anew is as old as its capture. Greedy and drawn rows of every kind of cache.
"""

from __future__ import annotations

import shutil
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.sim.tokenspeed_sim.attention import Attention
from tests.support.engine_parts import Job, Parts, Run, SimulatedParts, build_parts
from tests.support.tiny_checkpoints import make_checkpoint, make_prompts

from tokenspeed.executor import shared_prefixes
from tokenspeed.executor.graphs import DecodeGraphs
from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tokenspeed.contracts.attention import AttentionBatch

SIZES = (1, 2, 4, 8)
MODELS = ("llama", "qwen3_moe", "deepseek_v2_lite", "gpt_oss", "qwen3_next")
PROMPTS = make_prompts([1, 7, 33, 60, 21, 40], shared=20)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute tiny tensors without waiting for helpers."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def params(index: int, **fields: Any) -> SamplingParams:
    """Return those of one of some jobs: greedy, drawn, drawn with all filters, in turn."""
    kinds: tuple[dict[str, Any], ...] = (
        {"temperature": 0.0},
        {"temperature": 1.3, "seed": 7 + index},
        {"temperature": 0.9, "seed": -index, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
    )
    return SamplingParams(**{"max_tokens": 12 + 3 * index, **kinds[index % 3], **fields})


JOBS = [Job(prompt, params(index), start_step=2 * index) for index, prompt in enumerate(PROMPTS)]


def graphs_of(parts: Parts) -> DecodeGraphs:
    graphs = parts.executor._graphs
    assert graphs is not None
    return graphs


@cache
def plain_run(folder: Path, name: str, depth: int) -> Run:
    path = make_checkpoint(name, folder)
    return build_parts(path, depth=depth, simulated=SimulatedParts()).run(JOBS)


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        *((name, 1) for name in MODELS),
        ("llama", 0),
        *(pytest.param(name, 0, marks=pytest.mark.slow) for name in MODELS[1:]),
    ],
)
def test_tokens_are_those_of_launched_steps(checkpoint_folder: Path, name: str, depth: int) -> None:
    wanted = plain_run(checkpoint_folder, name, depth)
    parts = build_parts(
        checkpoint_folder / name, depth=depth, poison=True, simulated=SimulatedParts(SIZES)
    )
    assert graphs_of(parts).counts.failed == {}
    assert parts.run(JOBS).tokens == wanted.tokens
    assert graphs_of(parts).counts.replayed > 15


def test_a_size_falls_to_the_next_and_beyond_the_largest_steps_are_launched(
    checkpoint_folder: Path,
) -> None:
    wanted = plain_run(checkpoint_folder, "llama", 0)
    parts = build_parts(checkpoint_folder / "llama", simulated=SimulatedParts((3,)))
    graphs = graphs_of(parts)
    assert parts.run(JOBS).tokens == wanted.tokens
    assert [graphs._size_of[rows] for rows in range(4)] == [0, 3, 3, 3]
    assert graphs.counts.replayed > 0


@pytest.mark.parametrize("depth", [0, 1])
def test_rows_that_ask_for_more_are_sampled_from_a_graph_s_logits(
    checkpoint_folder: Path, depth: int
) -> None:
    asked: tuple[dict[str, Any], ...] = (
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
        {"logit_bias": {5: 4.0, 9: -100.0}},
        {"logprobs": 2},
        {"min_tokens": 6},
        {},
    )
    jobs = [
        Job(prompt, params(index, **fields), stop_token_ids=(3, 60))
        for index, (prompt, fields) in enumerate(zip(PROMPTS, asked, strict=False))
    ]
    path = make_checkpoint("llama", checkpoint_folder)
    wanted = build_parts(path, depth=depth, simulated=SimulatedParts()).run(jobs)
    parts = build_parts(path, depth=depth, simulated=SimulatedParts(SIZES))
    run = parts.run(jobs)
    assert run.tokens == wanted.tokens
    for entries, wanted_entries in zip(run.logprobs, wanted.logprobs, strict=True):
        assert [entry.token_id for entry in entries] == [item.token_id for item in wanted_entries]
        scores = [entry.logprob for entry in wanted_entries]
        assert [entry.logprob for entry in entries] == pytest.approx(scores, abs=1e-4)
    assert len(run.logprobs[2]) == len(run.tokens[2])
    assert graphs_of(parts).counts.replayed > 5


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_retracted_requests_go_on_under_graphs(checkpoint_folder: Path, name: str) -> None:
    path = make_checkpoint(name, checkpoint_folder)
    jobs = [Job(prompt, params(index, max_tokens=40)) for index, prompt in enumerate(PROMPTS)]
    wanted = build_parts(path, simulated=SimulatedParts()).run(jobs)
    parts = build_parts(
        path, num_blocks=24 if name == "gpt_oss" else 16, depth=1, poison=True,
        simulated=SimulatedParts(SIZES),
    )  # fmt: skip
    assert parts.run(jobs).tokens == wanted.tokens
    assert parts.scheduler.stats()["retractions"] > 0
    again = parts.run(jobs)
    assert again.tokens == wanted.tokens
    assert max(again.cached_tokens) > 0


def test_pages_are_patched_on_the_device(checkpoint_folder: Path) -> None:
    path = make_checkpoint("llama", checkpoint_folder)
    jobs = [Job(prompt, params(index, max_tokens=40)) for index, prompt in enumerate(PROMPTS)]
    wanted = build_parts(path, block_tokens=32, simulated=SimulatedParts()).run(jobs)
    parts = build_parts(
        path, block_tokens=32, poison=True, simulated=SimulatedParts(SIZES, page_tokens=8)
    )
    assert parts.run(jobs).tokens == wanted.tokens
    assert graphs_of(parts)._batcher.tabled[0].page_tokens == 8


def test_a_row_that_turns_nan_fails_alone(checkpoint_folder: Path, tmp_path: Path) -> None:
    wanted = plain_run(checkpoint_folder, "llama", 0)
    spoiled = wanted.tokens[0][4]  # greedy; decoding it needs its embedding
    keeps = [index for index, tokens in enumerate(wanted.tokens) if spoiled not in tokens]
    assert len(keeps) >= 2
    path = shutil.copytree(checkpoint_folder / "llama", tmp_path / "llama")
    weights = load_file(path / "model.safetensors")
    weights["model.embed_tokens.weight"][spoiled] = torch.nan
    save_file(weights, path / "model.safetensors")
    parts = build_parts(path, simulated=SimulatedParts(SIZES))
    run = parts.run([Job(JOBS[index].prompt, JOBS[index].params) for index in (0, *keeps)])
    assert run.tokens[0] == wanted.tokens[0][:5]
    assert run.reasons[0] == "error"
    assert run.tokens[1:] == [wanted.tokens[index] for index in keeps]
    assert graphs_of(parts).counts.replayed > 5


def test_a_sampler_that_reads_the_device_is_called_outside(checkpoint_folder: Path) -> None:
    path = make_checkpoint("llama", checkpoint_folder)
    parts = build_parts(path, simulated=SimulatedParts(SIZES, samples=False))
    assert parts.run(JOBS).tokens == plain_run(checkpoint_folder, "llama", 0).tokens


def test_a_size_that_cannot_be_captured_is_launched_and_said_once(
    checkpoint_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_checkpoint("llama", checkpoint_folder)
    broken = SimulatedParts(SIZES, samples=False, fails_at=(2, 8))
    with caplog.at_level("WARNING", logger="tokenspeed"):
        parts = build_parts(path, simulated=broken)
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "2, 8 rows" in warning
    assert "planned failure" in warning
    assert graphs_of(parts).counts.captured == (1, 4)
    assert parts.run(JOBS).tokens == plain_run(checkpoint_folder, "llama", 0).tokens


def test_graphs_keep_within_their_memory(checkpoint_folder: Path) -> None:
    path = make_checkpoint("llama", checkpoint_folder)
    all_bytes = graphs_of(build_parts(path, simulated=SimulatedParts(SIZES))).counts.num_bytes
    parts = build_parts(path, simulated=SimulatedParts(SIZES, max_bytes=all_bytes // 2))
    counts = graphs_of(parts).counts
    assert 0 < counts.num_bytes <= all_bytes // 2
    assert counts.captured == (1, 2, 4)
    assert "raise graph_memory_mib" in counts.failed[8]


def test_a_backend_is_given_each_step_before_its_replay(checkpoint_folder: Path) -> None:
    path = make_checkpoint("gpt_oss", checkpoint_folder)
    seen: list[tuple[AttentionBatch, int]] = []

    class Refreshed(Attention):
        def refresh(self, metadata: Any, batch: AttentionBatch) -> None:
            seen.append((batch, len(metadata.rows.slots_R)))

    parts = build_parts(path, simulated=SimulatedParts(SIZES, attention=Refreshed))
    parts.run(JOBS)
    assert len(seen) == 2 * graphs_of(parts).counts.replayed, "two cache groups"
    for batch, num_rows in seen:
        assert batch.num_decode_rows == len(batch.context_tokens) == num_rows
        padded = batch.context_tokens == 0
        assert not batch.block_tables[padded].any()


def test_rows_with_equal_beginnings_are_told_to_the_backend(
    checkpoint_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_prefixes, "MIN_SHARED_TOKENS", 32)
    prompts = make_prompts([40, 41, 50, 43], shared=37)
    jobs = [Job(prompt, params(0), start_step=index) for index, prompt in enumerate(prompts)]
    path = make_checkpoint("llama", checkpoint_folder)
    parts = build_parts(path, simulated=SimulatedParts(SIZES))
    alone = build_parts(path, simulated=SimulatedParts(SIZES, shares=False))
    sizes = graphs_of(alone)._sizes.values()
    assert {size.metadata[0].rows.shared for size in sizes} == {None}  # type: ignore[attr-defined]
    found = []
    real = DecodeGraphs.forward

    def forward(graphs: DecodeGraphs, plan: Any) -> torch.Tensor:
        logits = real(graphs, plan)
        size = graphs._sizes[graphs._size_of[plan.num_rows]]
        found.append(size.metadata[0].rows.shared.tiles.tolist())  # type: ignore[attr-defined]
        return logits

    monkeypatch.setattr(DecodeGraphs, "forward", forward)
    parts.run(jobs)
    assert [0, 4, 32] in [tiles[0] for tiles in found if tiles]


@pytest.mark.parametrize("name", ["llama", "deepseek_v2_lite", "gpt_oss"])
def test_what_memory_held_before_reaches_no_answer(checkpoint_folder: Path, name: str) -> None:
    wanted = plain_run(checkpoint_folder, name, 1)
    path = make_checkpoint(name, checkpoint_folder)
    parts = build_parts(path, depth=1, simulated=SimulatedParts(SIZES))
    arena = parts.executor._batcher._arena
    for group in range(len(arena.layout.groups)):  # the sentinel of padded rows, too
        packing = arena.layout.groups[group].packing
        arena.poison(group, range(arena.layout.num_physical_blocks * packing))
    run = parts.run(JOBS)
    assert run.tokens == wanted.tokens
    assert set(run.reasons) == {"length"}
    assert graphs_of(parts).counts.replayed > 15


class Aborting:
    """A scheduler one of whose requests is aborted before a step."""

    def __init__(self, scheduler: Any, request_id: int, *, before_step: int) -> None:
        self._scheduler = scheduler
        self._request_id = request_id
        self._steps_left = before_step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def plan(self, *, now_us: int) -> Any:
        """Plan, after the abort if it is time."""
        self._steps_left -= 1
        if self._steps_left == 0:
            assert self._scheduler.abort(self._request_id, now_us=now_us)
        return self._scheduler.plan(now_us=now_us)


def test_an_aborted_request_leaves_the_others_as_they_were(checkpoint_folder: Path) -> None:
    wanted = plain_run(checkpoint_folder, "llama", 0)
    parts = build_parts(
        checkpoint_folder / "llama", depth=1, poison=True, simulated=SimulatedParts(SIZES)
    )
    parts.scheduler = Aborting(parts.scheduler, 3, before_step=14)  # type: ignore[assignment]
    tokens = parts.run(JOBS).tokens
    assert 0 < len(tokens[2]) < len(wanted.tokens[2])
    assert tokens[2] == wanted.tokens[2][: len(tokens[2])]
    assert tokens[:2] + tokens[3:] == wanted.tokens[:2] + wanted.tokens[3:]
