"""Plugins that an architecture may need: what a repository suggests, and what is installed unused.

A model repository may suggest a plugin; it can never load one.

`"tokenspeed_plugin": "ID"` in config.json is a sentence for the user: whoever serves decides, by
naming the plugin. Whatever else a repository holds is data.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokenspeed.plugins.discovery import discover
from tokenspeed.plugins.trust import FIRST_PARTY

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY = "tokenspeed_plugin"
_ID = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def suggested_plugin(model_config: Mapping[str, object]) -> str:
    """Return the id that a model suggests; "" where it suggests none, or nothing like an id."""
    named = model_config.get(KEY)
    return named if isinstance(named, str) and _ID.fullmatch(named) else ""


def suggestion_text(model_config: Mapping[str, object], loaded: frozenset[str]) -> str:
    """Return one sentence on a suggested plugin that is not loaded; "" where there is none."""
    named = suggested_plugin(model_config)
    if not named or named in loaded:
        return ""
    return (
        f"the model's config.json suggests plugin {named!r}, which is not loaded: nothing loads "
        f"by itself; if you trust it, install its wheel and add --plugins {named}"
    )


def unloaded_text(loaded: frozenset[str]) -> str:
    """Return one sentence on installed plugins that offer models and are not loaded; "" for none.

    Their architectures are not known: no plugin is imported that nobody named.
    """
    unloaded = [
        plugin_id
        for plugin_id, found in discover().items()
        if found.manifest is not None
        and "model" in found.manifest.slots
        and plugin_id not in loaded | FIRST_PARTY
    ]
    if not unloaded:
        return ""
    return (
        f"installed with models of their own, and not loaded: {', '.join(unloaded)}; see what one "
        f"offers with `tokenspeed models list --plugins {unloaded[0]}`"
    )
