"""WAV files in folders, one folder per class."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from deep5.core.content_hashes import files_hash
from deep5.core.errors import UsageError
from deep5.core.progress import tracked
from deep5.core.tensors import TensorSpec
from deep5.core.terminal import counted
from deep5.training.dataset import Splits
from deep5.training.datasets.class_folders import class_split
from deep5.training.datasets.decoded import DecodedDataset, SampleSource, decoding_threads
from deep5.training.datasets.folders import HASHED
from deep5.training.datasets.wav import WavHeader, read_wav, wav_header
from deep5.training.downloads import given_path

__all__ = ["audio_folder"]

_SUFFIXES = frozenset((".wav", ".wave"))
_READERS = 8
_MOST_FRAMES = 1 << 28


def audio_folder(
    folder: str,
    *,
    length: int | None = None,
    channels: int | None = None,
    test_share: float = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    test_limit: int | None = None,
    workers: int | None = None,
) -> Splits:
    """WAV files in folders, one folder per class, read on access.

    Folders, classes and the split are as for `image_folder`. All files must have the same sample rate: deep5 does not
    resample, because results depend on the method.

    Args:
        folder: The parent of the class folders.
        length: Frames of a sample: longer files are cut at their end, shorter ones padded with zeros. None: all files
            must have the same length.
        channels: 1 to average the channels of each file; None: all files must have the same number, which are kept.
        test_share: Fraction of each class in the test set, if the folder has no split.
        split_seed: The seed of that draw.
        limit: The number of training samples to keep, balanced by class; None: all.
        test_limit: The same for the test samples.
        workers: Reading threads; None: one per processor, up to eight.

    Returns:
        Samples `input` float32 (channels, length), integers scaled to [-1, 1), and `label` int64 ().

    Raises:
        UsageError: A folder is missing or empty, a file is damaged or of another encoding, or the files differ in
            sample rate, channels or length; the message names the files.

    >>> import tempfile, wave
    >>> from pathlib import Path
    >>> import deep5 as d5
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for path in (Path(folder, name) for name in ("no/a.wav", "no/b.wav", "yes/a.wav", "yes/b.wav")):
    ...         path.parent.mkdir(exist_ok=True)
    ...         with wave.open(str(path), "wb") as file:
    ...             file.setparams((1, 2, 8000, 0, "NONE", ""))  # mono, 16 bits, 8 kHz
    ...             file.writeframes(bytes(2 * 400))
    ...     data = d5.datasets.audio_folder(folder, length=800, test_share=0.5)
    ...     print(len(data.train), len(data.test), str(data.train.specs["input"]), data.description["classes"])
    2 2 float32[1, 800] ['no', 'yes']
    """
    what, root = "audio_folder", given_path("audio_folder", folder)
    if length is not None and (
        isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= _MOST_FRAMES
    ):
        raise UsageError(f"{what} with length {length!r:.60}; allowed: None or an integer from 1 to {_MOST_FRAMES}")
    if channels not in (None, 1) or isinstance(channels, bool):
        raise UsageError(f"{what} with channels {channels!r:.60}; allowed: None, or 1 for their average")
    found = class_split(
        what,
        root,
        "WAV file",
        _SUFFIXES,
        test_share=test_share,
        split_seed=split_seed,
        limit=limit,
        test_limit=test_limit,
    )
    names = [*found.train[0], *found.test[0]]
    labels = np.concatenate([found.train[1], found.test[1]])
    with ThreadPoolExecutor(_READERS, thread_name_prefix="deep5-wav") as pool:
        read = pool.map(wav_header, [root / name for name in names])
        headers = list(tracked(read, f"{what}: reading the headers of {root}", len(names)))
    _check_agreement(what, root, names, headers, length, channels)
    first = headers[0]
    frames = first.frames if length is None else length
    kept = first.channels if channels is None else 1
    source = _source(root, names, labels, headers, frames, kept)
    threads = decoding_threads(what, workers)
    count = len(found.train[0])
    parts = [
        DecodedDataset(source, ids, labels=labels[ids], workers=threads)
        for ids in (np.arange(count), np.arange(count, len(names)))
    ]
    cut = sum(header.frames > frames for header in headers)
    padded = sum(header.frames < frames for header in headers)
    unscaled = ", floating point unchanged" if any(header.floating for header in headers) else ""
    encodings = sorted({f"{'float' if one.floating else 'PCM'} {one.bits} bits" for one in headers})
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=found.split_hash,
        description={
            "source": f"WAV files of {root.resolve().name}",
            "samples": {"train": len(parts[0]), "test": len(parts[1])},
            "classes": found.classes,
            "sample_rate": first.rate,
            "split": found.text,
            "preparation": f"{', '.join(encodings)} to float32 in [-1, 1){unscaled}; "
            + (counted(kept, "channel") if channels is None else f"average of {first.channels} channels")
            + f"; {frames} frames ({frames / first.rate:.4g} s)",
            "decisions": [
                f"{number} of {len(names)} files are {verb}"
                for number, verb in ((cut, "cut at their end"), (padded, "padded with zeros"))
                if number
            ]
            + found.decisions,
            "hash": HASHED,
        },
    )


def _check_agreement(
    what: str,
    root: Path,
    names: Sequence[str],
    headers: Sequence[WavHeader],
    length: int | None,
    channels: int | None,
) -> None:
    """Reject files of different sample rates, channels or lengths, unless the caller says what to do.

    Raises:
        UsageError: The message names two files that differ.
    """
    first = headers[0]
    for name, header in zip(names, headers, strict=True):
        if header.frames == 0:
            raise UsageError(f"{what}: {root / name} has no frames; allowed: at least one; remedy: delete it")
        if header.rate != first.rate:
            raise UsageError(
                f"{what}: {root / name} has {header.rate} Hz, and {root / names[0]} has {first.rate} Hz; allowed: one "
                f"sample rate; remedy: sox FILE -r {first.rate} NEW.wav for the others"
            )
        if header.channels != first.channels and channels is None:
            raise UsageError(
                f"{what}: {root / name} has {header.channels} channels, and {root / names[0]} has {first.channels}; "
                "allowed: one number; remedy: channels=1, their average"
            )
        if header.frames != first.frames and length is None:
            longest = max(one.frames for one in headers)
            raise UsageError(
                f"{what}: {root / name} has {header.frames} frames, and {root / names[0]} has {first.frames}; allowed: "
                f"one length; remedy: length={longest}, say, which pads shorter files with zeros and cuts longer ones"
            )


def _source(
    root: Path, names: Sequence[str], labels: np.ndarray, headers: Sequence[WavHeader], frames: int, channels: int
) -> SampleSource:
    def read(index: int) -> dict[str, np.ndarray]:
        wave = read_wav(root / names[index], headers[index], frames)
        if channels == 1 and len(wave) > 1:
            wave = wave.mean(axis=0, dtype=np.float64, keepdims=True).astype(np.float32)
        padded = np.zeros((channels, frames), np.float32)
        padded[:, : wave.shape[1]] = wave
        return {"input": padded, "label": labels[index]}

    @functools.cache
    def content() -> str:
        listed = "\n".join(f"{name}\0{label}" for name, label in zip(names, labels.tolist(), strict=True))
        try:
            content = files_hash([str(root / name) for name in names])
        except OSError as error:
            raise UsageError(f"{error.filename} cannot be read ({error.strerror or error})") from error
        text = f"{listed}\n{content} {frames} {channels}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

    return SampleSource(
        length=len(names),
        specs={
            "input": TensorSpec(shape=(channels, frames), dtype="float32"),
            "label": TensorSpec(shape=(), dtype="int64"),
        },
        read=read,
        name=lambda index: str(root / names[index]),
        content=content,
    )
