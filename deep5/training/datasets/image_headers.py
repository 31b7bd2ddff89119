"""The structure of JPEG and PNG files: format, size and orientation, and whether the file is complete.

Decoders that accept a truncated file, and return gray where its content is missing, decode only after this check.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["ImageHeader", "image_header", "upright"]

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_ORIENTATION = 0x0112
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')
# Within coded data, 0xFF is followed by 0 (a byte 0xFF), a restart marker or another 0xFF (padding).
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
# All start-of-frame markers: not DHT (C4), JPG (C8) and DAC (CC).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Tables, frames, restart interval, application data and comments; other markers are reserved.
_SEGMENTS = frozenset((*range(0xC0, 0xD0), *range(0xDA, 0xE0), *range(0xE0, 0xF0), 0xFE)) - {0xC8}
# Channels of PNG's color types.
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PALETTE = 3


@dataclass(frozen=True, kw_only=True)
class ImageHeader:
    """What a file states about its pixels.

    Attributes:
        format: "JPEG" or "PNG".
        height: Rows, before the orientation is applied.
        width: Columns, likewise.
        channels: Components of JPEG (1 gray, 3 colors, 4 CMYK); channels of PNG, 1 for a palette.
        bits: Bits of a channel.
        orientation: EXIF orientation, 1 (upright) to 8.
        transparent: Whether a PNG without a palette states one of its colors as transparent (its chunk tRNS).
        animated: Whether a PNG has several frames.
    """

    format: str
    height: int
    width: int
    channels: int
    bits: int
    orientation: int = 1
    transparent: bool = False
    animated: bool = False


def image_header(data: bytes) -> ImageHeader:
    """The header of a complete JPEG or PNG file.

    Of a JPEG file, the markers are followed to the end of the image; bytes after it are allowed. JPEG has no checksum:
    a change of coded data that leaves the markers is not found here. Of a PNG file, the checksum of each chunk is
    verified.

    Args:
        data: The file's bytes.

    Raises:
        ValueError: It is neither, is truncated, or does not have the structure of its format; the message is the
            reason.

    References:
        ITU-T T.81, annex B. W3C, Portable Network Graphics, section 5. CIPA DC-008 (Exif), section 4.6.

    >>> import io
    >>> from PIL import Image
    >>> buffer = io.BytesIO()
    >>> Image.new("RGB", (40, 30)).save(buffer, "JPEG")
    >>> header = image_header(buffer.getvalue())
    >>> header.format, header.height, header.width, header.channels, header.orientation
    ('JPEG', 30, 40, 3, 1)
    >>> image_header(buffer.getvalue()[:-2])
    Traceback (most recent call last):
        ...
    ValueError: the file is truncated: the end of the image is missing
    """
    if data.startswith(_PNG):
        return _png(data)
    if data.startswith(_JPEG):
        return _jpeg(data)
    raise ValueError("it is none of JPEG, PNG")


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Apply an EXIF orientation.

    Args:
        pixels: Shape (height, width) or (height, width, channels).
        orientation: 1 to 8; another number leaves the pixels unchanged.

    Returns:
        A view, shape (height, width, …), or (width, height, …) from 5 on.

    >>> upright(np.array([[1, 2], [3, 4]]), 6).tolist()
    [[3, 1], [4, 2]]
    """
    if 5 <= orientation <= 8:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def _jpeg(data: bytes) -> ImageHeader:
    frame: tuple[int, int, int, int] | None = None
    exif, xmp, scans = b"", b"", 0
    for marker, content in _jpeg_segments(data):
        if marker in _FRAMES:
            if len(content) < 6:
                raise ValueError("its frame header is too short")
            big = int.from_bytes
            frame = content[0], big(content[1:3], "big"), big(content[3:5], "big"), content[5]
        elif marker == _START_OF_SCAN:
            scans += 1
        elif content.startswith(_EXIF):
            exif = exif or content
        elif content.startswith(_XMP):
            xmp = xmp or content
    if frame is None or not scans:
        raise ValueError("it holds no image")
    bits, height, width, channels = frame
    if not height or not width or channels not in (1, 3, 4):
        raise ValueError(f"it states {height} x {width} pixels of {channels} components")
    return ImageHeader(
        format="JPEG",
        height=height,
        width=width,
        channels=channels,
        bits=bits,
        orientation=_orientation(exif, xmp),
    )


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each segment's marker and content, to the end of the image."""
    place, truncated = 2, "the file is truncated: the end of the image is missing"
    while True:
        while data[place : place + 2] == b"\xff\xff":  # padding
            place += 1
        if place + 2 > len(data):
            raise ValueError(truncated)
        marker = data[place + 1]
        if data[place] != 0xFF or (marker != _END_OF_IMAGE and marker not in _SEGMENTS):
            raise ValueError(f"byte {place} begins no segment")
        if marker == _END_OF_IMAGE:
            return
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        end = place + 2 + length
        if length < 2 or end > len(data):
            raise ValueError(truncated if length >= 2 or place + 4 > len(data) else f"byte {place} begins no segment")
        yield marker, data[place + 4 : end]
        place = end
        if marker == _START_OF_SCAN:
            found = _MARKER.search(data, end)
            if found is None:
                raise ValueError(truncated)
            place = found.start()


def _png(data: bytes) -> ImageHeader:
    chunks = dict(_png_chunks(data))
    header = chunks.get(b"IHDR", b"")
    if len(header) != 13 or b"IDAT" not in chunks or header[9] not in _CHANNELS:
        raise ValueError("it holds no image")
    exif = chunks.get(b"eXIf", b"")
    return ImageHeader(
        format="PNG",
        width=int.from_bytes(header[:4], "big"),
        height=int.from_bytes(header[4:8], "big"),
        channels=_CHANNELS[header[9]],
        bits=header[8],
        orientation=_orientation(_EXIF + exif if exif else b"", b""),
        transparent=b"tRNS" in chunks and header[9] != _PALETTE,
        animated=b"acTL" in chunks,
    )


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(_PNG)
    while True:
        end = place + 12 + int.from_bytes(data[place : place + 4], "big")
        if place + 12 > len(data) or end > len(data):
            raise ValueError("the file is truncated: the end of the image is missing")
        kind, content = data[place + 4 : place + 8], data[place + 8 : end - 4]
        if zlib.crc32(content, zlib.crc32(kind)) != int.from_bytes(data[end - 4 : end], "big"):
            raise ValueError(f"the checksum of its chunk {kind.decode('ascii', 'replace')} at byte {place} is wrong")
        yield kind, b"" if kind == b"IDAT" else content
        if kind == b"IEND":
            return
        place = end


def _orientation(exif: bytes, xmp: bytes) -> int:
    """The orientation by Pillow's rule: of EXIF, otherwise of XMP, otherwise 1."""
    from PIL import Image

    if exif:
        read = Image.Exif()
        read.load(exif)
        if _ORIENTATION in read:
            found = read[_ORIENTATION]
            return found if isinstance(found, int) and 1 <= found <= 8 else 1
    match = _XMP_ORIENTATION.search(xmp)
    return int(match[1]) if match else 1
