"""The core's own plugin: operators and models come through the hooks that strangers use."""

from __future__ import annotations

import importlib

import pytest

from tokenspeed import __version__
from tokenspeed.builtin import MODELS
from tokenspeed.ops import OPERATORS
from tokenspeed.plugins import load_plugins


def test_the_core_plugin_declares_every_operator_and_model() -> None:
    registry = load_plugins((), role="cli", available={})
    assert dict(registry.operators) == dict(OPERATORS)
    assert [item.offer.name for item in registry.offers("model")] == sorted(MODELS)
    assert [(item.id, item.version) for item in registry.plugins] == [("core", __version__)]


@pytest.mark.parametrize("target", MODELS.values(), ids=MODELS)
def test_every_target_of_the_index_exists(target: str) -> None:
    module, _, name = target.partition(":")
    assert hasattr(importlib.import_module(module), name)
