"""Writes docs/plugins/traits.md from the vocabulary: `python docs/generate_traits.py`."""

from __future__ import annotations

from pathlib import Path

from tokenspeed.contracts.capability import (
    CLAUSE_PREFIX,
    TRAITS,
    VOCABULARY_VERSION,
    Compare,
    Trait,
)

PAGE = Path(__file__).with_name("plugins") / "traits.md"
HEAD = """# Traits

What requests and offers are compared in; vocabulary {version}. Written by
`python docs/generate_traits.py` from `core/tokenspeed/contracts/traits.py`.

A request carries a trait only when its value is not the neutral one. An offer lists the values that
it takes, `"*"` for any; a trait that the request carries and the offer does not list is refused
(*fail closed*), and a neutral value needs no mention. Each trait makes one clause,
`{prefix}TRAIT`: refusals list (clause, wanted, have), and `--unsafe-force` names clauses. A new
trait's neutral value is what all earlier offers did, so that they still match. An offer silent
about `device` is for the device kinds of its manifest.

| trait | since | neutral | unit | compared | meaning |
|---|---|---|---|---|---|
"""
TAIL = """
`arch`: names of architectures are not one number line. A device's facts (`DeviceFacts.arch` and
`runs`) say for which names built code runs there; an offer that lists one of them passes.

`workspace`: an offer lists the bytes that it needs; a request carries the trait only where scratch
memory is limited.
"""


def page() -> str:
    """Return the page's text."""
    head = HEAD.format(version=VOCABULARY_VERSION, prefix=CLAUSE_PREFIX)
    rows = "".join(_row(trait) for trait in TRAITS.values())
    rules = "".join(f"- *{_word(rule)}*: {rule.value}\n" for rule in Compare)
    return f"{head}{rows}\n{rules}{TAIL}"


def _row(trait: Trait) -> str:
    cells = (
        f"`{trait.name}`",
        trait.since,
        "always carried" if trait.neutral is None else f"`{trait.neutral!r}`",
        trait.unit,
        _word(trait.compare),
        trait.meaning,
    )
    return f"| {' | '.join(cells)} |\n"


def _word(rule: Compare) -> str:
    return rule.name.lower().replace("_", " ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
