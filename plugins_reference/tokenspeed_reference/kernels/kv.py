"""Kernels of the paged cache beside attention: reading it back, copying blocks.

Legend: S cached tokens, K kv heads, H head dim, L layers, B blocks, C copies.
"""

from __future__ import annotations

import numpy as np
import torch

from tokenspeed_sdk import AttentionBatch, KVView


def gather_kv(kv: KVView, batch: AttentionBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Read every row's tokens with one index."""
    lengths = batch.context_tokens + np.diff(batch.query_start)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(len(rows)) - starts[rows]
    blocks = batch.block_tables[rows, positions // batch.block_tokens].astype(np.int64)
    blocks_S, offsets_S = (
        torch.from_numpy(index).to(kv.k.device)
        for index in (blocks, positions % batch.block_tokens)
    )
    return kv.k[blocks_S, :, offsets_S], kv.v[blocks_S, :, offsets_S]


def copy_tokens(blocks_LBKSH: torch.Tensor, copies_C3: torch.Tensor) -> None:
    """Copy one block after the other, of all layers at once."""
    for source, target, count in copies_C3.tolist():
        blocks_LBKSH[:, target, ..., :count, :].copy_(blocks_LBKSH[:, source, ..., :count, :])
