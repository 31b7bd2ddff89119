"""TFRecord files of `tf.train.Example` messages with any schema: by index, or as a shuffled stream."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.progress import tracked
from deep5.training.dataset import Splits
from deep5.training.datasets.decoded import DecodedDataset, SampleSource, checked_sample, decoding_threads
from deep5.training.datasets.decoders import PILLOW, check_decoder
from deep5.training.datasets.example import parse_example
from deep5.training.datasets.example_schema import ExampleSchema, inferred_schema, stated_schema
from deep5.training.datasets.listed_files import files_in_brief, listed_files
from deep5.training.datasets.packed_records import compression_of, packed_records
from deep5.training.datasets.record_files import RecordTable, read_record, record_table, records
from deep5.training.datasets.shards import HASHED_RECORDS, TFRecordStream, checksum_of, shard_identity
from deep5.training.datasets.splitting import selected, split_hash

__all__ = ["tfrecord"]

# Records of compressed files by index stay in memory.
_MOST_HELD_BYTES = 1 << 30


def tfrecord(
    train: str | Sequence[str],
    *,
    features: Mapping[str, str] | None = None,
    test: str | Sequence[str] | None = None,
    labels_from: int = 0,
    classes: int | None = None,
    stream: bool = False,
    window: int = 1024,
    shuffle_seed: int = 0,
    test_share: float = 0.2,
    split_seed: int = 0,
    limit: int | None = None,
    test_limit: int | None = None,
    decoder: str = "pillow",
    workers: int | None = None,
) -> Splits:
    """TFRecord files of `tf.train.Example` messages, uncompressed, GZIP or ZLIB, read without TensorFlow.

    The compression is found from the file. Every record is checked by its checksum when it is read.

    Args:
        train: A file, a pattern such as `data/train-*.tfrecord` or `train-{000..099}.tfrecord`, or a list of files.
        features: For each part of a sample the feature, dtype and shape: `{"input": "pixels: float32[28, 28]",
            "label": "class"}`. Without a dtype and shape they are those of the first record. A dimension `?` is
            variable. Bytes are little-endian numbers, or an encoded image: `"image: image[3, 64, 64]"`. None: a part
            for each feature.
        test: The same as `train` for the test samples; None: a seeded fraction of the records.
        labels_from: The first label of the part `label`, which becomes class 0.
        classes: The number of classes; a label that is not among them is an error. None: unchecked.
        stream: Read the files as streams: training records shuffled, test records in file order. Requires `test`.
        window: The number of training records that a stream shuffles at a time; 1: no shuffling.
        shuffle_seed: The seed of a stream's order, which is a function of the seed and the epoch.
        test_share: Fraction of the records in the test set, if there are no test files.
        split_seed: The seed of that draw.
        limit: The number of training samples to keep, from the first, not for streams; None: all.
        test_limit: The same for the test samples.
        decoder: "pillow", "turbojpeg" or "opencv": the library that decodes images. Colors and scaling are Pillow's
            with each. "turbojpeg" decodes only JPEG, "opencv" also PNG; both refuse incomplete files.
        workers: Decoding threads; None: one per processor, up to eight.

    Returns:
        Samples with the parts of `features`.

    Raises:
        UsageError: A file is missing, truncated or corrupt (the message names file and record), a feature is missing or
            does not fit its dtype or shape, or an argument is out of its range. A record that is corrupt or lacks a
            feature raises the error when it is read.
        MissingDependency: Pillow or the decoder's library is not installed, and there are images.

    References:
        TensorFlow, "TFRecord and tf.train.Example".

    >>> import tempfile
    >>> import numpy as np
    >>> import deep5 as d5
    >>> from deep5.training.datasets.example import encode_example
    >>> from deep5.training.datasets.record_files import write_records
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = [encode_example({"x": [0.5, 1.5], "class": [number % 2]}) for number in range(10)]
    ...     write_records(f"{folder}/train.tfrecord", records)
    ...     features = {"input": "x: float32[2]", "label": "class"}
    ...     data = d5.datasets.tfrecord(f"{folder}/train.tfrecord", features=features)
    ...     print(len(data.train), len(data.test), data.train.batch(np.array([0])))
    8 2 {'input': array([[0.5, 1.5]], dtype=float32), 'label': array([1])}
    """
    what = "tfrecord"
    groups = [listed_files(what, "train", train, "TFRecord files")]
    if test is not None:
        groups.append(listed_files(what, "test", test, "TFRecord files"))
    for name, value, least in (("labels_from", labels_from, None), ("classes", classes, 1)):
        if isinstance(value, bool) or not (
            (value is None and least) or (isinstance(value, int) and (least is None or value >= least))
        ):
            raise UsageError(
                f"{what} with {name} {brief(value)}; allowed: an integer{' of at least 1' if least else ''}"
            )
    if decoder != PILLOW:
        check_decoder(decoder)
    schema = _schema(what, groups[0][0], features, labels_from, classes, decoder)
    threads = decoding_threads(what, workers)
    if stream:
        if test is None or limit is not None or test_limit is not None:
            raise UsageError(
                f"{what} with stream=True; allowed: with test= and without limits; remedy: test= or stream=False"
            )
        for name, spec in schema.specs.items():
            if any(isinstance(extent, str) for extent in spec.shape):
                raise UsageError(
                    f"{what} with stream=True and the variable shape of {name!r}; allowed: fixed shapes; remedy: "
                    "stream=False, which pads each batch"
                )
        parts: list[Any] = [
            TFRecordStream(
                paths,
                functools.partial(_decoded, schema),
                schema.specs,
                window=1 if place else window,
                seed=shuffle_seed,
                workers=threads,
                identity=f"{schema.describe()} {labels_from} {classes} {1 if place else window} {shuffle_seed}",
            )
            for place, paths in enumerate(groups)
        ]
        hashed = split_hash(*(np.arange(len(paths)) for paths in groups))
        split = "the files given"
    else:
        sources = [_source(what, paths, schema) for paths in groups]
        chosen = selected(
            what,
            sources[0].length,
            None,
            test_length=sources[1].length if len(sources) > 1 else None,
            test_share=test_share,
            split_seed=split_seed,
            limit=limit,
            test_limit=test_limit,
        )
        parts = [
            DecodedDataset(source, ids, workers=threads)
            for source, ids in ((sources[0], chosen.train), (sources[-1], chosen.test))
        ]
        hashed, split = chosen.hash, chosen.text
    kinds = sorted({compression_of(path) or "uncompressed" for paths in groups for path in paths})
    return Splits(
        train=parts[0],
        test=parts[1],
        split_hash=hashed,
        description={
            "source": files_in_brief(groups, "TFRecord file", f" ({', '.join(kinds)})"),
            "samples": {
                name: None if stream else len(part) for name, part in zip(("train", "test"), parts, strict=True)
            },
            "features": schema.describe(),
            "split": split,
            "decisions": [f"the label {labels_from} is class 0"] if labels_from else [],
            "hash": HASHED_RECORDS,
        },
    )


def _schema(
    what: str, path: Path, features: Mapping[str, str] | None, labels_from: int, classes: int | None, decoder: str
) -> ExampleSchema:
    first = next(records(path), None)
    if first is None:
        raise UsageError(f"{what}: the file {path} has no record; allowed: at least one; remedy: leave it out")
    try:
        example = parse_example(first)
    except UsageError as error:
        raise UsageError(f"{path}, record 0, is {error}; allowed: TFRecord files of tf.train.Example") from error
    if features is None:
        if not example:
            raise UsageError(f"{path}, record 0, has no features; allowed: at least one")
        return inferred_schema(what, example, labels_from=labels_from, classes=classes)
    if not isinstance(features, Mapping) or not features:
        raise UsageError(f"{what}: got features={brief(features)}; allowed: a dict of parts and features, or None")
    return stated_schema(what, features, example, labels_from=labels_from, classes=classes, decoder=decoder)


def _decoded(schema: ExampleSchema, record: bytes, name: str) -> dict[str, np.ndarray]:
    return checked_sample(schema.read(record, name), schema.specs, name)


def _source(what: str, paths: Sequence[Path], schema: ExampleSchema) -> SampleSource:
    """The records of files by index; those of compressed files are held in memory."""
    tables: list[RecordTable] = []
    readers: list[Callable[[int], bytes]] = []
    held = 0
    for path in tracked(paths, f"{what}: indexing TFRecord files", len(paths)):
        if compression_of(path):
            content = []
            begins, checksums = [], []
            for record in packed_records(path):
                held += len(record.content)
                if held > _MOST_HELD_BYTES:
                    raise UsageError(
                        f"{what}: the records of {path} and those before it exceed {_MOST_HELD_BYTES} bytes, and "
                        "compressed files are held in memory; remedy: stream=True, or decompress them"
                    )
                content.append(record.content)
                begins.append(record.begin)
                checksums.append(record.checksum)
            tables.append(RecordTable(np.array(begins, np.int64), np.array(checksums, np.int64)))
            readers.append(content.__getitem__)
        else:
            table = record_table(path)
            tables.append(table)
            readers.append(functools.partial(_read_at, path, table))
    ends = np.cumsum([len(table.begins) for table in tables])

    def place(index: int) -> tuple[int, int]:
        shard = int(np.searchsorted(ends, index, side="right"))
        return shard, index - (int(ends[shard - 1]) if shard else 0)

    def name(index: int) -> str:
        shard, number = place(index)
        return f"{paths[shard]}, record {number},"

    def read(index: int) -> dict[str, np.ndarray]:
        shard, number = place(index)
        return schema.read(readers[shard](number), name(index))

    def content_hash() -> str:
        text = (
            f"{shard_identity(paths)} {checksum_of(tables)} {schema.describe()} {schema.labels_from} {schema.classes}"
        )
        return hashlib.sha256(text.encode()).hexdigest()

    return SampleSource(length=int(ends[-1]), specs=schema.specs, read=read, name=name, content=content_hash)


def _read_at(path: Path, table: RecordTable, number: int) -> bytes:
    return read_record(path, int(table.begins[number]), number)
