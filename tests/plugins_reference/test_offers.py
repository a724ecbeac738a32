"""The plugin's offers through real discovery and selection."""

from __future__ import annotations

import pytest
import torch

from tokenspeed import ops
from tokenspeed.contracts.kernel import Operator
from tokenspeed.errors import CapabilityError
from tokenspeed.kernels.registry import Binder, KernelRegistry
from tokenspeed.plugins import Registry, load_plugins


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_plugins(("reference",), role="engine")


def make_binder(registry: Registry, objective: str = "latency", **traits: object) -> Binder:
    base = {"device": "cpu", "dtype": "float32", **traits}
    return KernelRegistry(registry).binder(base, objective=objective)


def chosen(binder: Binder, operator: Operator, **traits: object) -> str:
    binder.bind(operator, **traits)
    return binder.decisions[-1].winner.offer.name


@pytest.mark.parametrize("objective", ["latency", "throughput", "determinism"])
def test_every_kernel_operator_binds_for_any_objective(registry: Registry, objective: str) -> None:
    for operator in ops.OPERATORS.values():
        if operator.slot == "operator":
            packing = "q4_1" if operator.name.endswith(("packed", "code")) else ""
            binder = make_binder(registry, objective)
            assert callable(binder.bind(operator, packing=packing, head_dim=64))


@pytest.mark.parametrize(
    ("device", "fast", "same_in_every_batch"),
    [
        ("cpu", "linear_cpu", "linear_invariant_cpu"),
        ("sim", "linear_plain_any", "linear_rowwise_any"),
    ],
)
def test_determinism_takes_a_product_that_is_the_same_in_every_batch(
    registry: Registry, device: str, fast: str, same_in_every_batch: str
) -> None:
    assert chosen(make_binder(registry, device=device), ops.linear.linear) == fast
    binder = make_binder(registry, "determinism", device=device)
    assert chosen(binder, ops.linear.linear) == same_in_every_batch


def test_packed_products_are_native_on_the_cpu_and_expand_elsewhere(registry: Registry) -> None:
    on_cpu, elsewhere = make_binder(registry), make_binder(registry, device="sim")
    operator = ops.linear.packed_linear
    assert chosen(on_cpu, operator, packing="q6_k") == "packed_linear_cpu"
    assert chosen(elsewhere, operator, packing="q6_k") == "packed_linear_expand_any"


def test_what_is_not_declared_is_refused(registry: Registry) -> None:
    with pytest.raises(CapabilityError, match="q3_k"):
        make_binder(registry).bind(ops.linear.packed_linear, packing="q3_k")
    with pytest.raises(CapabilityError, match="float8"):
        make_binder(registry, dtype="float8").bind(ops.norm.rms_norm)


def test_each_slot_of_the_main_job_has_an_offer(registry: Registry) -> None:
    for slot in ("device", "attention", "moe", "sampler", "communicator", "weight_format"):
        assert registry.offers(slot)


def test_attention_and_sampler_offers_construct(registry: Registry) -> None:
    (sampler,) = registry.offers("sampler")
    for attention in registry.offers("attention"):
        backend = attention.offer.load(
            num_heads=4,
            num_kv_heads=2,
            head_dim=8,
            block_tokens=16,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        assert callable(backend.attend)
    assert callable(sampler.offer.load(device=torch.device("cpu"), vocab_size=9).sample)
