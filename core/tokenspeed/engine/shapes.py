"""A model built from shapes alone, to learn which kernels it asks for: no weights, no device.

Tensors lie on torch's `meta` device: they have shapes and no bytes. Nothing is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.binding import Decision
from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.errors import CapabilityError
from tokenspeed.kernels import Binder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokenspeed.contracts.binding import OfferSource
    from tokenspeed.contracts.kernel import Operator
    from tokenspeed.contracts.model import CacheGroup, CausalLM
    from tokenspeed.contracts.moe import ExpertGroup
    from tokenspeed.contracts.weights import WeightSource
    from tokenspeed.engine.sizes import EngineSizes
    from tokenspeed.errors import IdentifiedError
    from tokenspeed.kernels.registry import Evidence
    from tokenspeed.kernels.rules import Rules

SHORT_CONTEXT_TOKENS = 1024
"""Length of the position tables that are built; it decides nothing."""


class ShapeBinder(Binder):
    """Chooses as the real one does, loads nothing, and goes on where nobody can do it."""

    def __init__(
        self,
        source: OfferSource,
        base_traits: Mapping[str, object],
        rules: Rules,
        failures: dict[str, IdentifiedError],
        evidence: Evidence | None = None,
    ) -> None:
        super().__init__(source, base_traits, rules, evidence)
        self._failures = failures
        self._chosen: dict[tuple[Any, ...], Decision] = {}

    def bind(self, operator: Operator, **traits: object) -> Callable[..., Any]:
        """Choose, and return a callable that returns itself."""
        key = (operator.name, *sorted(traits.items()))
        if key not in self._chosen:
            try:
                self._chosen[key] = self.decide(operator, traits)
            except CapabilityError as error:
                self._failures[operator.name] = error
        return _nothing

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was chosen so far, in order."""
        return tuple(self._chosen.values())


def _nothing(*_: object, **__: object) -> Any:
    """Stand for a kernel, and for what a kernel prepares."""
    return _nothing


class _NoBackend:
    """Stands for a backend of attention or of experts: models keep its methods."""

    fuses_routing = False
    plan = write = attend = prepare = forward = staticmethod(_nothing)


def build_shapes(
    model_class: type[CausalLM],
    model_config: Mapping[str, Any],
    groups: Sequence[CacheGroup | ExpertGroup],
    binder: ShapeBinder,
    sizes: EngineSizes,
) -> CausalLM:
    """Build the model without weights; what it binds is in `binder.decisions`."""
    import torch

    from tokenspeed.contracts.model import ModelContext

    backend: Any = _NoBackend()
    context = ModelContext(
        kernels=binder,
        attention={group.name: backend for group in groups},
        dtype=getattr(torch, sizes.dtype),
        device=torch.device("meta"),
        max_context_tokens=min(sizes.max_context_tokens, SHORT_CONTEXT_TOKENS),
        moe={group.name: backend for group in groups},
    )
    return model_class(model_config, context)


def bind_weights(model: CausalLM, packed: WeightSource | None, sizes: EngineSizes) -> list[str]:
    """Let the model bind what depends on its weights; returns what cannot be known.

    Args:
        packed: a checkpoint whose tensors keep their packing; None: all are plain.
    """
    import torch

    dtype = getattr(torch, sizes.dtype)
    if packed is not None:
        tensors = packed.tensors(dtype, keep_packed=True)
        model.load_weights((name, _bare(weight)) for name, weight in tensors)
        packed.close()
        return []
    slots = getattr(model, "weight_map", None)
    if slots is None:
        return ["kernels bound while weights are read: the model has no weight_map()"]
    for slot in slots().values():
        slot.accept(LinearWeight(slot.shape, torch.empty(slot.shape, dtype=dtype, device="meta")))
    return []


def _bare(weight: LinearWeight) -> LinearWeight:
    """Return the weight without its bytes."""
    plain = None if weight.plain is None else weight.plain.to("meta")
    parts = {name: part.to("meta") for name, part in weight.packed.items()}
    return LinearWeight(weight.shape, plain, weight.packing, parts)
