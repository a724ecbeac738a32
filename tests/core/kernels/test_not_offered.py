"""A PLUGIN/NAME that nobody offers: the one that was meant, or the plugin to load."""

from __future__ import annotations

import pytest

from tokenspeed.kernels.not_offered import advice, not_offered

PINS = ("core/lru", "core/return_time", "reference/paged", "reference/paged_cpu")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("core/lur", "core/lru"),
        ("lru", "core/lru"),
        ("lur", None),
        ("return_tme", "core/return_time"),
        ("refrence/paged", "reference/paged"),
        ("acme/paged", None),
        ("core/paged", None),
    ],
)
def test_only_a_misspelling_is_taken_for_another_name(name: str, meant: str | None) -> None:
    told = advice(name, PINS)
    assert (f"did you mean {meant!r}?" == told) if meant else ("did you mean" not in told)


def test_a_plugin_that_is_not_loaded_is_named() -> None:
    assert advice("acme/paged", PINS) == "choose one, or load plugin 'acme' with --plugins"
    assert advice("core/quantum", PINS) == "choose one"
    assert "--plugins" in advice("quantum", PINS)


def test_the_error_lists_what_is_offered() -> None:
    error = not_offered("policy", "x/y", reversed(PINS))
    assert error.id == "pin-unknown"
    assert f"policy 'x/y' is not offered; loaded plugins have: {', '.join(PINS)};" in str(error)
    assert "loaded plugins have: none;" in str(not_offered("policy", "x/y", ()))
