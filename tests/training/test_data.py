"""Data sets and samplers: exact content, declared splits, orders that are functions of (seed, epoch)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
from sklearn.datasets import load_digits

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.training.dataset import ArrayDataset
from deep5.training.datasets.cifar import cifar10
from deep5.training.datasets.class_templates import synthetic
from deep5.training.datasets.uci_digits import digits, enlarge, shifted_digits

RNG = np.random.default_rng(5)
SPLIT_HASH = "4b3668e3324ff34e49aa44d8ae61c1c67eca1126a2b7593fcaf92cd3c3943689"
ORDER = [903, 474, 909, 29, 753, 123, 623, 370]
RECORD = 3073


def everything(part: Any) -> dict[str, np.ndarray]:
    batch: dict[str, np.ndarray] = part.batch(np.arange(len(part)))
    return batch


# Digits


def test_digits_are_those_of_scikit_learn() -> None:
    ours, theirs = digits(size=8), load_digits()
    images = np.concatenate([everything(part)["input"] for part in (ours.train, ours.test)])
    labels = np.concatenate([everything(part)["label"] for part in (ours.train, ours.test)])
    assert images.shape == (1797, 1, 8, 8)
    assert (images.dtype, labels.dtype) == (np.float32, np.int64)
    # Divided by 16, a power of two: exact. The order is the split's, so compare as sorted rows.
    ours_rows = sorted((images[:, 0] * 16).reshape(-1, 64).tolist())
    assert ours_rows == sorted(theirs.data.tolist())
    ours_pairs = sorted(
        (*row, label) for row, label in zip((images * 16).reshape(-1, 64).tolist(), labels, strict=True)
    )
    assert ours_pairs == sorted((*row, label) for row, label in zip(theirs.data.tolist(), theirs.target, strict=True))


def test_the_embedded_file_is_scikit_learns_in_its_order() -> None:
    from importlib.resources import files

    with (files("deep5.training.datasets") / "digits.npz").open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        images, labels = archive["images"], archive["labels"]
    np.testing.assert_array_equal(images, load_digits().images)
    np.testing.assert_array_equal(labels, load_digits().target)


def test_digits_without_labels_are_the_same_images() -> None:
    labeled, plain = digits(size=8), digits(size=8, labels=False)
    for one, other in ((labeled.train, plain.train), (labeled.test, plain.test)):
        assert list(other.specs) == ["input"]
        np.testing.assert_array_equal(everything(one)["input"], everything(other)["input"])
    assert labeled.split_hash == plain.split_hash
    assert labeled.train.content_hash() != plain.train.content_hash()


def test_shifted_digits_are_the_digits_at_all_positions() -> None:
    plain, shifted = digits(size=8), shifted_digits(reach=1)
    for one, other, count in ((plain.train, shifted.train, 1438), (plain.test, shifted.test, 359)):
        images, found = everything(one)["input"], everything(other)["input"]
        assert found.shape == (9 * count, 1, 10, 10)
        np.testing.assert_array_equal(everything(other)["label"], np.tile(everything(one)["label"], 9))
        seen = set()
        for part in found.reshape(9, count, 1, 10, 10):
            places = [(i, j) for i in range(3) for j in range(3) if (part[:, :, i : i + 8, j : j + 8] == images).all()]
            assert len(places) == 1
            (place,) = places
            seen.add(place)
            # Nothing else is in the image.
            np.testing.assert_array_equal(part.sum(axis=(1, 2, 3)), images.sum(axis=(1, 2, 3)))
        assert len(seen) == 9
        np.testing.assert_array_equal(found[:count, :, 1:9, 1:9], images)  # the center first
    flat = shifted_digits(reach=1, flat=True, limit=100)
    np.testing.assert_array_equal(
        everything(flat.train)["input"], everything(shifted.train)["input"][:100].reshape(100, 100)
    )
    assert flat.description["samples"] == {"train": 100, "test": 9 * 359}
    np.testing.assert_array_equal(everything(shifted_digits(reach=0).train)["input"], everything(plain.train)["input"])


def test_shifted_digits_have_hashes_of_their_own() -> None:
    hashes = {shifted_digits(**given).split_hash for given in ({}, {"reach": 1}, {"limit": 50}, {"split_seed": 1})}
    assert len({*hashes, digits(size=8).split_hash}) == 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"reach": -1}, "shifted_digits with reach -1; allowed: an integer from 0 to 8"),
        ({"reach": True}, "shifted_digits with reach True"),
        ({"reach": 9}, "from 0 to 8"),
        ({"flat": 1}, "shifted_digits with flat 1; allowed: True or False"),
        ({"limit": 0}, "shifted_digits with limit 0; allowed: None or an integer from 1 to 35950"),
        ({"size": 4}, "digits of size 4; allowed: an integer of at least 8"),
    ],
)
def test_shifted_digits_that_are_none(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        shifted_digits(**arguments)


def test_the_split_is_stratified_disjoint_and_complete() -> None:
    splits = digits(size=8)
    assert len(splits.train) + len(splits.test) == 1797
    train, test = (np.bincount(everything(part)["label"]) for part in (splits.train, splits.test))
    np.testing.assert_array_equal(train + test, np.bincount(load_digits().target))
    np.testing.assert_array_equal(test, np.round(0.2 * (train + test)))
    # 1797 different images: none is in both parts.
    rows = [{row.tobytes() for row in everything(part)["input"]} for part in (splits.train, splits.test)]
    assert not rows[0] & rows[1]
    assert len(rows[0] | rows[1]) == 1797


def test_the_split_is_stable() -> None:
    assert digits().split_hash == digits(size=8).split_hash == SPLIT_HASH
    assert digits(split_seed=1).split_hash != SPLIT_HASH
    assert digits(test_share=0.3).split_hash != SPLIT_HASH
    program = "from deep5.training.datasets.uci_digits import digits; print(digits(size=8).split_hash)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == SPLIT_HASH
    assert digits().train.content_hash() == digits().train.content_hash() != digits().test.content_hash()


def test_a_limit_keeps_the_classes_in_balance() -> None:
    splits = digits(size=8, limit=50)
    np.testing.assert_array_equal(np.bincount(everything(splits.train)["label"]), [5] * 10)
    assert len(splits.test) == len(digits(size=8).test)
    assert splits.split_hash != SPLIT_HASH
    assert splits.description["samples"] == {"train": 50, "test": len(splits.test)}
    whole = everything(digits(size=8).train)["input"]
    np.testing.assert_array_equal(everything(splits.train)["input"], whole[:50])


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_no_class_is_empty_in_either_part(share: float) -> None:
    splits = digits(size=8, test_share=share)
    for part in (splits.train, splits.test):
        assert set(everything(part)["label"]) == set(range(10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 7}, "digits of size 7; allowed: an integer of at least 8"),
        ({"size": 28.0}, "digits of size 28"),
        ({"test_share": 0}, "digits with test_share 0; allowed: a number between 0 and 1"),
        ({"test_share": 1.0}, "digits with test_share"),
        ({"test_share": "0.2"}, "digits with test_share '0.2'"),
        ({"labels": 0}, "digits with labels 0; allowed: True or False"),
        ({"limit": 0}, "digits with limit 0; allowed: None or an integer from 1 to 1"),
        ({"limit": True}, "digits with limit True"),
        ({"limit": 2000}, "digits with limit 2000; allowed: None or an integer from 1 to 14"),
    ],
)
def test_bad_arguments_of_digits(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        digits(**options)


@pytest.mark.parametrize("size", [8, 9, 15, 28, 32])
def test_enlarging_is_bilinear_and_keeps_the_corners(size: int) -> None:
    images = RNG.random((3, 8, 8))
    ours = enlarge(images, size)
    theirs = np.stack([scipy.ndimage.zoom(image, size / 8, order=1, grid_mode=False) for image in images])
    # Four products per pixel in float64.
    np.testing.assert_allclose(ours, theirs, atol=1e-14)
    np.testing.assert_array_equal(ours[:, [0, 0, -1, -1], [0, -1, 0, -1]], images[:, [0, 0, -1, -1], [0, -1, 0, -1]])
    assert enlarge(images.astype(np.float32), size).dtype == np.float32


def test_enlarging_by_hand() -> None:
    np.testing.assert_array_equal(enlarge(np.array([[[0.0, 2.0], [4.0, 6.0]]]), 3), [[[0, 1, 2], [2, 3, 4], [4, 5, 6]]])


def test_enlarged_digits_stay_in_range() -> None:
    pixels = everything(digits().train)["input"]
    assert pixels.shape[1:] == (1, 28, 28)
    assert (pixels.min(), pixels.max()) == (0.0, 1.0)


# CIFAR-10


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, np.ndarray]]:
    """Six small files in the real format, and their records."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    monkeypatch.setenv("DEEP5_DATA", str(tmp_path))
    records = {}
    for name in [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]:
        records[name] = RNG.integers(0, 256, (3, RECORD), dtype=np.uint8)
        records[name][:, 0] %= 10
        records[name].tofile(folder / name)
    return folder, records


