"""TFRecord files: framing and checksums, Examples, samples by index and as a stream, compared with TensorFlow's own."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deep5.core.errors import UsageError
from deep5.core.plugins import registered
from deep5.core.tensors import TensorSpec
from deep5.training.datasets.crc32c import crc32c, masked_crc32c
from deep5.training.datasets.example import encode_example, parse_example
from deep5.training.datasets.images import Decoder
from deep5.training.datasets.record_files import framed, read_record, record_index, record_table, records, write_records
from deep5.training.datasets.shards import (
    ImageExample,
    TFRecordStream,
    find_shards,
    image_records,
    image_stream,
)

RNG = np.random.default_rng(8)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))


def slow_crc(data: bytes) -> int:
    """By the definition, one bit at a time."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def jpeg(label: int, size: tuple[int, int] = (20, 16)) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", size, (label * 20, 255 - label * 20, 128)).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def shard_files(folder: Path, counts: tuple[int, ...], prefix: str = "train") -> list[Path]:
    """TFRecord files of images with consecutive labels."""
    folder.mkdir(exist_ok=True)
    label, paths = 0, []
    for shard, count in enumerate(counts):
        path = folder / f"{prefix}-{shard:05d}-of-{len(counts):05d}"
        examples = []
        for _ in range(count):
            examples.append(encode_example({"image/encoded": [jpeg(label)], "image/class/label": [label + 1]}))
            label += 1
        write_records(path, examples)
        paths.append(path)
    return paths


# Checksums


# RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_checksums(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


@pytest.mark.parametrize("length", [1, 63, 64, 1023, 1024, 1025, 1087, 1088, 2048, 4097, 20_001])
def test_checksums_of_long_messages(length: int) -> None:
    data = RNG.bytes(length)
    assert crc32c(data) == slow_crc(data)
    assert crc32c(data[:-1] + bytes([data[-1] ^ 1])) != crc32c(data)


# Framing


def test_records_come_back(tmp_path: Path) -> None:
    given_records = [b"", b"a", RNG.bytes(3000), b"last"]
    path = tmp_path / "x.tfrecord"
    write_records(path, given_records)
    assert path.read_bytes()[:12] == struct.pack("<QI", 0, masked_crc32c(bytes(8)))
    assert list(records(path)) == given_records
    assert list(records(path, 2)) == given_records[2:]
    index = record_index(path)
    assert index.tolist() == [0, 16, 33, 33 + 3016]
    assert record_table(path).begins.tolist() == index.tolist()
    assert record_table(path).checksums.tolist() == [masked_crc32c(record) for record in given_records]
    for number in (3, 0, 2):
        assert read_record(path, int(index[number]), number) == given_records[number]


def test_an_index_is_kept_and_made_again(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    write_records(path, [RNG.bytes(600_000), RNG.bytes(600_000)])
    first, checksums = record_table(path)
    (kept,) = (tmp_path / "cache" / "tfrecord").iterdir()
    np.testing.assert_array_equal(record_index(path), first)
    np.testing.assert_array_equal(record_table(path).checksums, checksums)
    np.save(kept, first)  # an index with places only
    np.testing.assert_array_equal(record_table(path).checksums, checksums)
    kept.write_bytes(kept.read_bytes()[:20])
    np.testing.assert_array_equal(record_index(path), first)
    write_records(path, [RNG.bytes(400_000) for _ in range(3)])
    os.utime(path, ns=(0, 5))
    assert len(record_index(path)) == 3


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda whole: whole[:5],
            r"record 0, which begins at byte 0, is corrupt: the file ends after 5 of its header's",
        ),
        (
            lambda whole: whole[:-1],
            r"record 1, which begins at byte 21, .*: it has 2000 bytes, but the file ends at byte",
        ),
        (lambda whole: whole[:21] + b"\1" + whole[22:], r"record 1, .*: the checksum of its length is wrong"),
        (lambda whole: whole[:13] + b"\1" + whole[14:], r"record 0, .*: its checksum is wrong"),
        (lambda whole: whole[:-1] + b"\1", r"record 1, .*: its checksum is wrong"),
        (lambda whole: whole + b"more", r"record 2, which begins at byte 2037, .*: the file ends after 4"),
        (lambda _: framed(b"")[:8] + b"\0" * 20, r"record 0, .*: the checksum of its length is wrong"),
        (
            lambda _: b"\x1f\x8b" + b"x" * 40,
            r"record 0 is corrupt: it does not decompress",
        ),
        (
            lambda _: struct.pack("<QI", 1 << 60, masked_crc32c(struct.pack("<Q", 1 << 60))),
            r"record 0, .*: it has 1152921504606846976 bytes, but the file ends at byte 12",
        ),
    ],
)
def test_files_that_are_not_right(tmp_path: Path, spoil: Any, message: str) -> None:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(spoil(framed(b"hello") + framed(RNG.bytes(2000))))
    with pytest.raises(UsageError, match=rf"x\.tfrecord: {message}"):
        list(records(path))
    if "its checksum" not in message:  # the index reads only lengths
        with pytest.raises(UsageError, match=rf"x\.tfrecord: {message}"):
            record_index(path)
    for read in (record_index, lambda gone: list(records(gone))):
        with pytest.raises(UsageError, match="absent cannot be read"):
            read(tmp_path / "absent")


