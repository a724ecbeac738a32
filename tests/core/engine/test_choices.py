"""Attention is chosen per cache group, by what the group keeps; its backend shapes the cache."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tokenspeed.config.schema import EngineConfig
from tokenspeed.contracts.attention import CacheDemand
from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.contracts.device import DeviceFacts
from tokenspeed.contracts.model import CacheField, CacheGroup, gqa_fields
from tokenspeed.contracts.registration import Offer
from tokenspeed.engine.choices import Choices
from tokenspeed.engine.sizes import resolve_sizes
from tokenspeed.errors import CapabilityError, PluginError
from tokenspeed.plugins.registry import PluginStatus

SIZES = resolve_sizes(
    EngineConfig(),
    {"max_position_embeddings": 128, "vocab_size": 9, "num_attention_heads": 4},
    device_kind="cpu",
)
RUNTIME: Any = SimpleNamespace(
    facts=DeviceFacts("cpu", "Some CPU", "a1", 1, 1 << 30),
    torch_device=lambda: torch.device("cpu"),
    **dict.fromkeys(("free_memory_bytes", "allocate_arena", "synchronize"), print),
)
ANY = ("*",)


class Backend(dict[str, Any]):
    """An attention backend that only says what it was built with."""

    plan = write = attend = print


TRAITS: dict[str, tuple[object, ...]] = dict.fromkeys(
    ("device", "arch", "dtype", "head_dim", "gqa_ratio", "block_tokens"), ANY
)
PAGED = CacheDemand(page_tokens=64)


def choices(*offers: Offer) -> Choices:
    """Choices among attention offers, best first."""
    registered = tuple(RegisteredOffer("p", "1.0", offer) for offer in offers)
    registry: Any = SimpleNamespace(offers=lambda slot: registered, operators=())
    return Choices(EngineConfig(), registry)


def test_state_groups_have_no_attention_and_windows_need_a_backend_that_takes_them() -> None:
    plain = Offer(
        "attention", "plain", Backend, requires=TRAITS, band="PERFORMANT", facts={"cache": PAGED}
    )
    window = Offer("attention", "window", Backend, requires={**TRAITS, "window": ANY})
    chosen = choices(plain, window)
    groups = (
        CacheGroup("full", "full", (0,), gqa_fields(2, 16)),
        CacheGroup("near", "window", (1,), gqa_fields(1, 8), window=20),
        CacheGroup("gdn", "state", (2,), (CacheField("s", (4,)),)),
    )
    backends: dict[str, Any] = chosen.attention(groups, SIZES, RUNTIME)
    assert sorted(backends) == ["full", "near"]
    assert (backends["near"]["num_kv_heads"], backends["near"]["head_dim"]) == (1, 8)
    names = [chosen.decisions[f"attention.{name}"].winner.pin for name in ("full", "near")]
    assert names == ["p/plain", "p/window"]
    assert chosen.cache_demands() == {"full": PAGED, "near": CacheDemand()}


def test_a_cache_without_keys_and_values_is_refused_by_name() -> None:
    group = CacheGroup("mla", "full", (0,), (CacheField("latent", (576,)),))
    with pytest.raises(CapabilityError, match=r"'mla' keeps the fields \[\('latent', \(576,\)\)\]"):
        choices().attention((group,), SIZES, RUNTIME)


def test_a_failed_plugin_of_a_found_device_does_not_move_the_start_to_another_kind() -> None:
    found = DeviceFacts("acme", "Acme One", "a1", 1, 1 << 30)
    broken = PluginStatus("acme", "1.0", "acme", "quarantined", "load: no driver", (found,))
    offer = RegisteredOffer("p", "1.0", Offer("device", "cpu", lambda: RUNTIME))
    registry: Any = SimpleNamespace(offers=lambda slot: (offer,), plugins=(broken,), operators=())
    with pytest.raises(CapabilityError, match=r"plugin acme 1\.0 found acme and failed") as caught:
        Choices(EngineConfig(), registry).device()
    assert caught.value.id == "device-fallback-refused"
    assert "no driver; repair it, name other plugins (--plugins) or the device (--device cpu)" in (
        caught.value.message
    )
    assert "accept it with --allow-device-fallback" in caught.value.message
    for config in (EngineConfig(device="cpu"), EngineConfig(allow_device_fallback=True)):
        assert Choices(config, registry).device() is RUNTIME


@pytest.mark.parametrize("code", ["sys.exit(0)", "raise GeneratorExit", "1 / 0"])
def test_what_comes_out_of_a_load_is_the_plugins_error(code: str) -> None:
    def load(**_: Any) -> None:
        exec(code, {"sys": sys})

    plain = Offer("attention", "plain", load, requires=TRAITS, band="PERFORMANT")
    group = CacheGroup("full", "full", (0,), gqa_fields(2, 16))
    with pytest.raises(PluginError, match=r"plugin p 1\.0 failed at load of attention") as caught:
        choices(plain).attention((group,), SIZES, RUNTIME)
    assert caught.value.exit_code == 4


def test_a_device_without_facts_is_refused_by_name() -> None:
    runtime = SimpleNamespace(**{**vars(RUNTIME), "facts": {"kind": "cpu"}})
    offers = (RegisteredOffer("p", "1.0", Offer("device", "cpu", lambda: runtime)),)
    registry: Any = SimpleNamespace(offers=lambda slot: offers, operators=())
    with pytest.raises(PluginError, match="has no facts of type DeviceFacts"):
        Choices(EngineConfig(device="cpu"), registry).device()


@pytest.mark.parametrize(
    ("opener", "words"),
    [
        ("None", "failed at a look at .*'matches'"),
        ("Format(lambda path: 1 / 0)", "failed at a look at .*ZeroDivisionError"),
        ("Format(bool)", r"what p/f builds .* has no open"),
        ("Format(bool, lambda path: None)", r"what p/f builds \(NoneType\) has no config"),
        ("Format(bool, lambda path: 1 / 0)", "failed at opening .*ZeroDivisionError"),
    ],
)
def test_a_broken_weight_format_is_named(opener: str, words: str, tmp_path: Path) -> None:
    def form(matches: Any, *opens: Any) -> Any:
        return SimpleNamespace(matches=matches, **dict(zip(("open",), opens, strict=False)))

    offer = Offer("weight_format", "f", lambda: eval(opener, {"Format": form}))
    registered = (RegisteredOffer("p", "1.0", offer),)
    registry: Any = SimpleNamespace(offers=lambda slot: registered, operators=())
    with pytest.raises(PluginError, match=words):
        Choices(EngineConfig(), registry).checkpoint(tmp_path)


def test_a_device_of_another_kind_than_its_offer_says_does_not_start() -> None:
    offer = RegisteredOffer(
        "p", "1.0", Offer("device", "d", lambda: RUNTIME, facts={"kind": "acme"})
    )
    registry: Any = SimpleNamespace(offers=lambda slot: (offer,), plugins=(), operators=())
    with pytest.raises(PluginError, match="offers kind 'acme' and builds a device of kind 'cpu'"):
        Choices(EngineConfig(), registry).device()


def test_what_lacks_a_method_of_its_interface_does_not_start() -> None:
    group = CacheGroup("full", "full", (0,), gqa_fields(2, 16))
    lacking = Offer("attention", "lacking", dict, requires=TRAITS)
    with pytest.raises(PluginError) as caught:
        choices(lacking).attention((group,), SIZES, RUNTIME)
    text = str(caught.value)
    assert "what p/lacking builds (dict) has no plan, write, attend" in text
    assert caught.value.id == "offer-load-failed"
