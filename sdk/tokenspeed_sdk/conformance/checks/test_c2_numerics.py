"""C2: what is offered computes what it must, over samples of the domain that it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tokenspeed.kernels.judging import declared_traits
from tokenspeed_sdk import Offer, PluginError
from tokenspeed_sdk.conformance import sampler_check, store_check
from tokenspeed_sdk.conformance.construct import (
    KV_HEADS,
    QUERIES_PER_HEAD,
    VOCAB_SIZE,
    construct,
    device_of,
    expert_group,
)
from tokenspeed_sdk.conformance.domain import sampled
from tokenspeed_sdk.conformance.subject import Subject, SubjectOffer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tokenspeed_sdk import DeviceRuntime, KVStore

SAMPLES = 10
ATTENTION_TRAITS = ("dtype", "head_dim", "block_tokens", "window", "sinks", "softcap")
MOE_TRAITS = (
    "dtype",
    "num_experts",
    "top_k",
    "hidden_size",
    "expert_features",
    "expert_gate",
    "expert_bias",
    "routing",
)


@pytest.fixture
def runtime(subject: Subject) -> DeviceRuntime:
    try:
        return device_of(subject)
    except PluginError as error:
        pytest.skip(error.message)


@pytest.mark.slot("attention")
def test_attention_is_right(offer: SubjectOffer, runtime: DeviceRuntime, tmp_path: Path) -> None:
    import torch

    from tokenspeed_sdk.conformance.attention_check import (
        Geometry,
        check_attention,
        check_rows_are_independent,
    )

    for seed, traits in enumerate(_samples(offer, ATTENTION_TRAITS)):
        backend = construct(offer, runtime, tmp_path, **traits)
        geometry = Geometry(
            num_heads=KV_HEADS * QUERIES_PER_HEAD,
            num_kv_heads=KV_HEADS,
            head_dim=traits["head_dim"],
            block_tokens=traits["block_tokens"],
            dtype=getattr(torch, traits["dtype"]),
            device=runtime.torch_device(),
        )
        check_attention(backend, geometry, traits, seed=seed)
        if True in declared_traits(offer.offer).get("deterministic", ()):
            check_rows_are_independent(backend, geometry, traits, seed=seed)


@pytest.mark.slot("moe")
def test_experts_are_right(offer: SubjectOffer, runtime: DeviceRuntime, tmp_path: Path) -> None:
    import torch

    from tokenspeed_sdk.conformance.moe_check import check_moe, check_rows_are_independent

    for seed, traits in enumerate(_samples(offer, MOE_TRAITS)):
        backend = construct(offer, runtime, tmp_path, **traits)
        group = expert_group(offer, traits)
        dtype = getattr(torch, traits["dtype"])
        check_moe(backend, group, dtype, runtime.torch_device(), seed=seed)
        if True in declared_traits(offer.offer).get("deterministic", ()):
            check_rows_are_independent(backend, group, dtype, runtime.torch_device())


SAMPLER_CHECKS = {
    "greedy": sampler_check.check_greedy,
    "failed-rows": sampler_check.check_failed_rows,
    "draws": sampler_check.check_draws,
    "scores": sampler_check.check_scores,
    "rows-are-independent": sampler_check.check_rows_are_independent,
}


@pytest.mark.slot("sampler")
@pytest.mark.parametrize("check", SAMPLER_CHECKS)
def test_the_sampler_is_right(
    offer: SubjectOffer, runtime: DeviceRuntime, tmp_path: Path, check: str
) -> None:
    sampler = construct(offer, runtime, tmp_path)
    SAMPLER_CHECKS[check](sampler, VOCAB_SIZE, runtime.torch_device())


STORE_CHECKS = {
    "round-trip": store_check.check_round_trip,
    "replacement": store_check.check_replacement,
    "many-at-once": store_check.check_many_at_once,
    "bound": store_check.check_bound,
}


@pytest.mark.slot("kv_store")
@pytest.mark.parametrize("check", STORE_CHECKS)
def test_the_store_is_right(
    offer: SubjectOffer, runtime: DeviceRuntime, tmp_path: Path, check: str
) -> None:
    store = construct(offer, runtime, tmp_path)
    STORE_CHECKS[check](store)
    store.close()


@pytest.mark.slot("kv_store")
def test_a_damaged_record_is_never_given_out(
    offer: SubjectOffer, runtime: DeviceRuntime, tmp_path: Path
) -> None:
    def make() -> KVStore:
        store: KVStore = construct(offer, runtime, tmp_path)
        return store

    first = make()
    first.close()
    if not first.facts.durable:
        pytest.skip("it keeps nothing on disk")
    store_check.check_damage(make, tmp_path)


def _samples(offer: SubjectOffer, traits: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    assert isinstance(offer.offer, Offer)
    found = list(sampled(offer.offer.requires, traits, seed=0, count=SAMPLES))
    assert found, f"its declared domain is empty: {dict(offer.offer.requires)}"
    yield from found
