"""The grammar engine that ships with the core: xgrammar, offered as `core/xgrammar`.

Its library is imported by the first language that is compiled, in a compile thread: it costs a
second and imports torch, and most engines never need it. Compiling and filling release the
interpreter.
"""

from __future__ import annotations

import importlib
import json
import re
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed.errors import RequestError
from tokenspeed.grammar.endless import has_finite_text
from tokenspeed.grammar.json_schema import prepared_schema
from tokenspeed.grammar.patterns_aside import Patterns

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenspeed.contracts.grammar import GrammarSpec, GrammarVocabulary
    from tokenspeed.grammar.schema_errors import Path

MAX_WHITESPACE = 20
"""Characters of whitespace in a row between the parts of a JSON text: small models lose themselves
in more; an indentation of ten levels fits."""
MAX_COMPILERS = 8
"""Vocabularies at once: each set of special tokens that a structural tag names makes one."""
_ANY_OBJECT = '{"type": "object"}'
_WHERE = re.compile(r"^\[[\d:]+\] \S+: ")
"""What the library puts before its messages: time and place in its source."""


class XGrammarEngine:
    """Compiles languages with xgrammar; may be called from several threads at once."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._library: Any = None
        self._compilers: dict[tuple[int, ...], Any] = {}
        self._spelled: list[bytes] = []
        self._num_words = 0

    def compile(self, spec: GrammarSpec) -> XGrammar:
        """Compile a language.

        Raises:
            RequestError: it is malformed, impossible or not supported; the message says where.
        """
        compiler = self._ready(self._named(spec))
        make = _MAKERS[spec.kind]
        try:
            compiled = make(self._library, compiler, spec)
        except RuntimeError as error:
            raise RequestError(_said(error), param="grammar") from error
        grammar = XGrammar(self._library, compiled)
        first_W = np.full(self._num_words, -1, dtype=np.int32)
        if grammar.matcher(0).fill(first_W) and not first_W.any():
            raise RequestError(
                "no text belongs to it: not even a first token is possible; change it",
                param="grammar",
            )
        return grammar

    def _named(self, spec: GrammarSpec) -> tuple[int, ...]:
        """Return the special tokens whose texts a structural tag names: they may come in it."""
        if spec.kind != "structural_tag":
            return ()
        texts = self._vocabulary.special_texts
        ends = self._vocabulary.stop_token_ids
        return tuple(i for i, text in texts.items() if text in spec.text and i not in ends)

    def _ready(self, named: tuple[int, ...]) -> Any:
        """Return the compiler of a vocabulary in which these special tokens spell their texts."""
        with self._lock:
            if self._library is None:
                self._library = self._imported()
                self._spelled = list(self._vocabulary.token_bytes)
                self._num_words = -(-len(self._spelled) // 32)
            if named not in self._compilers:
                if len(self._compilers) >= MAX_COMPILERS:
                    self._compilers.clear()
                self._compilers[named] = self._compiler(named)
            return self._compilers[named]

    def _imported(self) -> Any:
        if not self._vocabulary.stop_token_ids:
            raise RequestError(
                "the model has no end token, so an answer in a language could not end; serve a "
                "model whose tokenizer names one",
                param="grammar",
                code="unsupported_parameter",
            )
        try:
            return importlib.import_module("xgrammar")
        except ImportError as error:
            raise RequestError(
                f"structured output needs the package xgrammar, which cannot be imported here "
                f"({error}); install it beside the server (docs/structured-output.md)",
                param="grammar",
                code="unsupported_parameter",
            ) from error

    def _compiler(self, named: tuple[int, ...]) -> Any:
        spelled = list(self._spelled)
        for token in named:
            spelled[token] = self._vocabulary.special_texts[token].encode()
        info = self._library.TokenizerInfo(
            spelled,
            self._library.VocabType.RAW,
            vocab_size=len(spelled),
            stop_token_ids=list(self._vocabulary.stop_token_ids),
        )
        # Grammars are cached by who asks for them, within a budget that is counted once.
        return self._library.GrammarCompiler(info, max_threads=1, cache_enabled=False)


class XGrammar:
    """A compiled language."""

    def __init__(self, library: Any, compiled: Any) -> None:
        self._library = library
        self._compiled = compiled

    @property
    def num_bytes(self) -> int:
        """Host memory that it takes, as the library counts it."""
        return int(self._compiled.memory_size_bytes)

    def matcher(self, max_rollback: int) -> XGrammarMatcher:
        """Return a matcher at the start; it goes back as far as it has come."""
        return XGrammarMatcher(self._library.GrammarMatcher(self._compiled))


class XGrammarMatcher:
    """Follows one answer."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, mask_W: NDArray[np.int32]) -> bool:
        """Write which tokens may come next; False: all may."""
        return bool(self._matcher.fill_next_token_bitmask(mask_W))

    def accept(self, token_id: int) -> bool:
        """Take a token; False: it is not allowed here."""
        return bool(self._matcher.accept_token(token_id))

    def rollback(self, num_tokens: int) -> None:
        """Take the last tokens back."""
        self._matcher.rollback(num_tokens)

    @property
    def is_ended(self) -> bool:
        """Whether a stop token was taken."""
        return bool(self._matcher.is_terminated())


