"""One backend's heads and dims as its kernels take them. Legend: N, K heads; H, V dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import triton

from tokenspeed_sdk.portable.attention import tuning

if TYPE_CHECKING:
    import torch

    from tokenspeed_sdk import KVView
    from tokenspeed_sdk.portable.attention.tuning import Cut, Device, Tiling


class Scores(NamedTuple):
    """How a layer scores keys; see AttentionBackend.attend."""

    scale: float
    softcap: float = 0.0
    sinks_N: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Geometry:
    """Heads, dims, and how work on them is cut.

    Args:
        heads: query heads of one kv head that a tile takes, at most tuning.MOST_HEADS.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    itemsize: int
    device: Device
    cut: Cut

    @property
    def group(self) -> int:
        """Query heads of a kv head."""
        return self.num_heads // self.num_kv_heads

    @property
    def heads(self) -> int:
        """Query heads of one kv head in one tile: all of them, or equal shares."""
        return -(-self.group // -(-self.group // tuning.MOST_HEADS))

    @property
    def head_groups(self) -> int:
        """Groups of so many query heads."""
        return self.num_kv_heads * -(-self.group // self.heads)

    @property
    def chunk_tokens(self) -> int:
        """Query tokens of a chunk's tile."""
        return tuning.chunk_queries(self.heads, self.itemsize) // self.heads

    @property
    def merged_heads(self) -> int:
        """Query heads whose partial results one program merges."""
        return tuning.merged_heads(self.num_heads, padded(self.value_dim), self.device)

    def row_tiling(self, kv: KVView) -> Tiling:
        """Return the tiling of decode rows."""
        return tuning.row_tiling(*self._shape_of(kv))

    def shared_tiling(self, kv: KVView) -> Tiling:
        """Return the tiling of shared beginnings."""
        return tuning.shared_tiling(*self._shape_of(kv))

    def chunk_tiling(self, kv: KVView) -> Tiling:
        """Return the tiling of chunks."""
        return tuning.chunk_tiling(*self._shape_of(kv))

    def constants(self, kv: KVView) -> tuple[int, dict[str, int]]:
        """Return the head groups, and what every kernel of attention is compiled for."""
        constants = {
            "N": self.num_heads,
            "G": self.group,
            "HEADS": self.heads,
            "H": self.head_dim,
            "V": self.value_dim,
            "BLOCK_H": padded(self.head_dim),
            "BLOCK_V": padded(self.value_dim),
            "BLOCK_TOKENS": kv.k.shape[2],
        }
        return self.head_groups, constants

    def _shape_of(self, kv: KVView) -> tuple[int, int, int, int, Device]:
        dims = padded(self.head_dim) + padded(self.value_dim)
        return self.heads, dims, self.itemsize, kv.k.shape[2], self.device


def padded(dim: int) -> int:
    """Return the size of the tile that a head fits into."""
    return max(tuning.MIN_TILE, int(triton.next_power_of_2(dim)))
