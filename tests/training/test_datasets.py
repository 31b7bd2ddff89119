"""Data sets of files: each real format, written here and read back, and all possible errors in the files."""

from __future__ import annotations

import gzip
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import Deep5Error, UnknownName, UsageError
from deep5.core.plugins import load, registered
from deep5.core.tensors import numpy_dtype
from deep5.training.dataset import ArrayDataset, Dataset, check_labels, fitted, sample_ids
from deep5.training.datasets.cifar import cifar10, cifar100
from deep5.training.datasets.generated_files import synthetic_files
from deep5.training.datasets.idx import fashion_mnist, mnist, read_idx
from deep5.training.datasets.numpy_files import arrays
from deep5.training.datasets.pixels import PixelDataset, Scaling, image_arrays
from deep5.training.datasets.splitting import evenly, stratified
from deep5.training.generated import GeneratorDataset

RNG = np.random.default_rng(6)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEEP5_DATA", raising=False)


def everything(part: Any) -> dict[str, np.ndarray]:
    batch: dict[str, np.ndarray] = part.batch(np.arange(len(part)))
    return batch


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(extent.to_bytes(4, "big") for extent in array.shape)
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


# MNIST


@pytest.fixture
def idx(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Four small files in the real format, two of them gzipped."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    written = {
        "train-images-idx3-ubyte": RNG.integers(0, 256, (7, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte.gz": RNG.integers(0, 10, 7, dtype=np.uint8),
        "t10k-images-idx3-ubyte.gz": RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8),
        "t10k-labels.idx1-ubyte": RNG.integers(0, 10, 3, dtype=np.uint8),
    }
    for name, array in written.items():
        write_idx(folder / name, array)
    return folder, written


def test_mnist_is_read_as_it_lies_in_its_files(
    idx: tuple[Path, dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = idx
    monkeypatch.setenv("DEEP5_DATA", str(folder.parent))
    splits = mnist(pixels="uint8", download=False)
    train, test = everything(splits.train), everything(splits.test)
    assert {name: str(spec) for name, spec in splits.train.specs.items()} == {
        "input": "uint8[1, 28, 28]",
        "label": "int64[]",
    }
    np.testing.assert_array_equal(train["input"][:, 0], written["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(train["label"], written["train-labels-idx1-ubyte.gz"])
    np.testing.assert_array_equal(test["input"][:, 0], written["t10k-images-idx3-ubyte.gz"])
    np.testing.assert_array_equal(test["label"], written["t10k-labels.idx1-ubyte"])
    pixel = int(written["train-images-idx3-ubyte"][4, 5, 6])
    # One rounding each of a division, a subtraction and a division in float32.
    assert everything(mnist(folder=str(folder)).train)["input"][4, 0, 5, 6] == pytest.approx(
        (pixel / 255 - 0.1307) / 0.3081, rel=1e-5
    )
    assert everything(fashion_mnist(folder=str(folder)).train)["input"][4, 0, 5, 6] == pytest.approx(
        (pixel / 255 - 0.2860) / 0.3530, rel=1e-5
    )
    unit = mnist(folder=str(folder), pixels="unit")
    assert everything(unit.train)["input"][4, 0, 5, 6] == np.float32(pixel) / np.float32(255)
    assert unit.description["preparation"] == "divided by 255"
    limited = mnist(folder=str(folder), limit=4, test_limit=2)
    assert limited.description["samples"] == {"train": 4, "test": 2}
    assert limited.split_hash != splits.split_hash


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"has the magic number 0x0 bytes; allowed: 0x00000803, unsigned bytes in 3 dimensions"),
        (b"\0\0\x08\x01" + bytes(12), r"has the magic number 0x00000801; allowed: 0x00000803"),
        (b"\0\0\x0d\x03" + bytes(12), r"has the magic number 0x00000d03"),
        (b"\0\0\x08\x03" + bytes(5), r"ends after 9 bytes; allowed: a header of 16 bytes"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 1, 2, 3) + bytes(5), r"has 5 bytes of elements, but .* \(1, 2, 3\)"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 1, 2, 3) + bytes(7), r"has 7 bytes of elements"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 0, 2, 3), r"shape is \(0, 2, 3\); allowed: .*at least one"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1), r"has 0 bytes of elements"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_that_are_not_right(tmp_path: Path, content: bytes, message: str, packed: bool) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UsageError, match=rf"train-images-idx3-ubyte.*{message}"):
        read_idx(path, 3)


