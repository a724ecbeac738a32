"""What kernels over state rows share. Legend: T tokens, R rows, B blocks of the state group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tokenspeed_sdk import StateRows


@dataclass(frozen=True, slots=True)
class Singles:
    """Rows of one query token, (S,) int64 each: the row, and its token.

    Where all rows are such, both are slices: nothing is copied to the device, and nothing gathered.
    """

    rows: torch.Tensor | slice
    tokens: torch.Tensor | slice


def split_rows(
    query_start: Any, device: torch.device
) -> tuple[Singles | None, list[tuple[int, slice]]]:
    """Return the rows of one token, None where there is none, and (row, its tokens) of others."""
    lengths = np.diff(query_start)
    if len(lengths) and (lengths == 1).all():
        return Singles(slice(None), slice(None)), []
    singles = np.flatnonzero(lengths == 1)
    tokens = query_start[singles].astype(np.int64)
    longer = [
        (row, slice(int(query_start[row]), int(query_start[row + 1])))
        for row in np.flatnonzero(lengths > 1).tolist()
    ]
    on_device = (torch.from_numpy(array).to(device) for array in (singles, tokens))
    return (Singles(*on_device) if len(singles) else None), longer


def read_rows(state: torch.Tensor, rows: StateRows) -> torch.Tensor:
    """Return a copy of each row's state, (R, ...): zeros where nothing is read."""
    gathered = state[rows.read_R.clamp(min=0)]
    fresh = (rows.read_R < 0).view(-1, *[1] * (gathered.ndim - 1))
    return gathered.masked_fill_(fresh, 0)
