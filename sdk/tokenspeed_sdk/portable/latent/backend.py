"""Attention backend for latents, and for keys and values of any other dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed_sdk.portable.latent.attend import attend_parts
from tokenspeed_sdk.portable.latent.merge import MERGED_ROWS, merge_shares
from tokenspeed_sdk.portable.latent.parts import ROW_PARTS, Parts, cut
from tokenspeed_sdk.portable.latent.tiles import Tiles, padded, tiles_for
from tokenspeed_sdk.portable.latent.write import write_cells
from tokenspeed_sdk.portable.launch import IS_INTERPRETED, cores_of, shared_bytes_of

if TYPE_CHECKING:
    from tokenspeed_sdk import AttentionBatch, DecodeRows, KVView

__all__ = ["LatentAttention", "Plan"]

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Plan:
    """What the kernels read of a step, or of every step of so many decode rows.

    Args:
        positions, lines: (T,) position of each token, and line of `tables` of its row.
        tables: (lines, M) int32.
        entry_tokens: of an entry of `tables`.
        tiles: of the query rows and cached tokens.
        lengths: (R,) int32, of rows that stay on the device; else anything.
        items, parts, merges: made on the host (see `parts`); unused where rows stay on the device.
        on_device: rows have one token each, and lengths are read by the kernels.
        num_parts, query_tiles: of such rows: parts, and tiles of a token's heads.
        programs, shares: of the launch, and shares that a program can leave.
        scratch: where the shares lie. Held here: a graph that was captured with it lives as long.
    """

    positions: torch.Tensor
    lines: torch.Tensor
    tables: torch.Tensor
    entry_tokens: int
    tiles: Tiles
    lengths: torch.Tensor
    items: torch.Tensor
    parts: torch.Tensor
    merges: torch.Tensor
    on_device: bool
    num_parts: int
    query_tiles: int
    programs: int
    shares: int
    scratch: tuple[torch.Tensor, torch.Tensor]


class LatentAttention:
    """AttentionBackend; holds scratch memory for the shares of parts, no state between calls.

    Args:
        alone: a row is cut into parts by its own length: its result is the same in every batch.
        v_head_dim: 0: as head_dim.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        v_head_dim: int = 0,
        alone: bool = False,
    ) -> None:
        self._value_dim = v_head_dim or head_dim
        self._key_dim = head_dim
        self._kv_heads = num_kv_heads
        self._group = num_heads // num_kv_heads
        self._dtype, self._device = dtype, device
        self._alone = alone
        self._most = cores_of(device)
        self._shared_bytes = shared_bytes_of(device)
        self._shares = torch.empty(0, dtype=torch.float32, device=device)
        self._peaks = self._shares

    def plan(self, batch: AttentionBatch) -> Plan:
        """Cut the step's rows into parts and send them to the device, in one copy."""
        longest = int(np.diff(batch.query_start).max(initial=1))
        tiles = self._tiles(self._group * longest)
        most = self._most * tiles.programs_per_core
        found = cut(batch, group=self._group, tiles=tiles, most=most, alone=self._alone)
        items, parts, merges, lines, tables = self._sent(batch, found)
        return Plan(
            positions=batch.positions_T,
            lines=lines,
            tables=tables,
            entry_tokens=batch.block_tokens,
            tiles=tiles,
            lengths=lines,
            items=items,
            parts=parts,
            merges=merges,
            on_device=False,
            num_parts=len(found.parts),
            query_tiles=1,
            programs=len(found.parts),
            shares=found.shares,
            scratch=self._scratch(len(found.parts) * found.shares * tiles.rows),
        )

    def plan_decode(self, rows: DecodeRows) -> Plan:
        """Prepare for rows whose lengths and tables are read by the kernels, when they run."""
        tiles = self._tiles(self._group)
        query_tiles = -(-self._group // tiles.rows)
        if self._alone:
            num_parts = len(rows.slots_R) * max(ROW_PARTS // query_tiles, 1)
        else:
            num_parts = max(self._most * tiles.programs_per_core // query_tiles, 1)
        num_shares = 1 if self._alone else 2
        programs = num_parts * query_tiles
        return Plan(
            positions=rows.positions_R,
            lines=rows.slots_R,
            tables=rows.tables,
            entry_tokens=rows.entry_tokens,
            tiles=tiles,
            lengths=rows.lengths_R,
            items=rows.lengths_R,
            parts=rows.lengths_R,
            merges=rows.lengths_R,
            on_device=True,
            num_parts=num_parts,
            query_tiles=query_tiles,
            programs=programs,
            shares=num_shares,
            scratch=self._scratch(programs * num_shares * tiles.rows),
        )

    def write(self, k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, metadata: Plan) -> None:
        """Store the step's keys, and values where they are no part of them."""
        num_tokens = k_TKH.shape[0]
        if num_tokens == 0:
            return
        write_cells[(num_tokens, self._kv_heads)](
            k_TKH,
            v_TKH,
            kv.k,
            kv.v,
            metadata.positions,
            metadata.lines,
            metadata.tables,
            k_TKH.stride(0),
            v_TKH.stride(0),
            k_TKH.stride(1),
            v_TKH.stride(1),
            *kv.k.stride()[:3],
            *kv.v.stride()[:3],
            metadata.tables.stride(0),
            KEYS=self._key_dim,
            VALUES=self._value_dim,
            WIDTH=padded(max(self._key_dim, self._value_dim)),
            ENTRY=metadata.entry_tokens,
            LATENT=_is_latent(kv),
            num_warps=2,
        )

    def attend(
        self,
        q_TNH: torch.Tensor,
        kv: KVView,
        metadata: Plan,
        *,
        scale: float,
        sinks_N: torch.Tensor | None = None,
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """Attend in parts, and join what they share."""
        assert sinks_N is None, "sinks are not declared: no group has them"
        assert not softcap, "softcap is not declared: no group has it"
        out_TNV = q_TNH.new_empty(*q_TNH.shape[:2], self._value_dim)
        if q_TNH.shape[0] == 0:
            return out_TNV
        is_latent, tiles = _is_latent(kv), metadata.tiles
        width = padded(self._value_dim)
        keys = self._value_dim if is_latent else self._key_dim
        num_rows = len(metadata.lines)
        shares, peaks = metadata.scratch
        rows = padded(num_rows) if metadata.on_device else 16
        pieces = max(ROW_PARTS // metadata.query_tiles, 1) if self._alone else 0
        common = {
            "ROWS": rows,
            "PIECES": pieces,
            "SHARES": metadata.shares,
            "ON_DEVICE": metadata.on_device,
        }
        attend_parts[(metadata.programs, self._kv_heads)](
            q_TNH,
            kv.k,
            kv.v,
            out_TNV,
            shares,
            peaks,
            metadata.lengths,
            metadata.lines,
            metadata.tables,
            metadata.items,
            metadata.parts,
            scale * LOG2_E,
            num_rows,
            metadata.num_parts,
            self._group,
            metadata.query_tiles,
            *q_TNH.stride()[:2],
            *kv.k.stride()[:2],
            *kv.v.stride()[:2],
            *out_TNV.stride()[:2],
            metadata.tables.stride(0),
            K_TOKEN=kv.k.stride(2),
            V_TOKEN=kv.v.stride(2),
            VALUES=self._value_dim,
            REST=self._key_dim - keys,
            KEYS=keys,
            V=width,
            D=padded(keys),
            W=padded(max(self._key_dim - keys, 1)),
            M=tiles.rows,
            S=tiles.tokens,
            ENTRY=metadata.entry_tokens,
            LATENT=is_latent,
            WIDE=IS_INTERPRETED,
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
            **common,
        )
        if metadata.on_device:
            grid = (num_rows, -(-self._group // MERGED_ROWS), self._kv_heads)
        else:
            grid = (len(metadata.merges), tiles.rows // MERGED_ROWS, self._kv_heads)
        if grid[0]:
            merge_shares[grid](
                out_TNV,
                shares,
                peaks,
                metadata.lengths,
                metadata.merges,
                num_rows,
                metadata.num_parts,
                self._group,
                metadata.query_tiles,
                *out_TNV.stride()[:2],
                VALUES=self._value_dim,
                V=width,
                M=tiles.rows,
                S=tiles.tokens,
                H=MERGED_ROWS,
                num_warps=4,
                **common,
            )
        return out_TNV

    def _tiles(self, rows: int) -> Tiles:
        return tiles_for(
            rows=rows,
            width=max(self._key_dim, self._value_dim),
            is_latent=self._kv_heads == 1 and self._value_dim < self._key_dim,
            element_bytes=self._dtype.itemsize,
            shared_bytes=self._shared_bytes,
        )

    def _scratch(self, rows_of_a_head: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (shares, peaks) for so many query rows; all plans and layers use the same."""
        num_rows = rows_of_a_head * self._kv_heads
        if self._peaks.numel() < num_rows:
            width = padded(self._value_dim)
            self._shares = self._shares.new_empty(num_rows * width)
            self._peaks = self._peaks.new_empty(num_rows)
        return self._shares, self._peaks

    def _sent(self, batch: AttentionBatch, found: Parts) -> list[torch.Tensor]:
        """Return items, parts, merges, (T,) rows of the tokens and block tables, on the device."""
        num_rows = len(batch.context_tokens)
        rows_T = np.repeat(np.arange(num_rows, dtype=np.int32), np.diff(batch.query_start))
        last = batch.context_tokens + np.diff(batch.query_start)
        used = -(-int(last.max(initial=1)) // batch.block_tokens)
        tables = batch.block_tables[:, :used]
        arrays = (found.items, found.parts, found.merges, rows_T, tables)
        flat = np.concatenate([array.ravel() for array in arrays])
        sent = torch.from_numpy(flat).to(self._device, non_blocking=True)
        pieces = sent.split_with_sizes([array.size for array in arrays])
        return [piece.view(array.shape) for piece, array in zip(pieces, arrays, strict=True)]


def _is_latent(kv: KVView) -> bool:
    return kv.v.data_ptr() == kv.k.data_ptr()
