"""Samplers: the samples of each epoch, their order, their batches, and where an epoch starts over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.batch_source import batch_size_of
from deep5.training.dataset import ArrayDataset, StreamDataset
from deep5.training.gathering import gathered
from deep5.training.sequences import SequenceDataset

RNG = np.random.default_rng(11)
# A test of random draws may fail by chance once in this many runs of it; all seeds are fixed anyway.
FALSE_ALARM = 1e-6


def numbered(count: int) -> ArrayDataset:
    lengths = (np.arange(count) * 7919) % 13 + 1
    return ArrayDataset({"input": np.arange(count), "length": lengths})


class Counting(StreamDataset):
    """A stream whose samples are numbers; it counts the samples read."""

    specs: dict[str, TensorSpec] = {"input": TensorSpec(shape=(), dtype="int64")}  # noqa: RUF012

    def __init__(self, count: int) -> None:
        self.count, self.read = count, 0

    def samples(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        for number in range(start, self.count):
            self.read += 1
            yield {"input": np.array(1000 * epoch + number)}

    def cast(self, specs: Mapping[str, TensorSpec]) -> Counting:
        return self


ONCE: dict[str, Callable[..., Any]] = {
    "ordered": lambda count, size, seed: d5.OrderedSampler(numbered(count), size, seed=seed),
    "shuffle": lambda count, size, seed: d5.ShuffleSampler(numbered(count), size, seed=seed),
    "bucket": lambda count, size, seed: d5.BucketSampler(numbered(count), size, seed=seed, length="length", pool=3),
    "weighted": lambda count, size, seed: d5.WeightedSampler(
        numbered(count), size, seed=seed, weights=np.arange(count) % 4 + (count == 1), replace=False
    ),
    "stream": lambda count, size, seed: d5.StreamSampler(Counting(count), size, seed=seed),
    "buffered stream": lambda count, size, seed: d5.StreamSampler(Counting(count), size, seed=seed, buffer=5),
}
KINDS = pytest.mark.parametrize("kind", ONCE)


def epoch_of(sampler: Any, epoch: int, start: int = 0) -> list[list[int]]:
    batches = []
    for ids, inputs in sampler.batches(epoch, start):
        assert ids.dtype == np.int64
        np.testing.assert_array_equal(inputs["input"] % 1000, ids)
        batches.append(ids.tolist())
    return batches


def order_of(sampler: Any, epoch: int) -> list[int]:
    return [number for batch in epoch_of(sampler, epoch) for number in batch]


@KINDS
@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 60), data=st.data(), epoch=st.integers(0, 5), seed=st.integers(0, 3))
def test_an_epoch_holds_each_sample_once_and_starts_anywhere(
    kind: str, count: int, data: Any, epoch: int, seed: int
) -> None:
    size = data.draw(st.integers(1, count))
    sampler = ONCE[kind](count, size, seed)
    batches = epoch_of(sampler, epoch)
    assert sorted(number for batch in batches for number in batch) == list(range(count))
    assert [len(batch) for batch in batches] == [size] * (count // size) + [count % size] * (count % size > 0)
    assert sampler.steps(epoch) in {len(batches), None}
    assert epoch_of(ONCE[kind](count, size, seed), epoch) == batches  # a function of (seed, epoch)
    start = data.draw(st.integers(0, len(batches)))
    assert epoch_of(sampler, epoch, start) == batches[start:]


@pytest.mark.parametrize("kind", [kind for kind in ONCE if kind not in {"ordered", "stream"}])
def test_seeds_and_epochs_give_other_orders(kind: str) -> None:
    orders = [order_of(ONCE[kind](40, 7, seed), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize("start", [-1, 1.0, True, 4])
def test_bad_starts(start: Any) -> None:
    with pytest.raises(UsageError, match=r"start at batch .*; allowed: an integer from 0 to 3 \(all"):
        d5.OrderedSampler(numbered(6), 2).batches(0, start)


def test_a_stream_cannot_start_below_zero() -> None:
    with pytest.raises(UsageError, match=r"start at batch -1; allowed: an integer from 0 on"):
        d5.StreamSampler(Counting(3), 2).batches(0, -1)


# Growing batches


def test_growing_batches() -> None:
    sizes = d5.GrowingBatches(start=2, factor=2, every=2, most=5)
    sampler = d5.ShuffleSampler(numbered(11), sizes, seed=3)
    assert [sizes(epoch) for epoch in range(6)] == [2, 2, 4, 4, 5, 5]
    assert [sampler.steps(epoch) for epoch in range(6)] == [6, 6, 3, 3, 3, 3]
    assert [[len(batch) for batch in epoch_of(sampler, epoch)] for epoch in (1, 2, 4)] == [
        [2] * 5 + [1],
        [4, 4, 3],
        [5, 5, 1],
    ]
    assert epoch_of(sampler, 2, 1) == epoch_of(sampler, 2)[1:]
    assert len(sampler) == 6
    # The order of samples is the same, so the hash has to include the sizes.
    assert sampler.order_hash(3) != d5.ShuffleSampler(numbered(11), 2, seed=3).order_hash(3)
    assert sampler.order_hash(2) != sampler.order_hash(3)
    assert sizes.describe() == {"batches": "growing", "start": 2, "factor": 2.0, "every": 2, "most": 5}


def test_batches_grow_to_all_samples_and_no_further() -> None:
    sampler = d5.OrderedSampler(numbered(11), d5.GrowingBatches(start=4, factor=10.0))
    assert [sampler.steps(epoch) for epoch in (0, 1, 400, 10**6)] == [3, 1, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 0}, r"GrowingBatches: got start=0; allowed: an integer"),
        ({"start": 2, "every": 0}, r"GrowingBatches: got every=0; allowed"),
        ({"start": 2, "most": 1}, r"GrowingBatches: got most=1; allowed: at least start=2"),
        ({"start": 2, "most": 2.5}, r"GrowingBatches: got most=2.5; allowed: an integer"),
        ({"start": 2, "factor": 0.5}, r"GrowingBatches: got factor=0.5; allowed: a finite number of at least 1"),
        ({"start": 2, "factor": float("nan")}, r"GrowingBatches: got factor=nan; allowed"),
    ],
)
def test_bad_growth(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        d5.GrowingBatches(**options)


def test_bad_functions_of_the_epoch() -> None:
    with pytest.raises(UsageError, match=r"batch size 9; allowed: an integer from 1 to 6 \(all samples\)"):
        d5.OrderedSampler(numbered(6), lambda epoch: 9)
    with pytest.raises(UsageError, match=r"batch size 1\.5 of epoch 2; allowed: an integer of at least 1"):
        d5.OrderedSampler(numbered(6), lambda epoch: 1 if epoch < 2 else 1.5).steps(2)  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match=r"batch size 0; allowed: an integer of at least 1"):
        d5.StreamSampler(Counting(3), lambda epoch: 0)


# Buckets


def test_buckets_hold_similar_lengths_in_random_order() -> None:
    lengths = RNG.integers(1, 200, 1000)
    data = ArrayDataset({"input": np.arange(1000), "length": lengths})
    bucket, plain = d5.BucketSampler(data, 32, length="length"), d5.ShuffleSampler(data, 32)

    def filled(sampler: Any) -> float:
        return sum(len(ids) * lengths[ids].max() for ids, _ in sampler.batches(0)) / lengths.sum() - 1

    # 1000 samples are one pool: sorted, a batch spans a thirtieth of the range; shuffled, the longest is twice a mean.
    assert filled(bucket) < 0.05
    assert filled(plain) > 0.7
    means = [lengths[ids].mean() for ids, _ in bucket.batches(0)][:-1]
    ranks = stats.spearmanr(means, np.arange(len(means))).statistic
    # Of 31 batches in random order, the rank correlation has a standard deviation of 1 / sqrt(30) = 0.18; five of them.
    assert abs(ranks) < 0.9
    smaller = {int(lengths[list(bucket.batches(epoch))[-1][0]].max()) for epoch in range(8)}
    assert len(smaller) > 2  # not always the longest or the shortest
    wide = d5.BucketSampler(data, 32, length="length", pool=1)
    assert filled(wide) > 0.7  # a pool of one batch is a plain shuffle


def test_lengths_come_from_arrays_functions_parts_and_the_data_set() -> None:
    data = numbered(30)
    known = data.labels("length")
    ways = (known, "length", lambda inputs: inputs["length"] * 2)
    orders = [d5.BucketSampler(data, 4, length=way).order(0).tolist() for way in ways]
    assert orders[0] == orders[1] == orders[2]
    sequences = SequenceDataset({"input": [np.arange(length) for length in known]})  # type: ignore[union-attr]
    assert d5.BucketSampler(sequences, 4).order(0).tolist() == orders[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"the lengths of a ArrayDataset's samples are not known; allowed: length= .*: input, length"),
        (
            {"length": "lenght"},
            r"length: the samples have no part 'lenght'; allowed: input, length; did you mean 'length'",
        ),
        (
            {"length": np.ones(3)},
            r"length: got .* of the shape \(3,\); allowed: one finite number of at least 0 for each of the 6",
        ),
        ({"length": np.full(6, np.nan)}, r"length: got nan among them; allowed: one finite"),
        ({"length": -np.ones(6)}, r"length: got -1.0 among them; allowed"),
        ({"length": lambda inputs: 3}, r"length: got numbers of the shape \(\) for 6 samples; allowed: one for each"),
        ({"length": "length", "pool": 0}, r"pool: got 0; allowed: an integer of at least 1"),
    ],
)
def test_bad_buckets(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        d5.BucketSampler(numbered(6), 2, **options)


# Weights


def test_weighted_draws_follow_the_weights() -> None:
    weights = np.array([0.0, 1.0, 2.0, 5.0, 0.0])
    data = ArrayDataset({"input": np.arange(5), "weight": weights})
    sampler = d5.WeightedSampler(data, 5, weights="weight", draws=20_003)
    order = sampler.order(0)
    assert (len(order), sampler.steps(0), sampler.samples(0)) == (20_003, 4001, 20_003)
    assert len(next(sampler.batches(0, 4000))[0]) == 3
    counts = np.bincount(order, minlength=5)
    assert counts[[0, 4]].tolist() == [0, 0]
    expected = 20_003 * weights[1:4] / 8
    assert stats.chisquare(counts[1:4], expected).pvalue > FALSE_ALARM


def test_without_replacement_the_heavier_come_earlier() -> None:
    weights = [1.0, 2.0, 5.0, 0.0, 0.0]
    sampler = d5.WeightedSampler(numbered(5), 2, weights=weights, replace=False)
    orders = np.array([sampler.order(epoch) for epoch in range(8000)])
    assert (
        stats.chisquare(np.bincount(orders[:, 0], minlength=5)[:3], 8000 * np.array([1, 2, 5]) / 8).pvalue > FALSE_ALARM
    )
    # After the heaviest, the others by their weights.
    second = orders[orders[:, 0] == 2][:, 1]
    assert stats.chisquare(np.bincount(second)[:2], len(second) * np.array([1, 2]) / 3).pvalue > FALSE_ALARM
    # Those of weight 0 come last, in either order.
    assert set(map(tuple, orders[:, 3:])) == {(3, 4), (4, 3)}
    assert stats.binomtest(int((orders[:, 3] == 3).sum()), 8000).pvalue > FALSE_ALARM
    fewer = d5.WeightedSampler(numbered(5), 2, weights=weights, replace=False, draws=3)
    assert (fewer.order(7).tolist(), fewer.steps(0)) == (orders[7, :3].tolist(), 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": np.zeros(6)}, r"weight: got a sum of 0.0 over all samples; allowed: a finite sum above 0"),
        ({"weights": [1, 2]}, r"weight: got .* of the shape \(2,\); allowed: one finite number"),
        ({"weights": [1, 2, 3, 4, 5, np.inf]}, r"weight: got inf among them"),
        ({"weights": "no"}, r"weight: the samples have no part 'no'"),
        ({"weights": None}, r"weight: got None; allowed: one finite number"),
        ({"weights": np.ones(6), "draws": 0}, r"draws: got 0; allowed: an integer of at least 1$"),
        ({"weights": np.ones(6), "draws": 7, "replace": False}, r"draws: got 7; .* at most 6 \(without replacement\)"),
    ],
)
def test_bad_weights(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        d5.WeightedSampler(numbered(6), 2, **options)


# Streams


def test_a_stream_is_read_once_and_skipped_where_it_is_not_shuffled() -> None:
    stream = Counting(10)
    sampler = d5.StreamSampler(stream, 4)
    assert (sampler.steps(0), sampler.order_hash(3)) == (None, None)
    assert epoch_of(sampler, 1) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert stream.read == 10
    assert epoch_of(sampler, 1, 2) == [[8, 9]]
    assert stream.read == 12
    assert epoch_of(sampler, 1, 5) == []


def test_a_buffer_shuffles_within_its_reach() -> None:
    order = order_of(d5.StreamSampler(Counting(900), 7, buffer=50), 0)
    place = np.argsort(order)
    ahead = np.arange(900) - place
    assert ahead.max() <= 50
    # A sample waits 50 draws on average; some wait long.
    assert ahead.max() > 30
    assert ahead.min() < -100
    assert np.abs(ahead).mean() > 25


def test_a_buffer_holds_no_more_than_it_says() -> None:
    stream = Counting(1000)
    batches = d5.StreamSampler(stream, 10, buffer=20).batches(0)
    next(batches)
    assert stream.read == 30


class Uneven(Counting):
    def samples(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        yield {"input": np.zeros(2)}
        yield {"input": np.zeros(3)}


class Missing(Counting):
    def samples(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        yield {"input": np.zeros(2)}
        yield {}


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (Uneven, r"sample 1 of the stream has float64\[3\] as 'input' where sample 0 has float64\[2\]; allowed: one"),
        (Missing, r"sample 1 of the stream has nothing as 'input' where sample 0 has float64\[2\]"),
    ],
)
def test_samples_of_a_batch_that_differ(stream: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(d5.StreamSampler(stream(2), 2).batches(0))


def test_what_is_no_stream() -> None:
    with pytest.raises(
        UsageError, match=r"got a ArrayDataset as a stream; allowed: a d5.StreamDataset; remedy: the sa"
    ):
        d5.StreamSampler(numbered(4), 2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"buffer: got -1; allowed"):
        d5.StreamSampler(Counting(3), 2, buffer=-1)


# Sequences


def test_sequences_are_filled_up_to_the_longest() -> None:
    words = [RNG.integers(1, 99, length).astype(np.int32) for length in (3, 0, 5, 1)]
    tags = [word[:, None] * np.ones((1, 2)) for word in words]
    data = SequenceDataset(
        {"input": words, "tags": tags}, {"label": np.arange(4)}, multiple=4, fill=-1, length="count", mask="there"
    )
    batch = data.batch(np.array([2, 0, -3]))
    assert (batch["input"].shape, batch["tags"].shape, batch["there"].shape) == ((3, 8), (3, 8, 2), (3, 8))
    assert (batch["input"].dtype, batch["tags"].dtype) == (np.int32, np.float64)
    assert (batch["count"].tolist(), batch["label"].tolist()) == ([5, 3, 0], [2, 0, 1])
    for row, number in enumerate((2, 0, 1)):
        length = len(words[number])
        np.testing.assert_array_equal(batch["input"][row], np.r_[words[number], [-1] * (8 - length)])
        np.testing.assert_array_equal(batch["tags"][row, :length], tags[number])
        assert (batch["tags"][row, length:] == -1).all()
        np.testing.assert_array_equal(batch["there"][row], np.arange(8) < length)
    assert {name: str(spec) for name, spec in data.specs.items()} == {
        "input": "int32[length]",
        "tags": "float64[length, 2]",
        "label": "int64[]",
        "count": "int64[]",
        "there": "bool[length]",
    }
    assert data.batch(np.array([1]))["input"].shape == (1, 0)
    assert len(data.content_hash()) == 64
    assert data.content_hash() != SequenceDataset({"input": words}).content_hash()


def test_sequences_are_cast() -> None:
    data = SequenceDataset({"input": [np.zeros((2, 3), np.float32), np.ones((1, 3), np.float32)]})
    want = {
        "input": TensorSpec(shape=("N", "T", 3), dtype="float64"),
        "length": TensorSpec(shape=("N",), dtype="int64"),
    }
    cast = data.cast(want)
    assert cast.batch(np.array([0, 1]))["input"].dtype == np.float64
    assert data.batch(np.array([0, 1]))["input"].dtype == np.float32
    with pytest.raises(UsageError, match=r"samples 'input' are float32\[length, 3\] but the network takes"):
        data.cast({**want, "input": TensorSpec(shape=("N", "T", 4))})


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: SequenceDataset({}), r"sequences of nothing; allowed: at least one"),
        (lambda: SequenceDataset({"a": [np.ones(2)]}, {"b": np.ones(2)}), r"sequences of a: 1 samples, b: 2 samples"),
        (
            lambda: SequenceDataset({"a": [np.ones(2)], "b": [np.ones(3)]}),
            r"sample 0 has 2 elements of 'a' and 3 of 'b'",
        ),
        (
            lambda: SequenceDataset({"a": [np.ones(2), np.ones((2, 2))]}),
            r"sample 1 of 'a' has elements float64\[2\] where",
        ),
        (
            lambda: SequenceDataset({"a": [np.array(1)]}),
            r"sample 0 of 'a' is array\(1\); allowed: an array with a length",
        ),
        (
            lambda: SequenceDataset({"a": [np.ones(2, np.uint8)]}, fill=-1),
            r"fill: got -1; allowed: a value of .* uint8",
        ),
        (
            lambda: SequenceDataset({"a": [np.ones(2, int)]}, fill=np.nan),
            r"fill: got nan; allowed: a value of .* int64",
        ),
        (
            lambda: SequenceDataset({"length": [np.ones(2)]}),
            r"a data set with the parts length, length; allowed: each name",
        ),
        (lambda: SequenceDataset({"a": [np.ones(2)]}, multiple=0), r"multiple: got 0; allowed: an integer"),
        (
            lambda: SequenceDataset({"a": [np.ones(2)]}).batch(np.array([1])),
            r"batch: got the index 1 of a sample; allowed",
        ),
    ],
)
def test_bad_sequences(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made()


# Small batches, gathered together


def typed(count: int) -> dict[str, np.ndarray]:
    """Samples of 1 to 75 bytes, of element types with one to sixteen bytes, and empty ones."""
    values = np.arange(count)
    return {
        "input": RNG.standard_normal((count, 3, 5)).astype(np.float32),
        "label": values,
        "small": (values % 251).astype(np.uint8),
        "flag": values % 3 == 0,
        "word": values.astype("U3"),
        "pair": values + 1j,
        "short": values.astype("float16").reshape(count, 1),
        "bfloat": values.astype(numpy_dtype("bfloat16")),
        "nothing": np.zeros((count, 0)),
    }


@pytest.mark.parametrize("count", [1, 5, 64, 701])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("start", [0, 1, 9])
def test_batches_gathered_together_are_those_gathered_alone(count: int, size: int, start: int) -> None:
    arrays = typed(count)
    size, start = min(size, count), min(start, count // size)
    sampler = d5.ShuffleSampler(ArrayDataset(arrays), size, seed=3)
    order = sampler.order(2)[start * size :]
    found = list(sampler.batches(2, start))
    assert [len(ids) for ids, _ in found] == [len(order[at : at + size]) for at in range(0, len(order), size)]
    np.testing.assert_array_equal(np.concatenate([order[:0], *(ids for ids, _ in found)]), order)
    for ids, batch in found:
        assert list(batch) == list(arrays)
        for name, array in arrays.items():
            assert batch[name].dtype == array.dtype
            np.testing.assert_array_equal(batch[name], array[ids])
            assert batch[name].flags.c_contiguous
            assert batch[name].flags.writeable
            # Aligned like any NumPy array: a kernel has to round equally wherever a batch is in its bunch.
            assert not batch[name].size or batch[name].ctypes.data % 16 == 0


def test_a_batch_that_is_written_to_changes_no_other() -> None:
    arrays = typed(9)
    batches = [batch for _, batch in d5.OrderedSampler(ArrayDataset(arrays), 2).batches(0)]
    for name in ("input", "label", "small"):
        batches[1][name][...] = 0
        for number in (0, 2, 3, 4):
            np.testing.assert_array_equal(batches[number][name], arrays[name][2 * number : 2 * number + 2])
        assert arrays[name][2:4].any()


def test_what_is_no_number_is_gathered_too() -> None:
    told = np.array([["a", None], [3, {}], ["b", ()]], object)
    batches = ArrayDataset({"input": np.arange(3)}).in_batches(np.array([2, 0, 1]), 1)
    assert [batch["input"].tolist() for _, batch in batches] == [[2], [0], [1]]
    found = [batch["told"].tolist() for _, batch in gathered({"told": told}, np.array([2, 0]), 1)]
    assert found == [[["b", ()]], [["a", None]]]


def test_a_data_set_that_gathers_in_its_own_way_is_asked_for_every_batch() -> None:
    class Own(ArrayDataset):
        def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
            return {"input": 10 * np.asarray(ids)}

    sampler = d5.OrderedSampler(Own({"input": np.arange(5)}), 2)
    assert [batch["input"].tolist() for _, batch in sampler.batches(0)] == [[0, 10], [20, 30], [40]]


@pytest.mark.parametrize("size", [1, 4000])
def test_an_order_of_samples_that_there_are_not(size: int) -> None:
    class Wrong(d5.OrderedSampler):
        def order(self, epoch: int) -> np.ndarray:
            return np.append(np.arange(4000), 5000 + epoch)

    with pytest.raises(UsageError, match="got the index 5003 of a sample; allowed: 0 to 3999"):
        list(Wrong(ArrayDataset({"input": np.arange(4000)}), size).batches(3))


def test_an_order_that_is_a_list() -> None:
    class Listed(d5.OrderedSampler):
        def order(self, epoch: int) -> Any:
            return [3, 1, 0, 2]

    found = list(Listed(numbered(4), 3).batches(0))
    assert [ids.tolist() for ids, _ in found] == [[3, 1, 0], [2]]
    assert [batch["input"].tolist() for _, batch in found] == [[3, 1, 0], [2]]


# Transforms and the rest


def test_a_sampler_hands_its_transforms_identities_and_epoch() -> None:
    seen = []

    def note(inputs: dict[str, Any], ids: Any, epoch: int) -> dict[str, Any]:
        seen.append((ids.tolist(), epoch))
        return {**inputs, "input": inputs["input"] * 10}

    batches = list(d5.OrderedSampler(numbered(5), 3, transforms=[note]).batches(4))
    assert seen == [([0, 1, 2], 4), ([3, 4], 4)]
    assert [inputs["input"].tolist() for _, inputs in batches] == [[0, 10, 20], [30, 40]]
    stream = list(d5.StreamSampler(Counting(5), 3, transforms=[note]).batches(1))
    assert seen[2:] == [([0, 1, 2], 1), ([3, 4], 1)]
    assert stream[0][1]["input"].tolist() == [10000, 10010, 10020]


@pytest.mark.parametrize("wrong", [d5.Flip(), [d5.Flip], "flip", [3]])
def test_what_is_no_list_of_transforms(wrong: Any) -> None:
    with pytest.raises(
        UsageError, match=r"got .* as (transforms|a transform); allowed: a list of transforms, or of func"
    ):
        d5.OrderedSampler(numbered(5), 3, transforms=wrong)


def test_samplers_are_batch_sources() -> None:
    for make in ONCE.values():
        assert isinstance(make(6, 2, 0), d5.BatchSource)
    assert not isinstance(numbered(3), d5.BatchSource)


def test_the_size_of_a_batch() -> None:
    assert batch_size_of({"input": np.zeros((4, 2)), "label": np.zeros(4)}) == 4
    for wrong in ({}, {"input": np.array(3.0)}, {"input": 3}):
        with pytest.raises(
            UsageError, match=r"a batch of .*; allowed: named arrays whose first dimension is the number"
        ):
            batch_size_of(wrong)


@pytest.mark.parametrize("name", ["bucket", "weighted"])
def test_trained_by_name(name: str) -> None:
    """Every sample, including the last partial batch, reaches the optimizer."""
    from deep5.core.plugins import load
    from deep5.training.datasets.class_templates import synthetic

    data = synthetic(shape=(4,), classes=3, train=11, test=6)
    options = {"bucket": {"length": "label"}, "weighted": {"weights": np.ones(11), "replace": False}}[name]
    executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    seen: list[tuple[int, Any]] = []

    class Look(d5.Event):
        def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
            seen.append((info.batch_size, info.sample_ids))

    sampler = load("samplers", name)(data.train, 4, **options)
    d5.Trainer(executor, d5.SGD(), sampler).train(1, [Look()])
    assert [size for size, _ in seen] == [4, 4, 3]
    assert sorted(np.concatenate([ids for _, ids in seen])) == list(range(11))


@pytest.mark.parametrize("size", [1, 64, 128])
@pytest.mark.parametrize(("shape", "count", "dtype"), [((1, 16, 16), 1536, "float32"), ((3, 32, 32), 12_800, "uint8")])
def test_each_array_of_an_epoch_is_gathered_once(shape: tuple[int, ...], count: int, dtype: str, size: int) -> None:
    """As many bytes are delivered as the arrays have, and all of them are new."""
    arrays = {"input": RNG.integers(0, 255, (count, *shape)).astype(dtype), "label": RNG.integers(0, 10, count)}
    sampler = d5.ShuffleSampler(ArrayDataset(arrays), size)
    order, handed = sampler.order(0), 0
    for begin, (ids, batch) in zip(range(0, count, size), sampler.batches(0), strict=True):
        assert np.array_equal(ids, order[begin : begin + size])
        assert not np.shares_memory(batch["input"], arrays["input"])
        handed += batch["input"].nbytes
    assert handed == arrays["input"].nbytes
