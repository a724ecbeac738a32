"""What one step's kernels read: planned from an AttentionBatch in one upload, or from DecodeRows.

Legend: R rows, T query tokens, M blocks per row, C chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed_sdk.portable.attention.chunks import CHUNK_FIELDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]

    from tokenspeed_sdk import AttentionBatch, DecodeRows, SharedPrefixes
    from tokenspeed_sdk.portable.attention.geometry import Geometry
    from tokenspeed_sdk.portable.attention.tuning import Cut

ALIGNED_NUMBERS = 4
"""Arrays of an upload begin at multiples of 16 bytes, as kernels are compiled for."""


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """Decode rows, the first query tokens of their step; see DecodeRows.

    Args:
        num_rows: 0: the step has none.
        shared: None also where a window leaves little of what is shared to see.
    """

    num_rows: int
    lines_R: torch.Tensor
    lengths_R: torch.Tensor
    tables: torch.Tensor
    window: int
    shared: SharedPrefixes | None = None

    def slots_a_row(self, cut: Cut) -> int:
        """Return how many partial results a row may have."""
        return cut.row_parts * (2 if self.shared else 1)


@dataclass(frozen=True, slots=True)
class Launch:
    """Chunks that are attended in one launch.

    Args:
        fields: (C, CHUNK_FIELDS) int32 device; items, slots and split tokens count from its first.
        num_items: tiles of queries x parts.
        num_slots: partial results (of N heads) of the chunks that are cut into parts.
        num_split_tokens: query tokens of these chunks.
    """

    fields: torch.Tensor
    num_items: int
    num_slots: int
    num_split_tokens: int


@dataclass(frozen=True, slots=True)
class Chunks:
    """The rows behind the decode rows."""

    tables: torch.Tensor
    window: int
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Where each query token is stored.

    Args:
        positions_T: (T,) int64 device.
        lines_R: (R,) int32 device; line of `tables` of each row.
        starts: (R,) int32 device; the first query token of each row; None: row t is token t.
    """

    positions_T: torch.Tensor
    tables: torch.Tensor
    lines_R: torch.Tensor
    starts: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Step:
    """One step, or every step of so many DecodeRows; shared by all layers of a group."""

    rows: DeviceRows
    chunks: Chunks
    places: Places


def step_of_rows(rows: DecodeRows) -> Step:
    """Describe rows that stay on the device; reads nothing of them."""
    device_rows = DeviceRows(
        num_rows=len(rows.lengths_R),
        lines_R=rows.slots_R,
        lengths_R=rows.lengths_R,
        tables=rows.tables,
        window=rows.window,
        shared=None if rows.window else rows.shared,
    )
    places = Places(rows.positions_R, rows.tables, rows.slots_R, None)
    return Step(device_rows, Chunks(rows.tables, rows.window, ()), places)


def step_of_batch(batch: AttentionBatch, geometry: Geometry, device: torch.device) -> Step:
    """Describe a step; what the host knows of it goes to the device in one copy."""
    num_rows, num_decodes = len(batch.context_tokens), batch.num_decode_rows
    starts = batch.query_start[:-1]
    lengths = batch.context_tokens + np.diff(batch.query_start)
    width = -(-int(lengths.max(initial=0)) // batch.block_tokens)
    width += -width % ALIGNED_NUMBERS  # one divisibility of the lines' stride, one compilation
    tables = np.zeros((num_rows, width), np.int32)
    used = min(width, batch.block_tables.shape[1])
    tables[:, :used] = batch.block_tables[:, :used]
    fields = _chunk_fields(batch, lengths, geometry)
    groups = _launches_of(fields, geometry)
    arrays = (np.arange(num_rows, dtype=np.int32), lengths, starts, tables, fields)
    lines_R, lengths_R, starts_R, device_tables, device_fields = _upload(arrays, device)
    launches = tuple(
        Launch(device_fields[first:stop], *_totals(fields[first:stop])) for first, stop in groups
    )
    return Step(
        DeviceRows(num_decodes, lines_R, lengths_R, device_tables, batch.window),
        Chunks(device_tables, batch.window, launches),
        Places(
            batch.positions_T,
            device_tables,
            lines_R,
            None if num_decodes == num_rows else starts_R,
        ),
    )


def _chunk_fields(batch: AttentionBatch, lengths: Ints, geometry: Geometry) -> Ints:
    """Return (C, CHUNK_FIELDS), its running totals not yet summed: see `_launches_of`."""
    first, cut = batch.num_decode_rows, geometry.cut
    context, stop = batch.context_tokens[first:], lengths[first:]
    queries = stop - context
    tiles = -(-queries // geometry.chunk_tokens)
    programs = np.maximum(tiles * geometry.head_groups, 1)
    keys = np.minimum(stop, queries + batch.window) if batch.window else stop
    # A row decides by itself: its result must not depend on what else is in the batch.
    parts = np.minimum(cut.chunk_programs // programs, -(-keys // cut.chunk_tokens))
    parts = np.maximum(parts, 1)
    split = queries * (parts > 1)
    starts, lines = batch.query_start[first:-1], np.arange(first, len(lengths))
    columns = (starts, queries, context, tiles * parts, parts, split * parts, split, lines)
    return np.stack(columns, axis=1).astype(np.int32).reshape(-1, CHUNK_FIELDS)


def _launches_of(fields: Ints, geometry: Geometry) -> list[tuple[int, int]]:
    """Cut the chunks into launches, and sum up each one's items, slots and split tokens in place.

    Returns:
        (first, stop) of each launch's chunks.
    """
    slot_bytes = geometry.num_heads * (geometry.value_dim + 1) * 4
    most = max(1, geometry.cut.chunk_bytes // slot_bytes)
    totals = np.cumsum(fields[:, 5], dtype=np.int64)
    groups, first = [], 0
    while first < len(fields):
        before = totals[first] - fields[first, 5]
        stop = max(first + 1, int(np.searchsorted(totals, before + most, side="right")))
        groups.append((first, stop))
        first = stop
    for first, stop in groups:
        slots = fields[first:stop, 5].copy()
        for column in (3, 5, 6):
            fields[first:stop, column] = np.cumsum(fields[first:stop, column])
        fields[first:stop, 5] -= slots
    return groups


def _totals(fields: Ints) -> tuple[int, int, int]:
    """Return the items, slots and split tokens of a launch."""
    _, queries, _, items, parts, first_slot, split, _ = fields[-1].tolist()
    return items, first_slot + (queries * parts if parts > 1 else 0), split


def _upload(arrays: tuple[Ints, ...], device: torch.device) -> list[torch.Tensor]:
    """Copy int32 arrays to the device side by side, in one piece."""
    sizes = [array.size + -array.size % ALIGNED_NUMBERS for array in arrays]
    ends = np.cumsum(sizes).tolist()
    host = torch.zeros(max(ends[-1], 1), dtype=torch.int32, pin_memory=device.type != "cpu")
    packed = host.numpy()
    for array, end, size in zip(arrays, ends, sizes, strict=True):
        packed[end - size : end - size + array.size] = array.ravel()
    whole = host.to(device, non_blocking=True)  # pinned memory is reused after the copy only
    return [
        whole[end - size : end - size + array.size].view(array.shape)
        for array, end, size in zip(arrays, ends, sizes, strict=True)
    ]