# Examples


def test_an_example_by_hand() -> None:
    # Features { feature { key: "a", value: int64_list { value: [150, -1] (packed) } } }
    value = b"\x1a\x0e\x0a\x0c\x96\x01" + b"\xff" * 9 + b"\x01"
    entry = b"\x0a\x01a\x12" + bytes([len(value)]) + value
    features = b"\x0a" + bytes([len(entry)]) + entry
    message = b"\x0a" + bytes([len(features)]) + features
    assert encode_example({"a": [150, -1]}) == message
    assert parse_example(message)["a"].tolist() == [150, -1]  # type: ignore[union-attr]
    # Not packed: each number is a separate field; and an unknown field in between.
    value = b"\x1a\x09" + b"\x08\x96\x01" + b"\x08\x05" + b"\x10\x01" + b"\x08\x07"
    entry = b"\x0a\x01a\x12" + bytes([len(value)]) + value
    features = b"\x0a" + bytes([len(entry)]) + entry
    message = b"\x0a" + bytes([len(features)]) + features
    assert parse_example(message)["a"].tolist() == [150, 5, 7]  # type: ignore[union-attr]


def test_examples_come_back() -> None:
    given_features: dict[str, Any] = {
        "bytes": [b"", b"x" * 300],
        "ints": [0, 1, -1, 2**63 - 1, -(2**63)],
        "floats": [0.5, -2.0, 1e30],
        "ü": [b"\0"],
    }
    found = parse_example(encode_example(given_features))
    assert list(found) == list(given_features)
    assert found["bytes"] == given_features["bytes"]
    assert found["ints"].tolist() == given_features["ints"]  # type: ignore[union-attr]
    np.testing.assert_array_equal(found["floats"], np.float32(given_features["floats"]))
    assert parse_example(b"") == {}


@pytest.mark.parametrize("bad", [[], [None], [b"a", 1], "text"])
def test_features_that_cannot_be_written(bad: Any) -> None:
    with pytest.raises(UsageError, match=r"feature 'a' of an Example: allowed: a list of bytes"):
        encode_example({"a": bad})


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
def test_no_message_brings_the_reader_down(noise: bytes, place: int, byte: int) -> None:
    whole = bytearray(encode_example({"image": [b"abc"], "label": [3], "f": [1.0]}))
    whole[place % len(whole)] = byte
    for message in (noise, bytes(whole), bytes(whole[: place % len(whole)])):
        try:
            parse_example(message)
        except UsageError as error:
            assert str(error).startswith("not a tf.train.Example: ")  # noqa: PT017 - either outcome is right


# Against TensorFlow


@pytest.fixture(scope="module")
def tensorflow() -> Any:
    if "tensorflow" not in registered("frameworks"):
        pytest.skip("needs TensorFlow")
    return pytest.importorskip("tensorflow")


