"""A framework's own loader as a source of batches: PyTorch's `DataLoader` and TensorFlow's `tf.data`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.training.loaders import LoaderSource

torch = pytest.importorskip("torch")
from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class Noisy(Dataset):  # type: ignore[type-arg]
    """Draws from PyTorch's global generator, like augmentations."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.rand(4), index


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.full((4,), float(number)), number) for number in range(7)])


def tensors(count: int = 11) -> TensorDataset:
    return TensorDataset(torch.arange(4.0 * count).reshape(count, 4), torch.arange(count))


def labels(source: Any, epoch: int, start: int = 0) -> list[list[int]]:
    batches = []
    for ids, inputs in source.batches(epoch, start):
        assert ids is None
        assert list(inputs) == ["input", "label"]
        batches.append(inputs["label"].numpy().tolist())
    return batches


# PyTorch


def test_batches_of_a_loader_are_its_own_tensors() -> None:
    source = d5.from_dataloader(DataLoader(tensors(), batch_size=4))
    assert labels(source, 0) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert labels(source, 5, 2) == [[8, 9, 10]]
    assert labels(source, 5, 3) == []
    assert all(isinstance(array, torch.Tensor) for _, inputs in source.batches(0) for array in inputs.values())
    assert (source.steps(0), len(source), source.order_hash(2)) == (3, 3, None)  # type: ignore[arg-type]
    assert (source.batch_size, len(source.dataset)) == (4, 11)  # type: ignore[attr-defined]
    assert isinstance(source, d5.BatchSource)
    with pytest.raises(UsageError, match="start at batch 4; allowed: an integer from 0 to 3"):
        source.batches(0, 4)


SHUFFLED: dict[str, Callable[[], Any]] = {
    "its own generator": lambda: DataLoader(tensors(40), 6, shuffle=True, generator=torch.Generator()),
    "the global generator": lambda: DataLoader(tensors(40), 6, shuffle=True),
    "weighted": lambda: DataLoader(tensors(40), 6, sampler=WeightedRandomSampler(torch.ones(40), 40)),
}


@pytest.mark.parametrize("kind", SHUFFLED)
def test_orders_are_functions_of_seed_and_epoch(kind: str) -> None:
    source = d5.from_dataloader(SHUFFLED[kind](), seed=3)
    orders = [labels(source, epoch) for epoch in (0, 1, 2)]
    assert len({str(order) for order in orders}) == 3
    torch.manual_seed(77)  # any other draws of the process
    again = d5.from_dataloader(SHUFFLED[kind](), seed=3)
    assert [labels(again, epoch) for epoch in (2, 0)] == [orders[2], orders[0]]
    assert labels(again, 1, 3) == orders[1][3:]
    assert labels(d5.from_dataloader(SHUFFLED[kind](), seed=4), 0) != orders[0]


def test_what_the_loader_draws_disturbs_nobody() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    source = d5.from_dataloader(DataLoader(Noisy(), 3, shuffle=True))
    noise = [inputs["input"] for _, inputs in source.batches(1)]
    assert torch.equal(torch.rand(3), expected)
    assert not torch.equal(noise[1], noise[2])
    # And nothing affects the loader: another state of the global generator, and draws between its batches.
    torch.manual_seed(6)
    again = []
    for _, inputs in source.batches(1):
        torch.rand(100)
        again.append(inputs["input"])
    assert all(torch.equal(one, other) for one, other in zip(noise, again, strict=True))
    resumed = [inputs["input"] for _, inputs in source.batches(1, 2)]
    assert all(torch.equal(one, other) for one, other in zip(noise[2:], resumed, strict=True))


@pytest.mark.slow
def test_worker_processes_draw_by_seed_and_epoch() -> None:
    def noise(epoch: int, start: int = 0) -> list[Any]:
        # Not forked: JAX, which another test of this process may have started, does not support that.
        loader = DataLoader(Noisy(), 3, shuffle=True, num_workers=1, timeout=60, multiprocessing_context="spawn")
        return [inputs["input"].clone() for _, inputs in d5.from_dataloader(loader, seed=1).batches(epoch, start)]

    first, other = noise(0), noise(1)
    assert all(torch.equal(one, two) for one, two in zip(first, noise(0), strict=True))
    assert all(torch.equal(one, two) for one, two in zip(first[2:], noise(0, 2), strict=True))
    assert not torch.equal(first[0], other[0])


def test_samplers_are_told_the_epoch() -> None:
    class Told(torch.utils.data.SequentialSampler):  # type: ignore[misc, name-defined]
        epochs: list[int] = []  # noqa: RUF012

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    data = tensors()
    labels(d5.from_dataloader(DataLoader(data, 4, sampler=Told(data))), 6)
    assert Told.epochs == [6]


