"""Samples in TFRecord files: by index, or as a shuffled stream."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.files import is_folder
from deep5.core.progress import tracked
from deep5.core.seeds import generator
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.dataset import StreamDataset, fitted
from deep5.training.datasets.example import parse_example
from deep5.training.datasets.images import Decoder, ImageDataset
from deep5.training.datasets.pixels import Scaling
from deep5.training.datasets.record_files import (
    RecordTable,
    check_seekable,
    read_record,
    record_index,
    record_table,
    records,
)

__all__ = [
    "HASHED_RECORDS",
    "ImageExample",
    "TFRecordStream",
    "checksum_of",
    "find_shards",
    "image_records",
    "image_stream",
    "shard_identity",
]

# The number of files whose records are located concurrently.
_SCANNERS = 8
_CHUNK = 32
HASHED_RECORDS = "names and sizes of the files, all records by the CRC-32C stored with each; and what becomes of them"
"""What the hash of records covers, for the description of a data set."""


class ImageExample:
    """An encoded image and its label in a `tf.train.Example`, in either of the two common layouts.

    TensorFlow's ImageNet scripts write `image/encoded` with `image/class/label` counted from 1; TensorFlow Datasets
    writes `image` with `label` counted from 0.

    Args:
        classes: The number of classes.
        labels_from: The first label; None: 1 or 0, depending on the layout.
    """

    _LAYOUTS = (("image/encoded", "image/class/label", 1), ("image", "label", 0))

    def __init__(self, classes: int, labels_from: int | None = None) -> None:
        self.classes, self.labels_from = classes, labels_from

    def read(self, record: bytes, name: str) -> tuple[bytes, str, int]:
        """The encoded image, its name and its label, counted from 0.

        Raises:
            UsageError: The record is not an Example, does not have these features, or its label is out of range; the
                message includes `name`.
        """
        try:
            features = parse_example(record)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from error
        for image_key, label_key, first in self._LAYOUTS:
            image, label = features.get(image_key), features.get(label_key)
            if isinstance(image, list) and len(image) == 1 and isinstance(label, np.ndarray) and label.size == 1:
                first = first if self.labels_from is None else self.labels_from  # noqa: PLW2901
                number = int(label[0]) - first if label.dtype == np.int64 else -1
                if not 0 <= number < self.classes:
                    raise UsageError(
                        f"{name} holds the label {label[0]}; allowed: {first} to {first + self.classes - 1}"
                    )
                return image[0], name, number
        raise UsageError(
            f"{name} has the features {brief(sorted(features))}; allowed: image/encoded and image/class/label, or "
            "image and label, one value each"
        )


def find_shards(folder: Path, prefixes: Sequence[str]) -> list[Path]:
    """The files of one part of a data set, `train-00000-of-01024` and so on, in order.

    Args:
        folder: The folder to search.
        prefixes: Possible names of the part; the first that exists is used.

    Returns:
        All of them, or an empty list if there is no such part.

    Raises:
        UsageError: Some are missing, or the files disagree on the number of shards.
    """
    for prefix in prefixes:
        found = {}
        for path in sorted(folder.glob(f"*{prefix}*-of-*")) if is_folder(folder) else ():
            match = re.fullmatch(
                rf"(?:.*[-.])?{re.escape(prefix)}(?:\.tfrecord)?-(\d+)-of-(\d+)(?:\.tfrecord)?", path.name
            )
            if match:
                found[int(match[1]), int(match[2])] = path
        if not found:
            continue
        counts = sorted({count for _, count in found})
        missing = [number for number in range(counts[0]) if (number, counts[0]) not in found]
        if len(counts) > 1 or missing:
            why = f"the shards {missing[:5]} of {counts[0]} are missing" if missing else f"of {counts} shards in all"
            raise UsageError(f"{folder} holds {len(found)} files of {prefix}, but {why}; allowed: all of one set")
        return [path for _, path in sorted(found.items())]
    return []


def image_records(
    paths: Sequence[Path],
    example: ImageExample,
    *,
    decoder: Decoder,
    scaling: Scaling | None,
    limit: int | None = None,
    workers: int | None = None,
) -> ImageDataset:
    """The images of TFRecord files as samples by index, in file order.

    Args:
        paths: The files.
        example: Reads image and label from a record.
        decoder: Decodes the images.
        scaling: Scales the pixels.
        limit: The number of samples to keep, from the first; files after them are not opened.
        workers: See `ImageDataset`.

    Raises:
        UsageError: A file is corrupt, or there are no records.
    """
    for path in paths:
        check_seekable(path)
    tables: list[RecordTable] = []
    if limit is None:
        with ThreadPoolExecutor(_SCANNERS, thread_name_prefix="deep5-index") as pool:
            tables = list(tracked(pool.map(record_table, paths), "indexing TFRecord files", len(paths)))
    else:
        for path in paths:
            tables.append(record_table(path))
            if sum(len(table.begins) for table in tables) >= limit:
                break
    counts = [len(table.begins) for table in tables]
    ends = np.cumsum(counts)
    if not tables or ends[-1] == 0:
        raise UsageError(f"no record in {len(paths)} TFRecord files ({paths[0] if paths else 'none'} …)")
    length = int(ends[-1])
    if limit is not None:
        if limit > length:
            raise UsageError(f"a limit of {limit} samples; allowed: at most {length}, which the files hold")
        length = limit

    def read(index: int) -> tuple[bytes, str, int]:
        shard = int(np.searchsorted(ends, index, side="right"))
        number = index - (int(ends[shard - 1]) if shard else 0)
        path = paths[shard]
        return example.read(read_record(path, int(tables[shard].begins[number]), number), f"{path}, record {number},")

    # A record holds image and label, so its checksum covers both.
    content = checksum_of(tables, length)
    return ImageDataset(
        read,
        length=length,
        decoder=decoder,
        scaling=scaling,
        identity=f"{shard_identity(paths)} {counts} {length} {example.labels_from} {content}",
        workers=workers,
    )


class TFRecordStream(StreamDataset):
    """The records of TFRecord files as a stream: files are shuffled, then records within a window.

    Args:
        paths: The files.
        decode: Returns a sample, arrays by name, given a record and its name for messages.
        specs: The specs of the samples.
        window: The number of records that are read and shuffled at a time; 1: file order.
        seed: The order is a function of (seed, epoch).
        workers: Decoding threads; samples and their order do not depend on it.
        identity: Describes `decode` in the hash.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        decode: Callable[[bytes, str], dict[str, np.ndarray]],
        specs: Mapping[str, TensorSpec],
        *,
        window: int = 1,
        seed: int = 0,
        workers: int = 1,
        identity: str = "",
    ) -> None:
        for name, value in (("window", window), ("workers", workers)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"a stream with {name} {value!r}; allowed: an integer of at least 1")
        if not paths:
            raise UsageError("a stream of no files; allowed: at least one")
        self.specs = dict(specs)
        self._paths, self._decode, self._window, self._seed = list(paths), decode, window, seed
        self._workers, self._identity = workers, identity

    def samples(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """The epoch's samples from number `start`; earlier records are skipped unread, except within one window."""
        raw = self._raw(epoch, start)
        with ThreadPoolExecutor(self._workers, thread_name_prefix="deep5-decode") as pool:
            while chunk := list(islice(raw, _CHUNK)):
                yield from pool.map(self._decode, *zip(*chunk, strict=True))

    def content_hash(self) -> str:
        """SHA-256 of the names and sizes of the files, the checksums of their records, and the processing.

        Raises:
            UsageError: A file is corrupt or cannot be read.
        """
        with ThreadPoolExecutor(_SCANNERS, thread_name_prefix="deep5-index") as pool:
            content = checksum_of(list(pool.map(record_table, self._paths)))
        text = f"{shard_identity(self._paths)} {content} {self._identity} {self.specs}"
        return hashlib.sha256(text.encode()).hexdigest()

    def cast(self, specs: Mapping[str, TensorSpec]) -> TFRecordStream:
        """The same records; floating-point arrays are converted after decoding."""
        dtypes = fitted(self.specs, specs)
        decode = self._decode

        def converted(record: bytes, name: str) -> dict[str, np.ndarray]:
            sample = decode(record, name)
            return {key: array.astype(numpy_dtype(dtypes[key]), copy=False) for key, array in sample.items()}

        return TFRecordStream(
            self._paths,
            converted,
            {name: TensorSpec(shape=spec.shape, dtype=dtypes[name]) for name, spec in self.specs.items()},
            window=self._window,
            seed=self._seed,
            workers=self._workers,
            identity=self._identity,
        )

    def _raw(self, epoch: int, start: int) -> Iterator[tuple[bytes, str]]:
        """Records and their names in the epoch's order, from number `start`."""
        if self._window == 1:
            yield from self._ordered(self._paths, start)
            return
        files = generator(self._seed, "shards", epoch).permutation(len(self._paths)).tolist()
        # Only the last window may be smaller, so the start of a window follows from its number.
        number = start // self._window
        source = self._ordered([self._paths[file] for file in files], number * self._window)
        passed = start - number * self._window
        while window := list(islice(source, self._window)):
            order = generator(self._seed, "window", epoch, number).permutation(len(window)).tolist()
            for position in order[passed:]:
                yield window[position]
            number, passed = number + 1, 0

    @staticmethod
    def _ordered(paths: Sequence[Path], start: int) -> Iterator[tuple[bytes, str]]:
        for path in paths:
            skip = 0
            if start:
                count = len(record_index(path))
                if start >= count:
                    start -= count
                    continue
                skip, start = start, 0
            for number, record in enumerate(records(path, skip), start=skip):
                yield record, f"{path}, record {number},"


def image_stream(
    paths: Sequence[Path],
    example: ImageExample,
    *,
    decoder: Decoder,
    scaling: Scaling | None,
    window: int,
    seed: int,
    workers: int,
) -> TFRecordStream:
    """The images of TFRecord files as a stream of samples `input` (C, size, size) and `label` int64 ()."""

    def decode(record: bytes, name: str) -> dict[str, np.ndarray]:
        data, name, label = example.read(record, name)
        pixels = decoder.decode(data, name)
        numbers = pixels if scaling is None else scaling.apply(pixels[None])[0]
        return {"input": numbers, "label": np.array(label, dtype=np.int64)}

    specs = {
        "input": TensorSpec(
            shape=(decoder.channels, decoder.size, decoder.size), dtype="uint8" if scaling is None else "float32"
        ),
        "label": TensorSpec(shape=(), dtype="int64"),
    }
    identity = f"{decoder.describe()} {scaling.describe() if scaling else 'bytes'} {example.labels_from}"
    return TFRecordStream(
        paths, decode, specs, window=window, seed=seed, workers=workers, identity=f"{identity} {window} {seed}"
    )


def checksum_of(tables: Sequence[RecordTable], length: int | None = None) -> str:
    """SHA-256 of the checksums of all records, or of the first.

    Args:
        tables: The tables of the files, in order.
        length: The number of records; None: all.
    """
    checksums = np.concatenate([table.checksums for table in tables])[:length]
    return hashlib.sha256(checksums.astype("<u4").tobytes()).hexdigest()


def shard_identity(paths: Sequence[Path]) -> str:
    """Names and sizes of files.

    Raises:
        UsageError: One cannot be read.
    """
    try:
        return " ".join(f"{path.name} {path.stat().st_size}" for path in paths)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read ({error.strerror or error})") from error
