"""A binder that gives every operator its own definition: plain torch, no plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.contracts.kernel import Operator


class DefinitionBinder:
    """Satisfies KernelBinder; remembers what was bound, by operator name and traits."""

    def __init__(self) -> None:
        self.bound: list[tuple[str, dict[str, object]]] = []

    def bind(self, operator: Operator, **traits: object) -> Callable[..., Any]:
        """Return the operator's definition."""
        self.bound.append((operator.name, traits))
        return operator.signature
