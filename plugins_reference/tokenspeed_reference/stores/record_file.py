"""One record on disk: a file that is either complete or recognised as damaged.

    magic 8 | checksum 4 | tag length 4 | data length 8 | tag | data        little-endian

The checksum (CRC-32) covers all that follows it. A file is written beside its place, flushed to the
disk and renamed, so that a process killed at any moment leaves the old record, the new one or a
temporary file, never half a record under its name.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

MAGIC = b"TSKVREC1"
HEAD = struct.Struct("<8sI")
LENGTHS = struct.Struct("<IQ")
HEAD_BYTES = HEAD.size + LENGTHS.size
TEMPORARY = ".partial"


class DamagedRecordError(Exception):
    """The file is not a complete record; it is of no use to anybody."""


def record_bytes(tag: bytes, data: memoryview) -> int:
    """Return the size of the record's file."""
    return HEAD_BYTES + len(tag) + data.nbytes


def write_record(path: Path, tag: bytes, data: memoryview) -> None:
    """Write a record in one step, as seen from outside.

    Raises:
        OSError: the disk is full, or the folder is gone; nothing is left under `path`.
    """
    lengths = LENGTHS.pack(len(tag), data.nbytes)
    checksum = zlib.crc32(data, zlib.crc32(tag, zlib.crc32(lengths)))
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with open(temporary, "wb", buffering=0) as file:
            for part in (HEAD.pack(MAGIC, checksum) + lengths + tag, data):
                _write_all(file.fileno(), memoryview(part))
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_record(path: Path, tag: bytes, into: memoryview) -> bool:
    """Read a record's data; False if its tag or length is another.

    Raises:
        DamagedRecordError: cut short, overwritten or no record at all.
        FileNotFoundError: no such record.
    """
    with open(path, "rb", buffering=0) as file:
        head = file.read(HEAD_BYTES)
        if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
            raise DamagedRecordError(path)
        _, checksum = HEAD.unpack_from(head)
        tag_bytes, data_bytes = LENGTHS.unpack_from(head, HEAD.size)
        if os.fstat(file.fileno()).st_size != HEAD_BYTES + tag_bytes + data_bytes:
            raise DamagedRecordError(path)
        present = file.read(tag_bytes)
        if present != tag or data_bytes != into.nbytes:
            return False
        _read_all(file.fileno(), into, path)
    found = zlib.crc32(into, zlib.crc32(present, zlib.crc32(head[HEAD.size :])))
    if found != checksum:
        raise DamagedRecordError(path)
    return True


def _write_all(descriptor: int, data: memoryview) -> None:
    rest = data.cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read_all(descriptor: int, into: memoryview, path: Path) -> None:
    rest = into.cast("B")
    while rest:
        count = os.readv(descriptor, [rest])
        if count == 0:
            raise DamagedRecordError(path)
        rest = rest[count:]
