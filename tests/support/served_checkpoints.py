"""Tiny checkpoints as an engine serves them: with a tokenizer, in pools of so many blocks.

And what they must answer: greedily, alone, in one chunk, with nothing kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.engine_parts import Job, build_parts
from tests.support.scripted import CHAT_TEMPLATE, byte_tokenizer
from tests.support.tiny_checkpoints import make_checkpoint

from tokenspeed import SamplingParams
from tokenspeed.executor.transfers import TierTransfers
from tokenspeed_sdk import Faults
from tokenspeed_sdk.testkit.faulty_store import FaultyStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tokenspeed import LLM

BLOCK_TOKENS = 16
NEAR_TIE = 1e-3
"""Of the best two logits, whose deviation is 1.8: cutting and batching moves each by up to 4e-4."""


def serve_checkpoint(
    name: str, folder: Path, *, chat_template: str = CHAT_TEMPLATE, **changes: Any
) -> Path:
    """Write a checkpoint with a tokenizer of bytes; return its folder.

    Args:
        changes: fields of its config.json.
    """
    path = make_checkpoint(name, folder)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
    byte_tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": chat_template}), encoding="utf-8"
    )
    return path


def gib_of(num_blocks: int, physical_bytes: int) -> float:
    """Return the setting that gives a pool so many usable physical blocks."""
    return (num_blocks + 1.5) * physical_bytes / 2**30


@dataclass(frozen=True, slots=True)
class Answer:
    """What a prompt must be answered with.

    Args:
        num_sure: tokens before the first near tie, where rounding may choose another.
    """

    tokens: tuple[int, ...]
    num_sure: int

    def agrees(self, tokens: Sequence[int]) -> bool:
        """Say whether an answer is this one as far as it is sure."""
        same_length = len(tokens) == len(self.tokens)
        return same_length and tuple(tokens[: self.num_sure]) == self.tokens[: self.num_sure]


class PlainModel:
    """A checkpoint with everything off: one request, one chunk, an empty cache."""

    def __init__(self, path: Path, *, max_context_tokens: int = 512) -> None:
        self._parts = build_parts(
            path,
            num_blocks=2 * max_context_tokens // BLOCK_TOKENS,
            max_step_tokens=max_context_tokens,
            max_context_tokens=max_context_tokens,
            prefix_cache=False,
        )
        self.physical_bytes = self._parts.physical_bytes
        self._known: dict[tuple[tuple[int, ...], int], Answer] = {}
        self.num_tokens = 0
        self.num_near_ties = 0

    @property
    def share_of_near_ties(self) -> float:
        """Near ties among all tokens answered."""
        return self.num_near_ties / max(1, self.num_tokens)

    def answer(self, prompt: Sequence[int], num_tokens: int) -> Answer:
        """Answer a prompt; what was answered before is remembered."""
        key = tuple(prompt), num_tokens
        if key not in self._known:
            self._known[key] = self._compute(*key)
        return self._known[key]

    def _compute(self, prompt: tuple[int, ...], num_tokens: int) -> Answer:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, logprobs=2)
        run = self._parts.run([Job(prompt, params)])
        rows = [result.logprobs[0] or () for result in run.results if result.logprobs]
        gaps = [score.top[0][1] - score.top[1][1] for scores in rows for score in scores]
        assert len(gaps) == num_tokens
        self.num_tokens += num_tokens
        self.num_near_ties += sum(gap < NEAR_TIE for gap in gaps)
        num_sure = next((i for i, gap in enumerate(gaps) if gap < NEAR_TIE), num_tokens)
        return Answer(tuple(run.tokens[0]), num_sure)


def spoil(llm: LLM, *, seed: int = 3) -> None:
    """Let transfers and store calls fail, come late or damaged."""
    transfers = llm.engine.transfers
    assert isinstance(transfers, TierTransfers)
    transfers._faults = Faults(seed, fail_share=0.02, max_delay_polls=3)
    if transfers._store is not None:
        faults = Faults(seed + 1, fail_share=0.05, corrupt_share=0.05, max_delay_polls=3)
        transfers._store = FaultyStore(transfers._store, faults)