def test_a_stream_has_no_length() -> None:
    source = d5.from_dataloader(DataLoader(Stream(), batch_size=3))
    assert source.steps(0) is None
    assert labels(source, 0) == [[0, 1, 2], [3, 4, 5], [6]]
    assert labels(source, 0, 1) == [[3, 4, 5], [6]]
    with pytest.raises(
        TypeError, match=r"the number of batches of a _DataLoaderSource is known when its epoch is over"
    ):
        len(source)  # type: ignore[arg-type]


def test_dicts_and_single_tensors() -> None:
    data: Any = [{"label": number, "input": torch.zeros(2), "more": 3} for number in range(5)]
    assert labels(d5.from_dataloader(DataLoader(data, 2)), 0) == [[0, 1], [2, 3], [4]]
    [(_, inputs), *_] = d5.from_dataloader(DataLoader(data, 2), None).batches(0)
    assert list(inputs) == ["label", "input", "more"]
    [(_, inputs), *_] = d5.from_dataloader(DataLoader(torch.zeros(4, 2), 2), ("x",)).batches(0)
    assert inputs["x"].shape == (2, 2)


@pytest.mark.parametrize(
    ("data", "names", "message"),
    [
        (
            tensors(),
            ("input",),
            r"the loader gave a list of 2 as a batch; allowed: 1 arrays, or a dict, for input; remedy",
        ),
        (
            tensors(),
            None,
            r"the loader gave a list of 2 as a batch; allowed: a dict of arrays; remedy: the names of its",
        ),
        (
            [{"a": 1.0}],
            ("input", "label"),
            r"the loader gave a dict of 'a' as a batch; allowed: 2 arrays, or a dict, for inp",
        ),
        (torch.zeros(4, 2), ("input", "label"), r"the loader gave a Tensor as a batch; allowed: 2 arrays"),
    ],
)
def test_batches_that_do_not_have_the_parts(data: Any, names: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(d5.from_dataloader(DataLoader(data, 2), names).batches(0))


@pytest.mark.parametrize("names", ["input", (), ("a", "a"), (1, 2)])
def test_bad_names(names: Any) -> None:
    with pytest.raises(
        UsageError, match=r"names: got .*; allowed: different names in a tuple, such as \('input', 'label'\)"
    ):
        d5.from_dataloader(DataLoader(tensors(), 2), names)


def test_workers_that_outlive_the_epoch_are_refused() -> None:
    """Their generators would continue from epoch to epoch, and a resumed run would begin with others."""
    loader = DataLoader(Noisy(), 3, num_workers=1, persistent_workers=True)  # no process starts before the first batch
    with pytest.raises(
        UsageError, match=r"from_dataloader: got .* persistent_workers=True, .*; remedy: persistent_workers=False"
    ):
        d5.from_dataloader(loader)


@pytest.mark.parametrize("kind", SHUFFLED)
def test_a_loader_is_not_made_ahead_by_a_thread(kind: str) -> None:
    """It temporarily replaces PyTorch's global generator, from which a step may draw in the meantime."""
    source = d5.from_dataloader(SHUFFLED[kind]())
    with pytest.raises(
        UsageError,
        match=r"Prefetched: got batches of a DataLoader, .*; allowed: .*; remedy: .* num_workers=2, prefetch_factor=2",
    ):
        d5.Prefetched(source, 3)


def test_what_is_no_loader() -> None:
    with pytest.raises(UsageError, match=r"from_dataloader: got \[1, 2\]; allowed: a torch.utils.data.DataLoader"):
        d5.from_dataloader([1, 2])


def test_trained_from_a_loader() -> None:
    """The same weights as from deep5's own sampler over the same samples in the same order."""
    from deep5.training.datasets.class_templates import synthetic

    data = synthetic(shape=(4,), classes=3, train=21, test=6).train
    whole = data.batch(np.arange(21))
    loader = DataLoader(TensorDataset(*(torch.from_numpy(whole[name]) for name in ("input", "label"))), batch_size=4)
    weights = []
    for sampler in (
        d5.OrderedSampler(data, 4),
        d5.from_dataloader(loader),
        d5.Prefetched(d5.OrderedSampler(data, 4), 3),
    ):
        executor = d5.framework("pytorch").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
        trainer = d5.Trainer(executor, d5.Momentum(lr=0.1), sampler, sampler)
        trainer.train(2)
        assert (trainer.step, trainer.scores["samples"]) == (12, 21.0)
        weights.append({name: d5.to_numpy(value).copy() for name, value in executor.parameters().items()})
    for name, value in weights[0].items():
        np.testing.assert_array_equal(value, weights[1][name])
        np.testing.assert_array_equal(value, weights[2][name])


# TensorFlow


def tf_data(count: int = 11) -> Any:
    tf = pytest.importorskip("tensorflow")
    d5.framework("tensorflow")
    arrays = np.arange(4.0 * count, dtype=np.float32).reshape(count, 4), np.arange(count)
    return tf.data.Dataset.from_tensor_slices(arrays)


def test_batches_of_tf_data_are_its_own_tensors() -> None:
    source = d5.from_tf_data(tf_data().batch(4))
    assert labels(source, 0) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert labels(source, 5, 2) == [[8, 9, 10]]
    assert labels(source, 5, 3) == []
    assert (source.steps(0), len(source), source.order_hash(2)) == (3, 3, None)  # type: ignore[arg-type]
    [(_, inputs), *_] = source.batches(0)
    assert type(inputs["input"]).__name__ == "EagerTensor"
    assert isinstance(source, d5.BatchSource)


def test_tf_data_may_be_made_ahead() -> None:
    source = d5.from_tf_data(tf_data().batch(4))
    assert labels(d5.Prefetched(source, 2), 0) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_a_function_of_the_epoch_shuffles_by_it() -> None:
    data = tf_data(40)
    source = d5.from_tf_data(lambda epoch: data.shuffle(40, seed=epoch).batch(6))
    orders = [labels(source, epoch) for epoch in (0, 1)]
    assert orders[0] != orders[1]
    assert [labels(source, epoch) for epoch in (1, 0)] == [orders[1], orders[0]]
    assert labels(source, 1, 3) == orders[1][3:]


def test_tf_data_without_a_length() -> None:
    source = d5.from_tf_data(tf_data().filter(lambda image, label: label % 2 == 0).batch(4))
    assert source.steps(0) is None
    assert labels(source, 0) == [[0, 2, 4, 6], [8, 10]]
    assert labels(source, 0, 1) == [[8, 10]]


def test_bad_tf_data() -> None:
    with pytest.raises(
        UsageError, match=r"from_tf_data: the data set is infinite, .*; remedy: omit repeat\(\), or add take"
    ):
        d5.from_tf_data(tf_data().repeat().batch(4))
    for wrong in ([1, 2], lambda epoch: [1, 2]):
        with pytest.raises(
            UsageError, match=r"from_tf_data: got .*; allowed: a tf.data.Dataset of batches, or a function"
        ):
            d5.from_tf_data(wrong)


def test_trained_from_tf_data() -> None:
    source = d5.from_tf_data(tf_data(21).map(lambda image, label: (image / 100.0, label % 3)).batch(4))
    executor = d5.framework("tensorflow").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    trainer = d5.Trainer(executor, d5.SGD(lr=0.1), source, source)
    trainer.train(2)
    assert (trainer.step, trainer.scores["samples"]) == (12, 21.0)


# Speed


class Recorded:
    """A `tf.data.Dataset` that keeps each batch it gave."""

    def __init__(self, dataset: Any, made: list[Any]) -> None:
        self.dataset, self.made = dataset, made
        self.cardinality, self.skip = dataset.cardinality, dataset.skip

    def __iter__(self) -> Iterator[Any]:
        for batch in self.dataset:
            self.made.append(batch)
            yield batch


@pytest.mark.parametrize("kind", ["pytorch", "tensorflow"])
def test_feeding_copies_no_batch(kind: str) -> None:
    """The source passes on the loader's own tensors."""
    pixels = np.random.default_rng(0).random((256, 3, 8, 8), np.float32)
    made: list[Any] = []
    if kind == "pytorch":

        def collate(samples: list[Any]) -> Any:
            made.append(default_collate(samples))
            return made[-1]

        loader: Any = DataLoader(TensorDataset(torch.from_numpy(pixels), torch.arange(256)), 128, collate_fn=collate)
        source: Any = d5.from_dataloader(loader)
    else:
        tf = pytest.importorskip("tensorflow")
        loader = Recorded(tf.data.Dataset.from_tensor_slices((pixels, np.arange(256))).batch(128), made)
        source = d5.from_tf_data(lambda epoch: loader)
    assert isinstance(source, LoaderSource)
    for number, (_, batch) in enumerate(source.batches(0)):
        assert len(made) == number + 1
        assert batch["input"] is made[-1][0]
        assert batch["label"] is made[-1][1]
        np.testing.assert_array_equal(np.asarray(batch["input"]), pixels[128 * number : 128 * (number + 1)])
    assert len(made) == 2
