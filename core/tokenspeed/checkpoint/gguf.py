"""The header of a GGUF file: metadata, tensor table, where the data starts.

Own parse over a mapping, because the public reader takes seconds on a large vocabulary. Arrays
are located at once and decoded when asked for. Knows neither models nor tensors' contents.
Source: GGUF specification, ggml project, docs/gguf.md, versions 2 and 3, little endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenspeed.checkpoint.gguf_types import ARRAY, SCALARS, STRING, TENSOR_TYPES
from tokenspeed.checkpoint.json_file import shown
from tokenspeed.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One row of the tensor table.

    Args:
        name: GGUF name such as "blk.0.attn_q.weight".
        shape: logical shape, outermost first (the file stores it innermost first).
        type_id: ggml tensor type.
        type_name: its name such as "Q4_1".
        offset: absolute byte offset in the file.
        num_bytes: bytes of the stored form.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A parsed header; holds the mapping of the file while arrays may still be decoded.

    Args:
        path: the file.
        version: 2 or 3.
        metadata: key -> value; arrays become lists when looked up.
        tensors: in file order, by name.
        data_offset: absolute byte offset of the first tensor's alignment base.
        file_bytes: size of the file.
    """

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    data_offset: int
    file_bytes: int

    @staticmethod
    def read(path: Path | str) -> GgufHeader:
        """Parse the header and check that every tensor lies inside the file.

        Raises:
            CheckpointError: missing file, other magic or version, truncated or damaged header, a
                tensor of unknown type or beyond the end of the file.
        """
        path = Path(path)
        return _parse(_Cursor(_map(path), path))


class GgufMetadata(Mapping[str, Any]):
    """Metadata by key; scalars are decoded, arrays are decoded each time they are looked up."""

    def __init__(self, cursor: _Cursor, places: dict[str, tuple[int, int]]) -> None:
        self.path = cursor.path
        self._cursor = cursor
        self._places = places

    def __getitem__(self, key: str) -> Any:
        value_type, offset = self._places[key]
        return self._cursor.at(offset).value(value_type)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class _Cursor:
    """Reads little-endian values of one mapped file from `offset` on."""

    def __init__(self, data: mmap.mmap, path: Path, offset: int = 0) -> None:
        self.data = data
        self.path = path
        self.offset = offset

    def at(self, offset: int) -> _Cursor:
        return _Cursor(self.data, self.path, offset)

    def scalars(self, letter: str, count: int) -> tuple[Any, ...]:
        """Read `count` values of one struct letter."""
        num_bytes = struct.calcsize(letter) * count
        start = self._advance(num_bytes)
        return struct.unpack_from(f"<{count}{letter}", self.data, start)

    def uint(self, letter: str = "Q") -> int:
        return int(self.scalars(letter, 1)[0])

    def string(self) -> str:
        num_bytes = self.uint()
        start = self._advance(num_bytes)
        try:
            return self.data[start : self.offset].decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"cannot read {self.path}: the string at byte {start} is not UTF-8 ({error.reason})"
                "; the file is damaged; fetch or convert it again"
            ) from error

    def value(self, value_type: int) -> Any:
        """Read one metadata value."""
        if value_type == STRING:
            return self.string()
        if value_type == ARRAY:
            return self._array()
        return self.scalars(self._letter(value_type), 1)[0]

    def skip(self, value_type: int, depth: int = 0) -> None:
        """Move behind one metadata value without decoding it; what passes can be decoded."""
        if value_type == STRING:
            self._advance(self.uint())
        elif value_type == ARRAY:
            self._skip_array(depth)
        else:
            self._advance(struct.calcsize(self._letter(value_type)))

    def _array(self) -> list[Any]:
        element_type, count = self.uint("I"), self.uint()
        if element_type in (STRING, ARRAY):
            return [self.value(element_type) for _ in range(count)]
        return list(self.scalars(self._letter(element_type), count))

    def _skip_array(self, depth: int) -> None:
        if depth == MAX_ARRAY_DEPTH:
            raise CheckpointError(
                f"cannot read {self.path}: arrays within arrays deeper than {MAX_ARRAY_DEPTH} at "
                f"byte {self.offset}; the header is damaged; fetch it again"
            )
        element_type, count = self.uint("I"), self.uint()
        if element_type == STRING:
            self._skip_strings(count)
        elif element_type == ARRAY:
            for _ in range(count):
                self._skip_array(depth + 1)
        else:
            self._advance(struct.calcsize(self._letter(element_type)) * count)

    def _skip_strings(self, count: int) -> None:
        # Vocabularies are 100k strings long: the hot loop of the whole parse.
        data, offset, end = self.data, self.offset, len(self.data) - 8
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if offset > end:
                break
            offset += 8 + unpack(data, offset)[0]
        else:
            self.offset = offset
            self._advance(0)
            return
        self.offset = offset
        self._advance(8)

    def _letter(self, value_type: int) -> str:
        if value_type not in SCALARS:
            raise CheckpointError(
                f"cannot read {self.path}: unknown metadata type {value_type} before byte "
                f"{self.offset}; types 0 to 12 are known; the file is damaged, or newer than this "
                "version"
            )
        return SCALARS[value_type]

    def _advance(self, num_bytes: int) -> int:
        start = self.offset
        if start + num_bytes > len(self.data):
            raise CheckpointError(
                f"cannot read {self.path}: its header needs {num_bytes} bytes at byte {start}, the "
                f"file has {len(self.data)} bytes; it is truncated or damaged; fetch it again"
            )
        self.offset = start + num_bytes
        return start


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise CheckpointError(
            f"cannot read {path}: the file is empty; a GGUF file was expected; fetch it again"
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}; a readable .gguf file was expected; check the "
            "path"
        ) from error


