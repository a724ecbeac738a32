"""The arena: strided views of one allocation, one per layer, and copies between blocks.

Knows bytes and blocks; not requests, prefixes or who owns a block. Nothing is copied to make a
view. Where a field lies is `layout.py`'s business.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tokenspeed.contracts.attention import KVView, StateView
from tokenspeed.contracts.model import LATENT
from tokenspeed.errors import CapacityError
from tokenspeed.kv.extents import Extent, block_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from tokenspeed.kv.geometry import FieldLayout
    from tokenspeed.kv.layout import ArenaLayout, GroupLayout, PageIds

    CopyTokens = Callable[[torch.Tensor, torch.Tensor], None]

NAN_BYTE = 0x7F


class Arena:
    """Owns the storage tensor; the views alias it and live as long as they like.

    Args:
        layout: solved for the model's cache groups.
        storage: (>= layout.total_bytes,) uint8, device, contiguous; written through the views.
        copy: kernel of operator `kv.copy_tokens`; None: torch's own copy.
    """

    def __init__(
        self, layout: ArenaLayout, storage: torch.Tensor, *, copy: CopyTokens | None = None
    ) -> None:
        if storage.numel() < layout.total_bytes:
            raise CapacityError(
                f"KV storage has {storage.numel():,} bytes, the layout needs "
                f"{layout.total_bytes:,}; allocate as many as the layout says"
            )
        self.layout = layout
        self.storage = storage
        self._copy = copy or _copy_tokens
        self._fields = tuple(
            tuple(self._group_fields(index)) for index in range(len(layout.groups))
        )

    def views(self) -> list[KVView | StateView]:
        """Return every layer's fields, the lowest layer's first; paged fields as pages."""
        by_layer = self.layer_views()
        return [by_layer[layer] for layer in sorted(by_layer)]

    def layer_views(self) -> dict[int, KVView | StateView]:
        """Return layer index -> its fields; a pipeline stage has some layers only."""
        return {
            layer: self._view(index, position)
            for index, group in enumerate(self.layout.groups)
            for position, layer in enumerate(group.layers)
        }

    def copy_tokens(self, group_index: int, src: int, dst: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` tokens of block `src` to block `dst`, all layers."""
        assert self.layout.groups[group_index].kind != "state", "a state has no tokens"
        copies_13 = _host_table((src, dst, num_tokens))
        for blocks in self._fields[group_index]:
            self._copy(blocks, copies_13)

    def block_bytes(
        self, group_index: int, block: int, layers: tuple[int, int]
    ) -> tuple[Extent, ...]:
        """Return where the group's layer positions [first, last) of a block lie in `storage`."""
        return block_bytes(self.layout, group_index, block, layers)

    def poison(self, group_index: int, blocks: Sequence[int]) -> None:
        """Fill blocks with NaN (bytes: 0x7f, NaN in float8), to show that nobody reads them.

        One value that belongs to nobody's sequence then shows in the logits.
        """
        for field in self._fields[group_index]:
            for block in blocks:
                if field.element_size() > 1:
                    field[:, block] = math.nan
                else:
                    field.view(_torch_dtype("uint8"))[:, block] = NAN_BYTE

    def _group_fields(self, index: int) -> Iterator[torch.Tensor]:
        """Yield each field over all layers of each slab: (slabs x layers, blocks, *shape).

        Layers are at equal distances inside a slab only, so a group that is dealt over several
        slabs unevenly has one tensor a slab.
        """
        group = self.layout.groups[index]
        for field in group.fields:
            for first in range(0, len(group.layers), group.layers_per_slice):
                count = min(group.layers_per_slice, len(group.layers) - first)
                yield self._strided(index, field, first, count)

    def _strided(self, index: int, field: FieldLayout, first: int, count: int) -> torch.Tensor:
        group, size = self.layout.groups[index], field.element_bytes
        shape = (count, self.layout.num_blocks(index), *_block_shape(field))
        strides = (
            field.layer_stride_bytes // size,
            group.block_stride_bytes // size,
            *_dense_strides(shape[2:]),
        )
        offset = self.layout.field_address(index, field, first) // size
        return self._elements(field).as_strided(shape, strides, offset)

    def _view(self, index: int, position: int) -> KVView | StateView:
        group, pages = self.layout.groups[index], self.layout.page_ids(index)
        tensors = {
            field.name: self._pages(index, field, position, pages)
            if pages and field.page_tokens
            else self._strided(index, field, position, 1)[0]
            for field in group.fields
        }
        if value_dim := group.group.value_dim:
            return KVView(tensors[LATENT], tensors[LATENT][..., :value_dim])
        return KVView(**tensors) if _is_kv(group) else StateView(tensors)

    def _pages(self, index: int, field: FieldLayout, position: int, pages: PageIds) -> torch.Tensor:
        """Return (page ids, *shape[:-1], page_tokens, shape[-1]); see PageIds for valid ids."""
        size, width = field.element_bytes, field.shape[-1]
        last = (self.layout.num_blocks(index) - 1) * pages.per_block
        last += (pages.num_pages - 1) * pages.step
        block = _block_shape(field)
        shape = (last + 1, *block[:-2], pages.page_tokens, width)
        strides = (pages.unit_bytes // size, *_dense_strides(block))
        offset = self.layout.field_address(index, field, position) // size
        return self._elements(field).as_strided(shape, strides, offset)

    def _elements(self, field: FieldLayout) -> torch.Tensor:
        return self.storage[: self.layout.total_bytes].view(_torch_dtype(field.dtype))


def _copy_tokens(blocks: torch.Tensor, copies_C3: torch.Tensor) -> None:
    for src, dst, count in copies_C3.tolist():
        blocks[:, dst, ..., :count, :].copy_(blocks[:, src, ..., :count, :])


def _host_table(*rows: tuple[int, ...]) -> torch.Tensor:
    import torch

    return torch.tensor(rows, dtype=torch.int64)


def _torch_dtype(name: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _is_kv(group: GroupLayout) -> bool:
    return group.kind != "state" and sorted(field.name for field in group.fields) == ["k", "v"]


def _block_shape(field: FieldLayout) -> tuple[int, ...]:
    if not field.span_tokens:
        return field.shape
    return (*field.shape[:-1], field.span_tokens, field.shape[-1])


def _dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
