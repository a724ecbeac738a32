"""Plugin settings: `PLUGIN.KEY=VALUE` texts, checked against manifests before anything starts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import ConfigError, shown
from tokenspeed.plugins.nearest import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.plugins.manifest import ConfigKey, Manifest

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def parse_settings(
    texts: Iterable[str], manifests: Mapping[str, Manifest]
) -> dict[str, dict[str, Any]]:
    """Return plugin id -> its complete settings, defaults filled in.

    Raises:
        ConfigError: malformed text, a plugin that is not loaded, an unknown key, a wrong type.
    """
    settings = {
        plugin_id: {key.name: key.default for key in manifest.config.values()}
        for plugin_id, manifest in manifests.items()
    }
    for text in texts:
        path, equals, value = text.partition("=")
        plugin_id, dot, name = path.strip().partition(".")
        if not (equals and dot and plugin_id and name):
            raise ConfigError(f"plugin setting {shown(text)} is malformed: write PLUGIN.KEY=VALUE")
        if plugin_id not in manifests:
            raise ConfigError(
                f"plugin setting {shown(text)}: plugin {shown(plugin_id)} is not being loaded; "
                f"{suggestion(plugin_id, manifests)}"
            )
        key = manifests[plugin_id].config.get(name)
        if key is None:
            known = manifests[plugin_id].config
            raise ConfigError(
                f"plugin setting {shown(text)}: no key {shown(name)}; {suggestion(name, known)}"
            )
        settings[plugin_id][name] = _convert(text, key, value.strip())
    return settings


def _convert(text: str, key: ConfigKey, value: str) -> Any:
    try:
        if key.type == "integer":
            return int(value)
        if key.type == "number":
            return _finite(float(value))
        return _BOOLEANS[value.lower()] if key.type == "boolean" else value
    except (ValueError, KeyError):
        raise ConfigError(
            f"plugin setting {shown(text)}: {key.name} is {shown(value)}, {key.type} is needed; "
            f"the default is {key.default!r}"
        ) from None


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{number} is no number that JSON has")
    return number