def _parse(cursor: _Cursor) -> GgufHeader:
    version = _version(cursor)
    num_tensors, num_values = cursor.uint(), cursor.uint()
    places: dict[str, tuple[int, int]] = {}
    for _ in range(num_values):
        key, value_type = cursor.string(), cursor.uint("I")
        places[key] = (value_type, cursor.offset)
        cursor.skip(value_type)
    metadata = GgufMetadata(cursor, places)
    rows = [_tensor_row(cursor) for _ in range(num_tensors)]
    data_offset = -(-cursor.offset // _alignment(metadata)) * _alignment(metadata)
    tensors = {name: _tensor(cursor, name, row, data_offset) for name, row in rows}
    return GgufHeader(
        path=cursor.path,
        version=version,
        metadata=metadata,
        tensors=tensors,
        data_offset=data_offset,
        file_bytes=len(cursor.data),
    )


def _alignment(metadata: GgufMetadata) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT:
        raise CheckpointError(
            f"cannot read {metadata.path}: general.alignment is {shown(alignment)}, 1 to "
            f"{MAX_ALIGNMENT} was expected; the header is damaged; fetch it again"
        )
    return alignment


def _version(cursor: _Cursor) -> int:
    magic = bytes(cursor.data[:4])
    if magic != MAGIC:
        raise CheckpointError(
            f"cannot read {cursor.path}: it starts with {magic!r}, a GGUF file starts with "
            f"{MAGIC!r}; give a .gguf file or a Hugging Face folder"
        )
    cursor.offset = 4
    version = cursor.uint("I")
    if version not in VERSIONS:
        raise CheckpointError(
            f"cannot read {cursor.path}: GGUF version {version}, supported are 2 and 3 (little "
            "endian); convert it with a current llama.cpp"
        )
    return version


def _tensor_row(cursor: _Cursor) -> tuple[str, tuple[tuple[int, ...], int, int]]:
    name = cursor.string()
    num_dimensions = cursor.uint("I")
    if num_dimensions > MAX_DIMENSIONS:
        raise CheckpointError(
            f"cannot read {cursor.path}: tensor {shown(name)} has {num_dimensions} dimensions, at "
            f"most {MAX_DIMENSIONS} were expected; the header is damaged; fetch it again"
        )
    shape = cursor.scalars("Q", num_dimensions)
    return name, (shape[::-1], cursor.uint("I"), cursor.uint())


def _tensor(
    cursor: _Cursor, name: str, row: tuple[tuple[int, ...], int, int], data_offset: int
) -> GgufTensor:
    shape, type_id, offset = row
    if type_id not in TENSOR_TYPES:
        raise CheckpointError(
            f"cannot read {cursor.path}: tensor {shown(name)} has unknown type {type_id}; "
            f"known are {', '.join(entry[0] for entry in TENSOR_TYPES.values())}; use one of them"
        )
    type_name, block_elements, block_bytes = TENSOR_TYPES[type_id]
    elements = math.prod(shape)
    if not elements or elements % block_elements:
        raise CheckpointError(
            f"cannot read {cursor.path}: tensor {shown(name)} of shape {shape} is no whole number "
            f"of {type_name} blocks of {block_elements} values; it is damaged; fetch it again"
        )
    num_bytes = elements // block_elements * block_bytes
    start = data_offset + offset
    if start + num_bytes > len(cursor.data):
        raise CheckpointError(
            f"cannot read {cursor.path}: tensor {shown(name)} ends at byte {start + num_bytes}, "
            f"the file has {len(cursor.data)} bytes; it is truncated; fetch it again"
        )
    return GgufTensor(name, shape, type_id, type_name, start, num_bytes)
