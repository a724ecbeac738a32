"""Grammar slot: keeps an answer inside a language, by masks over the vocabulary.

Lives in the engine process. `compile` runs in threads of its own and may be called from several at
once; a matcher is used by one thread at a time: masks are filled in a thread of their own while the
device computes. V vocabulary, W = ceil(V / 32) words of a mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

GrammarKind = Literal["json_object", "json_schema", "regex", "ebnf", "choice", "structural_tag"]


class GrammarSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The language of an answer, as a request asks for it; crosses the wire within its parameters.

    Args:
        kind: what `text` is.
        text: json_object: ""; json_schema: the schema as JSON; regex: a pattern that the whole
            answer matches; ebnf: a grammar with the rule `root`; choice: a JSON array of strings;
            structural_tag: the engine's own JSON form of texts with constrained parts.
        after: the answer is free until these tokens were generated in a row, and constrained from
            the next one on: the end of the thinking. (): from its first token.
        closed: of a json_schema: objects hold only the properties that it names, and arrays only
            the items, where it does not say itself. False: as JSON Schema has it, anything more.
        field: where the request has it, for messages.
    """

    kind: GrammarKind
    text: str = ""
    after: tuple[int, ...] = ()
    closed: bool = False
    field: str = "grammar"


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """The tokens that answers are made of.

    Args:
        token_bytes: what each id adds to the text; b"" for special and unused ids. Made when it is
            first looked into, as is `backend_json`: keep neither longer than needed.
        stop_token_ids: allowed where, and only where, the language may end.
        special_token_ids: never allowed inside the language, unless it names their text.
        special_texts: id -> that text.
        backend_json: returns tokenizer.json, for engines that read it themselves.
    """

    token_bytes: Sequence[bytes]
    stop_token_ids: tuple[int, ...]
    special_token_ids: frozenset[int]
    special_texts: Mapping[int, str] = field(default_factory=dict)
    backend_json: Callable[[], str] = lambda: ""


class GrammarMatcher(Protocol):
    """Follows one answer. Required: fill, accept, rollback, is_ended."""

    def fill(self, mask_W: NDArray[np.int32]) -> bool:
        """Write which tokens may come next: bit t % 32 of word t // 32, 1 is allowed.

        Returns:
            False: every token may; the mask was not written.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Take a token; False: it is not allowed here, and nothing changed."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take the last tokens back, at most as many as the matcher was made for."""
        ...

    @property
    def is_ended(self) -> bool:
        """Whether a stop token was taken: nothing may follow."""
        ...


class CompiledGrammar(Protocol):
    """A language ready for use; shared by the requests that ask for it.

    Required: matcher, num_bytes.
    """

    @property
    def num_bytes(self) -> int:
        """Host memory that it takes; the cache of grammars is bounded by it."""
        ...

    def matcher(self, max_rollback: int) -> GrammarMatcher:
        """Return a matcher at the start of the language."""
        ...


class GrammarEngine(Protocol):
    """What an offer's `load(vocabulary=GrammarVocabulary)` returns. Required: compile."""

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Compile a language; takes milliseconds to seconds.

        Raises:
            RequestError: malformed, impossible (no text belongs to it) or not supported. The
                message says where; so does its param: "grammar", and in a schema the path, such as
                "grammar.properties.age.minimum".
        """
        ...
