"""Version ranges."""

from __future__ import annotations

import pytest

from tokenspeed.plugins.versions import parse_range, release, satisfies


@pytest.mark.parametrize(
    ("version", "text", "expected"),
    [
        ("1.0", ">=1.0,<2", True),
        ("2.0", ">=1.0,<2", False),
        ("1.9.9", ">=1.0,<2", True),
        ("0.9", ">=1.0", False),
        ("2.13.0+cpu", ">=2.11", True),
        ("2.9", ">=2.11", False),
        ("1.0.0", "==1", True),
        ("1.0", "!=1.0", False),
        ("3.0", ">2, <=3", True),
    ],
)
def test_ranges_compare_numerically(version: str, text: str, expected: bool) -> None:
    assert satisfies(version, text) is expected


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="not like"):
        parse_range("~1")
    with pytest.raises(ValueError, match="does not begin"):
        release("master")