def test_corrupt_gzip_files(tmp_path: Path) -> None:
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    write_idx(path, RNG.integers(0, 10, 5000, dtype=np.uint8))
    whole = path.read_bytes()
    for spoilt in (
        whole[:-1],
        whole[: len(whole) // 2],
        whole[:-6] + b"\0\0\0\0\0\0",
        whole[:3],
        b"\x1f\x8b" + b"x" * 40,
    ):
        path.write_bytes(spoilt)
        with pytest.raises(UsageError, match=r"train-labels-idx1-ubyte\.gz is corrupt \(.*remedy: delete it"):
            read_idx(path, 1)
    with pytest.raises(UsageError, match=r"absent cannot be read \(No such file"):
        read_idx(tmp_path / "absent", 1)


def test_a_gzip_bomb_is_not_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deep5.training.datasets import idx as module

    monkeypatch.setattr(module, "_LARGEST_BYTES", 1 << 20)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 1 << 26) + bytes(1 << 26)))
    with pytest.raises(UsageError, match="holds more than the bytes allowed for it"):
        read_idx(path, 1)


def test_mnist_files_that_do_not_fit_each_other(idx: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, written = idx
    labels = written["train-labels-idx1-ubyte.gz"].copy()
    labels[5] = 10
    write_idx(folder / "train-labels-idx1-ubyte.gz", labels)
    with pytest.raises(UsageError, match=r"train-labels-idx1-ubyte\.gz, sample 5, holds the label 10; allowed: 0 to 9"):
        mnist(folder=str(folder))
    write_idx(folder / "train-labels-idx1-ubyte.gz", labels[:6] % 10)
    with pytest.raises(
        UsageError, match=r"train-images-idx3-ubyte has 7 images and .* 6 labels; allowed: equal numbers"
    ):
        mnist(folder=str(folder))
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UsageError, match=r"train-labels-idx1-ubyte is not there; allowed: .*idx1-ubyte\.gz.*remedy"):
        mnist(folder=str(folder))
    with pytest.raises(UsageError, match=r"mnist: the folder .*nowhere is not there"):
        mnist(folder=str(folder / "nowhere"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pixels": "float"}, r"MNIST with pixels 'float'; allowed: 'normalised', 'unit', 'uint8'"),
        ({"limit": 0}, r"MNIST with limit 0; allowed: None or an integer from 1 to 7"),
        ({"limit": True}, r"MNIST with limit True"),
        ({"test_limit": 4}, r"MNIST with test_limit 4; allowed: None or an integer from 1 to 3"),
    ],
)
def test_bad_arguments_of_mnist(idx: tuple[Path, dict[str, np.ndarray]], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mnist(folder=str(idx[0]), **options)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "imagenet"])
def test_folders_that_are_no_paths(name: str) -> None:
    for wrong in (5, ["a"], b"a"):
        with pytest.raises(UsageError, match=rf"{name}: got folder=.*; allowed: a path as a string"):
            load("datasets", name)(folder=wrong)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100"])
def test_what_is_not_there_and_not_to_be_downloaded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_DATA", str(tmp_path / "mine"))
    with pytest.raises(
        UsageError, match=rf"{name} is not there: no folder .*mine.* or .*cache.*; remedy: download=True"
    ):
        load("datasets", name)(download=False)


# CIFAR-100


@pytest.fixture
def cifar(tmp_path: Path) -> tuple[Path, np.ndarray]:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    records = RNG.integers(0, 256, (5, 3074), dtype=np.uint8)
    records[:, 0] %= 20
    records[:, 1] %= 100
    records.tofile(folder / "train.bin")
    records[::-1].tofile(folder / "test.bin")
    return folder, records


