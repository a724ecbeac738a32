"""Paged attention of rows whose description stays on the device: the same calls in every step.

Every row gathers as many keys as a table's line has room for, and masks what it does not see. Cells
that are not seen may hold anything, NaN too: their keys' scores are replaced, their values cleared.
Legend: R rows, M entries of a line, S cells of a line, K kv heads, G query heads of each, H head
dim, V value dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenspeed_reference.attention_prefill import Scoring, share_beside
from tokenspeed_sdk import SENTINEL_BLOCK, DecodeRows, KVView


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Rows of one query token each, for as many steps as there will be.

    Args:
        places_S: position of each cell of a line.
    """

    rows: DecodeRows
    places_S: torch.Tensor


def plan_decode(rows: DecodeRows) -> DecodePlan:
    """Make what depends on the shapes alone."""
    num_cells = rows.tables.shape[1] * rows.entry_tokens
    return DecodePlan(rows, torch.arange(num_cells, device=rows.tables.device))


def write_decode(k_RKH: torch.Tensor, v_RKH: torch.Tensor, kv: KVView, plan: DecodePlan) -> None:
    """Store each row's key and value at its position."""
    rows = plan.rows
    entries_R = rows.positions_R // rows.entry_tokens
    blocks_R = rows.tables[rows.slots_R, entries_R]
    offsets_R = rows.positions_R % rows.entry_tokens
    kv.k[blocks_R, :, offsets_R] = k_RKH
    if kv.v.data_ptr() != kv.k.data_ptr():
        kv.v[blocks_R, :, offsets_R] = v_RKH


def attend_decode(
    q_RKGH: torch.Tensor, kv: KVView, plan: DecodePlan, scoring: Scoring
) -> torch.Tensor:
    """Return (R, K, G, V), each row attended to what it sees."""
    rows = plan.rows
    seen_RS = plan.places_S < rows.lengths_R[:, None]
    if rows.window:
        seen_RS &= plan.places_S > rows.positions_R[:, None] - rows.window
    read_RM = seen_RS.view(len(seen_RS), -1, rows.entry_tokens).any(-1)
    tables_RM = torch.where(read_RM, rows.tables.index_select(0, rows.slots_R), SENTINEL_BLOCK)
    k_RKSH, v_RKSV = (_cells(cache, tables_RM) for cache in (kv.k, kv.v))
    scores_RKGS = q_RKGH.float() @ k_RKSH.float().mT * scoring.scale
    if scoring.softcap:
        scores_RKGS = (scores_RKGS / scoring.softcap).tanh() * scoring.softcap
    hidden_R11S = ~seen_RS[:, None, None]
    scores_RKGS = scores_RKGS.masked_fill(hidden_R11S, -torch.inf)
    weights_RKGS = scores_RKGS.softmax(-1)
    if scoring.sinks_KG is not None:
        total_RKG = scores_RKGS.logsumexp(-1)
        weights_RKGS = weights_RKGS * share_beside(total_RKG, scoring.sinks_KG)[..., None]
    values_RKSV = v_RKSV.float().masked_fill(hidden_R11S.mT, 0)
    return (weights_RKGS @ values_RKSV).type_as(q_RKGH)


def _cells(cache: torch.Tensor, tables_RM: torch.Tensor) -> torch.Tensor:
    """Return what lies in the blocks of each line: (R, K, S, width)."""
    return cache[tables_RM].transpose(1, 2).flatten(2, 3)
