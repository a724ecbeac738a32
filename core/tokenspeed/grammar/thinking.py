"""One answer and its budget of thinking: which token must come next, or must not.

    head --- opened ---> thinking --- ended, or closed by the budget ---> done
      `--- anything else ---> done          outside <--- the same, where it may open again

The place is a function of the answer's tokens, so it is found again after a retraction or a crash,
and looked up ahead for drafts. Marks of several tokens are looked for in the text, since a model
may write them in other pieces.
Legend: W words of a mask, P positions of the row: one, and one more for each draft.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from tokenspeed.grammar.bits import bit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tokenspeed.contracts.thinking import ThinkingBudget


class _Where(Enum):
    HEAD = "head"
    OUTSIDE = "outside"
    THINKING = "thinking"
    CLOSING = "closing"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an answer stands.

    Args:
        used: tokens of thinking so far.
        tail: its last tokens, as many as a mark may have.
        text: its last bytes, where marks are looked for in them.
    """

    where: _Where
    used: int = 0
    tail: tuple[int, ...] = ()
    text: bytes = b""


class BudgetedThinking:
    """The place of one answer in its thinking. Thread: one at a time.

    Args:
        token_bytes: what each token spells, b"" for special ones; looked into where a mark has
            several tokens that are none.
        output_ids: tokens generated before: the place is a function of them.
    """

    def __init__(
        self,
        budget: ThinkingBudget,
        token_bytes: Sequence[bytes] = (),
        output_ids: Sequence[int] = (),
    ) -> None:
        self._budget = budget
        self._token_bytes = token_bytes
        self._texts = tuple(filter(None, map(self._text_of, budget.ends)))
        self._num_tail = max(map(len, (*budget.ends, budget.opens, budget.close)))
        self._num_text = max(map(len, self._texts), default=1) - 1
        self._place = _Place(self._first())
        self.accept(output_ids)

    @property
    def is_done(self) -> bool:
        """Whether it holds the answer to nothing any more."""
        return self._place.where is _Where.DONE

    def accept(self, tokens: Sequence[int]) -> None:
        """Follow tokens that are final."""
        for token in tokens:
            if self._place.where is _Where.DONE:
                return
            self._place = self._after(self._place, token)

    def restrict(
        self, drafts: Sequence[int], masks_PW: NDArray[np.int32], written: list[bool]
    ) -> None:
        """Narrow the masks of the next token and of those behind its drafts.

        Args:
            written: of each position that can be reached: whether its mask was written, which is
                updated; where it was not, every token is allowed.
        """
        place = self._place
        for index, mask_W in enumerate(masks_PW[: len(written)]):
            if place.where is _Where.DONE:
                return
            written[index] = self._narrow(place, mask_W, is_written=written[index])
            if index < len(drafts):
                place = self._after(place, drafts[index])

    def _narrow(self, place: _Place, mask_W: NDArray[np.int32], *, is_written: bool) -> bool:
        forced, banned = self._forced(place), self._banned(place)
        if forced is None and banned is None:
            return is_written
        if not is_written:
            mask_W[:] = -1
        if forced is not None:
            only = mask_W[forced // 32] & bit(forced)
            mask_W[:] = 0
            mask_W[forced // 32] = only
        if banned is not None:
            mask_W[banned // 32] &= ~bit(banned)
        return True

    def _after(self, place: _Place, token: int) -> _Place:
        """Return the place behind one more token."""
        tail = (*place.tail, token)[-self._num_tail :]
        match place.where:
            case _Where.HEAD:
                return self._at_head(tail, token)
            case _Where.OUTSIDE if self._ends_with(tail, self._budget.opens):
                return _Place(_Where.THINKING, place.used)
            case _Where.OUTSIDE:
                return replace(place, tail=tail)
            case _Where.THINKING if place.used >= self._budget.tokens:
                return self._closing(place, tail)
            case _Where.CLOSING:
                return self._closing(place, tail)
            case _Where.THINKING:
                return self._thinking(place, tail, token)
            case _Where.DONE:
                return place

    def _forced(self, place: _Place) -> int | None:
        """Return the one token that may come next; None: any may."""
        is_over = place.where is _Where.THINKING and place.used >= self._budget.tokens
        if not is_over and place.where is not _Where.CLOSING:
            return None
        return self._budget.close[self._num_closed(place.tail)]

    def _banned(self, place: _Place) -> int | None:
        """Return the token that may not come next: it would open the thinking once more."""
        opens = self._budget.opens
        if place.where is not _Where.OUTSIDE or place.used < self._budget.tokens:
            return None
        at = min(1, len(opens) - 1)
        return opens[at] if place.tail[len(place.tail) - at :] == opens[:at] else None

    def _first(self) -> _Where:
        if self._budget.is_open:
            return _Where.THINKING
        if not self._budget.opens:
            return _Where.DONE
        return _Where.OUTSIDE if self._budget.is_repeated else _Where.HEAD

    def _at_head(self, tail: tuple[int, ...], token: int) -> _Place:
        opens = self._budget.opens
        if tail == opens:
            return _Place(_Where.THINKING)
        if tail == opens[: len(tail)]:
            return _Place(_Where.HEAD, tail=tail)
        is_space = len(tail) == 1 and token in self._budget.spaces
        return _Place(_Where.HEAD) if is_space else _Place(_Where.DONE)

    def _thinking(self, place: _Place, tail: tuple[int, ...], token: int) -> _Place:
        text = b""
        if self._texts:
            text = place.text + self._spelled(token)
        is_ended = any(mark in text for mark in self._texts)
        is_ended = is_ended or any(self._ends_with(tail, mark) for mark in self._budget.ends)
        if is_ended:
            return self._ended(place.used, tail)
        kept = text[max(0, len(text) - self._num_text) :]
        return _Place(_Where.THINKING, place.used + 1, tail, kept)

    def _closing(self, place: _Place, tail: tuple[int, ...]) -> _Place:
        """Go on after a token that was forced; a draft that is another one is not taken."""
        if self._num_closed(tail, complete=True) == len(self._budget.close):
            return self._ended(max(place.used, self._budget.tokens), tail)
        return _Place(_Where.CLOSING, place.used, tail)

    def _ended(self, used: int, tail: tuple[int, ...]) -> _Place:
        where = _Where.OUTSIDE if self._budget.is_repeated else _Where.DONE
        return _Place(where, used, tail)

    def _num_closed(self, tail: tuple[int, ...], *, complete: bool = False) -> int:
        """Return how many tokens of the close the tail ends with; it may have been begun freely."""
        close = self._budget.close
        most = len(close) if complete else len(close) - 1
        fits = (n for n in range(min(most, len(tail)), 0, -1) if tail[-n:] == close[:n])
        return next(fits, 0)

    def _text_of(self, mark: tuple[int, ...]) -> bytes:
        """Return what a mark spells, where it is to be looked for in the text; b"": it is not."""
        if len(mark) == 1 or not self._token_bytes:
            return b""
        spelled = [self._spelled(token) for token in mark]
        return b"".join(spelled) if all(spelled) else b""

    def _spelled(self, token: int) -> bytes:
        """Return what a token spells; a draft may be no token at all."""
        return self._token_bytes[token] if token < len(self._token_bytes) else b""

    @staticmethod
    def _ends_with(tail: tuple[int, ...], mark: tuple[int, ...]) -> bool:
        return tail[-len(mark) :] == mark
