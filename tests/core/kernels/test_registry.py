"""Binding: one choice a request, one load a kernel, nothing after the freeze."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.offers import kernel

from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.contracts.kernel import Operator
from tokenspeed.errors import CapabilityError, PluginError
from tokenspeed.kernels import Binder, KernelRegistry

OP = Operator("op", len, {})
CPU = {"device": "cpu", "dtype": "float32"}


def binder(*offers: RegisteredOffer, **options: Any) -> Binder:
    source = SimpleNamespace(operators={"op": OP}, kernel_offers=lambda name: offers)
    return KernelRegistry(source).binder(CPU, **options)


def test_a_kernel_is_loaded_once_and_only_when_it_wins() -> None:
    loads: list[str] = []

    def load_of(name: str) -> Any:
        return lambda: loads.append(name) or len

    wide = kernel("b/wide", load=load_of("wide"), head_dim=("*",))
    made = binder(kernel("a/plain", load=load_of("plain")), wide, kernel("c/y", load=load_of("y")))
    assert loads == []
    assert made.bind(OP) is made.bind(OP) is len
    assert loads == ["plain"]
    assert made.bind(OP, head_dim=64) is made.bind(OP, head_dim=64) is len
    assert loads == ["plain", "wide"]
    assert len(made.decisions) == 2
    assert [decision.record["traits"].get("head_dim") for decision in made.decisions] == [None, 64]


def test_a_pin_chooses_the_kernel_of_one_operator() -> None:
    made = binder(kernel("a/x"), kernel("b/y"), pins={"op": "b/y"})
    made.bind(OP)
    assert made.decisions[0].winner.pin == "b/y"


def test_no_candidate_is_a_capability_error() -> None:
    with pytest.raises(CapabilityError, match=r"no kernel for op \(float32, window=128\) on cpu"):
        binder(kernel("a/x")).bind(OP, window=128)


def test_a_kernel_that_cannot_be_loaded_names_plugin_version_and_cause() -> None:
    with pytest.raises(PluginError, match=r"plugin a 1\.0 failed at load of kernel x .*Zero"):
        binder(kernel("a/x", load=lambda: 1 / 0)).bind(OP)
    with pytest.raises(PluginError, match="loaded as 5, a callable is needed"):
        binder(kernel("a/x", load=lambda: 5)).bind(OP)


def test_after_the_freeze_known_requests_still_answer_and_new_ones_are_our_mistake() -> None:
    made = binder(kernel("a/x", head_dim=("*",)))
    made.bind(OP)
    made.freeze()
    assert made.bind(OP) is len
    with pytest.raises(AssertionError, match="after the freeze"):
        made.bind(OP, head_dim=64)


def test_every_operator_of_a_model_binds_to_the_reference_plugin() -> None:
    from tokenspeed.ops import OPERATORS
    from tokenspeed.plugins import load_plugins

    registry = load_plugins((), role="engine")
    made = KernelRegistry(registry).binder(CPU, objective="determinism")
    for name in ("norm.rms", "norm.add_rms", "activation.silu_mul", "linear.dense"):
        assert callable(made.bind(OPERATORS[name]))
    assert {decision.winner.plugin_id for decision in made.decisions} == {"reference"}
