"""From checkpoint names to layers: every tensor is taken once, checked, and none is left over.

Layers declare slots (name, shape, what to do with the tensor); a model collects them into its
weight map; `fill_slots` walks a checkpoint through the map.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from tokenspeed.errors import CheckpointError
from tokenspeed.layers.cut import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch

    from tokenspeed.contracts.placement import ParallelGroup, Shards
    from tokenspeed.contracts.weights import LinearWeight


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """Where one checkpoint tensor goes.

    Args:
        shape: the only logical shape taken, of all ranks together.
        accept: called once with the tensor, after its shape was checked; with this rank's part of
            it, where there are several.
        letters: of the dimensions, as in the placement rule of the layer: "O I", "E 2F D", or `_`
            for one that is whole; "": all are.
        spread: letter -> group over which it is cut.
        parts: letter -> sizes of the segments that are cut each by itself; a letter without is one
            segment, or as many equal ones as its count says.
        units: letter -> equal units of each segment that are never cut; a segment without has as
            many as elements.
        added: letters that the layer sums over before it adds this tensor: where they are cut, the
            first rank has it and the others have zeros.
        padded: letter -> elements that are cut in place of those that the tensor has; zeros fill
            the last ones.
        is_held: this rank needs it; False: it is not read.
    """

    shape: tuple[int, ...]
    accept: Callable[[LinearWeight], None]
    letters: str = ""
    spread: Mapping[str, ParallelGroup] = field(default_factory=dict)
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    units: Mapping[str, Sequence[int]] = field(default_factory=dict)
    added: str = ""
    padded: Mapping[str, int] = field(default_factory=dict)
    is_held: bool = True


def shared_slot(first: WeightSlot, second: WeightSlot) -> WeightSlot:
    """Return a slot that hands one tensor to two layers, which cut it alike (tied embeddings)."""
    assert first.shape == second.shape
    assert [*first.spread.values()] == [*second.spread.values()]

    def accept(weight: LinearWeight) -> None:
        for slot in (first, second):
            if slot.is_held:
                slot.accept(weight)

    return replace(first, accept=accept, is_held=first.is_held or second.is_held)


def plain_tensor(weight: LinearWeight, what: str) -> torch.Tensor:
    """Return the tensor of a layer that takes plain ones only.

    Args:
        what: names it in the message.
    Raises:
        CheckpointError: it is packed; names the packing.
    """
    if weight.plain is None:
        raise CheckpointError(
            f"{what} {weight.shape} is packed as {weight.packing}, plain tensors are supported; "
            "use an unquantised checkpoint"
        )
    return weight.plain


def fill_slots(
    slots: Mapping[str, WeightSlot],
    weights: Iterable[tuple[str, LinearWeight]],
    *,
    ignored: tuple[str, ...] = (),
    ignored_prefixes: tuple[str, ...] = (),
    shards: Shards | None = None,
) -> int:
    """Give every tensor of `weights` to the slot of its name; return the bytes that slots got.

    Args:
        shards: what this rank holds: slots get their parts; None: the whole tensors.
        ignored: endings of names that carry nothing needed (derived buffers, tied copies).
        ignored_prefixes: beginnings of such names (heads for drafts).
    Raises:
        CheckpointError: an unknown, repeated, missing or wrongly shaped tensor, or one that holds
            no floating point numbers, by name.
    """
    missing = {name: slot for name, slot in slots.items() if slot.is_held}
    num_bytes = 0
    for name, weight in weights:
        slot = missing.pop(name, None)
        if slot is not None:
            _check(name, weight, slot)
            own = weight if shards is None else cut(name, weight, slot, shards)
            num_bytes += own.num_bytes
            slot.accept(own)
        elif name in slots and not slots[name].is_held:
            continue
        elif name in slots or not (name.endswith(ignored) or name.startswith(ignored_prefixes)):
            raise _unexpected(name, slots)
    if missing:
        names = sorted(missing)
        raise CheckpointError(
            f"checkpoint lacks {len(names)} of {len(slots)} tensors: {', '.join(names[:5])}"
            f"{', ...' if len(names) > 5 else ''}; the model needs every one of them; "
            "the files are incomplete or belong to another config.json"
        )
    return num_bytes


def _check(name: str, weight: LinearWeight, slot: WeightSlot) -> None:
    if tuple(weight.shape) != slot.shape:
        raise CheckpointError(
            f"tensor {name} has shape {tuple(weight.shape)}, the config asks for {slot.shape}; "
            "weights and config.json do not belong together"
        )
    if weight.plain is not None and not weight.plain.is_floating_point():
        raise CheckpointError(
            f"tensor {name} holds {weight.plain.dtype}, floating point numbers are needed; "
            "quantised safetensors are not supported; use an unquantised checkpoint or a GGUF file"
        )


def _unexpected(name: str, slots: Mapping[str, WeightSlot]) -> CheckpointError:
    if name in slots:
        return CheckpointError(
            f"tensor {name} stands in the checkpoint twice; each name is allowed once; "
            "remove the stray file from the model folder"
        )
    near = get_close_matches(name, slots, n=1)
    hint = f"nearest is {near[0]}; " if near else ""
    return CheckpointError(
        f"tensor {name} is not part of this architecture ({len(slots)} names are); {hint}"
        "weights and config.json do not belong together"
    )
