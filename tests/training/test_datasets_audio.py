"""Folders of WAV files: samples as the standard library and SciPy read them; files that differ or are damaged."""

from __future__ import annotations

import io
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import wavfile

from deep5.core.errors import UsageError
from deep5.training.datasets.audio import audio_folder
from deep5.training.datasets.wav import read_wav, wav_header

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))


def everything(part: Any) -> dict[str, np.ndarray]:
    batch: dict[str, np.ndarray] = part.batch(np.arange(len(part)))
    return batch


def write_wav(path: Path, frames: int, *, width: int = 2, channels: int = 1, rate: int = 8000) -> None:
    """By the standard library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(RNG.bytes(frames * width * channels))


def tree(folder: Path, **options: int) -> Path:
    for name in ("bark", "meow"):
        for number in range(5):
            write_wav(folder / name / f"{number}.wav", 100, **options)
    return folder


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_pcm_is_what_wave_and_scipy_read(tmp_path: Path, width: int, channels: int) -> None:
    path = tmp_path / "x.wav"
    write_wav(path, 33, width=width, channels=channels)
    header = wav_header(path)
    assert (header.bits, header.channels, header.rate, header.frames) == (8 * width, channels, 8000, 33)
    found = read_wav(path, header, 33)
    assert found.dtype == np.float32
    assert found.shape == (channels, 33)
    _rate, theirs = wavfile.read(path)
    # SciPy leaves the bits of 24 in the upper bytes of 32.
    scale, zero = {1: (2**7, 128), 2: (2**15, 0), 3: (2**31, 0), 4: (2**31, 0)}[width]
    expected = ((theirs.astype(np.float64) - zero) / scale).reshape(33, channels).T
    np.testing.assert_array_equal(found, expected.astype(np.float32))
    with wave.open(str(path)) as file:
        first = int.from_bytes(file.readframes(1)[:width], "little", signed=width > 1)
    assert found[0, 0] == np.float32((first - (128 if width == 1 else 0)) / 2 ** (8 * width - 1))
    np.testing.assert_array_equal(read_wav(path, header, 10), found[:, :10])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floating_point_is_what_scipy_writes(tmp_path: Path, dtype: Any) -> None:
    given = RNG.standard_normal((20, 2)).astype(dtype)
    wavfile.write(tmp_path / "x.wav", 44100, given)
    header = wav_header(tmp_path / "x.wav")
    assert header.floating
    np.testing.assert_array_equal(read_wav(tmp_path / "x.wav", header, 20), given.T.astype(np.float32))


def test_extensible_headers_and_other_chunks(tmp_path: Path) -> None:
    write_wav(tmp_path / "x.wav", 7)
    plain = (tmp_path / "x.wav").read_bytes()
    guid = b"\x01\x00" + bytes.fromhex("000000001000800000aa00389b71")
    extended = struct.pack("<HHIIHHHHI", 0xFFFE, 1, 8000, 16000, 2, 16, 22, 16, 4) + guid
    body = b"".join(
        [b"LIST", struct.pack("<I", 3), b"abc\0", b"fmt ", struct.pack("<I", len(extended)), extended, plain[36:]]
    )
    path = tmp_path / "extended.wav"
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body)
    np.testing.assert_array_equal(
        read_wav(path, wav_header(path), 7), read_wav(tmp_path / "x.wav", wav_header(tmp_path / "x.wav"), 7)
    )


def test_folders_are_classes(tmp_path: Path) -> None:
    folder = tree(tmp_path / "sounds", channels=2)
    (folder / "bark" / "6.mp3").write_bytes(b"ID3")
    splits = audio_folder(str(folder), workers=1)
    assert splits.description["decisions"] == ["1 file in the class folders left out because of the ending: .mp3 (1)"]
    assert str(splits.train.specs["input"]) == "float32[2, 100]"
    assert splits.description["classes"] == ["bark", "meow"]
    assert splits.description["sample_rate"] == 8000
    assert splits.description["samples"] == {"train": 8, "test": 2}
    assert np.bincount(everything(splits.train)["label"]).tolist() == [4, 4]
    files = {wavfile.read(path)[1].tobytes() for path in folder.glob("*/*.wav")}
    waves = np.concatenate([everything(part)["input"] for part in (splits.train, splits.test)])
    assert {np.round(one.T * 2**15).astype("<i2").tobytes() for one in waves} == files
    more = audio_folder(str(folder), workers=4)
    assert more.train.content_hash() == splits.train.content_hash() != splits.test.content_hash()
    np.testing.assert_array_equal(everything(more.train)["input"], everything(splits.train)["input"])
    mono = everything(audio_folder(str(folder), channels=1).train)["input"]
    np.testing.assert_allclose(mono, everything(splits.train)["input"].mean(axis=1, keepdims=True), atol=1e-7)
    assert audio_folder(str(folder), limit=4, test_limit=1).description["samples"] == {"train": 4, "test": 1}


def test_one_length_by_cutting_and_padding(tmp_path: Path) -> None:
    folder = tree(tmp_path / "sounds")
    write_wav(folder / "bark" / "0.wav", 150)
    write_wav(folder / "bark" / "1.wav", 50)
    with pytest.raises(UsageError, match=r"has 50 frames, and .* has 150.*|has 1\d\d frames, and .*remedy: length=150"):
        audio_folder(str(folder))
    splits = audio_folder(str(folder), length=120)
    assert splits.description["decisions"] == [
        "1 of 10 files are cut at their end",
        "9 of 10 files are padded with zeros",
    ]
    padded = np.concatenate([everything(part)["input"] for part in (splits.train, splits.test)])[:, 0]
    assert sorted((row[100:] == 0).all() for row in padded) == [False] + [True] * 9
    assert "120 frames (0.015 s)" in splits.description["preparation"]


def test_a_changed_file_changes_the_hash(tmp_path: Path) -> None:
    folder = tree(tmp_path / "sounds")
    before = audio_folder(str(folder)).train.content_hash()
    for number in range(5):
        write_wav(folder / "meow" / f"{number}.wav", 100)
    assert audio_folder(str(folder)).train.content_hash() != before


def test_files_that_differ(tmp_path: Path) -> None:
    folder = tree(tmp_path / "sounds")
    write_wav(folder / "meow" / "0.wav", 100, rate=16000)
    with pytest.raises(UsageError, match=r"Hz; allowed: one sample rate; remedy: sox"):
        audio_folder(str(folder))
    write_wav(folder / "meow" / "0.wav", 100, channels=2)
    with pytest.raises(UsageError, match=r"channels, and .*remedy: channels=1"):
        audio_folder(str(folder))
    assert str(audio_folder(str(folder), channels=1).train.specs["input"]) == "float32[1, 100]"
    write_wav(folder / "meow" / "0.wav", 0)
    with pytest.raises(UsageError, match=r"meow/0\.wav has no frames"):
        audio_folder(str(folder))


def damaged() -> dict[str, tuple[bytes, str]]:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(200))
    whole = buffer.getvalue()
    return {
        "empty": (b"", "does not begin with RIFF and WAVE"),
        "no wav": (b"ID3" + bytes(40), "does not begin with RIFF and WAVE"),
        "truncated": (whole[:-10], "states 200 bytes of samples, and 190 are there"),
        "no samples": (whole[:36], "ends before its samples"),
        "half a frame": (whole[:40] + struct.pack("<I", 199) + whole[44:], "no multiple of a frame of 2"),
        "a law": (whole[:20] + struct.pack("<H", 6) + whole[22:], "format 6 of 16 bits; allowed: PCM"),
        "twelve bits": (whole[:34] + struct.pack("<H", 12) + whole[36:], "format 1 of 12 bits"),
        "no rate": (whole[:24] + bytes(4) + whole[28:], "0 Hz"),
        "a wrong order": (whole[:12] + whole[36:], "its samples come before their format"),
        "a short format": (whole[:16] + struct.pack("<I", 4) + whole[20:24] + whole[36:], "its format has 4 bytes"),
    }


@pytest.mark.parametrize("case", damaged())
def test_damaged_files_are_named(tmp_path: Path, case: str) -> None:
    content, message = damaged()[case]
    folder = tree(tmp_path / "sounds")
    (folder / "meow" / "3.wav").write_bytes(content)
    with pytest.raises(UsageError, match=rf"meow/3\.wav.*{message}"):
        audio_folder(str(folder))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length 0; allowed: None or an integer"),
        ({"channels": 2}, "channels 2; allowed: None, or 1"),
        ({"folder": "absent"}, "the folder absent is not there"),
        ({"limit": 100}, "limit 100; allowed"),
        ({"workers": 0}, "workers 0; allowed: None or an integer of at least 1"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        audio_folder(**{"folder": str(tree(tmp_path / "sounds")), **arguments})


def test_not_finite_samples_are_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for number in range(2):
            (tmp_path / "sounds" / name).mkdir(parents=True, exist_ok=True)
            wavfile.write(tmp_path / "sounds" / name / f"{number}.wav", 100, np.array([0, np.nan], np.float32))
    with pytest.raises(UsageError, match=r"\.wav: 'input' is nan at \(0, 1\)"):
        audio_folder(str(tmp_path / "sounds")).train.batch(np.array([0]))
