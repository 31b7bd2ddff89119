"""WAV files: the header, and samples from PCM of 8, 16, 24 or 32 bits or floating point."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from deep5.core.errors import UsageError

__all__ = ["WavHeader", "read_wav", "wav_header"]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_BITS = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
# Chunks before the samples that are skipped, at most.
_MOST_CHUNKS = 1000


@dataclass(frozen=True, kw_only=True)
class WavHeader:
    """What a file says of its samples.

    Attributes:
        floating: Whether they are floating-point numbers, else integers.
        bits: Bits of a sample.
        channels: Their number.
        rate: Frames per second.
        begin: The byte at which the samples begin.
        frames: Number of frames; one has a sample of each channel.
    """

    floating: bool
    bits: int
    channels: int
    rate: int
    begin: int
    frames: int


def wav_header(path: Path) -> WavHeader:
    """The header of a WAV file.

    Raises:
        UsageError: The file cannot be read, is truncated, or is no WAV file of a known encoding.

    References:
        Microsoft and IBM, Multimedia Programming Interface and Data Specifications 1.0, 1991, chapter 3, "Waveform
        Audio File Format"; Microsoft, WAVEFORMATEXTENSIBLE, whose sub-format begins with the format's number.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            head = file.read(12)
            if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
                raise _bad(path, "it does not begin with RIFF and WAVE")
            return _chunks(path, file, size)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}); allowed: a WAV file") from error


def _chunks(path: Path, file: BinaryIO, size: int) -> WavHeader:
    found: tuple[int, int, int, int] | None = None
    for _ in range(_MOST_CHUNKS):
        head = file.read(8)
        if len(head) < 8:
            raise _bad(path, "it ends before its samples")
        kind, length = head[:4], struct.unpack("<I", head[4:])[0]
        begin = file.tell()
        if kind == b"data":
            if found is None:
                raise _bad(path, "its samples come before their format")
            code, channels, rate, bits = found
            if begin + length > size:
                raise _bad(path, f"it states {length} bytes of samples, and {size - begin} are there")
            whole, rest = divmod(length, channels * bits // 8)
            if rest:
                raise _bad(path, f"{length} bytes of samples are no multiple of a frame of {channels * bits // 8}")
            return WavHeader(
                floating=code == _FLOAT, bits=bits, channels=channels, rate=rate, begin=begin, frames=whole
            )
        if kind == b"fmt ":
            found = _format(path, file.read(min(length, 64)))
        file.seek(begin + length + length % 2)
    raise _bad(path, f"it has no samples in its first {_MOST_CHUNKS} chunks")


def _format(path: Path, content: bytes) -> tuple[int, int, int, int]:
    if len(content) < 16:
        raise _bad(path, f"its format has {len(content)} bytes")
    code, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", content)
    if code == _EXTENSIBLE and len(content) >= 26:
        code = struct.unpack_from("<H", content, 24)[0]
    if code not in _BITS or bits not in _BITS[code]:
        raise UsageError(
            f"{path} holds format {code} of {bits} bits; allowed: PCM of 8, 16, 24 or 32 bits, or floating point of 32 "
            "or 64; remedy: ffmpeg -i FILE -c:a pcm_s16le NEW.wav"
        )
    if channels < 1 or rate < 1 or block != channels * bits // 8:
        raise _bad(path, f"its format has {channels} channels, {rate} Hz and frames of {block} bytes")
    return code, channels, rate, bits


def read_wav(path: Path, header: WavHeader, frames: int) -> np.ndarray:
    """The first frames of a file; bytes after them are not read.

    Args:
        path: The file.
        header: Its header.
        frames: The largest number of frames.

    Returns:
        float32, shape (channels, frames): integers divided by 2^(bits - 1), so that they are in [-1, 1); 8-bit samples
        are unsigned, with 128 as zero. Floating-point samples are unchanged.

    Raises:
        UsageError: The file cannot be read or has changed.
    """
    count = min(frames, header.frames) * header.channels
    width = header.bits // 8
    try:
        with path.open("rb") as file:
            file.seek(header.begin)
            raw = file.read(count * width)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}); allowed: a WAV file") from error
    if len(raw) < count * width:
        raise _bad(path, "it became shorter while it was read")
    values: np.ndarray
    if header.floating:
        values = np.frombuffer(raw, f"<f{width}").astype(np.float32)
    elif width == 1:
        values = (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128
    elif width == 3:
        # As the upper bytes of 32-bit integers, whose division keeps all 24 bits in float32.
        wide = np.zeros((count, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(count, 3)
        values = (wide.reshape(-1).view("<i4").astype(np.float64) / 2**31).astype(np.float32)
    else:
        values = (np.frombuffer(raw, f"<i{width}").astype(np.float64) / 2 ** (header.bits - 1)).astype(np.float32)
    return np.ascontiguousarray(values.reshape(-1, header.channels).T)


def _bad(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"{path} is no whole WAV file: {reason}; remedy: copy the file again, or ffmpeg -i FILE -c:a pcm_s16le NEW.wav"
    )
