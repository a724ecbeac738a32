"""Steps with prompts replayed in pieces answer as steps that are launched, token for token.

On the simulated device, whose graphs are recorded calls over the very tensors. Chunks of prompts
beside decodes, prefixes from the cache, greedy and drawn rows, every kind of cache.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch
from tests.core.executor.test_graphs import JOBS, MODELS, PROMPTS, params
from tests.support.engine_parts import Job, Parts, Run, SimulatedParts, build_parts
from tests.support.tiny_checkpoints import make_checkpoint

from tokenspeed.executor.piecewise import PiecewiseForward, piece_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES = (16, 40, 64)
LEFT = ("deepseek_v2_lite", "gpt_oss")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute tiny tensors without waiting for helpers."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def pieces_of(parts: Parts) -> PiecewiseForward:
    forward = parts.executor._forward
    assert isinstance(forward, PiecewiseForward)
    return forward


@cache
def plain_runs(folder: Path, name: str, depth: int) -> tuple[Run, Run]:
    """Return the same jobs twice: the second finds its prompts in the cache."""
    parts = build_parts(make_checkpoint(name, folder), depth=depth, simulated=SimulatedParts())
    return parts.run(JOBS), parts.run(JOBS)


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        ("llama", 1),
        ("qwen3_moe", 0),
        ("qwen3_next", 0),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in MODELS[1:]),
        *(pytest.param(name, 0, marks=pytest.mark.slow) for name in ("llama", *LEFT)),
    ],
)
def test_tokens_are_those_of_launched_steps(checkpoint_folder: Path, name: str, depth: int) -> None:
    wanted = plain_runs(checkpoint_folder, name, depth)
    parts = build_parts(
        checkpoint_folder / name,
        depth=depth,
        poison=True,
        simulated=SimulatedParts(piece_sizes=SIZES),
    )
    counts, num_replayed = pieces_of(parts).counts, 0
    for run in wanted:
        again = parts.run(JOBS)
        assert again.tokens == run.tokens
        assert again.cached_tokens == run.cached_tokens
        assert counts.replayed > num_replayed
        num_replayed = counts.replayed
    assert max(wanted[1].cached_tokens) > 0
    assert counts.failed == {}
    assert 16 in counts.captured
    assert len(counts.captured) > 1
    assert pieces_of(parts).num_pieces > 2


def test_decode_graphs_and_pieces_share_the_work(checkpoint_folder: Path) -> None:
    wanted = plain_runs(checkpoint_folder, "llama", 1)[0]
    both = SimulatedParts((1, 2, 4, 8), piece_sizes=SIZES)
    parts = build_parts(checkpoint_folder / "llama", depth=1, poison=True, simulated=both)
    assert parts.run(JOBS).tokens == wanted.tokens
    graphs = parts.executor._graphs
    assert graphs is not None
    assert graphs.counts.replayed > 0
    assert pieces_of(parts).counts.replayed > 0


def test_a_piece_that_cannot_be_captured_costs_its_size_alone(
    checkpoint_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = plain_runs(checkpoint_folder, "llama", 0)
    broken = SimulatedParts(piece_sizes=SIZES, piece_fails_at=(1,))
    parts = build_parts(checkpoint_folder / "llama", simulated=broken)
    with caplog.at_level("WARNING", logger="tokenspeed"):
        assert [parts.run(JOBS).tokens for _ in range(2)] == [run.tokens for run in wanted]
    counts = pieces_of(parts).counts
    ((size, cause),) = counts.failed.items()
    assert cause == "planned failure"
    assert size not in counts.captured
    assert counts.captured
    (warning,) = [record.message for record in caplog.records if "padded to" in record.message]
    assert f"{size} tokens" in warning


def test_pieces_keep_within_their_memory(checkpoint_folder: Path) -> None:
    wanted = plain_runs(checkpoint_folder, "llama", 0)[0]
    little = SimulatedParts(piece_sizes=SIZES, max_piece_bytes=1000)
    parts = build_parts(checkpoint_folder / "llama", simulated=little)
    assert parts.run(JOBS).tokens == wanted.tokens
    counts = pieces_of(parts).counts
    assert counts.captured == ()
    assert counts.replayed == 0
    assert all("raise graph_memory_mib" in cause for cause in counts.failed.values())


def test_slots_do_not_grow_with_layers_or_sizes(checkpoint_folder: Path) -> None:
    make_checkpoint("llama", checkpoint_folder)
    held = []
    for sizes in ((64,), SIZES):
        parts = build_parts(
            checkpoint_folder / "llama", simulated=SimulatedParts(piece_sizes=sizes)
        )
        parts.run([Job(prompt, params(index)) for index, prompt in enumerate(PROMPTS)])
        parts.run(JOBS)
        held.append(pieces_of(parts)._slots.num_bytes)
    assert held[0] == held[1] > 0


def test_a_step_beyond_the_largest_size_is_launched(checkpoint_folder: Path) -> None:
    wanted = plain_runs(checkpoint_folder, "llama", 0)[0]
    parts = build_parts(checkpoint_folder / "llama", simulated=SimulatedParts(piece_sizes=(4,)))
    assert parts.run(JOBS).tokens == wanted.tokens
    assert set(pieces_of(parts)._uses) <= {4}


def test_what_lies_behind_a_step_s_tokens_is_written_anew(checkpoint_folder: Path) -> None:
    make_checkpoint("llama", checkpoint_folder)
    parts = build_parts(checkpoint_folder / "llama", simulated=SimulatedParts(piece_sizes=SIZES))
    forward = pieces_of(parts)
    parts.run(JOBS)
    slots = [
        slot
        for pieces in forward._captured.values()
        for piece in pieces.values()
        for _, slot in piece.fills
    ]
    assert slots
    with torch.inference_mode():
        for slot in slots:
            slot.fill_(torch.nan if slot.is_floating_point() else 1 << 40)
    tokens = parts.run(JOBS).tokens
    assert tokens == plain_runs(checkpoint_folder, "llama", 0)[1].tokens


def test_sizes_end_with_what_was_asked_for() -> None:
    assert piece_sizes(100) == (16, 32, 48, 64, 96, 100)
    assert piece_sizes(16) == (16,)
    assert piece_sizes(2048)[-2:] == (1024, 2048)