def test_cifar100_has_both_labels(cifar: tuple[Path, np.ndarray]) -> None:
    folder, records = cifar
    fine, coarse = cifar100(folder=str(folder), pixels="uint8"), cifar100(folder=str(folder), labels="coarse")
    np.testing.assert_array_equal(everything(fine.train)["label"], records[:, 1])
    np.testing.assert_array_equal(everything(coarse.train)["label"], records[:, 0])
    np.testing.assert_array_equal(everything(fine.train)["input"], records[:, 2:].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(everything(fine.test)["label"], records[::-1, 1])
    assert (fine.description["labels"], coarse.description["labels"]) == ("fine", "coarse")
    # Green, mean 0.4865 and deviation 0.2564; three float32 roundings.
    expected = (int(records[2, 2 + 1024 + 40]) / 255 - 0.4865) / 0.2564
    assert everything(coarse.train)["input"][2, 1, 1, 8] == pytest.approx(expected, rel=1e-5)


def test_cifar100_files_that_are_not_right(cifar: tuple[Path, np.ndarray]) -> None:
    folder, records = cifar
    for column, wrong, allowed in ((0, 20, 19), (1, 100, 99)):
        changed = records.copy()
        changed[3, column] = wrong
        changed.tofile(folder / "test.bin")
        with pytest.raises(UsageError, match=rf"test\.bin, record 3, holds the label {wrong}; allowed: 0 to {allowed}"):
            cifar100(folder=str(folder))
    (folder / "test.bin").write_bytes(records.tobytes()[:-1])
    with pytest.raises(UsageError, match=r"test\.bin holds 15369 bytes; allowed: records of 3074 bytes"):
        cifar100(folder=str(folder))
    with pytest.raises(UsageError, match=r"cifar100 with labels 'both'; allowed: 'fine', 'coarse'"):
        cifar100(folder=str(folder), labels="both")


# Pixels in memory


def test_bytes_and_floats_in_memory_give_the_same_samples() -> None:
    pixels, labels = RNG.integers(0, 256, (9, 3, 5, 4), dtype=np.uint8), RNG.integers(0, 4, 9)
    scaling = Scaling(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
    floats, held = image_arrays(pixels, labels, scaling), PixelDataset(pixels, labels, scaling)
    assert isinstance(floats, ArrayDataset)
    ids = np.array([4, -1, 0, 4])
    for one, other in zip(floats.batch(ids).values(), held.batch(ids).values(), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    by_hand = (pixels.astype(np.float32) / np.float32(255) - np.float32([0.4914, 0.4822, 0.4465])[:, None, None]) / (
        np.float32([0.2470, 0.2435, 0.2616])[:, None, None]
    )
    np.testing.assert_array_equal(everything(held)["input"], by_hand)
    network = {
        "input": d5.TensorSpec(shape=("N", 3, 5, 4), dtype="float64"),
        "label": d5.TensorSpec(shape=("N",), dtype="int64"),
    }
    double = held.cast(network)
    assert double.specs["input"].dtype == "float64"
    np.testing.assert_array_equal(everything(double)["input"], by_hand.astype(np.float64))
    assert len({held.content_hash(), double.content_hash()}) == 2
    changed = pixels.copy()
    changed[8, 2, 4, 3] ^= 1
    assert PixelDataset(changed, labels, scaling).content_hash() != held.content_hash()
    np.testing.assert_array_equal(held.labels(), labels)
    batch = held.batch(np.arange(9))["input"]
    batch[...] = 7
    np.testing.assert_array_equal(everything(held)["input"], by_hand)


def test_large_images_stay_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    from deep5.training.datasets import pixels as module

    monkeypatch.setattr(module, "_FLOATS_UP_TO_BYTES", 4 * 2 * 12 - 1)
    scaling = Scaling(mean=(0.0,), std=(1.0,))
    assert isinstance(image_arrays(np.zeros((2, 1, 3, 4), np.uint8), np.zeros(2), scaling), PixelDataset)
    assert isinstance(image_arrays(np.zeros((1, 1, 3, 4), np.uint8), np.zeros(1), scaling), ArrayDataset)
    for wrong in ([2], [0, -3]):
        with pytest.raises(
            UsageError, match=r"got the index -?\d of a sample; allowed: 0 to 1, or from the end -1 to -2"
        ):
            image_arrays(np.zeros((2, 1, 3, 4), np.uint8), np.zeros(2), scaling).batch(np.array(wrong))


def test_bytes_are_no_input_of_a_network_of_floats() -> None:
    data = image_arrays(np.zeros((2, 1, 3, 4), np.uint8), np.zeros(2), None)
    with pytest.raises(
        UsageError, match=r"are uint8 but the network takes float32; remedy: a transform that normalizes"
    ):
        data.cast({"input": d5.TensorSpec(shape=("N", 1, 3, 4)), "label": d5.TensorSpec(shape=("N",), dtype="int64")})


# Common to all data sets


def test_conversions_that_lose_nothing() -> None:
    def of(dtype: str) -> dict[str, d5.TensorSpec]:
        return {"x": d5.TensorSpec(shape=(), dtype=dtype)}

    def into(dtype: str) -> dict[str, d5.TensorSpec]:
        return {"x": d5.TensorSpec(shape=("N",), dtype=dtype)}

    for given, wanted in (("int32", "int64"), ("uint8", "int16"), ("float64", "bfloat16"), ("bfloat16", "float32")):
        assert fitted(of(given), into(wanted)) == {"x": wanted}
    for given, wanted in (
        ("int64", "int32"),
        ("int8", "uint8"),
        ("int32", "float64"),
        ("bool", "int64"),
        ("float32", "int64"),
    ):
        with pytest.raises(UsageError, match=f"samples 'x' are {given} but the network takes {wanted}"):
            fitted(of(given), into(wanted))
    narrow = ArrayDataset({"x": np.arange(3, dtype=np.int32)}).cast(into("int64"))
    assert everything(narrow)["x"].dtype == np.int64
    half = ArrayDataset({"x": np.array([1.0, 2.5], np.float32)}).cast(into("bfloat16"))
    assert (half.specs["x"].dtype, everything(half)["x"].dtype.name) == ("bfloat16", "bfloat16")


@pytest.mark.parametrize("given", [{}, {"x": [1, 2, 3], "y": [1]}, {"x": 5}, {"x": []}])
def test_arrays_of_different_numbers_of_samples(given: Any) -> None:
    with pytest.raises(UsageError, match=r"a data set of .*; allowed: the same first dimension for all, above zero"):
        ArrayDataset(given)


def test_the_hash_of_arrays_covers_names_types_shapes_and_bytes() -> None:
    import hashlib

    def by_hand(name: str, array: np.ndarray) -> str:
        return hashlib.sha256(f"{name} {array.dtype}{array.shape}\n".encode() + array.tobytes()).hexdigest()

    values = RNG.standard_normal((4, 3, 2)) * 100
    for dtype in ("uint8", "bool", "int64", "float16", "bfloat16", "float32", "float64"):
        array = values.astype(numpy_dtype(dtype))
        assert ArrayDataset({"x": array}).content_hash() == by_hand("x", array)
        # For any memory layout.
        assert ArrayDataset({"x": np.asfortranarray(array)}).content_hash() == by_hand("x", array)
        assert ArrayDataset({"x": array[:, ::2]}).content_hash() == by_hand("x", array[:, ::2])
    empty = np.zeros((3, 0), np.float32)
    assert ArrayDataset({"x": empty}).content_hash() == by_hand("x", empty)


def test_labels_are_held_to_the_classes() -> None:
    data = ArrayDataset({"input": np.zeros((4, 2)), "label": np.array([0, 2, 3, 1])})
    check_labels(data, 4)
    with pytest.raises(
        UsageError,
        match=r"'label' of the training sample 2 is 3: the network has 3 outputs, the data set 4 classes "
        r"\(labels 0 to 3\); allowed: 0 to 2 \(1 labels .*; remedy: a network of 4 outputs, or labels that",
    ):
        check_labels(data, 3, what="training")
    below = ArrayDataset({"label": np.array([[0, 1], [1, -1]])})
    with pytest.raises(UsageError, match=r"sample 1 is -1: .* the data set labels -1 to 1; .*remedy: labels that"):
        check_labels(below, 2)
    check_labels(below, 2, ignore=-1)
    check_labels(ArrayDataset({"label": np.array([0.5, 9.0])}), 2)  # labels of a regression
    check_labels(data, 1, name="other")
    check_labels(GeneratorDataset(lambda _: [], {"label": d5.TensorSpec(shape=())}), 1)


@pytest.mark.parametrize("ids", [[0.5], "01", [[0]], [0, [1]], None])
def test_indices_that_are_none(ids: Any) -> None:
    with pytest.raises(UsageError, match=r"batch: got .* as indices of samples; allowed: a list of integers"):
        sample_ids(ids, 3)


def test_samples_of_every_class_in_equal_measure() -> None:
    labels = np.array([2, 2, 2, 0, 1, 1, 0, 0])
    assert evenly(labels, None).tolist() == list(range(8))
    assert evenly(labels, 3).tolist() == [0, 3, 4]
    assert evenly(labels, 5).tolist() == [0, 3, 4, 5, 6]
    assert evenly(labels, 8).tolist() == list(range(8))
    with pytest.raises(UsageError, match=r"class 1 has only one sample, which cannot be split"):
        stratified(np.array([0, 0, 1]), 0.5, 0)


# NumPy's files


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    given = {"input": RNG.standard_normal((10, 3)).astype(np.float32), "label": np.arange(10, dtype=np.int32) % 4}
    for name, array in given.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "all.npz", **given)
    np.savez_compressed(tmp_path / "packed.npz", **given)
    return {name: tmp_path / name for name in ("input.npy", "label.npy", "all.npz", "packed.npz")}


def test_arrays_of_files(files: dict[str, Path]) -> None:
    parts = {"input": files["input.npy"], "label": str(files["label.npy"])}
    splits = arrays(parts, test=str(files["all.npz"]))
    for part in (splits.train, splits.test):
        np.testing.assert_array_equal(everything(part)["input"], np.load(files["input.npy"]))
        np.testing.assert_array_equal(everything(part)["label"], np.arange(10) % 4)
    assert splits.train.specs["label"].dtype == "int64"
    assert splits.train.content_hash() == arrays(str(files["packed.npz"]), test=parts).train.content_hash()
    assert splits.description["source"] == "NumPy files input.npy, label.npy and all.npz"
    drawn = arrays(parts, test_share=0.3, split_seed=1, limit=5)
    assert (len(drawn.train), len(drawn.test)) == (5, 3)
    rows = np.concatenate([everything(part)["input"] for part in (arrays(parts).train, arrays(parts).test)])
    assert sorted(rows.tolist()) == sorted(np.load(files["input.npy"]).tolist())
    assert arrays(parts).split_hash == arrays(parts).split_hash != arrays(parts, split_seed=1).split_hash


def test_npy_files_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "input.npy"
    np.save(path, np.zeros((4, 2), np.float32))
    train = arrays({"input": str(path)}, test={"input": str(path)}).train
    before = train.content_hash()
    with path.open("r+b") as file:  # a memory map shows writes to the file
        file.seek(-4, 2)
        file.write(struct.pack("<f", 5.0))
    assert train.batch(np.array([3]))["input"].tolist() == [[0.0, 5.0]]
    again = arrays({"input": str(path)}, test={"input": str(path)}).train
    assert again.content_hash() != before


def test_byte_order_and_fortran_order(tmp_path: Path) -> None:
    path, given = tmp_path / "input.npy", RNG.standard_normal((4, 3))
    for stored in (given.astype(">f8"), np.asfortranarray(given)):
        np.save(path, stored)
        train = arrays({"input": str(path)}, test={"input": str(path)}).train
        np.testing.assert_array_equal(everything(train)["input"], given)
        assert str(train.specs["input"]) == "float64[3]"


def test_numpy_files_that_are_not_right(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, []], dtype=object))
    np.savez(tmp_path / "objects.npz", input=np.array([{}, []], dtype=object))
    np.savez(tmp_path / "other.npz", input=np.zeros((3, 2)), label=np.zeros(2))
    np.savez(tmp_path / "empty.npz", input=np.zeros((0, 2)))
    np.savez(tmp_path / "none.npz")
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    np.savez(tmp_path / "one.npz", input=np.zeros((1, 2)))
    (tmp_path / "cut.npz").write_bytes(files["all.npz"].read_bytes()[:-30])
    (tmp_path / "cut.npy").write_bytes(files["input.npy"].read_bytes()[:-3])
    spoilt = bytearray(files["packed.npz"].read_bytes())
    spoilt[80:90] = bytes(10)
    (tmp_path / "spoilt.npz").write_bytes(spoilt)
    (tmp_path / "not.npy").write_text("hello")
    negative = files["input.npy"].read_bytes().replace(b"(10, 3), }", b"(10,-3), }")
    assert negative != files["input.npy"].read_bytes()
    (tmp_path / "negative.npy").write_bytes(negative)
    np.save(tmp_path / "wide.npy", np.zeros(3, np.longdouble))
    (tmp_path / "notes.npz").write_bytes(files["all.npz"].read_bytes())
    with zipfile.ZipFile(tmp_path / "notes.npz", "a") as archive:
        archive.writestr("notes.txt", "measured on Monday")
    for given, message in (
        ({"input": "objects.npy"}, "objects.npy cannot be read .*without objects"),
        ("objects.npz", "objects.npz cannot be read"),
        ("other.npz", "other.npz holds samples of input: 3, label: 2; allowed: as many of each, at least one"),
        ("empty.npz", "empty.npz holds samples of input: 0"),
        ("none.npz", "none.npz holds samples of no array"),
        ({"input": "text.npy"}, r"text.npy holds <U1\[2\]; allowed: numbers"),
        ("cut.npz", "cut.npz cannot be read"),
        ({"input": "cut.npy"}, "cut.npy cannot be read"),
        ("spoilt.npz", "spoilt.npz cannot be read"),
        ({"input": "not.npy"}, r"not\.npy cannot be read \(it has no NumPy header\); .*numpy\.memmap\(.*if it is raw"),
        ({"input": "negative.npy"}, r"negative\.npy cannot be read"),
        ({"input": "wide.npy"}, r"wide\.npy holds .*; allowed: numbers of at most 8 bytes"),
        ("text.npy", r"text\.npy cannot be read .*remedy: {'input': "),
        ({"input": "all.npz"}, "all.npz holds several arrays"),
        ("absent.npz", "absent.npz is not there"),
        ({"input": "absent.npy"}, "absent.npy is not there"),
        ("notes.npz", r"notes\.npz, array 'notes\.txt' is not an array; allowed: .*; remedy: leave it out"),
        ("one.npz", "arrays of 1 sample cannot be split"),
    ):
        path = str(tmp_path / given) if isinstance(given, str) else {k: str(tmp_path / v) for k, v in given.items()}
        with pytest.raises(UsageError, match=message):
            arrays(path)
    for bad in (3, {}, {"input": 3}, None):
        with pytest.raises(UsageError, match=r"allowed: an \.npz file, or a dict of names"):
            arrays(bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^arrays of {'input': array.*remedy: numpy\.savez, or d5\.Splits") as error:
        arrays({"input": np.zeros((9, 9))})  # type: ignore[dict-item]
    assert "\n" not in str(error.value)
    np.save(tmp_path / "other.npy", np.zeros((4, 2)))
    for test, got in (({"input": "other.npy"}, r"input float64\[2\];"), ("all.npz", r"input float\d+\[3\], label int")):
        parts = {"input": str(files["input.npy"])}
        where = str(tmp_path / test) if isinstance(test, str) else {k: str(tmp_path / v) for k, v in test.items()}
        with pytest.raises(UsageError, match=rf"holds test samples of {got}.*as the training samples"):
            arrays(parts, test=where)
    import psutil

    class Full:
        available = 100

    monkeypatch.setattr(psutil, "virtual_memory", Full)
    with pytest.raises(UsageError, match=r"packed\.npz holds \d+ bytes, and 100 are free; remedy: an \.npy file"):
        arrays(str(files["packed.npz"]))


# Streams


def counted(epoch: int) -> Any:
    for number in range(4 + epoch):
        yield {"input": np.full(2, number + 10 * epoch, np.float32), "label": number}


SPECS = {"input": d5.TensorSpec(shape=(2,)), "label": d5.TensorSpec(shape=(), dtype="int64")}


def test_a_stream_is_restartable_by_epoch_and_sample() -> None:
    data = GeneratorDataset(counted, SPECS)
    for epoch in (1, 0, 1):
        whole = [int(sample["label"]) for sample in data.samples(epoch)]
        assert whole == list(range(4 + epoch))
        for start in range(7):
            assert [int(sample["label"]) for sample in data.samples(epoch, start)] == whole[start:]
    first = next(data.samples(1))
    assert first["input"].tolist() == [10.0, 10.0]
    assert (data.content_hash(), GeneratorDataset(counted, SPECS, content_hash="ab").content_hash()) == (None, "ab")
    double = data.cast(
        {"input": d5.TensorSpec(shape=("N", 2), dtype="float64"), "label": d5.TensorSpec(shape=("N",), dtype="int64")}
    )
    assert next(double.samples(0))["input"].dtype == np.float64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: iter(()), r"epoch 3 of the stream has no sample; allowed: at least one"),
        (lambda _: 5, r"epoch 3 of the stream is 5; allowed: an iterable of samples"),
        (lambda _: [4], r"epoch 3, sample 0 of the stream is 4; allowed: arrays named \['input', 'label'\]"),
        (lambda _: [{"input": np.zeros(2, np.float32)}], r"epoch 3, sample 0 of the stream is"),
        (
            lambda _: [{"input": np.zeros(2), "label": 0}],
            r"sample 0 of the stream, 'input': got dtype float64, expected f",
        ),
        (
            lambda _: [{"input": np.zeros(3, np.float32), "label": 0}],
            r"'input': got shape \(3,\), expected float32\[2\]",
        ),
    ],
)
def test_streams_that_are_not_right(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(GeneratorDataset(make, SPECS).samples(3))


def test_bad_arguments_of_a_stream() -> None:
    with pytest.raises(UsageError, match=r"a GeneratorDataset of \[\]; allowed: a function of the epoch"):
        GeneratorDataset([], SPECS)  # type: ignore[arg-type]
    for specs in ({}, {"x": (3,)}, None):
        with pytest.raises(
            UsageError, match=r"a GeneratorDataset with specs .*; allowed: a d5\.TensorSpec for each part"
        ):
            GeneratorDataset(counted, specs)  # type: ignore[arg-type]


# Synthetic files


@pytest.mark.parametrize("like", ["cifar10", "cifar100", "mnist", "fashion_mnist"])
def test_made_up_files_follow_their_rule(like: str) -> None:
    splits = synthetic_files(like=like, train=60, test=20, pixels="uint8")
    classes = 100 if like == "cifar100" else 10
    train, test = everything(splits.train), everything(splits.test)
    np.testing.assert_array_equal(train["label"], np.arange(60) % classes)
    np.testing.assert_array_equal(test["label"], np.arange(20) % classes)
    assert splits.description["source"].startswith("synthetic files in the format of")
    assert "label = number of the sample modulo classes" in splits.description["rule"]
    # A test image is closest to training images of its own class: patterns differ by tens in most of the pixels.
    distances = ((test["input"][:, None].astype(float) - train["input"][None]) ** 2).mean((2, 3, 4))
    np.testing.assert_array_equal(train["label"][distances.argmin(1)], test["label"])
    again = synthetic_files(like=like, train=60, test=20, pixels="uint8")
    assert again.train.content_hash() == splits.train.content_hash()
    others = synthetic_files(like=like, train=60, test=20, data_seed=1, pixels="uint8").test
    other = everything(others)["input"].astype(float)
    # Other patterns, not only noise: noise twice has a mean square of 2 x 32^2 = 2048, patterns 2 x 74^2 more.
    assert ((other - test["input"]) ** 2).mean() > 6000


def test_made_up_files_are_real_files() -> None:
    synthetic_files(like="cifar10", train=7, test=2)
    synthetic_files(like="mnist", train=3, test=2)
    from deep5.training.downloads import download_folder

    made = {path.name.partition("-")[0]: path for path in (download_folder() / "synthetic_files").iterdir()}
    assert set(made) == {"cifar10", "mnist"}  # no incomplete files beside them
    assert len(cifar10(folder=str(made["cifar10"])).train) == 7
    assert (made["cifar10"] / "data_batch_1.bin").stat().st_size == 2 * 3073
    assert read_idx(made["mnist"] / "train-images-idx3-ubyte.gz", 3).shape == (3, 28, 28)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"like": "cifar"}, UnknownName, "unknown format of synthetic files 'cifar'; allowed: cifar10, .*did you mean"),
        ({"train": 0}, UsageError, "synthetic files of 0 \\+ 32 samples"),
        ({"train": 4}, UsageError, "of 4 training samples and 10 classes; allowed: at least 5 samples and at most 10"),
        ({"classes": 11}, UsageError, "at most 10 classes"),
        ({"folder": "x"}, UsageError, "synthetic files with folder; allowed: the reader's other arguments"),
    ],
)
def test_bad_arguments_of_made_up(options: dict[str, Any], error: type[Deep5Error], message: str) -> None:
    with pytest.raises(error, match=message):
        synthetic_files(**options)


