"""Token embedding: ids to vectors, from a plain or packed table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.layers.placements import Spread
from tokenspeed.layers.weights import WeightSlot
from tokenspeed.ops import embedding
from tokenspeed.placement.vocabulary import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.model import ModelContext
    from tokenspeed.contracts.weights import LinearWeight

    Lookup = Callable[[torch.Tensor], torch.Tensor]


class TokenEmbedding:
    """Rows of a (V, D) table by token id."""

    def __init__(self, context: ModelContext, vocab_size: int, hidden_size: int) -> None:
        self.vocab_size = vocab_size
        self._rows = rows_of(vocab_size, context.shards)
        self.hidden_size = hidden_size
        self.spread: Spread = {"V": ParallelGroup.VOCAB_TP}
        self._context = context
        self._lookup: Lookup
        self._first_row = 0
        if context.shards is not None:
            parts, place = context.shards.place(ParallelGroup.VOCAB_TP, self._rows)
            self._first_row = self._rows // parts * place
        if context.recorder is not None:
            self._lookup = context.recorder.module(
                self,
                embedding.embedding.placement,
                weights=(((vocab_size,), (hidden_size,)),),
                spread=self.spread,
                dtypes=(str(context.dtype).removeprefix("torch."),),
            )

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slot of `name`.weight."""
        shape = (self.vocab_size, self.hidden_size)
        yield (
            f"{name}.weight",
            WeightSlot(shape, self._accept, "V D", self.spread, padded={"V": self._rows}),
        )

    def __call__(self, token_ids_T: torch.Tensor) -> torch.Tensor:
        """Return (T, D)."""
        return self._lookup(token_ids_T)

    def _accept(self, weight: LinearWeight) -> None:
        lookup, first = self._bind(weight), self._first_row
        self._lookup = lookup if not first else lambda token_ids_T: lookup(token_ids_T - first)

    def _bind(self, weight: LinearWeight) -> Lookup:
        kernels = self._context.kernels
        if weight.plain is None:
            factory: Callable[..., Lookup] = kernels.bind(
                embedding.packed_embedding, packing=weight.packing
            )
            return factory(weight, self._context.dtype)
        lookup: Callable[..., torch.Tensor] = kernels.bind(embedding.embedding)
        table = weight.plain.to(self._context.device)
        return lambda token_ids_T: lookup(token_ids_T, table)
