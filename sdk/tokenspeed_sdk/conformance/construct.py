"""Builds what a plugin offers as the engine builds it, on the plugin's own device or the host."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tokenspeed.plugins.requested import REFERENCE
from tokenspeed_sdk import (
    ExpertGroup,
    GrammarVocabulary,
    KernelOffer,
    Offer,
    Operator,
    Routing,
    TemplateFacts,
)
from tokenspeed_sdk.conformance.domain import allowed_value
from tokenspeed_sdk.conformance.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed_sdk import DeviceRuntime
    from tokenspeed_sdk.conformance.subject import SubjectOffer

KV_HEADS = 2
QUERIES_PER_HEAD = 2
VOCAB_SIZE = 97
STORE_BYTES = 1 << 20


def device_of(subject: Subject) -> DeviceRuntime:
    """Return the plugin's own device, or the reference's where it offers none."""
    offers = subject.offers("device") or Subject.find(REFERENCE).offers("device")
    runtime: DeviceRuntime = _load(offers[0])
    return runtime


def needs_another_device(offer: SubjectOffer, runtime: DeviceRuntime) -> str:
    """Return which device the offer asks for if it is not this one, or ""."""
    if isinstance(offer.offer, Operator):
        return ""
    kinds = offer.offer.requires.get("device", ("*",))
    return "" if {"*", runtime.facts.kind} & set(kinds) else f"it needs device {kinds}"


def construct(offer: SubjectOffer, runtime: DeviceRuntime, folder: Path, **traits: Any) -> Any:
    """Return what the offer builds.

    Args:
        traits: values of the request; those left out are the first that the offer allows.
    """
    if other := needs_another_device(offer, runtime):
        pytest.skip(other)
    make = ARGUMENTS.get(offer.slot)
    arguments = {} if make is None else make(offer, runtime, traits, folder)
    return _load(offer, **arguments)


def request_of(offer: SubjectOffer, traits: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return these traits, by default values that the offer allows."""
    requires = getattr(offer.offer, "requires", {})
    return {
        name: traits[name] if name in traits else allowed_value(requires, name) for name in names
    }


def _load(offer: SubjectOffer, **arguments: Any) -> Any:
    assert isinstance(offer.offer, Offer | KernelOffer)
    load: Any = offer.offer.load
    return load(**arguments)


def _attention(
    offer: SubjectOffer, runtime: DeviceRuntime, traits: dict[str, Any], _: Path
) -> dict[str, Any]:
    import torch

    wanted = request_of(offer, traits, "dtype", "head_dim", "block_tokens")
    return {
        "num_heads": KV_HEADS * QUERIES_PER_HEAD,
        "num_kv_heads": KV_HEADS,
        "head_dim": wanted["head_dim"],
        "block_tokens": wanted["block_tokens"],
        "dtype": getattr(torch, wanted["dtype"]),
        "device": runtime.torch_device(),
    }


def _moe(
    offer: SubjectOffer, runtime: DeviceRuntime, traits: dict[str, Any], _: Path
) -> dict[str, Any]:
    import torch

    dtype = request_of(offer, traits, "dtype")["dtype"]
    group = expert_group(offer, traits)
    return {"group": group, "dtype": getattr(torch, dtype), "device": runtime.torch_device()}


def expert_group(offer: SubjectOffer, traits: dict[str, Any]) -> ExpertGroup:
    """Return a group of experts with these traits."""
    from tokenspeed_sdk import ClampedSwiGLU

    names = ("num_experts", "top_k", "hidden_size", "expert_features", "expert_gate", "expert_bias")
    wanted = request_of(offer, traits, *names, "routing")
    score, _, grouped = str(wanted["routing"]).partition("_")
    routing = Routing(top_k=wanted["top_k"], score=score)
    if grouped:
        routing = dataclasses.replace(routing, groups=2, top_groups=1)
    clamped = wanted["expert_gate"] == "clamped_swiglu"
    return ExpertGroup(
        "experts",
        (0,),
        wanted["num_experts"],
        wanted["hidden_size"],
        wanted["expert_features"],
        routing,
        clamped=ClampedSwiGLU(alpha=1.702, limit=7.0) if clamped else None,
        bias=wanted["expert_bias"],
    )


def _client_rule(*_: Any) -> dict[str, Any]:
    return {"template": TemplateFacts()}


def _sampler(_: SubjectOffer, runtime: DeviceRuntime, *__: Any) -> dict[str, Any]:
    return {"device": runtime.torch_device(), "vocab_size": VOCAB_SIZE}


def _kv_store(
    _: SubjectOffer, __: DeviceRuntime, ___: dict[str, Any], folder: Path
) -> dict[str, Any]:
    return {"namespace": "conformance", "folder": str(folder), "capacity_bytes": STORE_BYTES}


def _speculator(*_: Any) -> dict[str, Any]:
    return {"max_drafts": 4, "max_running": 8, "vocab_size": VOCAB_SIZE}


def _grammar(*_: Any) -> dict[str, Any]:
    letters = [bytes([32 + token]) for token in range(VOCAB_SIZE - 1)]
    end = VOCAB_SIZE - 1
    return {"vocabulary": GrammarVocabulary([*letters, b""], (end,), frozenset({end}))}


def _communicator(_: SubjectOffer, runtime: DeviceRuntime, *__: Any) -> dict[str, Any]:
    return {
        "rank": 0,
        "size": 1,
        "rendezvous": "conformance",
        "device": runtime.torch_device(),
        "timeout_s": 10.0,
    }


ARGUMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "attention": _attention,
    "moe": _moe,
    "sampler": _sampler,
    "client_rule": _client_rule,
    "kv_store": _kv_store,
    "speculator": _speculator,
    "grammar": _grammar,
    "communicator": _communicator,
}
