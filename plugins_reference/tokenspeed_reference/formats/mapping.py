"""Maps byte ranges of a file as tensors, without reading them.

One mapping a tensor, so that its memory goes when the tensor goes: a loader that copies weights
into fused matrices never holds the file beside them.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import torch

from tokenspeed_sdk import CheckpointError


def map_tensor(
    path: Path, *, offset: int, num_bytes: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    """Return [offset, offset + num_bytes) of `path` as a CPU tensor.

    The mapping is private: writing into the tensor never reaches the file.

    Raises:
        CheckpointError: the file has become shorter or cannot be opened.
    """
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(
                file.fileno(), offset + num_bytes - start, access=mmap.ACCESS_COPY, offset=start
            )
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"cannot map {path}: bytes {offset} to {offset + num_bytes} gave {error}; the file was "
            "expected unchanged since it was opened; do not replace weights while they load"
        ) from error
    if (offset - start) % dtype.itemsize:
        # A dtype view needs an aligned start: copy through bytes.
        piece = torch.frombuffer(mapped, dtype=torch.uint8, offset=offset - start).clone()
        return piece.view(dtype).reshape(shape)
    return torch.frombuffer(mapped, dtype=dtype, offset=offset - start).reshape(shape)
