"""A model may suggest a plugin: it is told, and nothing is loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.choices import Choices
from tokenspeed.errors import ConfigError
from tokenspeed.plugins import load_plugins
from tokenspeed.plugins.model_suggestion import (
    suggested_plugin,
    suggestion_text,
    unloaded_text,
)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("acme", "acme"),
        (None, ""),
        (7, ""),
        ("../acme", ""),
        ("acme --plugins evil", ""),
        ("a" * 100, ""),
        (["acme"], ""),
    ],
)
def test_only_an_id_is_a_suggestion(named: object, expected: str) -> None:
    assert suggested_plugin({"tokenspeed_plugin": named}) == expected


def test_a_loaded_plugin_is_not_suggested_again() -> None:
    config = {"tokenspeed_plugin": "acme"}
    assert "add --plugins acme" in suggestion_text(config, frozenset())
    assert suggestion_text(config, frozenset({"acme"})) == ""


def test_a_suggested_plugin_that_is_installed_is_named_and_not_imported(
    plugin_space: PluginSpace, tmp_path: Path
) -> None:
    package = plugin_space.install("acme")
    config = {"architectures": ["Acme"], "tokenspeed_plugin": "acme"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    choices = Choices(EngineConfig(), load_plugins(("auto",), role="engine"))
    with pytest.raises(ConfigError, match=r"'Acme' is not offered; .* add --plugins acme"):
        choices.model_class(config)
    assert package not in sys.modules


def test_installed_models_that_are_not_loaded_are_named_where_an_architecture_is_missing(
    plugin_space: PluginSpace,
) -> None:
    package = plugin_space.install("acme")
    choices = Choices(EngineConfig(), load_plugins(("auto",), role="engine"))
    with pytest.raises(ConfigError, match=r"not loaded: acme; .*models list --plugins acme"):
        choices.model_class({"architectures": ["Other"]})
    assert package not in sys.modules
    assert unloaded_text(frozenset({"acme"})) == ""
