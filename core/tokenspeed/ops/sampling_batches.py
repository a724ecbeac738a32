"""Sampling parameters of rows, for cases and for drawing one row many times.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from tokenspeed.contracts.sampler import SamplingBatch
    from tokenspeed.ops.draw import Draw


@dataclass(frozen=True, slots=True)
class Setting:
    """How one row samples; see SamplingBatch. `bias` maps token ids to values."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    penalties: tuple[float, float, float] = (1.0, 0.0, 0.0)
    bias: tuple[tuple[int, float], ...] = ()


SETTINGS: Mapping[str, Setting] = {
    "greedy": Setting(0.0),
    "plain": Setting(),
    "cold": Setting(0.3),
    "hot": Setting(4.0),
    "top_k": Setting(top_k=5),
    "top_k of one": Setting(top_k=1),
    "top_k of more than there are": Setting(top_k=1000),
    "top_p": Setting(top_p=0.7),
    "small top_p": Setting(top_p=0.01),
    "min_p": Setting(min_p=0.2),
    "penalties": Setting(penalties=(1.7, 0.6, -0.4)),
    "greedy with penalties": Setting(0.0, penalties=(1.7, 0.6, 0.4)),
    "bias": Setting(bias=((3, 4.0), (7, -100.0))),
    "forbidden tokens": Setting(bias=((0, float("-inf")), (9, float("-inf")))),
    "everything": Setting(1.5, 20, 0.9, 0.02, (1.2, 0.1, 0.1), ((3, 1.0),)),
}


def batch_of(settings: Sequence[Setting], vocab_size: int, draw: Draw) -> SamplingBatch:
    """Return the batch of one row for each setting; penalties count random histories."""
    import torch

    from tokenspeed.contracts.sampler import Penalties, SamplingBatch

    rows = len(settings)

    def column(name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([getattr(item, name) for item in settings], dtype=dtype)

    bias = [(row, *entry) for row, item in enumerate(settings) for entry in item.bias]
    repetition, frequency, presence = (
        torch.tensor([item.penalties[place] for item in settings]) for place in range(3)
    )
    return SamplingBatch(
        temperature_R=column("temperature", torch.float32),
        top_k_R=column("top_k", torch.int32),
        top_p_R=column("top_p", torch.float32),
        min_p_R=column("min_p", torch.float32),
        seeds_R=draw.integers(-(2**62), 2**62, rows),
        output_index_R=torch.zeros(rows, dtype=torch.int64),
        penalties=Penalties(
            repetition,
            frequency,
            presence,
            draw.integers(0, 40, rows, vocab_size).sub(37).clamp(min=0).int(),
            draw.uniform(rows, vocab_size) < 0.1,
        ),
        bias=(
            torch.tensor([entry[0] for entry in bias], dtype=torch.int64),
            torch.tensor([entry[1] for entry in bias], dtype=torch.int64),
            torch.tensor([entry[2] for entry in bias], dtype=torch.float32),
        ),
        num_logprobs_R=None,
    )


def repeated(batch: SamplingBatch, row: int, count: int) -> SamplingBatch:
    """Return the batch of one row `count` times over, at output positions 0, 1, ..."""
    import torch

    def tile(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor[row : row + 1].repeat_interleave(count, dim=0)

    changes: dict[str, Any] = {
        name: tile(getattr(batch, name))
        for name in ("temperature_R", "top_k_R", "top_p_R", "min_p_R", "seeds_R")
    }
    if batch.penalties is not None:
        names = ("repetition_R", "frequency_R", "presence_R", "output_counts_RV", "prompt_mask_RV")
        tiled: dict[str, Any] = {name: tile(getattr(batch.penalties, name)) for name in names}
        changes["penalties"] = replace(batch.penalties, **tiled)
    if batch.bias is not None:
        own = batch.bias[0] == row
        ids, values = (part[own].repeat(count) for part in batch.bias[1:])
        rows = torch.arange(count, device=ids.device).repeat_interleave(int(own.sum()))
        changes["bias"] = (rows, ids, values)
    index = torch.arange(count, device=batch.output_index_R.device)
    return replace(batch, output_index_R=index, **changes)
