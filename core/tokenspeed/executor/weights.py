"""Loads a model's weights and says how far it is. Knows no file format and no architecture."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.model import CausalLM
    from tokenspeed.contracts.weights import LinearWeight, WeightSource

    Progress = Callable[[int, int], None]


def load_weights(
    model: CausalLM,
    source: WeightSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    keep_packed: bool,
    progress: Progress | None = None,
) -> int:
    """Hand every tensor of `source` to `model`; return their bytes in memory.

    What other ranks hold is left unread, if the source can do so.

    Args:
        device: where a source that makes its tensors up makes them.
        keep_packed: low-bit tensors stay as stored, if the source has such.
        progress: called with (bytes done, bytes in all) before each tensor and at the end.
            Bytes are counted as stored, before low-bit tensors are expanded.
    Raises:
        CheckpointError: damaged files; unknown, missing or wrongly shaped tensors.
    """
    options = {**_skipped(model, source), **_wanted(model, source, device)}
    tensors = source.tensors(dtype, keep_packed=keep_packed, **options)
    sizes: list[int] = []
    model.load_weights(_reported(source, tensors, progress, sizes))
    if progress is not None:
        progress(source.total_bytes, source.total_bytes)
    held_bytes: int = getattr(model, "held_bytes", 0)
    return held_bytes or sum(sizes)


def _skipped(model: CausalLM, source: WeightSource) -> dict[str, Any]:
    """Return the keyword for what other ranks hold; none where the source reads everything."""
    skipped_weights = getattr(model, "skipped_weights", None)
    names = frozenset() if skipped_weights is None else skipped_weights()
    can_skip = "skip" in signature(source.tensors).parameters
    return {"skip": names} if names and can_skip else {}


def _wanted(model: CausalLM, source: WeightSource, device: torch.device) -> dict[str, Any]:
    """Return the keywords of a source that makes its tensors up; none for one that reads them."""
    if "wanted" not in signature(source.tensors).parameters:
        return {}
    wanted_weights = getattr(model, "wanted_weights", None)
    if wanted_weights is None:
        raise ConfigError(made_up_refusal(type(model)))
    return {"wanted": wanted_weights(), "device": device}


def made_up_refusal(model_class: type) -> str:
    """Return why a model cannot have weights that are made up."""
    return (
        f"{model_class.__name__} does not say which weights it takes (wanted_weights), so none can "
        "be made up; use a checkpoint with weights"
    )


def _reported(
    source: WeightSource,
    tensors: Iterator[tuple[str, LinearWeight]],
    progress: Progress | None,
    sizes: list[int],
) -> Iterator[tuple[str, LinearWeight]]:
    for name, weight in tensors:
        if progress is not None:
            progress(source.bytes_read, source.total_bytes)
        sizes.append(weight.num_bytes)
        yield name, weight
