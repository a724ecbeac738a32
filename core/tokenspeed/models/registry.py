"""Finds the class for a checkpoint's architecture. One broken model file breaks itself only."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, cast

from tokenspeed.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.binding import RegisteredOffer
    from tokenspeed.contracts.model import CausalLM
    from tokenspeed.contracts.registration import Offer
    from tokenspeed.plugins.registry import Registry


def architectures(registry: Registry) -> dict[str, RegisteredOffer[Offer]]:
    """Return every architecture that a loaded plugin offers, by name, sorted; imports none.

    Raises:
        ConfigError: two plugins offer one architecture.
    """
    found: dict[str, RegisteredOffer[Offer]] = {}
    for registered in registry.offers("model"):
        for name in registered.offer.facts.get("architectures", ()):
            if name in found:
                raise ConfigError(
                    f"architecture {name} is offered by {found[name].pin} and {registered.pin}; "
                    "one may serve it: load only one of the two plugins"
                )
            found[name] = registered
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


def resolve_architecture(registry: Registry, config: Mapping[str, Any]) -> type[CausalLM]:
    """Return the model class for a checkpoint's config.json; imports that file alone.

    Raises:
        ConfigError: no loaded plugin offers the architecture; lists those there are.
        PluginError: the model file cannot be imported; names plugin, file and cause.
    """
    wanted = architecture_of(config)
    known = architectures(registry)
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "load a plugin that offers it (--plugins)"
        raise ConfigError(
            f"architecture {wanted!r} is not offered; known: {', '.join(known)}; {hint}"
        )
    return _load(known[wanted], wanted)


def _load(registered: RegisteredOffer[Offer], wanted: str) -> type[CausalLM]:
    try:
        loaded = registered.offer.load()
    except Exception as error:
        raise PluginError(
            f"plugin {registered.plugin_id} {registered.plugin_version} failed at load of model "
            f"{wanted}: {type(error).__name__}: {error}; other architectures are not affected",
            id="offer-load-failed",
        ) from error
    if wanted not in getattr(loaded, "architectures", ()):
        raise PluginError(
            f"plugin {registered.plugin_id}: {loaded!r} was offered for {wanted} and does not list "
            "it in `architectures`; add it to EntryClass",
            id="offer-invalid",
        )
    return cast("type[CausalLM]", loaded)
