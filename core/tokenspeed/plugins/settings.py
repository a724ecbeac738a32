"""Plugin settings: `PLUGIN.KEY=VALUE` texts, checked against manifests before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.errors import ConfigError
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
            raise ConfigError(f"plugin setting {text!r} is malformed: write PLUGIN.KEY=VALUE")
        if plugin_id not in manifests:
            raise ConfigError(
                f"plugin setting {text!r}: plugin {plugin_id!r} is not being loaded; "
                f"{suggestion(plugin_id, manifests)}"
            )
        key = manifests[plugin_id].config.get(name)
        if key is None:
            known = manifests[plugin_id].config
            raise ConfigError(
                f"plugin setting {text!r}: no key {name!r}; {suggestion(name, known)}"
            )
        settings[plugin_id][name] = _convert(text, key, value.strip())
    return settings


def _convert(text: str, key: ConfigKey, value: str) -> Any:
    try:
        if key.type == "integer":
            return int(value)
        if key.type == "number":
            return float(value)
        return _BOOLEANS[value.lower()] if key.type == "boolean" else value
    except (ValueError, KeyError):
        raise ConfigError(
            f"plugin setting {text!r}: {key.name} is {value!r}, {key.type} is needed; "
            f"the default is {key.default!r}"
        ) from None
