"""Versions and ABI facts are compared as data, before anything is imported."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tokenspeed.errors import PluginError
from tokenspeed.plugins.compatibility import check_compatible
from tokenspeed.plugins.host_facts import environment_facts
from tokenspeed.plugins.manifest import Manifest

FITS = Manifest("acme", ">=1.0,<2", "acme", ("*",), ("engine",), {"model": "1.0"})


def test_a_fitting_plugin_passes() -> None:
    check_compatible(replace(FITS, requires_abi={"python": ">=3.11"}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"api": "<1.0"}, ("API <1.0", "has 1.0")),
        ({"slots": {"model": "2.0"}}, ("slot model 2.0", "takes 1.x")),
        ({"slots": {"model": "0.9"}}, ("slot model 0.9", "takes 1.x")),
        ({"slots": {"model": "1.7"}}, ("slot model 1.7", "has 1.0", "upgrade tokenspeed")),
        ({"slots": {"speculator": "1.0"}}, ("slot speculator arrives in a later version",)),
        ({"requires_abi": {"python": "<3"}}, ("needs python <3", "found 3.")),
        ({"requires_abi": {"acmert": ">=1"}}, ("needs acmert >=1", "found none")),
    ],
)
def test_what_does_not_fit_is_named_with_both_versions(
    changes: dict[str, object], words: tuple[str, ...]
) -> None:
    with pytest.raises(PluginError) as caught:
        check_compatible(replace(FITS, **changes))  # type: ignore[arg-type]
    for word in words:
        assert word in str(caught.value)


def test_torch_facts_are_read_without_importing_torch() -> None:
    had_torch = "torch" in sys.modules
    environment_facts.cache_clear()
    assert environment_facts()["torch"][0].isdigit()
    assert ("torch" in sys.modules) == had_torch
