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
        load: builds the implementation; imports what it needs only then. What it takes depends on
            the slot: device (), attention (AttentionRequest traits as keywords), sampler (device),
            speculator (max_drafts, max_running, vocab_size), weight_format (), policy (), model ()
            -> EntryClass, moe (group, dtype, device), parser () -> Parser, cli () -> Command,
            grammar (vocabulary: GrammarVocabulary) -> GrammarEngine,
            communicator (see `contracts/communicator.py`), kernels as KernelOffer.load.
        band: name of a `Band`.
        requires: trait name -> allowed values; fail closed.
        facts: slot-specific facts: `architectures` of a model, what a parser `parses`.
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
    """The plugin's own settings, checked against its manifest."""

    def offer(self, offer: Any) -> None:
        """Stage an Offer, KernelOffer or Operator.

        Raises:
            PluginError: wrong slot for this hook, a name used twice, a slot this version lacks.
        """
        ...
