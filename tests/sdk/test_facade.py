"""The sdk's promise: every name resolves, nothing of torch, and the plugin offers the test kit."""

from __future__ import annotations

import pytest

import tokenspeed_sdk
from tokenspeed.models.registry import resolve_architecture
from tokenspeed.plugins import load_plugins


@pytest.mark.parametrize("name", tokenspeed_sdk.__all__)
def test_every_promised_name_resolves(name: str) -> None:
    assert getattr(tokenspeed_sdk, name) is not None


def test_the_promise_has_no_name_twice_and_refuses_others() -> None:
    assert len(set(tokenspeed_sdk.__all__)) == len(tokenspeed_sdk.__all__)
    with pytest.raises(AttributeError, match="no attribute 'scheduler'"):
        _ = tokenspeed_sdk.scheduler


def test_the_api_version_lies_in_the_range_of_our_own_manifests() -> None:
    assert tokenspeed_sdk.API_VERSION == "1.0"
    registry = load_plugins(("sdk",), role="engine")
    assert {status.state for status in registry.plugins if status.id in ("sdk", "reference")} == {
        "registered"
    }


def test_the_scripted_model_is_served_only_when_the_sdk_is_named() -> None:
    config = {"architectures": ["ScriptedForCausalLM"]}
    loaded = resolve_architecture(load_plugins(("sdk",), role="engine"), config)
    assert loaded.architectures == ("ScriptedForCausalLM",)
    from tokenspeed.errors import ConfigError

    with pytest.raises(ConfigError, match="'ScriptedForCausalLM' is not offered"):
        resolve_architecture(load_plugins((), role="engine"), config)
