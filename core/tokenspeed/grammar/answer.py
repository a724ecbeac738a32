"""One answer and its language: free until `after`, then what the matcher allows, then ended.

    free --- `after` was generated ---> guided --- a stop token ---> ended
                     any state --- the matcher raised or disagreed ---> failed

Follows the tokens of one request. Whatever the matcher does wrong ends here, as `failure`.
Legend: W words of a mask, P positions of the row: one, and one more for each draft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.speculator import MAX_DRAFTS
from tokenspeed.grammar.bits import bit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tokenspeed.contracts.grammar import CompiledGrammar, GrammarMatcher

MAX_REASON_CHARS = 300


class GuidedAnswer:
    """The place of one answer in its language. Thread: one at a time.

    Args:
        grammar: of the request.
        after: the answer is free until these tokens were generated in a row.
        stop_ids: every id that ends the request.
        marks: those of them that spell no text: allowed wherever the language may end.
        end_ids: ids that the matcher allows where the language may end.
        engine: PLUGIN/NAME of what compiled the language, for messages.
        output_ids: tokens generated before: the place is a function of them.
    """

    def __init__(
        self,
        grammar: CompiledGrammar,
        *,
        after: Sequence[int] = (),
        stop_ids: Sequence[int] = (),
        marks: Sequence[int] = (),
        end_ids: Sequence[int] = (),
        engine: str = "",
        output_ids: Sequence[int] = (),
    ) -> None:
        self.failure = ""
        self._engine = engine
        self._after = tuple(after)
        self._stop_ids = frozenset(stop_ids)
        self._marks = tuple(marks)
        self._end_ids = tuple(end_ids)
        self._tail: list[int] = []
        self._is_guided = not self._after
        self._num_guided = 0
        self._has_ended = False
        self._matcher: GrammarMatcher | None = None
        try:
            self._matcher = grammar.matcher(MAX_DRAFTS)
        except (Exception, SystemExit) as error:  # the latter of a plugin: it ends no process
            self._fail(error)
        self.accept(output_ids)

    def fill(self, drafts: Sequence[int], masks_PW: NDArray[np.int32]) -> list[bool]:
        """Write the masks of the next token and of those behind its drafts, then go back.

        Returns:
            Of each position that can be reached: whether its mask was written. Where it was not,
            every token is allowed.
        """
        written: list[bool] = []
        num_taken = 0
        for place in range(len(drafts) + 1):
            if self._has_ended or self.failure:
                break
            written.append(self._is_guided and self._fill(masks_PW[place]))
            if place == len(drafts) or not self._take(drafts[place]):
                break
            num_taken += 1
        self._give_back(num_taken)
        return [] if self.failure else written

    def accept(self, tokens: Sequence[int]) -> None:
        """Follow tokens that are final."""
        for token in tokens:
            if self.failure or self._has_ended:
                return
            if not self._take(token) and not self.failure:
                self._fail(
                    f"token {token} does not continue the answer, though its mask allowed it"
                )
        del self._tail[: -(len(self._after) + MAX_DRAFTS)]

    def _fill(self, mask_W: NDArray[np.int32]) -> bool:
        assert self._matcher is not None
        try:
            if not self._matcher.fill(mask_W):
                return False
        except (Exception, SystemExit) as error:
            self._fail(error)
            return False
        if self._marks and any(_has(mask_W, token) for token in self._end_ids):
            for token in self._marks:
                mask_W[token // 32] |= bit(token)
        return True

    def _take(self, token: int) -> bool:
        """Go one token on; False: it is not allowed here."""
        if not self._is_guided:
            self._tail.append(token)
            self._is_guided = tuple(self._tail[-len(self._after) :]) == self._after
            self._has_ended = token in self._stop_ids and not self._is_guided
            return True
        if token in self._stop_ids:
            self._has_ended = True
            self._num_guided += 1
            return True
        assert self._matcher is not None
        try:
            if not self._matcher.accept(token):
                return False
        except (Exception, SystemExit) as error:
            self._fail(error)
            return False
        self._num_guided += 1
        return True

    def _give_back(self, num_tokens: int) -> None:
        """Undo the last tokens taken, the guided ones first."""
        if num_tokens == 0 or self.failure:
            return
        num_guided = min(num_tokens, self._num_guided)
        num_free = num_tokens - num_guided
        self._num_guided -= num_guided
        if self._has_ended and num_guided:
            num_guided -= 1  # the matcher was never told of a stop token
        self._has_ended = False
        if num_free:
            del self._tail[-num_free:]
            self._is_guided = False
        if num_guided:
            assert self._matcher is not None
            try:
                self._matcher.rollback(num_guided)
            except (Exception, SystemExit) as error:
                self._fail(error)

    def _fail(self, problem: BaseException | str) -> None:
        said = problem if isinstance(problem, str) else repr(problem)
        engine = f" (grammar engine {self._engine})" if self._engine else ""
        self.failure = f"its grammar failed{engine}: {said[:MAX_REASON_CHARS]}"


def _has(mask_W: NDArray[np.int32], token: int) -> bool:
    return bool(mask_W[token // 32] & bit(token))