def test_every_data_set_is_registered_and_documented() -> None:
    names = registered("datasets")
    assert set(names) == set(d5.datasets.__all__)
    for name in names:
        made = load("datasets", name)
        assert getattr(d5.datasets, name) is made
        first = (made.__doc__ or "").splitlines()[0]
        assert first.endswith(".")
        assert len(first) > 30


def test_the_interface_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Dataset()  # type: ignore[abstract]


def test_large_numpy_files_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deep5.training.datasets import numpy_files
    from deep5.training.datasets.mapped import MappedDataset

    values, labels = RNG.standard_normal((50, 3)), np.arange(50, dtype=np.uint8) % 4
    np.save(tmp_path / "x.npy", values)
    np.save(tmp_path / "y.npy", labels)
    given = {"input": str(tmp_path / "x.npy"), "label": str(tmp_path / "y.npy")}
    small = arrays(given)
    monkeypatch.setattr(numpy_files, "_COPIED_BYTES", 100)
    large = arrays(given)
    for one, other in ((small.train, large.train), (small.test, large.test)):
        assert isinstance(other, MappedDataset)
        assert one.specs == other.specs
        for name, array in everything(one).items():
            np.testing.assert_array_equal(everything(other)[name], array)
        np.testing.assert_array_equal(other.labels(), one.labels())
        assert isinstance(other._arrays["input"].base, np.memmap)
    assert large.split_hash == small.split_hash
    assert large.train.content_hash() != large.test.content_hash()
    network = {
        "input": d5.TensorSpec(shape=("N", 3), dtype="float32"),
        "label": d5.TensorSpec(shape=("N",), dtype="int64"),
    }
    np.testing.assert_array_equal(
        everything(large.train.cast(network))["input"], everything(large.train)["input"].astype(np.float32)
    )
    before = large.train.content_hash()
    np.save(tmp_path / "x.npy", values + 1)
    assert arrays(given).train.content_hash() != before


