"""Architectures: found by name, imported alone, refused with the nearest."""

from __future__ import annotations

from typing import Any

import pytest

from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.contracts.registration import Offer
from tokenspeed.errors import ConfigError, PluginError
from tokenspeed.models.registry import architectures, resolve_architecture
from tokenspeed.plugins import Registry, lazy, load_plugins


def registry_of(**targets: Any) -> Registry:
    registry = Registry()
    staged = [
        ("model", Offer("model", name, load, facts={"architectures": (name,)}))
        for name, load in targets.items()
    ]
    registry.commit("acme", "1.0", staged)
    return registry


class Good:
    architectures = ("GoodForCausalLM",)


def test_the_cores_architectures_are_listed_and_resolve() -> None:
    registry = load_plugins((), role="engine")
    names = [
        "GptOssForCausalLM",
        "LlamaForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
    ]
    assert [name for name, item in architectures(registry).items() if item.plugin_id == "core"] == (
        names
    )
    for name in names:
        assert name in resolve_architecture(registry, {"architectures": [name]}).architectures


def test_one_broken_model_file_breaks_only_itself() -> None:
    registry = registry_of(GoodForCausalLM=lambda: Good, BadForCausalLM=lazy("no_such_module:X"))
    assert resolve_architecture(registry, {"architectures": ["GoodForCausalLM"]}) is Good
    assert set(architectures(registry)) == {"GoodForCausalLM", "BadForCausalLM"}
    with pytest.raises(PluginError, match=r"plugin acme 1\.0 .*BadForCausalLM: ModuleNotFound"):
        resolve_architecture(registry, {"architectures": ["BadForCausalLM"]})


def test_an_unknown_architecture_is_answered_with_the_nearest_and_the_list() -> None:
    registry = registry_of(GoodForCausalLM=lambda: Good)
    with pytest.raises(ConfigError, match=r"'GodForCausalLM'.*did you mean GoodForCausalLM\?"):
        resolve_architecture(registry, {"architectures": ["GodForCausalLM"]})
    with pytest.raises(ConfigError, match=r"known: GoodForCausalLM; load a plugin"):
        resolve_architecture(registry, {"architectures": ["Zzz"]})


@pytest.mark.parametrize("named", [None, [], "LlamaForCausalLM", [5]])
def test_a_config_without_a_named_architecture_is_refused(named: Any) -> None:
    config = {} if named is None else {"architectures": named}
    with pytest.raises(ConfigError, match=r"config\.json: architectures is"):
        resolve_architecture(registry_of(), config)


def test_a_class_that_does_not_list_the_architecture_is_refused() -> None:
    with pytest.raises(PluginError, match="does not list it"):
        resolve_architecture(
            registry_of(OtherForCausalLM=lambda: Good), {"architectures": ["OtherForCausalLM"]}
        )


def test_two_plugins_with_one_architecture_are_an_error_with_both_names() -> None:
    registry = registry_of(GoodForCausalLM=lambda: Good)
    offer = Offer("model", "mine", lambda: Good, facts={"architectures": ("GoodForCausalLM",)})
    registry.commit("other", "1.0", [("model", offer)])
    assert isinstance(registry.offers("model")[0], RegisteredOffer)
    with pytest.raises(ConfigError, match="acme/GoodForCausalLM and other/mine"):
        architectures(registry)
