"""The chunks of a step as FlashInfer's plan takes them. Legend: C chunks, P pages of all chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenspeed_sdk import AttentionBatch

    Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ChunkPages:
    """Rows of a step behind its decode rows, those without query tokens left out.

    Args:
        query_start: (C + 1,) int32 host; counts from the first chunk's first token.
        page_start: (C + 1,) int32 host; of each chunk's pages in `pages`.
        pages: (P,) int32 host; block ids in the order of the tokens.
        last_page_tokens: (C,) int32 host; tokens in the last page of each chunk: 1 to a block's.
    """

    query_start: Ints
    page_start: Ints
    pages: Ints
    last_page_tokens: Ints

    @property
    def num_tokens(self) -> int:
        """Query tokens of all chunks."""
        return int(self.query_start[-1])


def pages_of_chunks(batch: AttentionBatch) -> ChunkPages:
    """List the pages that hold each chunk's context and its own tokens; reads the host alone."""
    first = batch.num_decode_rows
    queries = np.diff(batch.query_start)[first:]
    is_used = queries > 0
    queries = queries[is_used]
    lengths = batch.context_tokens[first:][is_used] + queries
    counts = -(-lengths // batch.block_tokens)
    tables = batch.block_tables[first:][is_used]
    pages = tables[np.arange(tables.shape[1]) < counts[:, None]]
    last = lengths - (counts - 1) * batch.block_tokens
    return ChunkPages(_starts(queries), _starts(counts), pages, last.astype(np.int32))


def _starts(sizes: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
