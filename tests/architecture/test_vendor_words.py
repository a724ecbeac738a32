"""Vendor words live in the vendor wheels only: the core stays neutral."""

from __future__ import annotations

import re

import pytest
from tests.support.source_tree import ROOT, files_under

NEUTRAL = ("core", "csrc", "sdk", "templates", "plugins_reference")
TEXT = (".py", ".pyi", ".toml", ".h", ".cc", ".txt", ".md", ".cmake")
# Whole words, also as part of snake_case, kebab-case and version names such as sm_90a.
WORDS = re.compile(
    r"(?<![a-z])(cuda|hip|rocm|nccl|rccl|sm_?\d{2,3}[a-z]?|gfx\d*[a-f]?)(?![a-z])", re.IGNORECASE
)


def test_neutral_folders_hold_no_vendor_word() -> None:
    wrong = []
    for file in files_under(*NEUTRAL, suffixes=TEXT):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if match := WORDS.search(line):
                wrong.append(f"{file.relative_to(ROOT)}:{number}: {match.group()}")
    assert wrong == []


@pytest.mark.parametrize("text", ["cuda", "is_cuda", "CUDA_HOME", "sm_90a", "gfx942", "hip"])
def test_the_pattern_finds_vendor_words(text: str) -> None:
    assert WORDS.search(f"x = {text!r}")


@pytest.mark.parametrize("text", ["ship", "chip", "relationship", "small", "barracuda"])
def test_the_pattern_spares_other_words(text: str) -> None:
    assert WORDS.search(text) is None
