"""GgufHeader agrees with the public writer and refuses damaged files by name and byte count."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.support.tokenizer_files import write_gguf

from tokenspeed.checkpoint.gguf import GgufHeader
from tokenspeed.checkpoint.gguf_types import TENSOR_TYPES
from tokenspeed.errors import CheckpointError

METADATA = {
    "a.string": ("string", "caf\u00e9"),
    "a.uint32": ("uint32", 7),
    "a.int64": ("int64", -(2**40)),
    "a.float": ("float32", 0.5),
    "a.bool": ("bool", True),
    "a.strings": ("array", ["x", "", "\u4f60"]),
    "a.floats": ("array", [0.25, -1.5]),
    "a.ints": ("array", [1, -2, 3]),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tensors = {
        "first.weight": np.arange(64, dtype=np.float32).reshape(2, 32),
        "second.weight": np.ones((3, 4), dtype=np.float16),
    }
    return write_gguf(tmp_path / "m.gguf", add=METADATA, tensors=tensors)


def test_metadata_equals_what_was_written(file: Path) -> None:
    header = GgufHeader.read(file)
    assert {key: header.metadata[key] for key in METADATA} == {
        key: value for key, (_, value) in METADATA.items()
    }
    assert header.metadata.get("absent") is None


def test_tensor_rows_point_at_the_tensors_bytes(file: Path) -> None:
    header = GgufHeader.read(file)
    first, second = header.tensors["first.weight"], header.tensors["second.weight"]
    assert (first.shape, first.type_name, first.num_bytes) == ((2, 32), "F32", 256)
    assert (second.shape, second.type_name, second.num_bytes) == ((3, 4), "F16", 24)
    data = file.read_bytes()[first.offset : first.offset + first.num_bytes]
    assert np.frombuffer(data, np.float32).tolist() == list(range(64))


def test_block_sizes_equal_the_public_packages() -> None:
    for type_id, (name, elements, num_bytes) in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(type_id)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (name, (elements, num_bytes))


def test_every_truncation_is_refused_with_the_file_name(file: Path) -> None:
    data = file.read_bytes()
    last = GgufHeader.read(file).tensors["second.weight"]
    for size in range(1, last.offset + last.num_bytes, 3):
        file.write_bytes(data[:size])
        with pytest.raises(CheckpointError, match=r"m\.gguf") as caught:
            GgufHeader.read(file)
        assert size < 4 or str(size) in str(caught.value)


def test_a_tensor_beyond_the_end_is_named_with_byte_counts(file: Path) -> None:
    data = file.read_bytes()
    last = GgufHeader.read(file).tensors["second.weight"]
    end = last.offset + last.num_bytes
    file.write_bytes(data[: end - 1])
    with pytest.raises(
        CheckpointError, match=rf"'second.weight' ends at byte {end}.* {end - 1} bytes"
    ):
        GgufHeader.read(file)


@pytest.mark.parametrize(
    ("offset", "replacement", "message"),
    [(0, b"GGML", "starts with b'GGML'"), (4, b"\x09\0\0\0", "GGUF version 9")],
)
def test_other_magic_or_version_is_refused(
    file: Path, offset: int, replacement: bytes, message: str
) -> None:
    data = bytearray(file.read_bytes())
    data[offset : offset + len(replacement)] = replacement
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        GgufHeader.read(file)


def test_a_huge_count_is_refused_at_once(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[8:16] = (2**60).to_bytes(8, "little")
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged; fetch it again"):
        GgufHeader.read(file)


def test_random_damage_is_refused_or_read_but_never_another_error(file: Path) -> None:
    rng = random.Random(13)
    data = file.read_bytes()
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(data) - 300)] = rng.choice(
                [0, 1, 8, 9, 255, rng.randrange(256)]
            )
        file.write_bytes(damaged)
        try:
            header = GgufHeader.read(file)
            for key in header.metadata:
                header.metadata[key]
        except CheckpointError:
            continue


def test_arrays_within_arrays_without_end_are_refused(file: Path) -> None:
    data = bytearray(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 9))
    file.write_bytes(data + struct.pack("<IQ", 9, 1) * 5000)
    with pytest.raises(CheckpointError, match="arrays within arrays"):
        GgufHeader.read(file)


def test_empty_and_missing_files_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.gguf"
    empty.touch()
    with pytest.raises(CheckpointError, match="the file is empty"):
        GgufHeader.read(empty)
    with pytest.raises(CheckpointError, match="No such file"):
        GgufHeader.read(tmp_path / "none.gguf")
