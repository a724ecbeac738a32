"""Who may be loaded: first-party wheels by themselves, everyone else only when named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import PluginError

if TYPE_CHECKING:
    from tokenspeed.plugins.discovery import FoundPlugin

CORE_ID = "core"
FIRST_PARTY = frozenset({"reference", "nvidia", "amd", "sdk"})


def wheel_of(plugin_id: str) -> str:
    """Return the name of the wheel that ships a first-party plugin."""
    return f"tokenspeed-{plugin_id}"


def is_first_party(found: FoundPlugin) -> bool:
    """Say whether id *and* distribution name are ours."""
    return found.id in FIRST_PARTY and found.distribution == wheel_of(found.id)


def check_reserved(found: FoundPlugin) -> None:
    """Refuse a stranger that uses one of our ids, even when it is named.

    Raises:
        PluginError: exit code 3.
    """
    if found.id == CORE_ID or (found.id in FIRST_PARTY and not is_first_party(found)):
        owner = "tokenspeed" if found.id == CORE_ID else wheel_of(found.id)
        raise PluginError(
            f"plugin {found.id!r} is not trusted: the id belongs to wheel {owner}, here it comes "
            f"from {found.distribution} {found.version} in {found.path}; uninstall that wheel",
            id="plugin-not-trusted",
        )
