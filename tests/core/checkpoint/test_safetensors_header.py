"""Safetensors headers: what the public writer makes is read; every damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tokenspeed.checkpoint import SafetensorsHeader
from tokenspeed.errors import CheckpointError


def write(path: Path, table: object, data: bytes = b"", *, header_bytes: int | None = None) -> Path:
    text = json.dumps(table).encode()
    size = len(text) if header_bytes is None else header_bytes
    path.write_bytes(size.to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_a_file_of_the_public_writer_is_read_in_file_order(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file(
        {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16)},
        path,
        metadata={"format": "pt"},
    )
    header = SafetensorsHeader.read(path)
    assert {name: (t.dtype, t.shape) for name, t in header.tensors.items()} == {
        "w": ("F32", (2, 3)),
        "b": ("F16", (4,)),
    }
    assert header.metadata == {"format": "pt"}
    w = header.tensors["w"]
    stored = np.frombuffer(path.read_bytes()[w.offset : w.offset + w.num_bytes], np.float32)
    assert stored.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("keep", [0, 5, 8, 40, -1])
def test_a_truncated_file_is_refused_with_its_byte_counts(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"w": np.zeros((4, 4), np.float32)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    with pytest.raises(CheckpointError, match=rf"a\.safetensors: .*{len(whole[:keep])}"):
        SafetensorsHeader.read(path)


@pytest.mark.parametrize(
    ("table", "data", "text"),
    [
        ([1], b"", "no JSON object"),
        ({"__metadata__": [1]}, b"", "__metadata__"),
        ({"w": entry("F32", [float("inf")], 0, 4)}, b"0000", "entry of tensor 'w'"),
        ({"w": entry("F32", [1], 0, float("inf"))}, b"0000", "entry of tensor 'w'"),
        ({"w": entry("F32", [2**59, 2**59, 2**59], 0, 4)}, b"0000", "tensor 'w'"),
        ({"w": entry("F32", [0, 2**59, 2**59], 0, 0)}, b"", "tensor 'w'"),
        ({"w": entry("F32", [1.5], 0, 6)}, b"000000", "entry of tensor 'w'"),
        ({"w": entry("F32", [1] * 1000, 0, 4)}, b"0000", "tensor 'w'"),
        ({"w": 3}, b"", "entry of tensor 'w'"),
        ({"w": {"dtype": "F32", "shape": [1]}}, b"", "entry of tensor 'w'"),
        ({"w": entry("F31", [1], 0, 4)}, b"0000", "dtype 'F31'"),
        ({"w": entry("F32", [2], 0, 4)}, b"0000", "needs 8 bytes"),
        ({"w": entry("F32", [-1, -1], 0, 4)}, b"0000", "tensor 'w'"),
        ({"w": entry("F32", [1], 4, 8)}, b"00000000", "starts at byte"),
        ({"w": entry("F32", [1], 0, 4)}, b"000000", "end at byte"),
        ({"v": entry("F32", [1], 0, 4), "w": entry("F32", [1], 2, 6)}, b"000000", "'w' starts"),
    ],
)
def test_an_inconsistent_table_is_refused(
    tmp_path: Path, table: object, data: bytes, text: str
) -> None:
    path = write(tmp_path / "a.safetensors", table, data)
    with pytest.raises(CheckpointError, match=text):
        SafetensorsHeader.read(path)


def test_a_header_length_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {}, header_bytes=2**62)
    with pytest.raises(CheckpointError, match="claims 4611686018427387904 bytes, the file has 10"):
        SafetensorsHeader.read(path)


def test_random_flips_in_the_header_never_escape_as_another_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"w": np.zeros((4, 4), np.float32), "v": np.zeros(3, np.float16)}, path)
    whole = path.read_bytes()
    random = np.random.default_rng(1)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[int(random.integers(0, len(whole) - 70))] = int(random.integers(0, 256))
        path.write_bytes(damaged)
        try:
            SafetensorsHeader.read(path)
        except CheckpointError:
            refused += 1
    assert refused > 100


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        SafetensorsHeader.read(tmp_path / "none.safetensors")
