"""Sharded sampling: together, the ranks have exactly the batches of one rank; and violations are found."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deep5 as d5
from deep5.core.errors import Deep5Error, UsageError
from deep5.core.tensors import TensorSpec, to_numpy
from deep5.distributed import sharding
from deep5.distributed.check_sharding import check_sharding
from deep5.distributed.sharding import ShardedSampler, part_of
from deep5.training.batch_source import BatchSource
from deep5.training.dataset import ArrayDataset, StreamDataset
from deep5.training.sequences import SequenceDataset

RNG = np.random.default_rng(17)


def numbered(count: int) -> ArrayDataset:
    return ArrayDataset({"input": np.arange(count), "length": (np.arange(count) * 7919) % 13 + 1})


class Watched(ArrayDataset):
    """Images; records which were read."""

    def __init__(self, count: int) -> None:
        super().__init__({"input": RNG.integers(0, 256, (count, 3, 8, 8)).astype(np.uint8), "label": np.arange(count)})
        self.read: list[int] = []

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        self.read += ids.tolist()
        return super().batch(ids)


class Counting(StreamDataset):
    """A stream whose samples are numbers."""

    specs: dict[str, TensorSpec] = {"input": TensorSpec(shape=(), dtype="int64")}  # noqa: RUF012

    def __init__(self, count: int) -> None:
        self.count = count

    def samples(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        for number in range(start, self.count):
            yield {"input": np.array(1000 * epoch + number)}

    def cast(self, specs: Mapping[str, TensorSpec]) -> Counting:
        return self


class Uneven(d5.ShuffleSampler):
    """Overrides `ids`: batches of 1, 2, 3, … samples."""

    def ids(self, epoch: int, start: int = 0) -> Iterator[np.ndarray]:
        return iter(np.split(self.order(epoch), np.cumsum(range(1, self.steps(epoch))))[start:])

    def steps(self, epoch: int) -> int:
        return next(count for count in range(1, 1000) if count * (count + 1) // 2 >= len(self.dataset))


class Backwards(d5.ShuffleSampler):
    """Overrides `batches`: the batches come in reverse order."""

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        return iter(list(super().batches(epoch))[::-1][start:])


class Labelled(d5.ShuffleSampler):
    """Overrides `make`: adds a part to the batch."""

    def make(self, ids: np.ndarray, epoch: int) -> Any:
        ids, inputs = super().make(ids, epoch)
        return ids, {**inputs, "epoch": np.full(len(ids), epoch)}


KINDS: dict[str, Callable[..., Any]] = {
    "ordered": lambda count, size, seed: d5.OrderedSampler(numbered(count), size, seed=seed),
    "shuffle": lambda count, size, seed: d5.ShuffleSampler(numbered(count), size, seed=seed),
    "bucket": lambda count, size, seed: d5.BucketSampler(numbered(count), size, seed=seed, length="length", pool=3),
    "weighted": lambda count, size, seed: d5.WeightedSampler(
        numbered(count), size, seed=seed, weights=np.arange(count) % 4 + (count == 1)
    ),
    "drawn": lambda count, size, seed: d5.WeightedSampler(
        numbered(count), size, seed=seed, weights=np.ones(count), draws=count + 3
    ),
    "growing": lambda count, size, seed: d5.ShuffleSampler(
        numbered(count), d5.GrowingBatches(start=size, factor=1.7), seed=seed
    ),
    "uneven": lambda count, size, seed: Uneven(numbered(count), size, seed=seed),
    "backwards": lambda count, size, seed: Backwards(numbered(count), size, seed=seed),
    "own make": lambda count, size, seed: Labelled(numbered(count), size, seed=seed),
    "stream": lambda count, size, seed: d5.StreamSampler(Counting(count), size, seed=seed),
    "buffered stream": lambda count, size, seed: d5.StreamSampler(Counting(count), size, seed=seed, buffer=5),
}
EVEN = ["ordered", "shuffle", "bucket", "weighted", "drawn", "growing", "own make"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield

    def left() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("deep5-prefetch")]

    if left():
        gc.collect()  # takes long, and only matters for an abandoned iterator
    assert left() == []


@given(samples=st.integers(0, 10**6), size=st.integers(1, 64))
def test_parts_are_contiguous_and_differ_by_at_most_one(samples: int, size: int) -> None:
    parts = [part_of(samples, rank, size) for rank in range(size)]
    assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])]
    assert parts[-1][1] == samples
    lengths = [end - begin for begin, end in parts]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 50), data=st.data(), epoch=st.integers(0, 4), seed=st.integers(0, 3), borrow=st.booleans())
def test_all_ranks_together_have_the_batches_of_one(
    kind: str, count: int, data: Any, epoch: int, seed: int, borrow: bool
) -> None:
    batch_size = data.draw(st.integers(1, count))
    size = data.draw(st.integers(1, batch_size))
    make = partial(KINDS[kind], count, batch_size, seed)
    whole = [ids.tolist() for ids, _ in make().batches(epoch)]
    start = data.draw(st.integers(0, len(whole)))
    ranks = [ShardedSampler(make(), rank, size, borrow=borrow) for rank in range(size)]
    parts = [[(ids.tolist(), inputs["input"].tolist()) for ids, inputs in own.batches(epoch, start)] for own in ranks]
    for number, ids in enumerate(whole[start:], start):
        together = []
        for rank, own in enumerate(ranks):
            mine = len(range(rank, len(ids), size))  # dealt out like cards: the same number, but other samples
            if mine == 0 and not borrow:
                continue
            got, inputs = parts[rank].pop(0)
            assert len(got) == mine
            expected = got or ids[:1]
            assert [value - 1000 * epoch if "stream" in kind else value for value in inputs] == expected
            assert own.global_batch_size(epoch, number) == len(ids)
            together += got
        assert together == ids
    assert parts == [[]] * size
    for own in ranks:
        assert own.order_hash(2) == make().order_hash(2)
        assert own.global_batch_size(epoch, len(whole)) is None
        if kind in EVEN or (start == 0 and whole):
            assert own.tail(epoch) == [
                end - begin for begin, end in (part_of(len(whole[-1]), r, size) for r in range(size))
            ]
    if kind in EVEN:
        lengths = [[len(range(rank, len(ids), size)) for ids in whole] for rank in range(size)]
        assert [own.samples(epoch) for own in ranks] == [sum(each) for each in lengths]
        assert [own.steps(epoch) for own in ranks] == [
            len(each) if borrow else sum(length > 0 for length in each) for each in lengths
        ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "batch_size", "size"), [(23, 7, 3), (21, 4, 4), (12, 4, 2), (5, 5, 5), (9, 8, 1)])
def test_the_check_passes(kind: str, count: int, batch_size: int, size: int) -> None:
    make = partial(KINDS[kind], count, batch_size, 1)
    check_sharding(make, size)
    check_sharding(make, size, sharded=partial(ShardedSampler, borrow=False), borrow=False)


TRANSFORMS = [d5.RandomCrop(8, padding=2), d5.Flip(), d5.Cutout(3)]


def images(kind: type[Any], data: ArrayDataset, **options: Any) -> Any:
    return kind(data, 8, seed=5, transforms=TRANSFORMS, **options)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_transforms_draw_what_one_rank_draws(size: int) -> None:
    data = Watched(29)
    for kind in (d5.ShuffleSampler, partial(d5.WeightedSampler, weights=np.ones(29))):
        check_sharding(lambda kind=kind: images(kind, data), size, epochs=3)  # type: ignore[misc]
    (_, one), (_, other) = (next(iter(images(d5.OrderedSampler, data).batches(epoch))) for epoch in (0, 1))
    assert not np.array_equal(one["input"], other["input"])  # the transforms do draw


@pytest.mark.parametrize("transforms", [[], TRANSFORMS])
def test_other_ranks_samples_are_not_read(transforms: list[Any]) -> None:
    data = Watched(21)
    sampler = d5.ShuffleSampler(data, 4, transforms=transforms)
    order, read = sampler.order(0), []
    for rank in range(4):
        data.read.clear()
        batches = list(ShardedSampler(sampler, rank, 4).batches(0))
        assert len(batches) == 6
        assert [len(ids) for ids, _ in batches] == [1] * 5 + [int(rank == 0)]
        assert [inputs["label"].tolist() for _, inputs in batches[5:]] == [[order[20]]]
        assert len(data.read) == 6
        read += data.read[: 5 + (rank == 0)]
    assert sorted(read) == list(range(21))


def test_in_an_evaluation_nothing_is_borrowed() -> None:
    data = Watched(21)
    ranks = [ShardedSampler(d5.OrderedSampler(data, 4), rank, 4, borrow=False) for rank in range(4)]
    assert [[ids.tolist() for ids, _ in own.batches(0)][5:] for own in ranks] == [[[20]], [], [], []]
    assert sorted(data.read) == list(range(21))
    # More ranks than samples: some have nothing to do, and the others have each sample once.
    few = [ShardedSampler(d5.OrderedSampler(numbered(3), 2), rank, 4, borrow=False) for rank in range(4)]
    assert [[ids.tolist() for ids, _ in own.batches(0)] for own in few] == [[[0], [2]], [[1]], [], []]
    assert [own.steps(0) for own in few] == [2, 1, 0, 0]


def test_sequences_are_filled_up_to_the_longest_of_the_part() -> None:
    data = SequenceDataset({"input": [np.arange(1 + number % 6) for number in range(14)]}, mask="mask")
    check_sharding(lambda: d5.ShuffleSampler(data, 6, seed=2), 3)
    parts = [next(iter(ShardedSampler(d5.OrderedSampler(data, 6), rank, 3).batches(0)))[1] for rank in range(3)]
    assert [part["input"].shape for part in parts] == [(2, 2), (2, 4), (2, 6)]


# After Prefetched


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["shuffle", "growing", "uneven", "own make"])
def test_batches_of_a_part_are_made_ahead_by_several_threads(kind: str, workers: int) -> None:
    def ahead(sampler: BatchSource, rank: int, size: int) -> d5.Prefetched:
        return d5.Prefetched(ShardedSampler(sampler, rank, size), depth=4, workers=workers)

    for size in (1, 3, 4):
        check_sharding(partial(KINDS[kind], 34, 4, 0), size, sharded=ahead)
    made = ahead(KINDS[kind](34, 4, 0), 0, 2)
    assert (made.batch_size, len(made.dataset), made.rank) == (KINDS[kind](34, 4, 0).batch_size, 34, 0)


def test_what_comes_one_after_the_other_is_made_ahead_by_one_thread() -> None:
    for kind in ("stream", "buffered stream", "backwards"):
        make = partial(KINDS[kind], 34, 4, 0)
        for size in (1, 3, 4):
            check_sharding(make, size, sharded=lambda *given: d5.Prefetched(ShardedSampler(*given), depth=5))
        with pytest.raises(UsageError, match=r"got workers=2 for a ShardedSampler, which gives its batches in"):
            d5.Prefetched(ShardedSampler(make(), 0, 2), depth=2, workers=2)
        with pytest.raises(UsageError, match=r"makers: a \w+ gives one batch after the other; allowed: a d5.Sampler"):
            ShardedSampler(make(), 0, 2).makers(0)


def test_sizes_of_a_stream_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "_KEPT", 8)
    own = ShardedSampler(KINDS["stream"](101, 2, 0), 1, 2)
    assert own.tail(0) is None
    assert own.global_batch_size(0, 0) is None
    for epoch in range(2):
        assert len(list(own.batches(epoch))) == 51
        assert [own.global_batch_size(epoch, batch) for batch in (42, 43, 49, 50, 51)] == [None, 2, 2, 1, None]
        assert own.tail(epoch) == [1, 0]
    assert len(own._sizes._values) == 8


# Loaders of frameworks


def test_a_dataloader_is_sliced() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    tensors = torch.utils.data.TensorDataset(torch.arange(11 * 3).reshape(11, 3), torch.arange(11))

    def make() -> BatchSource:
        return d5.from_dataloader(torch.utils.data.DataLoader(tensors, batch_size=4, shuffle=True), seed=3)

    check_sharding(make, 3)
    check_sharding(make, 4)
    own = ShardedSampler(make(), 3, 4)
    assert (own.steps(0), len(own), own.samples(0), own.order_hash(1)) == (3, 3, None, None)
    batches = list(own.batches(0))
    assert isinstance(batches[0][1]["input"], torch.Tensor)
    # It is unknown of which samples the batches are, but known that the last one has none.
    assert [None if ids is None else len(ids) for ids, _ in batches] == [None, None, 0]
    assert own.tail(0) == [1, 1, 1, 0]
    with pytest.raises(UsageError, match=r"Prefetched: got batches of a DataLoader"):
        d5.Prefetched(own)
    with pytest.raises(UsageError, match=r"global batch size of 4 \(epoch 0\) for 5 ranks"):
        ShardedSampler(make(), 0, 5)


def test_tf_data_is_sliced() -> None:
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    values = np.arange(11)

    def make() -> BatchSource:
        return d5.from_tf_data(lambda epoch: tf.data.Dataset.from_tensor_slices((values, values + epoch)).batch(4))

    check_sharding(make, 3)
    check_sharding(lambda: d5.Prefetched(make()), 4)
    (_, inputs), *_ = ShardedSampler(make(), 2, 3).batches(1)
    assert to_numpy(inputs["label"]).tolist() == [4]


def test_an_array_without_a_row_for_each_sample_is_refused() -> None:
    class Scaled(Backwards):
        def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
            return ((ids, {**inputs, "scale": np.ones(2)}) for ids, inputs in super().batches(epoch, start))

    with pytest.raises(UsageError, match=r"a batch of 4 samples has 'scale' of shape \(2,\); allowed: arrays whose"):
        list(ShardedSampler(Scaled(numbered(8), 4), 0, 2).batches(0))


# Faults that are caught


class Wrong(ShardedSampler):
    """One fault on each rank."""

    def __init__(self, wrong: str, sampler: BatchSource, rank: int, size: int) -> None:
        super().__init__(sampler, 0 if wrong == "same samples" else rank, size)
        self.wrong, self.own_rank = wrong, rank

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        if self.wrong == "forgets the start":
            start = 0
        given = list(super().batches(epoch, start))
        if self.wrong == "drops the tail":
            given = [batch for batch in given if len(batch[0]) == len(given[0][0])]
        elif self.wrong == "lends for good":
            given = [(ids if len(ids) else inputs["label"], inputs) for ids, inputs in given]
        elif self.wrong == "one more":
            given += given[:1]
        elif self.wrong == "draws by place":
            draw = np.random.default_rng(self.own_rank)
            given = [
                (ids, {**inputs, "input": inputs["input"] ^ draw.integers(1, 99, dtype=np.uint8)})
                for ids, inputs in given
            ]
        elif self.wrong == "another order" and epoch:
            given = list(super().batches(0, start))
        return iter(given)

    def global_batch_size(self, epoch: int, batch: int) -> int | None:
        return 4 if self.wrong == "constant size" else super().global_batch_size(epoch, batch)

    def order_hash(self, epochs: int) -> str | None:
        return f"{self.rank}" if self.wrong == "own hash" else super().order_hash(epochs)

    def samples(self, epoch: int) -> int | None:
        return 3 if self.wrong == "miscounts" else super().samples(epoch)

    def steps(self, epoch: int) -> int | None:
        return 3 if self.wrong == "other steps" else super().steps(epoch)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("drops the tail", r"epoch 0, batch 5: rank 1 of 4 has no more batches; allowed: its part of every"),
        ("same samples", r"epoch 0, batch 0: rank 1 of 4 has samples \[\d+\]; allowed: \[\d+\], its part"),
        ("forgets the start", r"epoch 0, batch 3, started at 3: rank 0 of 4 has samples"),
        ("lends for good", r"epoch 0, batch 5: rank 1 of 4 has samples \[\d+\]; allowed: an empty list"),
        ("one more", r"epoch 0: rank 0 has batches after the last one; allowed: 6"),
        ("draws by place", r"rank \d of 4 has 'input' of uint8.*the bits of rows . to . of the batch"),
        ("another order", r"epoch 1, batch 0: rank 0 of 4 has samples"),
        ("constant size", r"epoch 0, batch 5: rank 0 of 4 reports 4 samples on all ranks; allowed: 1"),
        ("own hash", r"order_hash\(2\) is \['0', '1', '2', '3'\] on the ranks; allowed: "),
        ("miscounts", r"epoch 0: rank 0 reports 3 samples; allowed: 6"),
        ("other steps", r"epoch 0: rank 0 reports 3 batches; allowed: 6"),
    ],
)
def test_a_wrong_sampler_is_caught(wrong: str, message: str) -> None:
    data = Watched(21)
    with pytest.raises(Deep5Error, match=message):
        check_sharding(lambda: d5.ShuffleSampler(data, 4), 4, sharded=partial(Wrong, wrong))


def test_a_transform_that_looks_at_the_whole_batch_is_caught() -> None:
    def mix(inputs: Any, ids: np.ndarray, epoch: int) -> Any:
        return {**inputs, "input": inputs["input"] + inputs["input"][::-1]}

    with pytest.raises(Deep5Error, match=r"remedy: transforms that draw by \(seed, epoch, sample\) and look at one"):
        check_sharding(lambda: d5.ShuffleSampler(numbered(20), 4, transforms=[mix]), 2)


# Refused arguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ShardedSampler(numbered(4), 0, 2),
            r"ShardedSampler: got .*; allowed: a d5.Sampler, or another source",
        ),  # type: ignore[arg-type]
        (lambda: ShardedSampler(d5.ShuffleSampler, 0, 2), r"ShardedSampler: got <class"),  # type: ignore[arg-type]
        (lambda: sharded(rank=2), r"ShardedSampler: got rank 2; allowed: from 0 to 1"),
        (lambda: sharded(rank=-1), r"ShardedSampler: got rank -1; allowed: from 0 to 1"),
        (lambda: sharded(rank=True), r"ShardedSampler: got rank True; allowed: from 0"),
        (lambda: sharded(size=0), r"ShardedSampler: got 0 ranks; allowed: an integer of at least 1"),
        (lambda: sharded(size=2.0), r"ShardedSampler: got 2.0 ranks; allowed: an integer of at least 1"),
        (
            lambda: sharded(size=5),
            r"global batch size of 4 \(epoch 0\) for 5 ranks; allowed: at least one sample for each rank; remedy: a "
            r"batch_size of at least 5, or at most 4 ranks",
        ),
        (lambda: ShardedSampler(d5.ShuffleSampler(numbered(20), 1), 0, 5), r"least 5, or at most 1 rank$"),
        (
            lambda: ShardedSampler(sharded(), 0, 2),
            r"got a ShardedSampler that is already sharded; allowed: the sampler of all",
        ),
        (lambda: ShardedSampler(d5.Prefetched(sharded()), 0, 2), r"got a Prefetched that is already sharded"),
        (lambda: sharded().batches(0, 6), r"start at batch 6; allowed: an integer from 0 to 5"),
        (lambda: sharded().batches(0, -1), r"start at batch -1; allowed: an integer from 0 to 5"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def sharded(rank: Any = 0, size: Any = 2) -> ShardedSampler:
    return ShardedSampler(d5.ShuffleSampler(numbered(20), 4), rank, size)


def test_an_epoch_whose_batches_are_too_small_is_refused() -> None:
    own = ShardedSampler(d5.ShuffleSampler(numbered(20), lambda epoch: 4 - epoch), 0, 3)
    assert len(list(own.batches(1))) == 7
    for call in (own.batches, own.makers):
        with pytest.raises(UsageError, match=r"global batch size of 2 \(epoch 2\) for 3 ranks"):
            call(2)


def test_what_a_record_holds() -> None:
    own = ShardedSampler(d5.ShuffleSampler(numbered(21), 10), 1, 4)
    assert own.describe() == {"ranks": 4, "batch": [3, 3, 2, 2], "tail": [1, 0, 0, 0], "reads": "own"}
    assert (own.samples(0), own.steps(0), len(own), own.global_batch_size(0, 2)) == (6, 3, 3, 1)
    assert own.global_batch_size(0, -1) is None
    stream = ShardedSampler(KINDS["stream"](5, 4, 0), 0, 2)
    assert stream.describe() == {"ranks": 2, "batch": [2, 2], "tail": None, "reads": "all"}
    assert stream.steps(0) is None
    with pytest.raises(TypeError, match=r"the batches of a sharded StreamSampler are known only after its epoch"):
        len(stream)


# Cost


@pytest.mark.parametrize("transforms", [0, 1])
def test_sharding_gathers_each_batch_once(transforms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank gathers its own samples, once per batch, and transforms no others."""
    gathered: list[int] = []
    transformed: list[int] = []

    def same(inputs: Any, ids: np.ndarray, epoch: int) -> Any:
        transformed.append(len(ids))
        return inputs

    take = ArrayDataset.batch

    def counted(self: ArrayDataset, ids: Any) -> Any:
        gathered.append(len(ids))
        return take(self, ids)

    data = ArrayDataset({"input": np.zeros((4000, 4), np.float32), "label": np.zeros(4000, np.int64)})
    shared = ShardedSampler(d5.OrderedSampler(data, 8, transforms=[same] * transforms), 1, 4)
    monkeypatch.setattr(ArrayDataset, "batch", counted)
    sizes = [len(ids) for ids, _ in shared.batches(0)]
    assert sizes == [2] * 500
    assert gathered in ([], sizes)  # gathered in blocks of batches, or batch by batch
    assert transformed == sizes * transforms
