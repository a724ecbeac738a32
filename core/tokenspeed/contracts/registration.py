"""What a hook receives: the facts of this start, and `offer` to stage what the plugin brings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing a plugin offers for a slot.

    Args:
        slot: such as "attention"; the hook called fixes it.
        name: unique in plugin and slot; pins are written PLUGIN/NAME.
        load: builds the implementation; imports what it needs only then. It is called with the
            keywords of its slot, which docs/plugins/slots.md lists, and returns what fills the
            slot; of a model its EntryClass.
        band: name of a `Band`.
        requires: trait name -> allowed values; fail closed.
        facts: slot-specific facts: `kind` of a device, `cache` (a CacheDemand) of an attention
            backend, `architectures` of a model, what a parser `parses`.
    """

    slot: str
    name: str
    load: Callable[..., Any]
    band: str = "REFERENCE"
    requires: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Registration(Protocol):
    """Context of every register hook."""

    plugin_id: str
    role: str
    """Process role: api, engine, worker or cli."""
    config: Mapping[str, Any]
    """The plugin's own settings: every key of the manifest's [config], as set or by default."""

    def offer(self, offer: Any) -> None:
        """Stage an Offer, KernelOffer or Operator.

        Raises:
            PluginError: wrong slot for this hook, a name used twice, a slot this version lacks.
        """
        ...
