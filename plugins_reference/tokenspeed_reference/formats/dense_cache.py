"""Keeps expanded low-bit checkpoints as safetensors files in the cache folder, keyed by content.

Dequantising costs seconds; mapping the result costs milliseconds. The key is a digest of the
source's bytes, so neither times nor names matter. A failure to write is logged and costs nothing
but the next start's time. The folder is bounded; the file used longest ago goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import torch

from tokenspeed_sdk import LOGGER, CheckpointError, SafetensorsHeader, cache_dir

CACHE_VERSION = 1
MAX_CACHE_BYTES = 16 * 2**30
_PIECE_BYTES = 8 * 2**20
_UNFINISHED = ".new-"
_ABANDONED_S = 3600
_STORED = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


class DenseCache:
    """Expanded checkpoints under `cache_dir()/weights`.

    Args:
        max_bytes: of all files together; one checkpoint may take half of it.
    """

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._folder = cache_dir() / "weights"
        self._max_bytes = max_bytes

    def path_for(self, source: Path, dtype: torch.dtype) -> Path | None:
        """Return where the expansion of `source` belongs, or None for a dtype that is not kept."""
        if dtype not in _STORED:
            return None
        return (
            self._folder / f"{content_digest(source)}-{_STORED[dtype]}-v{CACHE_VERSION}.safetensors"
        )

    def open(
        self, path: Path, tensors: Sequence[tuple[str, tuple[int, ...]]]
    ) -> SafetensorsHeader | None:
        """Return a whole cached file's header and mark it used; remove a damaged file.

        Args:
            tensors: (name, shape) of each tensor that the file must hold, and no other.
        """
        try:
            path.stat()
        except OSError:
            return None
        try:
            header = SafetensorsHeader.read(path)
            _check_content(header, tensors)
            os.utime(path)
        except (CheckpointError, OSError) as error:
            LOGGER.warning("cached weights %s are unusable and are made again: %s", path, error)
            _remove(path)
            return None
        return header

    def has_room(self, num_bytes: int) -> bool:
        """Say whether an expansion of that size may be kept, evicting older ones if need be."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
            free_bytes = shutil.disk_usage(self._folder).free
            if num_bytes > min(self._max_bytes, free_bytes) // 2:
                LOGGER.info("expanded weights of %d bytes are too large to be cached", num_bytes)
                return False
            self._evict(self._max_bytes - num_bytes)
        except OSError as error:
            LOGGER.warning("expanded weights are not cached: %s", error)
            return False
        return True

    def _remove_abandoned(self) -> None:
        """Remove what killed processes left half written."""
        for entry in self._folder.glob(f"{_UNFINISHED}*"):
            if time.time() - entry.stat().st_mtime > _ABANDONED_S:
                _remove(entry)

    def _evict(self, allowed_bytes: int) -> None:
        files = [(entry.stat(), entry) for entry in self._folder.glob("*.safetensors")]
        used_bytes = sum(stat.st_size for stat, _ in files)
        for stat, entry in sorted(files, key=lambda item: (item[0].st_mtime_ns, item[1].name)):
            if used_bytes <= allowed_bytes:
                return
            _remove(entry)
            used_bytes -= stat.st_size


def _check_content(
    header: SafetensorsHeader, tensors: Sequence[tuple[str, tuple[int, ...]]]
) -> None:
    suffix = f"-v{CACHE_VERSION}.safetensors"
    dtype = header.path.name.removesuffix(suffix).rsplit("-", 1)[-1]
    found = {name: (row.dtype, row.shape) for name, row in header.tensors.items()}
    if found != {name: (dtype, shape) for name, shape in tensors}:
        raise CheckpointError(f"{header.path} does not hold the tensors that it is named for")


def _remove(path: Path) -> None:
    """Remove a file, or a folder that stands in its place; another process may be faster."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        LOGGER.warning("%s cannot be removed: %s", path, error)


def content_digest(path: Path) -> str:
    """Digest a file's size and every byte of it, in pieces on two threads."""
    size = path.stat().st_size
    offsets = range(0, size, _PIECE_BYTES)
    with path.open("rb") as file, ThreadPoolExecutor(2) as pool:
        pieces = pool.map(lambda offset: _piece_digest(file.fileno(), offset), offsets)
        return hashlib.sha256(b"".join([size.to_bytes(8, "little"), *pieces])).hexdigest()[:32]


def _piece_digest(descriptor: int, offset: int) -> bytes:
    return hashlib.sha256(os.pread(descriptor, _PIECE_BYTES, offset)).digest()


class CacheWriter:
    """Writes one safetensors file beside its final name and moves it there when complete."""

    def __init__(
        self, path: Path, tensors: Sequence[tuple[str, tuple[int, ...]]], dtype: torch.dtype
    ) -> None:
        self._path = path
        self._header = _header(tensors, dtype)
        self._file: IO[bytes] | None = None
        try:
            self._file = tempfile.NamedTemporaryFile(  # noqa: SIM115
                dir=path.parent, prefix=_UNFINISHED, delete=False
            )
        except OSError as error:
            self._give_up(error)
            return
        self._write(self._header)

    def add(self, tensor: torch.Tensor) -> None:
        """Append the next tensor, in the order given at construction."""
        if self._file is not None:
            self._write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)

    def finish(self) -> None:
        """Make the file visible under its name."""
        if self._file is None:
            return
        try:
            self._file.close()
            Path(self._file.name).replace(self._path)
            self._file = None
        except OSError as error:
            self._give_up(error)

    def discard(self) -> None:
        """Remove what was written if `finish` was not reached."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk refuses the last flush as well
                self._file.close()
            Path(self._file.name).unlink(missing_ok=True)
            self._file = None

    def _write(self, data: bytes | memoryview) -> None:
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        LOGGER.warning("expanded weights are not cached in %s: %s", self._path, error)
        self.discard()


def _header(tensors: Sequence[tuple[str, tuple[int, ...]]], dtype: torch.dtype) -> bytes:
    table: dict[str, object] = {}
    position = 0
    for name, shape in tensors:
        end = position + torch.Size(shape).numel() * dtype.itemsize
        table[name] = {"dtype": _STORED[dtype], "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(table).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return len(text).to_bytes(8, "little") + text
