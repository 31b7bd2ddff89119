"""Records of TFRecord files that are compressed as a whole, GZIP or ZLIB: read in order, in bounded memory."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from deep5.core.errors import UsageError
from deep5.training.datasets.crc32c import masked_crc32c

__all__ = ["PackedRecord", "compression_of", "packed_records"]

_BLOCK = 1 << 18
# zlib reads the header itself, of either format.
_EITHER = 47
# The protocol buffers that records hold are smaller.
_LARGEST = 1 << 31


class PackedRecord(NamedTuple):
    """A record of a compressed file.

    Attributes:
        begin: The byte of the decompressed content at which its frame begins.
        content: The record.
        checksum: Its stored masked CRC-32C.
    """

    begin: int
    content: bytes
    checksum: int


def compression_of(path: Path) -> str:
    """The compression of a TFRecord file by its first bytes: "GZIP", "ZLIB" or an empty string.

    Raises:
        OSError: It cannot be read.

    References:
        RFC 1952, section 2.3.1: a GZIP file begins with 1f 8b; RFC 1950, section 2.2: the first two bytes of a ZLIB
        stream are a multiple of 31, with 8 in the lower half of the first. Both may begin an uncompressed file, whose
        length then has a valid checksum.
    """
    with path.open("rb") as file:
        head = file.read(12)
    if len(head) == 12 and masked_crc32c(head[:8]) == struct.unpack_from("<I", head, 8)[0]:
        return ""
    if head[:2] == b"\x1f\x8b":
        return "GZIP"
    if len(head) > 1 and head[0] & 15 == 8 and (head[0] << 8 | head[1]) % 31 == 0:
        return "ZLIB"
    return ""


def packed_records(path: Path, skip: int = 0) -> Iterator[PackedRecord]:
    """The records of a compressed file, in order, each checked by its checksum.

    Args:
        path: A GZIP or ZLIB file of a TFRecord file.
        skip: The number of records to skip; they are decompressed, but not checked.

    Raises:
        UsageError: The file is truncated or corrupt; the message names the file and the record.
    """
    number = 0
    try:
        with path.open("rb") as file:
            source = _Inflated(file)
            begin = 0
            while head := source.read(12):
                if len(head) < 12:
                    raise _broken(path, number, f"the content ends after {len(head)} of its header's 12 bytes")
                length, check = struct.unpack("<QI", head)
                if masked_crc32c(head[:8]) != check or length > _LARGEST:
                    raise _broken(path, number, "the checksum of its length is wrong")
                content = source.read(length)
                tail = source.read(4)
                if len(content) < length or len(tail) < 4:
                    raise _broken(path, number, f"it has {length} bytes, but the content ends in it")
                (checksum,) = struct.unpack("<I", tail)
                if number >= skip:
                    if masked_crc32c(content) != checksum:
                        raise _broken(path, number, "its checksum is wrong")
                    yield PackedRecord(begin, content, checksum)
                begin += 16 + length
                number += 1
    except zlib.error as error:
        raise _broken(path, number, f"it does not decompress ({error})") from error
    except EOFError as error:
        raise _broken(path, number, "the compressed file is truncated") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}); allowed: a TFRecord file") from error


class _Inflated:
    """The content of a compressed file, of one or several GZIP members, in pieces of the requested size."""

    def __init__(self, file: BinaryIO) -> None:
        self._read = file.read
        self._inflate = zlib.decompressobj(_EITHER)

    def read(self, count: int) -> bytes:
        """The next bytes, fewer only at the end.

        Raises:
            EOFError: The file ends within its compressed content.
        """
        parts = []
        while count:
            if self._inflate.eof:
                data = self._inflate.unused_data or self._read(_BLOCK)
                if not data:
                    break
                self._inflate = zlib.decompressobj(_EITHER)
            else:
                data = self._inflate.unconsumed_tail or self._read(_BLOCK)
            part = self._inflate.decompress(data, count)
            if not data and not part and not self._inflate.eof:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _broken(path: Path, number: int, reason: str) -> UsageError:
    return UsageError(f"{path}: record {number} is corrupt: {reason}; remedy: copy or make the file again")
