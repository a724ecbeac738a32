"""How byte-level tokenizers split text before merging, and where a long text may be cut for free.

    ... x;\\n | def f(): ...      cut between a newline and an ASCII letter

With each of the regular expressions below, a newline that follows a printable ASCII character
ends its part, whether a letter or the end of the text comes next, and the letter begins one. So
the two sides encode to the ids of the whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import tokenizers

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# Pre-tokenizer name in GGUF -> the regular expression that splits text; None is GPT-2's own.
SPLITS: dict[str, str | None] = {
    "default": None,
    "llama-bpe": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",
    "smollm": None,
}
_CHUNK_CHARS = 1 << 15
_CUT = re.compile(r"[!-~]\n(?=[A-Za-z])|[A-Za-z](?= [A-Za-z])")
_CUT_CHARS = 3
"""What `_CUT` looks at."""
_SPANNING = re.compile(r"\n|[A-Za-z] ")
"""In an added token: it could stand across a cut."""


def can_cut(backend: tokenizers.Tokenizer) -> bool:
    """Say whether cutting at `_CUT` keeps this tokenizer's ids."""
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip or _SPANNING.search(token.content) for token in added):
        return False
    normalizer = _state(backend.normalizer)
    return normalizer.get("type") in (None, "NFC") and _is_known(_state(backend.pre_tokenizer))


def chunks(text: str) -> Iterator[str]:
    """Cut `text` into parts of some ten thousand characters, where it can be cut."""
    start = 0
    while start < len(text):
        end = _next_cut(text, start + _CHUNK_CHARS)
        yield text[start:end]
        start = end


def _next_cut(text: str, start: int) -> int:
    """Return the first cut from `start` on, else the end; in windows, as one long search holds
    the interpreter.
    """
    while start < len(text):
        match = _CUT.search(text, start, start + _CHUNK_CHARS + _CUT_CHARS)
        if match:
            return match.end()
        start += _CHUNK_CHARS
    return len(text)


def _state(component: Any) -> dict[str, Any]:
    state: dict[str, Any] = {} if component is None else json.loads(component.__getstate__())
    return state


def _is_known(state: dict[str, Any]) -> bool:
    """Recognise GPT-2's split, after isolated digits or not, and a Split by one of `SPLITS`."""
    *before, last = state.get("pretokenizers", [state])
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return False
    if last.get("use_regex", True):
        return all(step.get("type") == "Digits" for step in before)
    return len(before) == 1 and _is_known_split(before[0])


def _is_known_split(step: dict[str, Any]) -> bool:
    pattern = step.get("pattern", {}).get("Regex")
    is_isolated = step.get("behavior") == "Isolated" and not step.get("invert")
    return is_isolated and pattern is not None and pattern in SPLITS.values()
