"""The definition on cut arguments, put together, is the definition on the whole: every operator.

Over the rows of a step, and with the cache of a layer: test_steps_cut.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tokenspeed.ops import OPERATORS
from tokenspeed.placement.rule import Mode
from tokenspeed_sdk.conformance.placement_check import check, prove, ways_and_pairs

if TYPE_CHECKING:
    from tokenspeed.contracts.kernel import Operator
    from tokenspeed.placement.rule import Choice

EVERY = [(operator, ways) for operator in OPERATORS.values() for ways in ways_and_pairs(operator)]


def shown(given: Operator | tuple[Choice, ...]) -> str:
    return " ".join(map(str, given)) if isinstance(given, tuple) else given.name


@pytest.mark.parametrize(("operator", "ways"), EVERY, ids=shown)
def test_cut_arguments_give_the_parts_of_the_whole(
    operator: Operator, ways: tuple[Choice, ...]
) -> None:
    check(operator, *ways)


@pytest.mark.parametrize(
    ("name", "line", "way"),
    [
        ("norm.rms", "... D, D -> ... D", "D"),
        ("activation.silu_mul", "T F -> T F", "F"),
        ("linear.dense", "~T I, O I, O -> T O", "I"),
        ("linear.dense", "~T I, O I, O -> T O", Mode.SUMMANDS),
        ("moe.add_shared", "~T D, T D, T 1 -> T D", Mode.SUMMANDS),
        ("moe.experts", "T D!, E[T X!], T X!, E 2F D!, E D! F, E 2F, E D! -> T D!", "F"),
        ("moe.experts", "T D!, E[T X!], ~T X!, E 2F D!, ~E D! F, E 2F, ~E D! -> T D!", "F"),
        ("moe.experts", "T D!, T X!, T X!, E 2F D!, ~E D! F, E 2F, ~E D! -> T D!", "E"),
        (
            "linear_attention.gated_delta",
            "T J K!, T J K!, T N V!, T N, T N, _ N K! V!, -, - -> T N V!",
            "N",
        ),
    ],
)
def test_a_wrong_line_is_found(name: str, line: str, way: Choice) -> None:
    with pytest.raises(AssertionError, match="its parts are not the whole"):
        prove(replace(OPERATORS[name], placement=line), [((2,), {"a": way})])


def test_every_operator_has_a_line() -> None:
    assert not [name for name, operator in OPERATORS.items() if not operator.placement]
