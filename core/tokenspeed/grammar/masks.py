"""The masks of a step: made in a thread while the model computes.

For rows whose answers have a grammar, a budget of thinking, or both.

Owned by the executor. What a slot holds is a function of its request's tokens: a request that was
retracted is admitted again with its output so far.
Legend: N rows that sample, P sampled positions, K masked ones of them, W words of a mask.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.grammar.answer import GuidedAnswer
from tokenspeed.grammar.thinking import BudgetedThinking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tokenspeed.contracts.grammar import CompiledGrammar
    from tokenspeed.contracts.thinking import ThinkingBudget

NOTHING_FOLLOWS = "its grammar allows no token here, and the answer may not end"


@dataclass(frozen=True, slots=True)
class StepMasks:
    """What a step's logits are masked with.

    Args:
        positions_K: sampled positions that have a mask.
        words_KW: (K, W) int32 host, contiguous.
        ending_K: whether nothing but the end of the answer is allowed there.
    """

    positions_K: NDArray[np.int64]
    words_KW: NDArray[np.int32]
    ending_K: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Slot:
    """One request's answer and its thinking, where they are held to something; its stop tokens."""

    answer: GuidedAnswer | None
    thinking: BudgetedThinking | None
    stops_W: NDArray[np.int32]


@dataclass(slots=True)
class AnswerMasks:
    """Answers of the running requests that are held to something, by slot.

    Args:
        vocab_size: width of the logits.
        end_ids: the model's own end tokens, which matchers allow where a language may end.
        text_free_ids: ids that spell no text.
        token_bytes: what each token spells; (): it is not known.
        engine: PLUGIN/NAME of what compiled their languages, for messages.
    """

    vocab_size: int
    end_ids: tuple[int, ...] = ()
    text_free_ids: frozenset[int] = frozenset()
    token_bytes: Sequence[bytes] = ()
    engine: str = ""
    _slots: dict[int, _Slot] = field(default_factory=dict)
    _thread: ThreadPoolExecutor | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no running request is held to anything: then a step has nothing to ask here."""
        return not self._slots

    def prepare(self, thinking: ThinkingBudget | None) -> None:
        """Have the tokens spelled if a budget's marks need it: what fails then is one request's."""
        if thinking is not None:
            BudgetedThinking(thinking, self.token_bytes)

    def admit(
        self,
        slot: int,
        grammar: CompiledGrammar | None,
        *,
        thinking: ThinkingBudget | None = None,
        after: Sequence[int] = (),
        stop_ids: Sequence[int] = (),
        output_ids: Sequence[int] = (),
    ) -> None:
        """Fill a slot for a request that starts, or goes on after `output_ids`.

        Args:
            grammar, thinking: None, both of them: the slot is emptied.
        """
        self._slots.pop(slot, None)
        if grammar is None and thinking is None:
            return
        answer = None
        if grammar is not None:
            answer = GuidedAnswer(
                grammar,
                after=after,
                stop_ids=stop_ids,
                marks=[token for token in stop_ids if token in self.text_free_ids],
                end_ids=self.end_ids,
                engine=self.engine,
                output_ids=output_ids,
            )
        budget = None
        if thinking is not None:
            budget = BudgetedThinking(thinking, self.token_bytes, output_ids)
        self._slots[slot] = _Slot(answer, budget, _mask_of(stop_ids, self.vocab_size))

    def concern(self, slots_N: Sequence[int]) -> bool:
        """Say whether any of the slots' answers is held to something."""
        return bool(self._slots) and any(slot in self._slots for slot in slots_N)

    def start(
        self, slots_N: Sequence[int], drafts_N: Sequence[Sequence[int]]
    ) -> Future[StepMasks | None] | None:
        """Begin to make the masks of a step; None: no row needs any.

        Until the result was taken, the answers belong to the thread that makes them.

        Args:
            drafts_N: of each row; each of them is a sampled position behind the row's first.
        """
        if not self.concern(slots_N):
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "answer-masks")
        return self._thread.submit(self._make, tuple(slots_N), tuple(drafts_N))

    def accept(self, slot: int, tokens: Sequence[int]) -> None:
        """Follow the tokens that a slot's request got."""
        item = self._slots.get(slot)
        if item is None:
            return
        if item.answer is not None:
            item.answer.accept(tokens)
        if item.thinking is not None:
            item.thinking.accept(tokens)
            if item.answer is None and item.thinking.is_done:
                del self._slots[slot]

    def failure(self, slot: int) -> str:
        """Return why the answer of a slot cannot go on; "": it can, or has no grammar."""
        item = self._slots.get(slot)
        return "" if item is None or item.answer is None else item.answer.failure

    def _make(
        self, slots_N: tuple[int, ...], drafts_N: tuple[Sequence[int], ...]
    ) -> StepMasks | None:
        counts = [len(drafts) + 1 for drafts in drafts_N]
        most = sum(
            count for slot, count in zip(slots_N, counts, strict=True) if slot in self._slots
        )
        words_KW = np.empty((most, -(-self.vocab_size // 32)), dtype=np.int32)
        positions: list[int] = []
        ending: list[bool] = []
        first = 0
        for slot, drafts, count in zip(slots_N, drafts_N, counts, strict=True):
            if slot in self._slots:
                space_PW = words_KW[len(positions) :][:count]
                masked = self._fill(self._slots[slot], drafts, space_PW, ending)
                positions += [first + place for place in masked]
            first += count
        if not positions:
            return None
        num = len(positions)
        return StepMasks(np.array(positions, np.int64), words_KW[:num], np.array(ending, np.bool_))

    def _fill(
        self,
        item: _Slot,
        drafts: Sequence[int],
        space_PW: NDArray[np.int32],
        ending: list[bool],
    ) -> list[int]:
        """Write a row's masks close together; return the places that have one."""
        written = [False] * (len(drafts) + 1)
        if item.answer is not None:
            written = item.answer.fill(drafts, space_PW)
        if item.thinking is not None:
            item.thinking.restrict(drafts, space_PW, written)
        masked: list[int] = []
        for place, is_written in enumerate(written):
            if not is_written:
                continue
            mask_W = space_PW[len(masked)]
            if len(masked) < place:
                mask_W[:] = space_PW[place]
            if place == 0 and not mask_W.any():
                assert item.answer is not None, "a budget alone always allows a token"
                item.answer.failure = NOTHING_FOLLOWS
            ending.append(not (mask_W & ~item.stops_W).any())
            masked.append(place)
        return masked


def _mask_of(tokens: Sequence[int], vocab_size: int) -> NDArray[np.int32]:
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
