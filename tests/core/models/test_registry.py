"""Architectures: found by name, imported alone, refused with the nearest."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.contracts.registration import Offer
from tokenspeed.errors import ConfigError, PluginError
from tokenspeed.models.registry import architectures, candidates, resolve_architecture
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

    def cache_groups(self) -> None: ...
    def load_weights(self) -> None: ...
    def forward(self) -> None: ...
    def compute_logits(self) -> None: ...


def test_the_cores_architectures_are_listed_and_resolve() -> None:
    registry = load_plugins((), role="engine")
    names = [
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "GptOssForCausalLM",
        "LlamaForCausalLM",
        "MixtralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
    ]
    found = architectures(registry)
    assert [name for name, (item,) in found.items() if item.plugin_id == "core"] == names
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


def test_another_architecture_is_not_taken_for_a_mistyped_one() -> None:
    registry = registry_of(Qwen2ForCausalLM=lambda: Good)
    with pytest.raises(ConfigError, match=r"known: Qwen2ForCausalLM; load a plugin"):
        resolve_architecture(registry, {"architectures": ["Gemma2ForCausalLM"]})


def test_a_family_is_not_suggested_for_the_ending_that_all_share() -> None:
    registry = registry_of(LlamaForCausalLM=lambda: Good, Qwen3NextForCausalLM=lambda: Good)
    with pytest.raises(ConfigError, match=r"load a plugin .*--model-module"):
        resolve_architecture(registry, {"architectures": ["MistralForCausalLM"]})
    with pytest.raises(ConfigError, match=r"did you mean Qwen3NextForCausalLM\?"):
        resolve_architecture(registry, {"architectures": ["Qwen3NxtForCausalLM"]})


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


def test_a_class_without_the_methods_of_a_model_is_refused_by_their_names() -> None:
    class Half:
        architectures = ("HalfForCausalLM",)

        def forward(self) -> None: ...

    with pytest.raises(PluginError, match="lacks cache_groups, load_weights, compute_logits"):
        resolve_architecture(
            registry_of(HalfForCausalLM=lambda: Half), {"architectures": ["HalfForCausalLM"]}
        )


def conflicting() -> Registry:
    registry = registry_of(GoodForCausalLM=lambda: Good, AloneForCausalLM=lambda: Good)
    offer = Offer("model", "mine", lambda: Good, facts={"architectures": ("GoodForCausalLM",)})
    registry.commit("other", "1.0", [("model", offer)])
    assert isinstance(registry.offers("model")[0], RegisteredOffer)
    return registry


def test_two_plugins_with_one_architecture_are_an_error_with_the_pin_to_use() -> None:
    registry, config = conflicting(), {"architectures": ["GoodForCausalLM"]}
    with pytest.raises(PluginError) as caught:
        resolve_architecture(registry, config)
    assert caught.value.id == "model-conflict"
    assert "acme/GoodForCausalLM and other/mine" in caught.value.message
    assert "--pins model=other/mine" in caught.value.message
    assert resolve_architecture(registry, config, pin="other/mine") is Good
    with pytest.raises(PluginError, match="'acme/nope', GoodForCausalLM is offered by acme/Good"):
        resolve_architecture(registry, config, pin="acme/nope")


def test_a_conflict_leaves_other_architectures_alone() -> None:
    registry = conflicting()
    (item,) = candidates(registry, {"architectures": ["AloneForCausalLM"]})
    assert item.pin == "acme/AloneForCausalLM"
    assert len(architectures(registry)["GoodForCausalLM"]) == 2


def test_resolving_one_architecture_imports_no_other_model_file() -> None:
    code = (
        "import sys\n"
        "from tokenspeed.builtin import MODELS\n"
        "from tokenspeed.models.registry import resolve_architecture\n"
        "from tokenspeed.plugins import load_plugins\n"
        "registry = load_plugins((), role='engine')\n"
        "known = {target.partition(':')[0] for target in MODELS.values()}\n"
        "assert len(known) > 5 and not known & set(sys.modules), known & set(sys.modules)\n"
        "resolve_architecture(registry, {'architectures': ['Qwen2ForCausalLM']})\n"
        "assert known & set(sys.modules) == {'tokenspeed.models.qwen2'}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
