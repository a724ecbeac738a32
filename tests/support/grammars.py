"""Grammar engines for tests: one that counts letters, and one that fails where it is told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.contracts.grammar import GrammarSpec, GrammarVocabulary
from tokenspeed.errors import RequestError

if TYPE_CHECKING:
    import random

    from numpy.typing import NDArray

    from tokenspeed.contracts.grammar import CompiledGrammar

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


END, MOST_BYTES = 256, 400
_CLOSERS = b'",}]:'


def holds(grammar: CompiledGrammar, text: str) -> bool:
    """Say whether a text is in a language over `byte_vocabulary`."""
    matcher = grammar.matcher(0)
    return all(map(matcher.accept, text.encode())) and matcher.accept(END)


def random_text(
    grammar: CompiledGrammar, rng: random.Random, *, hides_escapes: bool = True
) -> bytes | None:
    """Return a random text of a language over `byte_vocabulary`; None: it became too long.

    Args:
        hides_escapes: no escapes, where something else can go on.
    """
    matcher, mask, text = grammar.matcher(0), np.full(9, -1, dtype=np.int32), bytearray()
    while len(text) < MOST_BYTES:
        matcher.fill(mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: END + 1]
        ids = np.flatnonzero(bits).tolist()
        assert ids, f"nothing follows {bytes(text)!r}"
        if END in ids and (len(ids) == 1 or rng.random() < 0.5):
            return bytes(text)
        plain = [i for i in ids if 33 <= i < 127 and (i != 92 or not hides_escapes)]
        shown = plain or [i for i in ids if i != END]
        closers = [i for i in shown if i in _CLOSERS]
        token = rng.choice(closers if closers and rng.random() < 0.4 else shown)
        assert matcher.accept(token)
        text.append(token)
    return None
