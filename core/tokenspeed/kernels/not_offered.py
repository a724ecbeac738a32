"""The one error for a PLUGIN/NAME that no loaded plugin offers: what is offered, what to do."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CUTOFF = 0.75
"""How like a name must be: the end of `acme/paged` alone does not make it `reference/paged`."""


def not_offered(
    what: str,
    name: str,
    pins: Iterable[str],
    *,
    record: Mapping[str, Any] | None = None,
) -> CapabilityError:
    """Return the error (exit code 5).

    Args:
        what: slot, operator or setting.
        name: what was asked for: PLUGIN/NAME, or NAME where the slot takes that.
        pins: PLUGIN/NAME of all that loaded plugins offer there.
        record: of the choice that fails with it.
    """
    known = sorted(pins)
    return CapabilityError(
        f"{what} {name!r} is not offered; loaded plugins have: {', '.join(known) or 'none'}; "
        f"{advice(name, known)}",
        id="pin-unknown",
        record=record,
    )


def advice(name: str, known: Iterable[str]) -> str:
    """Return what to do: the nearest PLUGIN/NAME, or the plugin to load."""
    near = _nearest(name, list(known))
    if near:
        return f"did you mean {near!r}?"
    plugin, slash, _ = name.partition("/")
    if not slash:
        return "choose one, written PLUGIN/NAME, or load the plugin that has it with --plugins"
    if plugin in {pin.partition("/")[0] for pin in known}:
        return "choose one"
    return f"choose one, or load plugin {plugin!r} with --plugins"


def _nearest(name: str, known: list[str]) -> str | None:
    """Return the PLUGIN/NAME that was meant; a bare name is compared with the bare names."""
    shown = {pin if "/" in name else pin.partition("/")[2]: pin for pin in reversed(known)}
    near = difflib.get_close_matches(name, shown, n=1, cutoff=CUTOFF)
    return shown[near[0]] if near else None
