"""From checkpoint names to layers: every tensor is taken once, checked, and none is left over.

Layers declare slots (name, shape, what to do with the tensor); a model collects them into its
weight map; `fill_slots` walks a checkpoint through the map.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from tokenspeed.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import torch

    from tokenspeed.contracts.weights import LinearWeight


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """Where one checkpoint tensor goes.

    Args:
        shape: the only logical shape taken.
        accept: called once with the tensor, after its shape was checked.
    """

    shape: tuple[int, ...]
    accept: Callable[[LinearWeight], None]


def shared_slot(first: WeightSlot, second: WeightSlot) -> WeightSlot:
    """Return a slot that hands one tensor to two layers (tied embeddings)."""
    assert first.shape == second.shape

    def accept(weight: LinearWeight) -> None:
        first.accept(weight)
        second.accept(weight)

    return WeightSlot(first.shape, accept)


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
) -> None:
    """Give every tensor of `weights` to the slot of its name.

    Args:
        ignored: endings of names that carry nothing needed (derived buffers, tied copies).
        ignored_prefixes: beginnings of such names (heads for drafts).
    Raises:
        CheckpointError: an unknown, repeated, missing or wrongly shaped tensor, or one that holds
            no floating point numbers, by name.
    """
    missing = dict(slots)
    for name, weight in weights:
        slot = missing.pop(name, None)
        if slot is not None:
            _check(name, weight, slot)
            slot.accept(weight)
        elif name in slots or not (name.endswith(ignored) or name.startswith(ignored_prefixes)):
            raise _unexpected(name, slots)
    if missing:
        names = sorted(missing)
        raise CheckpointError(
            f"checkpoint lacks {len(names)} of {len(slots)} tensors: {', '.join(names[:5])}"
            f"{', ...' if len(names) > 5 else ''}; the model needs every one of them; "
            "the files are incomplete or belong to another config.json"
        )


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
