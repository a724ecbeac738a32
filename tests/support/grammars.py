"""Grammar engines for tests: one that counts letters, and one that fails where it is told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.contracts.grammar import GrammarSpec, GrammarVocabulary
from tokenspeed.errors import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

CALLS = ("compile", "num_bytes", "matcher", "fill", "accept", "rollback")


class ListEngine:
    """Its languages are single texts of token ids, such as "3 1 4": no other answer is allowed.

    Args:
        vocab_size: of the model.
        end_id: allowed behind the last.
        faults: texts -> the call that raises for them, of CALLS.
        error: the kind of what is raised.
    """

    def __init__(
        self,
        vocab_size: int,
        end_id: int,
        faults: dict[str, str] | None = None,
        error: type[BaseException] = ValueError,
    ) -> None:
        self.vocab_size = vocab_size
        self.end_id = end_id
        self.faults = faults or {}
        self.error = error
        self.num_compiled = 0

    def compile(self, spec: GrammarSpec) -> ListGrammar:
        """Read the text."""
        self.num_compiled += 1
        if spec.text == "malformed":
            raise RequestError("at #/a: malformed", param="grammar.a")
        self.check(spec.text, "compile")
        return ListGrammar(self, spec.text)

    def check(self, text: str, call: str) -> None:
        """Raise where a text's call is to fail."""
        if self.faults.get(text) == call:
            raise self.error(f"planted in {call}")


class ListGrammar:
    """One allowed answer."""

    def __init__(self, engine: ListEngine, text: str) -> None:
        self.engine = engine
        self.text = text

    @property
    def num_bytes(self) -> int:
        """Say a thousand."""
        self.engine.check(self.text, "num_bytes")
        return 1000

    def matcher(self, max_rollback: int) -> ListMatcher:
        """Begin."""
        self.engine.check(self.text, "matcher")
        return ListMatcher(self)


class ListMatcher:
    """How far an answer has come."""

    def __init__(self, grammar: ListGrammar) -> None:
        self._grammar = grammar
        self._allowed = [*map(int, grammar.text.split()), grammar.engine.end_id]
        self.place = 0

    def fill(self, mask_W: NDArray[np.int32]) -> bool:
        """Allow the next one."""
        if self.place == 1:
            self._grammar.engine.check(self._grammar.text, "fill")
        token = self._allowed[self.place]
        mask_W[:] = 0
        mask_W.view(np.uint32)[token // 32] = 1 << (token % 32)
        return True

    def accept(self, token_id: int) -> bool:
        """Take the next one only."""
        if self.place == 1:
            self._grammar.engine.check(self._grammar.text, "accept")
        is_right = token_id == self._allowed[self.place]
        self.place += is_right
        return is_right

    def rollback(self, num_tokens: int) -> None:
        """Go back."""
        self._grammar.engine.check(self._grammar.text, "rollback")
        self.place -= num_tokens

    @property
    def is_ended(self) -> bool:
        """Whether the end was taken."""
        return self.place == len(self._allowed)


def byte_vocabulary(end_id: int = 256, size: int = 257) -> GrammarVocabulary:
    """Return a vocabulary with a token for each byte."""
    spelled = [bytes([i]) for i in range(256)] + [b""] * (size - 256)
    return GrammarVocabulary(spelled, (end_id,), frozenset({end_id}))