def test_tensorflow_reads_what_we_write_and_we_what_it_writes(tmp_path: Path, tensorflow: Any) -> None:
    tf = tensorflow
    payloads = [b"", b"short", RNG.bytes(100_003), RNG.bytes(4096)]
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    write_records(Path(ours), payloads)
    with tf.io.TFRecordWriter(theirs) as writer:
        for payload in payloads:
            writer.write(payload)
    assert Path(ours).read_bytes() == Path(theirs).read_bytes()
    assert [bytes(record.numpy()) for record in tf.data.TFRecordDataset(ours)] == payloads
    assert list(records(Path(theirs))) == payloads

    train = tf.train
    features = {
        "image/encoded": train.Feature(bytes_list=train.BytesList(value=[b"\0jpeg", b""])),
        "label": train.Feature(int64_list=train.Int64List(value=[7, -3, 2**40])),
        "weights": train.Feature(float_list=train.FloatList(value=[0.25, -1e-3])),
        "nothing": train.Feature(),
    }
    message = train.Example(features=train.Features(feature=features)).SerializeToString()
    found = parse_example(message)
    assert sorted(found) == ["image/encoded", "label", "weights"]
    assert found["image/encoded"] == [b"\0jpeg", b""]
    assert found["label"].tolist() == [7, -3, 2**40]  # type: ignore[union-attr]
    np.testing.assert_array_equal(found["weights"], np.float32([0.25, -1e-3]))
    written = encode_example({"image": [b"abc"], "label": [5, -6], "weights": [0.5, 3.0]})
    read = train.Example.FromString(written).features.feature
    assert list(read["image"].bytes_list.value) == [b"abc"]
    assert list(read["label"].int64_list.value) == [5, -6]
    assert list(read["weights"].float_list.value) == [0.5, 3.0]


# Samples by index


def test_images_by_index(tmp_path: Path) -> None:
    paths = shard_files(tmp_path / "set", (3, 0, 4))
    data = image_records(paths, ImageExample(10), decoder=Decoder(size=8), scaling=None)
    assert len(data) == 7
    batch = data.batch(np.array([6, 0, 3, -7]))
    assert batch["label"].tolist() == [6, 0, 3, 0]
    # JPEG preserves a flat color within 2.
    for label, pixels in zip(batch["label"].tolist(), batch["input"], strict=True):
        assert np.abs(pixels.mean((1, 2)) - [label * 20, 255 - label * 20, 128]).max() < 2
    assert len(image_records(paths, ImageExample(10), decoder=Decoder(size=8), scaling=None, limit=2)) == 2
    with pytest.raises(UsageError, match="a limit of 8 samples; allowed: at most 7"):
        image_records(paths, ImageExample(10), decoder=Decoder(size=8), scaling=None, limit=8)
    with pytest.raises(UsageError, match="no record in 1 TFRecord files"):
        image_records(paths[1:2], ImageExample(10), decoder=Decoder(size=8), scaling=None)


def test_the_hash_covers_every_record(tmp_path: Path) -> None:
    """For files with the same names and sizes: labels and pixels; for a part of them: its content."""
    path, other = tmp_path / "train-00000-of-00001", encode_example({"image": [jpeg(1)], "label": [5]})

    def digest(labels: list[int], limit: int | None = None) -> str:
        write_records(path, [*(encode_example({"image": [jpeg(1)], "label": [label]}) for label in labels), other])
        data = image_records([path], ImageExample(10), decoder=Decoder(size=8), scaling=None, limit=limit)
        return data.content_hash()

    assert digest([3, 4]) == digest([3, 4])
    assert len({digest([3, 4]), digest([3, 7]), digest([4, 3]), digest([3, 4], 1), digest([4, 3], 1)}) == 5
    assert digest([3, 4], 1) == digest([3, 7], 1)


def test_labels_and_features_that_are_not_right(tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001"
    image = jpeg(1)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"image/encoded": [image], "image/class/label": [0]}, r"holds the label 0; allowed: 1 to 10"),
        ({"image/encoded": [image], "image/class/label": [11]}, r"holds the label 11; allowed: 1 to 10"),
        ({"image": [image], "label": [10]}, r"holds the label 10; allowed: 0 to 9"),
        ({"image": [image], "label": [float("nan")]}, r"holds the label nan; allowed: 0 to 9"),
        ({"image": [image], "label": [float("inf")]}, r"holds the label inf; allowed: 0 to 9"),
        ({"image": [image], "label": [1.0]}, r"holds the label 1\.0; allowed: 0 to 9"),
        ({"image": [image, image], "label": [1]}, r"has the features \['image', 'label'\]; allowed: image/encoded and"),
        ({"picture": [image]}, r"has the features \['picture'\]"),
        ({"image": [b"no image"], "label": [1]}, r"the image .*record 1, does not decode \(it is none of JPEG"),
        ({"image": [image[:200]], "label": [1]}, r"the image .*record 1, does not decode"),
    ]
    for features, message in cases:
        write_records(path, [encode_example({"image": [image], "label": [0]}), encode_example(features)])
        data = image_records([path], ImageExample(10), decoder=Decoder(size=8), scaling=None)
        with pytest.raises(UsageError, match=rf"train-00000-of-00001, record 1, {message}|{message}"):
            data.batch(np.array([0, 1]))
        assert data.batch(np.array([0]))["label"].tolist() == [0]
    write_records(path, [b"\x0a\x05nope"])
    with pytest.raises(UsageError, match=r"train-00000-of-00001, record 0,: not a tf\.train\.Example: "):
        image_records([path], ImageExample(10), decoder=Decoder(size=8), scaling=None).batch(np.array([0]))


