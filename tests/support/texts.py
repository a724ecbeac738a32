"""Texts that are hard on tokenizers, and small tokenizers trained on them. Owner: tokenizer."""

from __future__ import annotations

import random
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_TEXT = """the quick brown fox jumps over a lazy dog don't we'll I'm they've HTTPServer snake_case
def return import lambda self.value x=1 !=0 //comment /*c*/ {json: [1,2]} $HOME https://a.b
naive caf\u00e9 na\u00efve stra\u00dfe \u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440
\u4f60\u597d \u4e16\u754c \u3053\u3093\u306b\u3061\u306f \uc548\ub155 \u0645\u0631\u062d\u0628
\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35"""
_WORDS = _TEXT.split()
_MARKS = [
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\ufe0f",
    "e\u0301", "\u0327", "\u200b", "\ufeff", "\u2028", "\x00", "\x7f", "\u00bd", "\u0661\u0662",
    "\u2163", "\u00b2", "\U0001d7d8", "\ufffd", "\u2581", "\u0120", "\u010a", "<0x0A>",
]  # fmt: skip
_SPACES = [" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", " \n ", "\n  "]


def random_text(rng: random.Random, num_parts: int, specials: tuple[str, ...] = SPECIALS) -> str:
    """Join words, digits, spaces, marks, raw code points and special tokens at random."""
    return "".join(_part(rng, specials) for _ in range(num_parts))


def random_texts(seed: int, count: int, specials: tuple[str, ...] = SPECIALS) -> list[str]:
    """Return `count` texts of 1 to 12 parts."""
    rng = random.Random(seed)
    return [random_text(rng, rng.randint(1, 12), specials) for _ in range(count)]


def _part(rng: random.Random, specials: tuple[str, ...]) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(_WORDS) + rng.choice(["", " ", " ", "."])
    if kind < 0.60:
        return rng.choice(_SPACES) * rng.randint(1, 3)
    if kind < 0.72:
        return str(rng.randrange(10 ** rng.randint(1, 8)))
    if kind < 0.84:
        return rng.choice(_MARKS)
    if kind < 0.92 and specials:
        special = rng.choice(specials)
        return special[: rng.randint(1, len(special))] if rng.random() < 0.3 else special
    return _code_point(rng)


def _code_point(rng: random.Random) -> str:
    point = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x110000)])
    return chr(point) if not 0xD800 <= point < 0xE000 else "?"


@cache
def trained_bpe(vocab_size: int = 1500) -> Tokenizer:
    """Train a byte-level BPE on hard texts; the specials come first."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, normalized=False) for token in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(random_texts(7, 1500, ()), trainer)
    return backend


@cache
def spm_vocabulary(num_words: int = 900) -> tuple[list[str], list[float], list[int]]:
    """Return tokens, scores and GGUF token types of a small SentencePiece-like vocabulary."""
    trainer = trainers.BpeTrainer(vocab_size=num_words, show_progress=False)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581")
    backend.train_from_iterator(random_texts(8, 800, ()), trainer)
    pieces = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [2, 3, 3] + [6] * 256
    words = [piece for piece, _ in pieces if piece not in set(tokens)]
    scores = [0.0] * len(tokens) + [-float(rank) for rank in range(len(words))]
    return tokens + words, scores, types + [1] * len(words)
