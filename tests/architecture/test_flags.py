"""The flag list is frozen: a new, renamed or removed setting shows up in review."""

from __future__ import annotations

from tests.support.source_tree import ROOT

from tokenspeed.config.schema import ServeConfig, settings_of

FROZEN = ROOT / "tests" / "architecture" / "flags.txt"


def test_the_settings_are_the_frozen_list() -> None:
    frozen = FROZEN.read_text().split()
    assert list(settings_of(ServeConfig)) == frozen, (
        f"settings changed: write them to {FROZEN.relative_to(ROOT)}, one a line, and add a "
        "CHANGELOG line"
    )


def test_every_setting_has_a_meaning() -> None:
    for name, item in settings_of(ServeConfig).items():
        assert item.metadata["help"], f"{name} has no help"
