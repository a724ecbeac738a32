"""Slot interfaces as data: required members, and optional ones with the flag that declares them."""

from __future__ import annotations

import inspect
import operator
from typing import TYPE_CHECKING, Any

from tokenspeed_sdk import (
    OPTIONAL_METHODS,
    AttentionBackend,
    CausalLM,
    ClientRule,
    Command,
    Communicator,
    DeviceRuntime,
    GrammarEngine,
    KVStore,
    MoEBackend,
    Parser,
    Policy,
    Sampler,
    Speculator,
    WeightFormat,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

INTERFACES: Mapping[str, type] = {
    "device": DeviceRuntime,
    "attention": AttentionBackend,
    "moe": MoEBackend,
    "weight_format": WeightFormat,
    "sampler": Sampler,
    "kv_store": KVStore,
    "model": CausalLM,
    "policy": Policy,
    "parser": Parser,
    "client_rule": ClientRule,
    "speculator": Speculator,
    "grammar": GrammarEngine,
    "communicator": Communicator,
    "cli": Command,
}
"""Slot -> interface of what its offers build; a model's is the class that `load` returns."""

LOAD_KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "attention": {
        "num_heads": "query heads",
        "num_kv_heads": "key heads; a divisor of num_heads",
        "head_dim": "elements of a head",
        "block_tokens": "tokens of a logical block",
        "dtype": "torch's dtype of activations",
        "device": "torch's device",
    },
    "sampler": {"device": "torch's device", "vocab_size": "columns of the logits"},
    "moe": {
        "group": "the ExpertGroup that the model declares",
        "dtype": "torch's dtype of activations",
        "device": "torch's device",
    },
    "communicator": {
        "rank": "of this process, from 0",
        "size": "ranks of the group",
        "rendezvous": "text that the ranks of one group share",
        "device": "torch's device",
        "timeout_s": "longest wait for another rank",
    },
    "kv_store": {
        "namespace": "differs between caches whose bytes cannot be exchanged",
        "folder": "where a store on disk keeps its files",
        "capacity_bytes": "most that it keeps",
    },
    "grammar": {"vocabulary": "the GrammarVocabulary of the served model"},
    "speculator": {
        "max_drafts": "most tokens of a guess",
        "max_running": "most requests at once",
        "vocab_size": "columns of the logits",
    },
    "client_rule": {"template": "TemplateFacts of the served model's chat template"},
}
"""Slot -> keywords that an offer's `load` is called with; other slots: none."""

OPTIONAL: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "device": (
        ("features", "pinned", "allocate_pinned"),
        ("features", "graphs", "capture"),
    ),
    "moe": (("fuses_routing", "", "route_and_forward"),),
    "parser": (("structures", "", "structure"),),
    "speculator": (("facts.observes", "", "observe"),),
    "communicator": tuple(
        ("features", feature, method)
        for feature, methods in OPTIONAL_METHODS.items()
        for method in methods
    ),
}
"""Slot -> (dotted attribute, member of it or "" if it is a flag, the method that it declares)."""

OPTIONAL_ATTRIBUTES: Mapping[str, frozenset[str]] = {"parser": frozenset({"thinking"})}
"""Slot -> attributes that may be left out."""


def problems(slot: str, built: Any) -> list[str]:
    """List what `built` lacks of its slot's interface."""
    optional = {method for _, _, method in OPTIONAL.get(slot, ())}
    optional |= OPTIONAL_ATTRIBUTES.get(slot, frozenset())
    return [*_missing(INTERFACES[slot], built, optional), *_undeclared(slot, built)]


def _missing(interface: type, built: Any, optional: set[str]) -> Iterator[str]:
    for name in getattr(interface, "__annotations__", {}):
        if not name.startswith("_") and name not in optional and not hasattr(built, name):
            yield f"attribute {name} is missing"
    for name, specification in vars(interface).items():
        function = getattr(specification, "__func__", specification)
        if name.startswith("_") or name in optional or not inspect.isfunction(function):
            continue
        member = getattr(built, name, None)
        if not callable(member):
            yield f"method {name} is missing"
        else:
            yield from _misfits(name, function, member)


def _misfits(name: str, specification: Any, member: Any) -> Iterator[str]:
    """Compare parameters; `self` and `cls` of the specification are bound away in the member."""
    wanted = list(inspect.signature(specification).parameters.values())[1:]
    have = inspect.signature(member).parameters
    if inspect.isclass(member) or any(item.kind is item.VAR_KEYWORD for item in have.values()):
        return
    positional = [item.name for item in have.values() if item.name != "self"]
    for item in wanted:
        if item.name not in positional:
            yield f"method {name} takes no {item.name!r}; it takes {', '.join(positional)}"
    names = {item.name for item in wanted}
    for item in have.values():
        required = item.default is item.empty and item.kind not in {
            item.VAR_POSITIONAL,
            item.VAR_KEYWORD,
        }
        if required and item.name not in names | {"self"}:
            yield f"method {name} demands {item.name!r}, which the engine does not give"


def _undeclared(slot: str, built: Any) -> Iterator[str]:
    for attribute, member, method in OPTIONAL.get(slot, ()):
        flag: Any = operator.attrgetter(attribute)(built)
        declared = member in flag if member else bool(flag)
        present = callable(getattr(built, method, None))
        label = f"{attribute} {member}".strip()
        if declared and not present:
            yield f"{label} is declared and method {method} is missing"
        if present and not declared:
            yield f"method {method} is there and {label} does not declare it"
