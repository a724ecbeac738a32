"""Cuts checkpoint tensors: what one rank has of a tensor, by the letters of its dimensions.

Segments are cut each by itself. Packed tensors are cut at rows and between blocks, never within.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.errors import CheckpointError, PlacementError
from tokenspeed.ops import packing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from tokenspeed.contracts.placement import ParallelGroup, Shards

_LETTER = re.compile(r"(\d*)([A-Za-z]+)!?")
Ranges = tuple[tuple[int, int], ...]
"""[start, end) of each segment of a dimension that a rank has."""


class Cuttable(Protocol):
    """What a cut reads of a `WeightSlot`."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def letters(self) -> str: ...
    @property
    def spread(self) -> Mapping[str, ParallelGroup]: ...
    @property
    def parts(self) -> Mapping[str, Sequence[int]]: ...
    @property
    def units(self) -> Mapping[str, Sequence[int]]: ...
    @property
    def added(self) -> str: ...
    @property
    def padded(self) -> Mapping[str, int]: ...


def cut(name: str, weight: LinearWeight, slot: Cuttable, shards: Shards) -> LinearWeight:
    """Return a rank's part of a checkpoint tensor; the tensor itself where it is whole.

    Raises:
        PlacementError: a segment cannot be cut evenly.
        CheckpointError: the cut goes through blocks of a packed tensor.
    """
    dims = slot.letters.split()
    ranges = [
        _ranges(name, text, size, slot, shards)
        for text, size in zip(dims, slot.shape, strict=bool(dims))
    ]
    for dim, (own, size) in enumerate(zip(ranges, slot.shape, strict=bool(dims))):
        if own != ((0, size),):
            weight = _narrow(name, _filled(weight, own[-1][1], size, dim), dim, own)
    if any(_place_of(letter, slot, shards) for letter in slot.added):
        assert weight.plain is not None, "biases are never packed"
        weight = LinearWeight(weight.shape, weight.plain.new_zeros(weight.shape))
    return weight


def _filled(weight: LinearWeight, end: int, size: int, dim: int) -> LinearWeight:
    """Return the tensor with zeros in rows [size, end), those of packed tensors being zero, too."""
    if end <= size:
        return weight
    assert dim == 0, "rows alone are padded"

    def filled(tensor: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.cat((tensor, tensor.new_zeros(end - size, *tensor.shape[1:])))

    shape = (end, *weight.shape[1:])
    if weight.plain is not None:
        return LinearWeight(shape, filled(weight.plain))
    packed = {key: filled(part) for key, part in weight.packed.items()}
    return LinearWeight(shape, None, weight.packing, packed)


def _ranges(name: str, text: str, size: int, slot: Cuttable, shards: Shards) -> Ranges:
    found = _LETTER.fullmatch(text)
    if found is None or found[2] not in slot.spread:
        return ((0, size),)
    letter, count = found[2], int(found[1] or 1)
    size = slot.padded.get(letter, size)
    sizes = slot.parts.get(letter, (size // count,) * count)
    units = slot.units.get(letter, sizes)
    group = slot.spread[letter]
    ranges: list[tuple[int, int]] = []
    start = 0
    for own, own_units in zip(sizes, units, strict=True):
        ranks, place = shards.place(group, own_units)
        if own % ranks:
            raise PlacementError(
                f"tensor {name}: {own} of dimension {text} cannot be cut into {ranks} equal parts "
                f"over {group.value}; choose a number of ranks that divides it"
            )
        ranges.append((start + own // ranks * place, start + own // ranks * (place + 1)))
        start += own
    return _joined(ranges)


def _joined(ranges: list[tuple[int, int]]) -> Ranges:
    """Make neighbours one."""
    joined = ranges[:1]
    for start, end in ranges[1:]:
        if joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def _place_of(letter: str, slot: Cuttable, shards: Shards) -> int:
    """Return the rank's place among those that a summed letter is cut over."""
    group = slot.spread.get(letter)
    if group is None:
        return 0
    return shards.place(group, *slot.units.get(letter, (0,)))[1]


def _narrow(name: str, weight: LinearWeight, dim: int, ranges: Ranges) -> LinearWeight:
    size = sum(end - start for start, end in ranges)
    shape = (*weight.shape[:dim], size, *weight.shape[dim + 1 :])
    if weight.plain is not None:
        return LinearWeight(shape, _pieces(weight.plain, dim, ranges))
    if dim:
        ranges = _bytes_of(name, weight, ranges)
    parts = {key: _pieces(part, dim, ranges) for key, part in weight.packed.items()}
    return LinearWeight(shape, None, weight.packing, parts)


def _pieces(tensor: torch.Tensor, dim: int, ranges: Ranges) -> torch.Tensor:
    import torch

    pieces = [tensor.narrow(dim, start, end - start) for start, end in ranges]
    return pieces[0].contiguous() if len(pieces) == 1 else torch.cat(pieces, dim)


def _bytes_of(name: str, weight: LinearWeight, ranges: Ranges) -> Ranges:
    """Turn ranges of inputs into ranges of the bytes of a packed row."""
    layout = packing.LAYOUTS.get(weight.packing)
    if layout is None or [*weight.packed] != ["data"]:
        raise CheckpointError(
            f"tensor {name} is packed as {weight.packing} and its {weight.shape[1]} inputs are to "
            f"be cut; known are {', '.join(packing.LAYOUTS)}; use --weights dense"
        )
    block = layout.block_inputs
    for bound in (bound for span in ranges for bound in span):
        if bound % block:
            raise CheckpointError(
                f"tensor {name} is packed as {weight.packing} in blocks of {block} inputs, and the "
                f"cut of its {weight.shape[1]} inputs at {bound} goes through one; multiples of "
                f"{block} are allowed; use fewer ranks, or --weights dense"
            )
    return tuple(
        (start // block * layout.block_bytes, end // block * layout.block_bytes)
        for start, end in ranges
    )
