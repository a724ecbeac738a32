"""The header of a safetensors file: tensor table and where the data starts.

Plain data, no torch. Every count is checked against the file's size before anything is read.
Source: safetensors format description, huggingface/safetensors README, "Format".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenspeed.checkpoint.json_file import parse_json_object, shown
from tokenspeed.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 16
_MAX_ELEMENTS = 1 << 60

DTYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8,
    "F32": 4, "I32": 4, "U32": 4,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """One row of the tensor table.

    Args:
        name: as stored.
        dtype: safetensors name such as "BF16".
        shape: outermost first.
        offset: absolute byte offset in the file.
        num_bytes: bytes of its data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """A checked header.

    Args:
        path: the file.
        tensors: by name, in file order.
        metadata: the free-form "__metadata__" strings.
        file_bytes: size of the file.
    """

    path: Path
    tensors: Mapping[str, SafetensorsTensor]
    metadata: Mapping[str, str]
    file_bytes: int

    @staticmethod
    def read(path: Path) -> SafetensorsHeader:
        """Parse the header and check that the tensors fill the file exactly.

        Raises:
            CheckpointError: missing, truncated or damaged; names the file and the byte counts.
        """
        table, data_offset, file_bytes = _read_table(path)
        metadata = table.pop("__metadata__", {})
        if not isinstance(metadata, dict):
            raise _damaged(path, f"its __metadata__ is {shown(metadata)}, not an object")
        tensors = sorted(_tensors(path, table, data_offset), key=lambda t: (t.offset, t.num_bytes))
        _check_coverage(path, tensors, data_offset, file_bytes)
        return SafetensorsHeader(path, {t.name: t for t in tensors}, metadata, file_bytes)


def _read_table(path: Path) -> tuple[dict[str, Any], int, int]:
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            data_offset = 8 + header_bytes
            if file_bytes < 8 or data_offset > file_bytes or header_bytes > MAX_HEADER_BYTES:
                raise _damaged(
                    path, f"its header claims {header_bytes} bytes, the file has {file_bytes}"
                )
            text = file.read(header_bytes)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}; a readable .safetensors file was expected; "
            "check the path"
        ) from error
    try:
        return parse_json_object(text, path), data_offset, file_bytes
    except CheckpointError as error:
        raise _damaged(path, f"its header of {header_bytes} bytes is no JSON object") from error


def _tensors(path: Path, table: Mapping[str, Any], data_offset: int) -> Iterator[SafetensorsTensor]:
    for name, row in table.items():
        try:
            dtype = str(row["dtype"])
            shape = tuple(_size(size) for size in row["shape"])
            begin, end = (_size(offset) for offset in row["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(
                path, f"the header entry of tensor {shown(name)} is {shown(row)}"
            ) from error
        if dtype not in DTYPE_BYTES:
            raise CheckpointError(
                f"cannot read {path}: tensor {shown(name)} has dtype {shown(dtype)}, known are "
                f"{', '.join(DTYPE_BYTES)}; convert it to one of these"
            )
        # Sizes of 0 count as 1 for the bound: a library multiplies the others all the same.
        elements = math.prod(size or 1 for size in shape) if len(shape) <= MAX_DIMENSIONS else 0
        num_bytes = math.prod(shape) * DTYPE_BYTES[dtype] if elements else 0
        if not 0 < elements <= _MAX_ELEMENTS or end - begin != num_bytes:
            raise _damaged(
                path,
                f"tensor {shown(name)} of {dtype} {shown(shape)} needs {num_bytes} bytes and has "
                f"[{begin}, {end})",
            )
        yield SafetensorsTensor(name, dtype, shape, data_offset + begin, num_bytes)


def _size(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_ELEMENTS:
        raise ValueError(value)
    return value


def _check_coverage(
    path: Path, tensors: list[SafetensorsTensor], data_offset: int, file_bytes: int
) -> None:
    position = data_offset
    for tensor in tensors:
        if tensor.offset != position:
            raise _damaged(
                path,
                f"tensor {shown(tensor.name)} starts at byte {tensor.offset}, expected {position}",
            )
        position += tensor.num_bytes
    if position != file_bytes:
        raise _damaged(path, f"its tensors end at byte {position}, the file has {file_bytes} bytes")


def _damaged(path: Path, seen: str) -> CheckpointError:
    return CheckpointError(
        f"cannot read {path}: {seen}; a whole safetensors file was expected, this one is truncated "
        "or damaged; fetch or save it again"
    )
