"""Finds the class for a checkpoint's architecture. One broken model file breaks itself only."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, cast

from tokenspeed.errors import ConfigError, PluginError, plugin_code, shown, told

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.contracts.binding import RegisteredOffer
    from tokenspeed.contracts.model import CausalLM
    from tokenspeed.contracts.registration import Offer
    from tokenspeed.plugins.registry import Registry

AUTO = "auto"

REQUIRED = ("cache_groups", "load_weights", "forward", "compute_logits")
"""Methods that a model class must have."""


def architectures(registry: Registry) -> dict[str, tuple[RegisteredOffer[Offer], ...]]:
    """Return every architecture that is offered, and by whom, sorted; imports no model file."""
    found: dict[str, tuple[RegisteredOffer[Offer], ...]] = {}
    for registered in registry.offers("model"):
        for name in registered.offer.facts["architectures"]:
            found[name] = (*found.get(name, ()), registered)
    return dict(sorted(found.items()))


def architecture_of(config: Mapping[str, Any]) -> str:
    """Return the architecture that config.json names.

    Raises:
        ConfigError: `architectures` is missing, empty, or not a list of names.
    """
    named = config.get("architectures")
    if not isinstance(named, (list, tuple)) or not named or not isinstance(named[0], str):
        raise ConfigError(
            f"config.json: architectures is {named!r}, a list with one name is needed; "
            "use the config.json that came with the weights"
        )
    return named[0]


def candidates(
    registry: Registry, config: Mapping[str, Any], *, pin: str = AUTO
) -> tuple[RegisteredOffer[Offer], ...]:
    """Return who offers the architecture that config.json names; with a pin, all of them.

    Raises:
        ConfigError: nobody does; lists the architectures that are offered.
        PluginError: several do and none is pinned; names the pins.
    """
    wanted = architecture_of(config)
    known = architectures(registry)
    if wanted not in known:
        raise ConfigError(
            f"architecture {wanted!r} is not offered; known: {', '.join(known)}; "
            f"{_advice(wanted, known)}"
        )
    found = known[wanted]
    if len(found) > 1 and pin == AUTO:
        pins = [item.pin for item in found]
        raise PluginError(
            f"architecture {wanted} is offered by {' and '.join(pins)}; one may serve it: choose "
            f"with --pins model={pins[0]} or --pins model={pins[1]}",
            id="model-conflict",
        )
    return found


def _advice(wanted: str, known: Iterable[str]) -> str:
    """Return the architecture that was misspelled, or how to bring one that nobody here has.

    Families are compared without the ending that most of them share: it makes Mistral no Llama.
    """
    families = {_family(name): name for name in known}
    near = difflib.get_close_matches(_family(wanted), families, n=1, cutoff=0.85)
    if near:
        return f"did you mean {families[near[0]]}?"
    return (
        "load a plugin that offers it (--plugins), or a file of your own (--model-module; "
        "docs/plugins/add-a-model.md shows one)"
    )


def _family(architecture: str) -> str:
    return re.sub(r"For[A-Z]\w*$", "", architecture)


def resolve_architecture(
    registry: Registry, config: Mapping[str, Any], *, pin: str = AUTO
) -> type[CausalLM]:
    """Return the model class for a checkpoint's config.json; imports that file alone.

    Raises:
        ConfigError, PluginError: as `candidates` and `load_model_class`; no offer has the pin.
    """
    found = candidates(registry, config, pin=pin)
    chosen = [item for item in found if pin in (AUTO, item.pin)]
    if not chosen:
        pins = ", ".join(item.pin for item in found)
        raise PluginError(
            f"model is pinned to {pin!r}, {architecture_of(config)} is offered by {pins}; pin one",
            id="model-conflict",
        )
    return load_model_class(chosen[0], architecture_of(config))


def load_model_class(registered: RegisteredOffer[Offer], architecture: str) -> type[CausalLM]:
    """Import the file of one offer and return its class.

    Raises:
        PluginError: it cannot be imported, or is no model for this architecture; names plugin and
            cause.
    """
    who = f"plugin {registered.plugin_id} {registered.plugin_version}"
    try:
        with plugin_code():
            loaded = registered.offer.load()
            problem = problem_of(loaded, architecture)
    except Exception as error:
        raise PluginError(
            f"{who} failed at load of model {architecture}: {told(error)}; "
            "other architectures are not affected",
            id="offer-load-failed",
        ) from error
    if problem:
        raise PluginError(f"{who}: {shown(loaded)} {problem}", id="offer-invalid")
    return cast("type[CausalLM]", loaded)


def problem_of(loaded: object, architecture: str) -> str:
    """Return what keeps an object from being a model class for an architecture, or ""."""
    if architecture not in getattr(loaded, "architectures", ()):
        return (
            f"was offered for {architecture} and does not list it in `architectures`; add it to "
            "EntryClass"
        )
    missing = [name for name in REQUIRED if not callable(getattr(loaded, name, None))]
    if missing:
        return f"lacks {', '.join(missing)}; a model class has {', '.join(REQUIRED)}"
    return ""
