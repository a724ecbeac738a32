"""Token embedding: ids to vectors, from a plain or packed table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.placement import ParallelGroup, Partial, Replicate, Shard
from tokenspeed.layers.placements import LayerPlacement
from tokenspeed.layers.weights import WeightSlot
from tokenspeed.ops import embedding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.model import ModelContext
    from tokenspeed.contracts.weights import LinearWeight


class TokenEmbedding:
    """Rows of a (V, D) table by token id."""

    placement = LayerPlacement(
        Replicate(), Shard(ParallelGroup.VOCAB_TP, 0), Partial(ParallelGroup.VOCAB_TP)
    )

    def __init__(self, context: ModelContext, vocab_size: int, hidden_size: int) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self._context = context
        self._lookup: Callable[[torch.Tensor], torch.Tensor]

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slot of `name`.weight."""
        yield f"{name}.weight", WeightSlot((self.vocab_size, self.hidden_size), self._accept)

    def __call__(self, token_ids_T: torch.Tensor) -> torch.Tensor:
        """Return (T, D)."""
        return self._lookup(token_ids_T)

    def _accept(self, weight: LinearWeight) -> None:
        kernels = self._context.kernels
        if weight.plain is None:
            factory: Callable[..., Callable[[torch.Tensor], torch.Tensor]] = kernels.bind(
                embedding.packed_embedding, packing=weight.packing
            )
            self._lookup = factory(weight, self._context.dtype)
            return
        lookup: Callable[..., torch.Tensor] = kernels.bind(embedding.embedding)
        table = weight.plain.to(self._context.device)
        self._lookup = lambda token_ids_T: lookup(token_ids_T, table)
