"""Blocks that left the devices of several ranks come back to all of them, with equal answers.

Each rank has its heads' part of every block, so a part that is missing or wrong on any of them
changes the logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.placed_engines import even_checkpoint, rank_llm
from tests.support.served_checkpoints import PlainModel, serve_checkpoint
from tests.support.tiny_checkpoints import make_prompts

from tokenspeed import SamplingParams
from tokenspeed.engine.ranks.messages import RankMoves
from tokenspeed.engine.ranks.moves import LOOK_GAP_S, RankTransfers
from tokenspeed.engine.ranks.progress import RankProgress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tokenspeed import LLM

PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
PROMPTS = make_prompts([100, 90, 110, 95])
CACHED = 80
"""Tokens of every prompt that are in whole blocks, at the least."""


def small_llm(path: Path, **settings: Any) -> LLM:
    """An engine whose device holds about two of the prompts, and its host all of them."""
    given = {"kv_gib": 0.0001, "max_context_tokens": 128, "host_kv_gib": 0.01, **settings}
    return rank_llm(path, **given)


def ask(engine: LLM, plain: PlainModel) -> list[int]:
    """Check the answers, one after another; return how much of each prompt was cached."""
    cached = []
    for prompt in PROMPTS:
        (output,) = engine.generate([prompt], PARAMS)
        assert plain.answer(prompt, 4).agrees(output.token_ids)
        cached.append(output.cached_tokens)
    return cached


def stats_of(engine: LLM) -> Mapping[str, int]:
    return engine.engine.scheduler.stats()


def test_a_second_turn_is_served_from_the_host_memory_of_both_ranks(tmp_path: Path) -> None:
    path = serve_checkpoint("llama", tmp_path)
    plain = PlainModel(path, max_context_tokens=128)
    with small_llm(path, tp=2) as engine:
        assert max(ask(engine, plain)) == 0
        assert stats_of(engine)["loads"] == 0
        assert min(ask(engine, plain)) >= CACHED
        stats = stats_of(engine)
        engine.engine.scheduler.check_invariants()
    assert stats["loads"] >= len(PROMPTS) - 2
    assert stats["loads_failed"] == stats["host_writes_failed"] == 0


@pytest.mark.slow
def test_records_are_kept_by_each_rank_and_one_that_is_gone_is_computed_again(
    tmp_path: Path,
) -> None:
    path = serve_checkpoint("llama", tmp_path)
    plain = PlainModel(path, max_context_tokens=128)
    disk = {"kv_store": "disk", "kv_store_folder": str(tmp_path / "kv"), "tp": 2}
    with small_llm(path, **disk) as engine:
        ask(engine, plain)
    records = [sorted((tmp_path / "kv" / name).glob("*/??/*")) for name in ("rank0", "rank1")]
    assert [file.name for file in records[0]] == [file.name for file in records[1]]
    assert records[0][0].read_bytes() != records[1][0].read_bytes()
    with small_llm(path, **disk) as engine:
        assert min(ask(engine, plain)) >= CACHED, "found by the next start"
    damaged = bytearray(records[1][0].read_bytes())
    damaged[-5] ^= 1
    records[1][0].write_bytes(damaged)
    records[1][1].unlink()
    with small_llm(path, **disk) as engine:
        assert stats_of(engine)["store_keys"] == len(records[0]) - 1, "what every rank has"
        cached = ask(engine, plain)
        assert stats_of(engine)["store_gets_failed"] == 1
        engine.engine.scheduler.check_invariants()
    assert 0 < sum(cached) < CACHED * len(cached)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("llama", {"pp": 2}),
        ("llama", {"cp": 2}),
        ("qwen3_moe", {"tp": 2, "ep": 2}),
        ("deepseek_v3", {"tp": 2}),
        ("qwen3_next_even", {"tp": 2}),
    ],
)
def test_every_kind_of_cut_brings_its_blocks_back(
    name: str, degrees: dict[str, int], tmp_path: Path
) -> None:
    path = even_checkpoint(name, tmp_path)
    plain = PlainModel(path, max_context_tokens=128)
    with small_llm(path, kv_write="on_commit", **degrees) as engine:
        for _ in range(3):
            ask(engine, plain)
        stats = stats_of(engine)
    assert stats["loads"] > 0
    assert stats["loads_failed"] == 0


class _Own:
    """The movers of rank 0, by hand."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, int]] = []
        self.lost = b""

    def poll(self) -> np.ndarray[Any, Any]:
        ended, self.ended = self.ended, []
        return np.array(ended, dtype=np.int32).reshape(-1, 2)

    def is_busy(self) -> bool:
        return bool(self.ended)

    def lost_keys(self) -> np.ndarray[Any, Any]:
        lost, self.lost = self.lost, b""
        return np.frombuffer(lost, dtype=np.uint8).reshape(-1, 16)

    def stored_keys(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(b"a" * 16 + b"b" * 16, dtype=np.uint8).reshape(-1, 16)


class _Group:
    """Three ranks; what the others say, by hand."""

    world = 3

    def __init__(self) -> None:
        self.progress = RankProgress()
        self.said: list[RankMoves] = []
        self.looks = 0

    def take_moves(self) -> Iterator[RankMoves]:
        said, self.said = self.said, []
        yield from said

    def stored_keys(self) -> Sequence[bytes]:
        return [b"b" * 16 + b"c" * 16, b"b" * 16]

    def look(self) -> None:
        self.looks += 1


@pytest.fixture
def ranks() -> tuple[_Own, _Group, Any]:
    own, group = _Own(), _Group()
    given: Any = (own, group)
    return own, group, RankTransfers(*given)


def test_a_move_has_ended_when_it_has_on_every_rank_and_failed_if_on_any(
    ranks: tuple[_Own, _Group, Any],
) -> None:
    own, group, transfers = ranks
    group.said = [RankMoves(ended=((1, True), (2, True)))]
    own.ended = [(2, 1), (3, 1)]
    assert transfers.poll().tolist() == []
    assert transfers.is_busy()
    group.said = [RankMoves(ended=((2, False), (1, True))), RankMoves(ended=((3, True),))]
    assert transfers.poll().tolist() == [[2, 0]]
    own.ended = [(1, 1)]
    group.said = [RankMoves(ended=((3, True),))]
    assert sorted(transfers.poll().tolist()) == [[1, 1], [3, 1]]
    assert not transfers.is_busy()


def test_records_count_that_every_rank_has_and_are_lost_with_the_first(
    ranks: tuple[_Own, _Group, Any],
) -> None:
    own, group, transfers = ranks
    assert transfers.stored_keys().tobytes() == b"b" * 16
    own.lost = b"x" * 16
    group.said = [RankMoves(ended=(), lost_keys=b"x" * 16 + b"y" * 16)]
    assert transfers.lost_keys().tobytes() == b"x" * 16 + b"y" * 16
    assert transfers.lost_keys().tobytes() == b""


def test_ranks_are_asked_only_while_something_is_under_way_and_no_plan_asks_them(
    ranks: tuple[_Own, _Group, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, group, transfers = ranks
    now_s = 100.0
    monkeypatch.setattr("tokenspeed.engine.ranks.moves.time.monotonic", lambda: now_s)
    transfers.poll()
    assert group.looks == 0, "nothing is under way"
    own.ended = [(1, 1)]
    group.progress.steps += 1
    transfers.poll()
    assert group.looks == 0, "a plan went out since the last time"
    transfers.poll()
    transfers.poll()
    assert group.looks == 1, "not so soon again"
    now_s += 2 * LOOK_GAP_S
    transfers.poll()
    assert group.looks == 2
