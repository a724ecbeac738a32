"""Graphs are made where every part of a step says that it can be captured; elsewhere it is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenspeed.config.schema import EngineConfig
from tokenspeed.contracts.binding import Decision, RegisteredOffer
from tokenspeed.contracts.kernel import KernelOffer
from tokenspeed.contracts.registration import Offer
from tokenspeed.engine.graphs import Graphs, capture_graphs, declined
from tokenspeed.executor.graphs import GraphCounts

CONFIG = EngineConfig()


class OnDevice:
    """Attention that can be planned once."""

    def plan_decode(self, rows: object) -> object:
        """Never called."""
        raise NotImplementedError


def kernel(operator: str, *, graph_safe: bool) -> Decision:
    offer = KernelOffer(operator, f"{operator}_any", dict, graph_safe=graph_safe)
    return Decision(RegisteredOffer("acme", "1", offer), {"slot": operator})


def experts(**requires: tuple[object, ...]) -> Decision:
    return Decision(RegisteredOffer("acme", "1", Offer("moe", "fast", dict, requires=requires)), {})


def reason(
    *kernels: Decision,
    attention: Any = None,
    config: EngineConfig = CONFIG,
    **slots: Decision,
) -> str:
    decisions = {name.replace("_", "."): decision for name, decision in slots.items()}
    return declined(config, {"full": attention or OnDevice()}, kernels, decisions)


def test_nothing_is_against_parts_that_can_all_be_captured() -> None:
    outside = kernel("kv.copy_tokens", graph_safe=False)
    safe = experts(graph_safe=(True, False))
    assert reason(kernel("norm.rms", graph_safe=True), outside, moe_experts=safe) == ""


def test_a_kernel_that_does_not_say_so_is_named() -> None:
    kernels = (kernel("norm.rms", graph_safe=False), kernel("linear.dense", graph_safe=True))
    assert reason(*kernels) == "not graph-safe: acme/norm.rms_any"


def test_experts_that_do_not_say_so_are_named() -> None:
    assert reason(moe_experts=experts()) == "not graph-safe: acme/fast"


def test_a_backend_that_plans_each_step_on_the_host_is_named() -> None:
    assert reason(attention=object()) == "attention of 'full' plans on the host"


@pytest.mark.parametrize("degree", ["tp", "pp", "dp", "cp"])
def test_several_ranks_have_none(degree: str) -> None:
    assert reason(config=EngineConfig(**{degree: 2})) == "several ranks"


@pytest.mark.parametrize(
    ("setting", "features"), [("off", frozenset({"graphs"})), ("auto", frozenset())]
)
def test_without_the_setting_or_the_device_nothing_is_captured(
    setting: str, features: frozenset[str]
) -> None:
    nothing: Any = None
    runtime: Any = SimpleNamespace(features=features)
    made = capture_graphs(
        EngineConfig(graphs=setting),
        nothing,
        nothing,
        nothing,
        runtime,
        nothing,
        nothing,
        is_watched=False,
    )
    assert made == Graphs("off")


@pytest.mark.parametrize("deterministic", [False, True])
def test_shared_beginnings_are_looked_for_unless_bits_must_not_depend_on_other_rows(
    *, deterministic: bool
) -> None:
    given: list[Any] = []
    executor: Any = SimpleNamespace(
        capture_graphs=lambda settings, _: given.append(settings) or GraphCounts()
    )
    rank: Any = SimpleNamespace(
        attention={}, binder=SimpleNamespace(decisions=(), bind=lambda *_, **__: None)
    )
    choices: Any = SimpleNamespace(decisions={"sampler": experts(graph_safe=(True, False))})
    runtime: Any = SimpleNamespace(features=frozenset({"graphs"}), capture=None)
    config = EngineConfig(deterministic=deterministic)
    tell: Any = None
    capture_graphs(config, rank, None, choices, runtime, executor, tell, is_watched=False)  # type: ignore[arg-type]
    assert [settings.shares for settings in given] == [not deterministic]