def test_all_shards_of_one_set(tmp_path: Path) -> None:
    paths = shard_files(tmp_path, (1, 1, 1))
    assert find_shards(tmp_path, ("train",)) == paths
    assert find_shards(tmp_path, ("validation", "val")) == []
    assert find_shards(tmp_path / "absent", ("train",)) == []
    paths[1].unlink()
    with pytest.raises(
        UsageError, match=r"holds 2 files of train, but the shards \[1\] of 3 are missing; allowed: all"
    ):
        find_shards(tmp_path, ("train",))
    shard_files(tmp_path, (1, 1))
    with pytest.raises(UsageError, match=r"files of train, but .*; allowed: all of one set"):
        find_shards(tmp_path, ("train",))
    other = shard_files(tmp_path, (1,), "imagenet2012-validation.tfrecord")
    assert find_shards(tmp_path, ("validation",)) == other


# Streams


def numbers(record: bytes, name: str) -> dict[str, np.ndarray]:
    return {"x": np.array(int(record), np.float32)}


@pytest.mark.parametrize("window", [1, 2, 5, 100])
def test_a_stream_resumes_at_any_sample(tmp_path: Path, window: int) -> None:
    paths = []
    for shard, numbered in enumerate((range(7), range(7, 7), range(7, 12), range(12, 13))):
        paths.append(tmp_path / f"{shard}")
        write_records(paths[-1], [str(number).encode() for number in numbered])
    data = TFRecordStream(paths, numbers, {"x": TensorSpec(shape=())}, window=window, seed=3, workers=2)

    def listed(epoch: int, start: int = 0) -> list[int]:
        return [int(sample["x"]) for sample in data.samples(epoch, start)]

    first, second = listed(0), listed(1)
    assert sorted(first) == sorted(second) == list(range(13))
    assert (first == list(range(13))) == (window == 1)
    assert (first != second) == (window > 1)
    for start in range(15):
        assert listed(1, start) == second[start:]
    assert listed(0) == first
    again = TFRecordStream(paths, numbers, {"x": TensorSpec(shape=())}, window=window, seed=3)
    assert [int(sample["x"]) for sample in again.samples(1)] == second
    other = TFRecordStream(paths, numbers, {"x": TensorSpec(shape=())}, window=window, seed=4)
    assert ([int(sample["x"]) for sample in other.samples(0)] != first) == (window > 1)
    double = data.cast({"x": TensorSpec(shape=("N",), dtype="float64")})
    assert next(double.samples(0))["x"].dtype == np.float64
    assert double.content_hash() != data.content_hash()


def test_a_stream_passes_over_what_it_leaves_out(tmp_path: Path) -> None:
    """Samples before the start are not decoded, which could take hours."""
    path, seen = tmp_path / "x", []
    write_records(path, [str(number).encode() for number in range(1000)])

    def decode(record: bytes, name: str) -> dict[str, np.ndarray]:
        seen.append(int(record))
        return numbers(record, name)

    data = TFRecordStream([path], decode, {"x": TensorSpec(shape=())}, window=10)
    rest = data.samples(0, 905)
    next(rest)
    rest.close()  # type: ignore[attr-defined]
    assert seen
    assert min(seen) >= 900


def test_images_as_a_stream_are_those_by_index(tmp_path: Path) -> None:
    paths = shard_files(tmp_path / "set", (3, 4))
    decoder, example = Decoder(size=8), ImageExample(10)
    data = image_records(paths, example, decoder=decoder, scaling=None)
    stream = image_stream(paths, example, decoder=decoder, scaling=None, window=1, seed=0, workers=2)
    whole = data.batch(np.arange(7))
    for index, sample in enumerate(stream.samples(0)):
        np.testing.assert_array_equal(sample["input"], whole["input"][index])
        assert sample["label"] == whole["label"][index]
    assert {name: str(spec) for name, spec in stream.specs.items()} == {"input": "uint8[3, 8, 8]", "label": "int64[]"}
    for wrong in ({"window": 0}, {"workers": True}):
        with pytest.raises(UsageError, match=r"a stream with \w+ .*; allowed: an integer of at least 1"):
            TFRecordStream(paths, numbers, {}, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a stream of no files"):
        TFRecordStream([], numbers, {})
