"""Turns stored GGUF tensors into torch tensors: plain by dequantising, or packed as stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenspeed_reference.formats.mapping import map_tensor
from tokenspeed_sdk import CheckpointError, GgufHeader, GgufTensor, LinearWeight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PLAIN_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
PACKINGS = {"Q4_0": "q4_0", "Q4_1": "q4_1", "Q8_0": "q8_0", "Q4_K": "q4_k", "Q6_K": "q6_k"}


def is_packable(tensor: GgufTensor) -> bool:
    """Say whether the tensor can stay as stored: a matrix of a low-bit type."""
    return tensor.type_name in PACKINGS and len(tensor.shape) == 2


def read_plain(header: GgufHeader, tensor: GgufTensor) -> torch.Tensor:
    """Return the tensor in its logical shape: as stored if floating, else dequantised to float32.

    Raises:
        CheckpointError: a type that is not supported, or a damaged row length.
    """
    if tensor.type_name in PLAIN_DTYPES:
        dtype = PLAIN_DTYPES[tensor.type_name]
        return map_tensor(
            header.path,
            offset=tensor.offset,
            num_bytes=tensor.num_bytes,
            dtype=dtype,
            shape=tensor.shape,
        )
    return torch.from_numpy(dequantise(_read_rows(header, tensor), tensor)).reshape(tensor.shape)


def read_packed(header: GgufHeader, tensor: GgufTensor) -> LinearWeight:
    """Return a matrix as stored: packed["data"] is (O, bytes of a row) uint8."""
    data = _read_rows(header, tensor)
    return LinearWeight(tensor.shape, None, PACKINGS[tensor.type_name], {"data": data})


def dequantise(rows: torch.Tensor, tensor: GgufTensor) -> NDArray[np.float32]:
    """Expand stored rows with the gguf package's arithmetic."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    values: NDArray[np.float32] = dequantize(rows.numpy(), GGMLQuantizationType(tensor.type_id))
    return values


def check_type(header: GgufHeader, tensor: GgufTensor) -> None:
    """Refuse what cannot be read, before anything is.

    Raises:
        CheckpointError: a type that is not supported, or rows that are not whole blocks.
    """
    if tensor.type_name not in PLAIN_DTYPES and tensor.type_name not in PACKINGS:
        raise CheckpointError(
            f"cannot load tensor {tensor.name!r} of {header.path}: its type is {tensor.type_name}, "
            f"supported are {', '.join([*PLAIN_DTYPES, *PACKINGS])}; use a file of one of these"
        )
    if not tensor.shape or 0 in tensor.shape:
        raise CheckpointError(
            f"cannot load tensor {tensor.name!r} of {header.path}: its shape is "
            f"{list(tensor.shape)}; sizes from 1 were expected; the file is damaged; fetch it again"
        )
    block_elements = 256 if tensor.type_name.endswith("_K") else 32
    if tensor.type_name in PACKINGS and tensor.shape[-1] % block_elements:
        raise CheckpointError(
            f"cannot load tensor {tensor.name!r} of {header.path}: rows of {tensor.shape[-1]} "
            f"elements, {tensor.type_name} needs multiples of {block_elements}; the file is "
            "damaged; fetch or convert it again"
        )


def _read_rows(header: GgufHeader, tensor: GgufTensor) -> torch.Tensor:
    num_rows = 1
    for size in tensor.shape[:-1]:
        num_rows *= size
    shape = (num_rows, tensor.num_bytes // max(num_rows, 1))
    return map_tensor(
        header.path,
        offset=tensor.offset,
        num_bytes=tensor.num_bytes,
        dtype=torch.uint8,
        shape=shape,
    )