def _compile_schema(library: Any, compiler: Any, spec: GrammarSpec) -> Any:
    patterns = Patterns()
    schema = json.dumps(
        patterns.set_aside(prepared_schema(_json_of(spec.text), closed=spec.closed))
    )
    options = {"strict_mode": False, "max_whitespace_cnt": MAX_WHITESPACE}
    if not patterns:
        return compiler.compile_json_schema(schema, **options)
    grammar = library.Grammar.from_json_schema(schema, **options)
    return compiler.compile_grammar(patterns.put_back(str(grammar)))


def _compile_any_object(library: Any, compiler: Any, spec: GrammarSpec) -> Any:
    return compiler.compile_json_schema(
        _ANY_OBJECT, strict_mode=False, max_whitespace_cnt=MAX_WHITESPACE
    )


def _compile_grammar(library: Any, compiler: Any, spec: GrammarSpec) -> Any:
    grammar = library.Grammar.from_ebnf(spec.text)
    if not has_finite_text(str(grammar)):
        raise RequestError(
            "no text belongs to it: every text of its rule root would have to go on without end; "
            "give a rule that leads back to itself an alternative that does not",
            param="grammar",
        )
    return compiler.compile_grammar(grammar)


def _compile_choice(library: Any, compiler: Any, spec: GrammarSpec) -> Any:
    choices = _json_of(spec.text)
    if not isinstance(choices, list) or not choices or not all(map(_is_text, choices)):
        raise RequestError(
            "a choice is a list of one or more strings that are not empty; change it",
            param="grammar",
        )
    rules = " | ".join(json.dumps(item, ensure_ascii=False) for item in choices)
    return compiler.compile_grammar(f"root ::= {rules}")


def _compile_tag(library: Any, compiler: Any, spec: GrammarSpec) -> Any:
    patterns = Patterns()
    tag = json.dumps(_with_schemas(_json_of(spec.text), (), spec.closed, patterns))
    if not patterns:
        return compiler.compile_structural_tag(tag)
    return compiler.compile_grammar(
        patterns.put_back(str(library.Grammar.from_structural_tag(tag)))
    )


_MAKERS: dict[str, Callable[[Any, Any, GrammarSpec], Any]] = {
    "json_object": _compile_any_object,
    "json_schema": _compile_schema,
    "regex": lambda library, compiler, spec: compiler.compile_regex(spec.text),
    "ebnf": _compile_grammar,
    "choice": _compile_choice,
    "structural_tag": _compile_tag,
}


def _is_text(item: object) -> bool:
    return isinstance(item, str) and item != ""


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RequestError(f"is no JSON: {error}; correct it", param="grammar") from error


def _with_schemas(tag: Any, path: Path, closed: bool, patterns: Patterns) -> Any:
    """Return a structural tag with the JSON schemas in it prepared."""
    if isinstance(tag, list):
        return [_with_schemas(item, (*path, i), closed, patterns) for i, item in enumerate(tag)]
    if not isinstance(tag, dict):
        return tag
    done = {}
    for name, value in tag.items():
        if name in ("json_schema", "schema") and isinstance(value, dict | bool):
            prepared = prepared_schema(value, (*path, name), closed=closed)
            done[name] = patterns.set_aside(prepared)
        else:
            done[name] = _with_schemas(value, (*path, name), closed, patterns)
    return done


def _said(error: RuntimeError) -> str:
    text = _WHERE.sub("", str(error).strip().splitlines()[0])
    return f"cannot be used: {text[:300]}; change it"
