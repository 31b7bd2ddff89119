"""TFRecord files without TensorFlow: record framing with CRC checks of every length and record."""

from __future__ import annotations

import hashlib
import io
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from deep5.core.compiler import cache_folder
from deep5.core.errors import UsageError
from deep5.core.files import write_atomically
from deep5.training.datasets.crc32c import masked_crc32c
from deep5.training.datasets.packed_records import compression_of, packed_records

__all__ = [
    "RecordTable",
    "check_seekable",
    "framed",
    "read_record",
    "record_index",
    "record_table",
    "records",
    "write_records",
]

_HEADER, _FOOTER = 12, 4  # uint64 length and its CRC; CRC of the record


def framed(record: bytes) -> bytes:
    """The frame of a record in a file: its length, the length's masked CRC-32C, the record, its masked CRC-32C.

    References:
        TensorFlow, "TFRecord and tf.train.Example", section "TFRecords format details": uint64 length, uint32 masked
        CRC of length, bytes, uint32 masked CRC of bytes; little-endian.
    """
    length = struct.pack("<Q", len(record))
    return b"".join(
        [length, struct.pack("<I", masked_crc32c(length)), record, struct.pack("<I", masked_crc32c(record))]
    )


def records(path: Path, skip: int = 0) -> Iterator[bytes]:
    """The records of a file, in order.

    Args:
        path: A TFRecord file; one that is compressed (GZIP or ZLIB) is decompressed piece by piece.
        skip: The number of records to skip unread.

    Raises:
        UsageError: The file is truncated or corrupt; the message names the file, the record and the byte where the
            record begins.
    """
    if _compressed(path):
        for record in packed_records(path, skip):
            yield record.content
        return
    with _opened(path) as file:
        size, begin, number = file.seek(0, io.SEEK_END), 0, 0
        while begin < size:
            length = _length(path, file, begin, number, size)
            if number >= skip:
                yield _record(path, file, begin, length, number)
            begin += _HEADER + length + _FOOTER
            number += 1


def check_seekable(path: Path) -> None:
    """Reject a compressed file, whose records cannot be read one by one.

    Raises:
        UsageError: It is compressed or cannot be read.
    """
    if kind := _compressed(path):
        raise UsageError(
            f"{path} is a {kind} file, which is read from its beginning; allowed: uncompressed TFRecord files; remedy: "
            "stream=True, or decompress it"
        )


def read_record(path: Path, begin: int, number: int) -> bytes:
    """One record.

    Args:
        path: The file.
        begin: The byte at which the record's frame begins.
        number: The record's index in the file, for messages.

    Raises:
        UsageError: The file no longer exists, or is truncated or corrupt.
    """
    with _opened(path) as file:
        size = file.seek(0, io.SEEK_END)
        return _record(path, file, begin, _length(path, file, begin, number, size), number)


class RecordTable(NamedTuple):
    """The records of a file.

    Attributes:
        begins: The byte at which each record's frame begins, int64; of a compressed file, in its decompressed content.
        checksums: Each record's stored masked CRC-32C, int64; not verified here.
    """

    begins: np.ndarray
    checksums: np.ndarray


def record_index(path: Path) -> np.ndarray:
    """The byte at which each record of a file begins, int64; see `record_table`."""
    return record_table(path).begins


def record_table(path: Path) -> RecordTable:
    """The positions and checksums of the records of a file.

    The positions follow from the stored lengths. The table of a file of more than 1 MiB is kept in deep5's cache, keyed
    by the file's path, size and modification time.

    Raises:
        UsageError: The file is truncated, or a length is corrupt.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    key = hashlib.sha256(os.fsencode(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}")).hexdigest()
    kept = cache_folder() / "tfrecord" / f"{key}.npy"
    if stat.st_size > 1 << 20:
        try:
            found = np.load(kept, allow_pickle=False)
            if found.dtype == np.int64 and found.ndim == 2 and len(found) == 2:
                return RecordTable(*found)
        except (OSError, ValueError, EOFError):
            pass  # missing or incomplete: build it again
    begins, checksums, begin = [], [], 0
    if _compressed(path):
        for record in packed_records(path):
            begins.append(record.begin)
            checksums.append(record.checksum)
        begin = stat.st_size
    with _opened(path) as file:
        while begin < stat.st_size:
            begins.append(begin)
            begin += _HEADER + _length(path, file, begin, len(begins) - 1, stat.st_size) + _FOOTER
            file.seek(begin - _FOOTER)  # the next header follows in the same block of the file
            checksums.append(int.from_bytes(file.read(_FOOTER), "little"))
    table = np.array([begins, checksums], dtype=np.int64)
    if stat.st_size > 1 << 20:
        _keep(kept, table)
    return RecordTable(*table)


def _compressed(path: Path) -> str:
    try:
        return compression_of(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _keep(path: Path, table: np.ndarray) -> None:
    content = io.BytesIO()
    np.save(content, table, allow_pickle=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.getvalue())
    except OSError:
        pass  # a cache that cannot be written only costs time


def _opened(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from error


def _length(path: Path, file: io.BufferedReader, begin: int, number: int, size: int) -> int:
    """The length of the record whose frame begins at `begin`, checked by its CRC and against the file size."""
    file.seek(begin)
    header = file.read(_HEADER)
    if len(header) < _HEADER:
        raise _broken(path, number, begin, f"the file ends after {len(header)} of its header's {_HEADER} bytes")
    (length,) = struct.unpack_from("<Q", header)
    (crc,) = struct.unpack_from("<I", header, 8)
    if masked_crc32c(header[:8]) != crc:
        raise _broken(path, number, begin, "the checksum of its length is wrong")
    if begin + _HEADER + length + _FOOTER > size:
        raise _broken(path, number, begin, f"it has {length} bytes, but the file ends at byte {size}")
    return int(length)


def _record(path: Path, file: io.BufferedReader, begin: int, length: int, number: int) -> bytes:
    """The record after a header that has just been read."""
    data = file.read(length + _FOOTER)
    if len(data) < length + _FOOTER:
        raise _broken(path, number, begin, "the file became shorter while it was read")
    record = data[:length]
    if struct.unpack_from("<I", data, length)[0] != masked_crc32c(record):
        raise _broken(path, number, begin, "its checksum is wrong")
    return record


def _broken(path: Path, number: int, begin: int, reason: str) -> UsageError:
    return UsageError(
        f"{path}: record {number}, which begins at byte {begin}, is corrupt: {reason}; remedy: copy or make the "
        "file again"
    )


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be read ({error.strerror or error}); allowed: a TFRecord file")


def write_records(path: Path, contents: Iterable[bytes]) -> None:
    """Write a TFRecord file.

    Args:
        path: The file to write; its folder must exist.
        contents: The records.
    """
    write_atomically(path, b"".join(framed(record) for record in contents))