def test_numpy_files_with_nan_or_in_another_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deep5.training.datasets import numpy_files

    values = RNG.standard_normal((50, 3))
    values[31, 2] = np.nan
    np.save(tmp_path / "x.npy", values)
    monkeypatch.setattr(numpy_files, "_PIECE_BYTES", 240)
    with pytest.raises(UsageError, match=r"x\.npy: the array 'input' is nan at \(31, 2\); allowed: finite"):
        arrays({"input": str(tmp_path / "x.npy")})
    # Of arrays that are not read as a whole, when a batch is read.
    monkeypatch.setattr(numpy_files, "_WHOLE_BYTES", 100)
    monkeypatch.setattr(numpy_files, "_COPIED_BYTES", 100)
    mapped = arrays({"input": str(tmp_path / "x.npy")}, test={"input": str(tmp_path / "x.npy")})
    assert mapped.train.batch(np.array([30]))["input"].shape == (1, 3)
    with pytest.raises(UsageError, match=r"the array 'input' is nan at \(31, 2\)"):
        mapped.train.batch(np.array([30, 31]))
    for other in (np.asfortranarray(values), values.astype(">f8")):
        np.save(tmp_path / "x.npy", other)
        with pytest.raises(UsageError, match=r"allowed: C order and this machine's byte order"):
            arrays({"input": str(tmp_path / "x.npy")})
