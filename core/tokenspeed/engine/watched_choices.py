"""The choices of a watched build: attention and experts are the plainest that pass, and watched.

What `--tune` would choose is not known yet, and what is fast may fail; the plainest serves to
see what a backend is asked for. Slots that are pinned are left as they are: no time changes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed import ops
from tokenspeed.contracts.binding import Decision
from tokenspeed.contracts.kernel import Band
from tokenspeed.engine.choices import Choices
from tokenspeed.engine.watched import WatchedAttention, WatchedExperts
from tokenspeed.kernels.evidence import request_key
from tokenspeed.kernels.rules import AUTO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.binding import RegisteredOffer
    from tokenspeed.contracts.registration import Offer
    from tokenspeed.kernels.spying import SpyBinder, Watch
    from tokenspeed.plugins import Registry

TIMED_SLOTS = ("attention", "moe")
OF_THE_FILE = ("device", "arch")
"""Traits that a file of times is about anyway."""


class WatchedChoices(Choices):
    """Chooses, and keeps what it watches by slot, such as "attention.full".

    Whoever builds sets `binder` before backends of experts are loaded.
    """

    def __init__(self, config: EngineConfig, registry: Registry, watch: Watch) -> None:
        super().__init__(config, registry)
        self.binder: SpyBinder | None = None
        self.attention_backends: dict[str, WatchedAttention] = {}
        self.expert_backends: dict[str, WatchedExperts] = {}
        self.requests: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self._watch = watch

    def _decide(
        self,
        slot: str,
        offers: Sequence[RegisteredOffer[Offer]],
        traits: Mapping[str, object],
        *,
        wishes: Mapping[str, object] | None = None,
        pin: str | None = None,
    ) -> Decision:
        decision = super()._decide(slot, offers, traits, wishes=wishes, pin=pin)
        if _is_timed(slot, decision):
            self.requests[slot] = request_key(slot, traits)
            self.texts[slot] = _text(decision.record["traits"])
            decision = Decision(_plainest(decision, offers), decision.record)
            self.decisions[slot] = decision
        return decision

    def _load(self, slot: str, decision: Decision, **arguments: Any) -> Any:
        backend = super()._load(slot, decision, **arguments)
        if slot not in self.requests:
            return backend
        if slot.startswith("attention"):
            self.attention_backends[slot] = WatchedAttention(backend, arguments, self._watch)
            return self.attention_backends[slot]
        assert self.binder is not None, "the binder comes before backends of experts"
        route = self.binder.bind(ops.moe.route)
        self.expert_backends[slot] = WatchedExperts(backend, arguments, self._watch, route)
        return self.expert_backends[slot]


def _is_timed(slot: str, decision: Decision) -> bool:
    return slot.partition(".")[0] in TIMED_SLOTS and decision.record["pin"] == AUTO


def _plainest(
    decision: Decision, offers: Sequence[RegisteredOffer[Offer]]
) -> RegisteredOffer[Offer]:
    """Return the passing candidate of the lowest band, by name among equals."""
    passing = {item["offer"] for item in decision.record["candidates"] if not item["clauses"]}
    return min(
        (item for item in offers if item.pin in passing),
        key=lambda item: (Band[item.offer.band], item.pin),
    )


def _text(traits: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in traits.items() if name not in OF_THE_FILE)
