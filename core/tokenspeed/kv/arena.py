"""The arena: strided views of one allocation, one per layer, and copies between blocks.

Knows bytes and blocks; not requests, prefixes or who owns a block. Inside a logical block the order
is [layer of the group][k|v][head][token][dim]. Nothing is copied to make a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.attention import KVView
from tokenspeed.errors import CapacityError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tokenspeed.contracts.model import CacheGroup
    from tokenspeed.kv.layout import ArenaLayout


class Arena:
    """Owns the storage tensor; the views alias it and live as long as they like.

    Args:
        layout: solved for these groups and this dtype.
        groups: the cache groups, in the layout's order.
        storage: (>= layout.total_bytes,) uint8, device, contiguous; written through the views.
        dtype: of the cached elements.
    """

    def __init__(
        self,
        layout: ArenaLayout,
        groups: Sequence[CacheGroup],
        storage: torch.Tensor,
        dtype: torch.dtype,
    ) -> None:
        if storage.numel() < layout.total_bytes:
            raise CapacityError(
                f"KV storage has {storage.numel():,} bytes, the layout needs "
                f"{layout.total_bytes:,}; allocate as many as the layout says"
            )
        self.layout = layout
        self.storage = storage
        self._groups = tuple(groups)
        elements = storage[: layout.total_bytes].view(dtype)
        self._blocks = tuple(
            _group_blocks(elements, layout, index, group) for index, group in enumerate(groups)
        )

    def views(self) -> list[KVView]:
        """Return every layer's keys and values, by layer index."""
        by_layer = {
            layer: KVView(k=blocks[:, position, 0], v=blocks[:, position, 1])
            for group, blocks in zip(self._groups, self._blocks, strict=True)
            for position, layer in enumerate(group.layers)
        }
        return [by_layer[layer] for layer in range(len(by_layer))]

    def copy_tokens(self, group_index: int, src: int, dst: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` tokens of block `src` to block `dst`, all layers."""
        blocks = self._blocks[group_index]
        blocks[dst, ..., :num_tokens, :].copy_(blocks[src, ..., :num_tokens, :])


def _group_blocks(
    elements: torch.Tensor, layout: ArenaLayout, index: int, group: CacheGroup
) -> torch.Tensor:
    """Return (blocks, layers, 2, heads, tokens, dim) over the whole arena; ids are global."""
    tokens, (heads, dim) = layout.block_tokens, group.fields[0].shape
    num_layers = len(group.layers)
    shape = (layout.num_blocks(index), num_layers, 2, heads, tokens, dim)
    block_stride = layout.groups[index].logical_bytes // elements.element_size()
    strides = (
        block_stride,
        2 * heads * tokens * dim,
        heads * tokens * dim,
        tokens * dim,
        dim,
        1,
    )
    return elements.as_strided(shape, strides)
