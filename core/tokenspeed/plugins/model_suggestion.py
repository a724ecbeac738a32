"""A model repository may suggest a plugin; it can never load one.

`"tokenspeed_plugin": "ID"` in config.json is a sentence for the user: whoever serves decides, by
naming the plugin. Whatever else a repository holds is data.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

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