def test_cifar_is_read_as_it_lies_in_its_files(cifar: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, records = cifar
    splits = cifar10()
    train, test = everything(splits.train), everything(splits.test)
    assert train["input"].shape == (15, 3, 32, 32)
    assert (train["input"].dtype, train["label"].dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(test["label"], records["test_batch.bin"][:, 0])
    np.testing.assert_array_equal(train["label"][3:6], records["data_batch_2.bin"][:, 0])
    # Red first, then green, then blue, row by row; mean and deviation of green.
    pixel = records["data_batch_2.bin"][1, 1 + 1024 + 32 * 5 + 7]
    assert train["input"][4, 1, 5, 7] == pytest.approx((pixel / 255 - 0.4822) / 0.2435, rel=1e-5)
    assert cifar10(folder=str(folder)).split_hash == splits.split_hash
    assert splits.description["samples"] == {"train": 15, "test": 3}


def test_cifar_files_that_are_not_right(cifar: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, records = cifar
    path = folder / "data_batch_3.bin"
    before = cifar10().split_hash
    changed = records[path.name].copy()
    changed[0, 100] ^= 1
    changed.tofile(path)
    assert cifar10().split_hash != before
    for count in (0, 1, RECORD - 1, 2 * RECORD + 5):
        path.write_bytes(records[path.name].tobytes()[:count])
        with pytest.raises(UsageError, match=rf"data_batch_3\.bin holds {count} bytes; allowed: records of 3073 bytes"):
            cifar10()
    changed[2, 0] = 10
    changed.tofile(path)
    with pytest.raises(UsageError, match=r"data_batch_3\.bin, record 2, holds the label 10; allowed: 0 to 9"):
        cifar10()
    path.unlink()
    with pytest.raises(UsageError, match=r"data_batch_3\.bin is not there; remedy: unpack the binary version"):
        cifar10()


# Synthetic


def test_the_synthetic_rule() -> None:
    splits = synthetic(shape=(3, 5), classes=4, train=400, test=8)
    train, test = everything(splits.train), everything(splits.test)
    np.testing.assert_array_equal(train["label"], np.arange(400) % 4)
    np.testing.assert_array_equal(test["label"], np.arange(8) % 4)
    assert train["input"].shape == (400, 3, 5)
    assert train["input"].dtype == np.float32
    templates = np.stack([train["input"][train["label"] == label].mean(0) for label in range(4)])
    noise = train["input"] - templates[train["label"]]
    # 6000 standard normal draws: the deviation within 4 standard errors of 0.9 %.
    assert noise.std() == pytest.approx(1, rel=0.04)
    # A test sample is closest to its own class's template: 15 dimensions, distances about sqrt(30) apart.
    distances = ((test["input"][:, None] - templates) ** 2).sum((2, 3))
    assert (distances.argmin(1) == test["label"]).mean() >= 0.75
    again = synthetic(shape=(3, 5), classes=4, train=400, test=8)
    assert again.train.content_hash() == splits.train.content_hash()
    assert again.split_hash == splits.split_hash


def test_different_synthetic_data_have_different_hashes() -> None:
    made = [
        synthetic(shape=(3,), classes=2, train=4, test=2),
        synthetic(shape=(4,), classes=2, train=4, test=2),
        synthetic(shape=(3,), classes=3, train=4, test=2),
        synthetic(shape=(3,), classes=2, train=5, test=2),
        synthetic(shape=(3,), classes=2, train=4, test=3),
        synthetic(shape=(3,), classes=2, train=4, test=2, data_seed=1),
    ]
    assert len({splits.split_hash for splits in made}) == len(made)


@pytest.mark.parametrize("options", [{"train": 0}, {"test": -1}, {"classes": 0}, {"shape": (3, 0)}, {"train": 1.5}])
def test_bad_arguments_of_synthetic(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"synthetic data of .*; allowed: integers of at least 1"):
        synthetic(**options)


# Data sets in memory


def arrays() -> dict[str, np.ndarray]:
    return {"input": RNG.standard_normal((6, 4)).astype(np.float32), "label": np.arange(6)}


def test_batches_are_copies() -> None:
    data = ArrayDataset(arrays())
    before = data.content_hash()
    for ids in (np.arange(6), np.array([2]), np.arange(0)):
        for array in data.batch(ids).values():
            array[...] = 9
    assert data.content_hash() == before
    assert {name: str(spec) for name, spec in data.specs.items()} == {"input": "float32[4]", "label": "int64[]"}


def test_fortran_order_is_read_right() -> None:
    given = arrays()
    other = ArrayDataset({**given, "input": np.asfortranarray(given["input"])})
    assert other.content_hash() == ArrayDataset(given).content_hash()
    np.testing.assert_array_equal(other.batch(np.array([3]))["input"][0], given["input"][3])


@pytest.mark.parametrize(
    "bad",
    [{}, {"a": np.zeros(0)}, {"a": np.zeros(3), "b": np.zeros(2)}, {"a": np.array(1)}, {"a": np.zeros((0, 3))}],
)
def test_arrays_that_are_no_data_set(bad: dict[str, np.ndarray]) -> None:
    with pytest.raises(UsageError, match=r"a data set of .*; allowed: the same first dimension for all, above zero"):
        ArrayDataset(bad)


def test_cast() -> None:
    data, network = ArrayDataset(arrays()), d5.networks.mlp(features=4, dtype="float64")
    double = data.cast(network.inputs)
    assert double.specs["input"].dtype == "float64"
    np.testing.assert_array_equal(everything(double)["input"], everything(data)["input"])
    single = d5.networks.mlp(features=4).inputs
    assert data.cast(single).content_hash() == data.content_hash()
    fixed = {"input": d5.TensorSpec(shape=(3, 4)), "label": d5.TensorSpec(shape=(3,), dtype="int64")}
    assert data.cast(fixed).content_hash() == data.content_hash()
    for specs, message in (
        (
            {"x": single["input"], "label": single["label"]},
            r"has \['input', 'label'\] but the network takes \['label', 'x'\]",
        ),
        (d5.networks.mlp(features=5).inputs, r"samples 'input' are float32\[4\] but the network takes float32\[N, 5\]"),
        ({**single, "label": d5.TensorSpec(shape=("N",))}, "samples 'label' are int64 but the network takes float32"),
        ({**single, "input": d5.TensorSpec(shape=("N", 4), dtype="int64")}, "samples 'input' are float32 but"),
        ({**single, "input": d5.TensorSpec(shape=())}, "samples 'input' are"),
    ):
        with pytest.raises(UsageError, match=message):
            data.cast(specs)


# Samplers


def test_orders_are_functions_of_seed_and_epoch() -> None:
    data = ArrayDataset(arrays())
    one, same, other = (d5.ShuffleSampler(data, 2, seed=seed) for seed in (0, 0, 1))
    same.order(3)  # requesting one epoch does not affect the others
    orders = [one.order(epoch).tolist() for epoch in range(20)]
    assert orders == [same.order(epoch).tolist() for epoch in range(20)]
    assert orders != [other.order(epoch).tolist() for epoch in range(20)]
    assert len(set(map(tuple, orders))) > 15
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert d5.OrderedSampler(data, 2, seed=4).order(7).tolist() == list(range(6))
    assert one.order(0).dtype == np.int64


def test_the_order_is_pinned() -> None:
    """A change here changes every published order of batches."""
    data = ArrayDataset({"x": np.zeros(1000)})
    assert d5.ShuffleSampler(data, 10, seed=0).order(0)[:8].tolist() == ORDER


def test_every_position_is_as_likely() -> None:
    data = ArrayDataset({"x": np.zeros(4)})
    sampler = d5.ShuffleSampler(data, 1)
    counts = np.zeros((4, 4))
    for epoch in range(2000):
        counts[np.arange(4), sampler.order(epoch)] += 1
    # 2000 draws of probability 1/4: standard deviation 19; five of them.
    assert np.abs(counts - 500).max() < 97


@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_batches_cover_the_epoch(size: int) -> None:
    data = ArrayDataset(arrays())
    sampler = d5.ShuffleSampler(data, size)
    batches = list(sampler.batches(1))
    assert len(batches) == len(sampler) == -(-6 // size)
    assert np.concatenate([ids for ids, _ in batches]).tolist() == sampler.order(1).tolist()
    for ids, inputs in batches:
        np.testing.assert_array_equal(inputs["label"], ids)
        ids[:] = 0  # a private copy
    assert sorted(sampler.order(1)) == list(range(6))


def test_the_hash_of_an_order() -> None:
    data = ArrayDataset(arrays())
    hashes = [
        d5.ShuffleSampler(data, 2).order_hash(2),
        d5.ShuffleSampler(data, 2).order_hash(3),
        d5.ShuffleSampler(data, 3).order_hash(2),
        d5.ShuffleSampler(data, 2, seed=1).order_hash(2),
        d5.OrderedSampler(data, 2).order_hash(2),
    ]
    assert len(set(hashes)) == len(hashes)
    assert d5.ShuffleSampler(data, 2).order_hash(2) == hashes[0]


@pytest.mark.parametrize("size", [0, -1, 7, 2.0, True, None])
def test_bad_batch_sizes(size: Any) -> None:
    with pytest.raises(UsageError, match=r"batch size .*; allowed: an integer from 1 to 6 \(all samples\)"):
        d5.OrderedSampler(ArrayDataset(arrays()), size)


def test_a_sampler_of_both_parts_is_refused() -> None:
    with pytest.raises(UsageError, match=r"got Splits as a data set; allowed: a d5\.Dataset, such as the part 'train'"):
        d5.OrderedSampler(synthetic(train=4, test=4), 2)  # type: ignore[arg-type]


def test_a_stream_names_its_sampler() -> None:
    stream = d5.GeneratorDataset(lambda epoch: iter(()), {"x": d5.TensorSpec(shape=(2,))})
    with pytest.raises(UsageError, match=r"got GeneratorDataset as a data set; .*remedy: the sampler 'stream'"):
        d5.ShuffleSampler(stream, 2)  # type: ignore[arg-type]
