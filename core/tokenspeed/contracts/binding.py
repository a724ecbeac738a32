"""What selection works on and answers: offers with their origin, and decisions with their reasons.

`plugins/` produces the first, `kernels/selection.py` the second; neither knows the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tokenspeed.contracts.kernel import KernelOffer
from tokenspeed.contracts.registration import Offer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.kernel import Operator

SomeOffer = TypeVar("SomeOffer", bound=Offer | KernelOffer, covariant=True)


@dataclass(frozen=True, slots=True)
class RegisteredOffer(Generic[SomeOffer]):
    """An offer, and the plugin that made it."""

    plugin_id: str
    plugin_version: str
    offer: SomeOffer

    @property
    def pin(self) -> str:
        """The name that pins it: PLUGIN/NAME."""
        return f"{self.plugin_id}/{self.offer.name}"


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice, explained.

    Args:
        winner: the offer chosen.
        record: JSON data: slot, traits, pin, fallback, objective, and every candidate with its
            verdict ("won", "lost" or "refused") and the reason.
    """

    winner: RegisteredOffer[Any]
    record: Mapping[str, Any]


class OfferSource(Protocol):
    """Where kernels come from; `plugins/registry.py` is the real one."""

    @property
    def operators(self) -> Mapping[str, Operator]:
        """Operators by name."""
        ...

    def kernel_offers(self, operator_name: str) -> tuple[RegisteredOffer[KernelOffer], ...]:
        """Return the kernels offered for an operator."""
        ...
