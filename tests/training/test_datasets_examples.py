"""The data set `tfrecord`: schemas and compressions compared with TensorFlow's own writer and reader; damaged files."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.training.datasets.example import encode_example
from deep5.training.datasets.packed_records import compression_of, packed_records
from deep5.training.datasets.record_files import record_table, records, write_records
from deep5.training.datasets.tfrecords import tfrecord
from deep5.training.stream_sampler import StreamSampler

RNG = np.random.default_rng(4)
PARTS = {"input": "pixels: float32[2, 3]", "label": "class"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))


def everything(part: Any) -> dict[str, np.ndarray]:
    batch: dict[str, np.ndarray] = part.batch(np.arange(len(part)))
    return batch


def example(number: int) -> bytes:
    return encode_example(
        {
            "pixels": [float(number) + place / 8 for place in range(6)],
            "class": [number % 3],
            "raw": [np.arange(number, number + 4, dtype="<i2").tobytes()],
            "tokens": list(range(1, number % 4 + 2)),
        }
    )


def write(path: Path, count: int = 12, first: int = 0) -> Path:
    write_records(path, [example(number) for number in range(first, first + count)])
    return path


@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
def test_files_that_tensorflow_wrote(tmp_path: Path, kind: str) -> None:
    tf = pytest.importorskip("tensorflow")
    path = tmp_path / "x.tfrecord"
    given = [example(number) for number in range(9)]
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=kind)) as writer:
        for record in given:
            writer.write(record)
    assert compression_of(path) == kind
    assert list(records(path)) == given
    assert list(records(path, 4)) == given[4:]
    schema = {
        "pixels": tf.io.FixedLenFeature([2, 3], tf.float32),
        "class": tf.io.FixedLenFeature([], tf.int64),
        "raw": tf.io.FixedLenFeature([], tf.string),
        "tokens": tf.io.VarLenFeature(tf.int64),
    }
    theirs = [
        tf.io.parse_single_example(record, schema)
        for record in tf.data.TFRecordDataset(str(path), compression_type=kind)
    ]
    parts = {**PARTS, "raw": "raw: int16[4]", "tokens": "tokens: int64[?]"}
    splits = tfrecord(str(path), features=parts, test=str(path))
    assert splits.description["source"].endswith(f"({kind or 'uncompressed'}), x.tfrecord …")
    ours = everything(splits.train)
    np.testing.assert_array_equal(ours["input"], [one["pixels"] for one in theirs])
    np.testing.assert_array_equal(ours["label"], [one["class"] for one in theirs])
    np.testing.assert_array_equal(ours["raw"], [tf.io.decode_raw(one["raw"], tf.int16) for one in theirs])
    longest = max(one["tokens"].dense_shape[0] for one in theirs)
    np.testing.assert_array_equal(
        ours["tokens"],
        [np.pad(one["tokens"].values, (0, longest - one["tokens"].dense_shape[0])) for one in theirs],
    )
    assert str(splits.train.specs["tokens"]) == "int64[length]"


def test_examples_that_tensorflow_serialized(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    feature = {
        "x": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, -1.25])),
        "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[-3])),
    }
    message = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
    with tf.io.TFRecordWriter(str(tmp_path / "x.tfrecord")) as writer:
        writer.write(message)
        writer.write(message)
    splits = tfrecord(str(tmp_path / "x.tfrecord"))
    assert {name: str(spec) for name, spec in splits.train.specs.items()} == {"x": "float32[2]", "y": "int64[]"}
    batch = everything(splits.train)
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([[0.5, -1.25]], [-3])


def test_images_in_records(tmp_path: Path) -> None:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (255, 0, 51)).save(buffer, "PNG")
    write_records(tmp_path / "x", [encode_example({"png": [buffer.getvalue()], "y": [n]}) for n in (1, 2)])
    splits = tfrecord(
        str(tmp_path / "x"), features={"input": "png: image[3, 4, 4]", "label": "y"}, labels_from=1, classes=2
    )
    pixels = everything(splits.train)["input"]
    np.testing.assert_allclose(pixels[0, :, 0, 0], [1, 0, 0.2], rtol=1e-6)
    assert "the label 1 is class 0" in splits.description["decisions"]
    assert sorted(everything(part)["label"][0] for part in (splits.train, splits.test)) == [0, 1]


def test_shards_patterns_and_limits(tmp_path: Path) -> None:
    write(tmp_path / "a-0", 5)
    (tmp_path / "a-1").write_bytes(gzip.compress(write(tmp_path / "plain", 4, first=5).read_bytes()))
    write(tmp_path / "a-2", 3, first=9)
    splits = tfrecord(str(tmp_path / "a-*"), features=PARTS, test_share=0.25)
    parts = [everything(part)["input"][:, 0, 0] for part in (splits.train, splits.test)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(12))
    assert [len(part) for part in parts] == [9, 3]
    given = [str(tmp_path / f"a-{number}") for number in range(3)]
    listed = tfrecord(given, features=PARTS, test_share=0.25, workers=1)
    assert listed.train.content_hash() == splits.train.content_hash()
    assert tfrecord(given, features=PARTS, limit=2, test_limit=1).description["samples"] == {"train": 2, "test": 1}
    assert tfrecord(given, features=PARTS, split_seed=1).split_hash != splits.split_hash
    write(tmp_path / "a-2", 3, first=20)
    assert tfrecord(given, features=PARTS, test_share=0.25).train.content_hash() != splits.train.content_hash()


@pytest.mark.parametrize("packed", [False, True])
def test_streams_shuffle_and_resume(tmp_path: Path, packed: bool) -> None:
    for number in range(3):
        path = write(tmp_path / f"train-{number}", 10, first=10 * number)
        if packed:
            path.write_bytes(zlib.compress(path.read_bytes()))
    write(tmp_path / "test", 4)
    arguments: dict[str, Any] = {"features": PARTS, "test": str(tmp_path / "test"), "stream": True, "window": 7}
    splits = tfrecord(str(tmp_path / "train-*"), **arguments)
    order = [float(sample["input"][0, 0]) for sample in splits.train.samples(0)]
    assert sorted(order) == list(range(30)) != order
    assert [float(sample["input"][0, 0]) for sample in splits.train.samples(0, 13)] == order[13:]
    assert [float(sample["input"][0, 0]) for sample in splits.train.samples(1)] != order
    assert [float(sample["input"][0, 0]) for sample in splits.test.samples(5)] == [0, 1, 2, 3]
    batches = [ids.tolist() for ids, _ in StreamSampler(splits.train, 8).batches(0, start=1)]
    assert [len(ids) for ids in batches] == [8, 8, 6]
    other = tfrecord(str(tmp_path / "train-*"), **{**arguments, "features": {**PARTS, "label": "class: int32[1]"}})
    assert len({splits.train.content_hash(), other.train.content_hash(), splits.test.content_hash()}) == 3
    wide = {
        "input": d5.TensorSpec(shape=("N", 2, 3), dtype="float64"),
        "label": d5.TensorSpec(shape=("N",), dtype="int64"),
    }
    assert next(splits.train.cast(wide).samples(0))["input"].dtype == np.float64


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_damaged_compressed_files(tmp_path: Path, pack: Any) -> None:
    path = write(tmp_path / "x", 3000)
    whole = path.read_bytes()
    packed = pack(whole)
    cases = [
        (packed[: len(packed) // 2], r"x: record \d+ is corrupt: the compressed file is truncated"),
        (packed[:-3], r"the compressed file is truncated"),
        (packed[:40] + bytes([packed[40] ^ 255]) + packed[41:], r"is corrupt: "),
        (pack(whole[:-5]), r"record 2999 is corrupt: it has \d+ bytes, but the content ends in it"),
        (pack(whole + b"more"), r"record 3000 is corrupt: the content ends after 4 of its header's 12"),
        (pack(whole[:20] + b"\xff" + whole[21:]), r"record 0 is corrupt: its checksum is wrong"),
        (pack(b"\xff" + whole[1:]), r"record 0 is corrupt: the checksum of its length is wrong"),
    ]
    for content, message in cases:
        path.write_bytes(content)
        with pytest.raises(UsageError, match=message):
            tfrecord(str(path), features=PARTS)


def test_members_of_gzip_files_are_joined(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1", 3).read_bytes(), write(tmp_path / "2", 2, first=3).read_bytes()
    (tmp_path / "x").write_bytes(gzip.compress(one) + gzip.compress(two))
    assert [found.content for found in packed_records(tmp_path / "x")] == [example(number) for number in range(5)]
    plain = tmp_path / "plain"
    plain.write_bytes(one + two)
    for ours, theirs in zip(record_table(tmp_path / "x"), record_table(plain), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"input": "pixel"}, r"has no feature 'pixel'; allowed: class \(int64\[1\]\), .*did you mean 'pixels'\?"),
        ({"input": "pixels: float[6]"}, r"the dtype 'float' of 'input'; allowed: .*did you mean 'float\d\d'\?"),
        ({"input": "pixels: float32[0]"}, r"the shape \[0\] of 'input'; allowed: integers of at least 1"),
        ({"input": "pixels: float32[?, ?]"}, r"and \? once"),
        ({"input": "pixels: image[3, 4, 5]"}, r"allowed: image\[C, S, S\]"),
        ({"input": "raw"}, r"'raw' is 8 bytes, which have no dtype; allowed: features= with a dtype"),
        ({"input": 3}, r"features 'input': 3; allowed: 'FEATURE: dtype\[shape\]'"),
        ({}, r"got features=\{\}; allowed: a dict"),
        (None, r"'raw' is 8 bytes, which have no dtype"),
        ("pixels", r"got features='pixels'"),
    ],
)
def test_schemas_that_do_not_fit(tmp_path: Path, features: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tfrecord(str(write(tmp_path / "x")), features=features)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"input": "pixels: float32[5]"}, r"record \d+, feature 'pixels' has 6 values; allowed: 5, float32\[5\]"),
        ({"input": "pixels: int64[6]"}, r"'pixels' is float32\[6\]; allowed: a dtype of floating"),
        ({"input": "raw: int32[3]"}, r"has 2 values; allowed: 3"),
        ({"input": "tokens"}, r"has \d values; allowed: \d"),
        ({"input": "pixels: image[3, 4, 4]"}, r"allowed: the bytes of one image"),
        ({"input": "raw: image[3, 4, 4]"}, r"x, record \d+, feature 'raw'.*"),
    ],
)
def test_records_that_do_not_fit(tmp_path: Path, features: Any, message: str) -> None:
    splits = tfrecord(str(write(tmp_path / "x")), features=features)
    with pytest.raises(UsageError, match=message):
        everything(splits.train)


def test_records_with_other_content(tmp_path: Path) -> None:
    path = tmp_path / "x"
    good = {"x": [1.0], "y": [1]}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"x": [1.0]}, {}, r"record 1, has no feature 'y'; allowed: x"),
        ({"x": [float("nan")], "y": [1]}, {}, r"record 1: 'x' is nan; allowed: finite"),
        (
            {"x": [1.0], "y": [0]},
            {"features": {"x": "x", "label": "y"}, "labels_from": 1},
            r"holds the label 0; allowed: 1;",
        ),
        ({"x": [1.0], "y": [5]}, {"features": {"label": "y"}, "classes": 3}, r"holds the label 5; allowed: 0 to 2"),
        ({"x": [1.0], "y": [300]}, {"features": {"y": "y: int8[]"}}, r"holds 300; allowed: -128 to 127"),
    ]
    for bad, arguments, message in cases:
        write_records(path, [encode_example(good), encode_example(bad)])
        with pytest.raises(UsageError, match=message):
            everything(tfrecord(str(path), test=str(path), **arguments).train)
    write_records(path, [b"no example"])
    with pytest.raises(UsageError, match=r"record 0, is not a tf\.train\.Example"):
        tfrecord(str(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": "absent-*"}, r"no file absent-\*; allowed"),
        ({"train": []}, r"got train=\[\]"),
        ({"train": ["absent"]}, r"the file absent is not there"),
        ({"stream": True}, r"stream=True; allowed: with test= and without limits"),
        ({"labels_from": "1"}, r"labels_from '1'; allowed: an integer"),
        ({"classes": 0}, r"classes 0; allowed: an integer of at least 1"),
        ({"test_share": 0}, r"test_share 0; allowed"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tfrecord(**{"train": str(write(tmp_path / "x")), "features": PARTS, **arguments})


def test_other_bad_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x")
    variable = {**PARTS, "tokens": "tokens: int64[?]"}
    with pytest.raises(UsageError, match=r"variable shape of 'tokens'; .*remedy: stream=False"):
        tfrecord(str(path), features=variable, test=str(path), stream=True)
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(UsageError, match=r"empty is empty; allowed: TFRecord files"):
        tfrecord(str(tmp_path / "empty"))
    (tmp_path / "one").write_bytes(write(tmp_path / "1", 1).read_bytes())
    with pytest.raises(UsageError, match=r"of 1 sample cannot be split; remedy: test="):
        tfrecord(str(tmp_path / "one"), features=PARTS)
    monkeypatch.setattr("deep5.training.datasets.tfrecords._MOST_HELD_BYTES", 100)
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(UsageError, match=r"exceed 100 bytes, and compressed files are held in memory; remedy: stream"):
        tfrecord(str(path), features=PARTS)
