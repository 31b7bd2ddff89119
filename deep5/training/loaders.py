"""Adapters from a framework's loader to a batch source: `from_dataloader` (PyTorch) and `from_tf_data` (TensorFlow).

The loader's batches are passed on unchanged: tensors of the framework, which its executor accepts directly.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from deep5.core.errors import UsageError, brief
from deep5.core.seeds import derive_seed
from deep5.training.batch_source import Batch, BatchSource, first_batch

__all__ = ["LoaderSource", "from_dataloader", "from_tf_data"]


class LoaderSource(ABC):
    """Batches of a third-party loader, which does not report their samples, so ids are None.

    Args:
        names: The names of a batch's parts, in the loader's order; None: the batches are dicts and keep their names.

    Attributes:
        no_prefetch: Why a thread cannot make its batches, for the error message; empty: it can.
    """

    no_prefetch = ""

    def __init__(self, names: Sequence[str] | None) -> None:
        texts = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
        if names is not None and (not texts or not names or len(set(names)) < len(names)):
            raise UsageError(
                f"names: got {brief(names)}; allowed: different names in a tuple, such as ('input', 'label'), or None "
                "for batches that are dicts"
            )
        self.names = None if names is None else tuple(names)

    @abstractmethod
    def steps(self, epoch: int) -> int | None:
        """Batches of the epoch, or None if the loader does not know."""

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The epoch's batches from number `start` on: None and the samples by name."""

    def order_hash(self, epochs: int) -> str | None:
        """None: the loader does not report which samples a batch holds."""
        return None

    def __len__(self) -> int:
        """Batches of the first epoch.

        Raises:
            TypeError: The loader does not know.
        """
        steps = self.steps(0)
        if steps is None:
            raise TypeError(f"the number of batches of a {type(self).__name__} is known when its epoch is over")
        return steps

    def _named(self, batch: Any) -> Mapping[str, Any]:
        """The parts of a batch by name."""
        names = self.names
        if names is not None and isinstance(batch, (list, tuple)) and len(batch) == len(names):
            return dict(zip(names, batch, strict=True))
        if isinstance(batch, Mapping) and all(isinstance(name, str) for name in batch):
            if names is None or names == tuple(batch):
                return dict(batch)
            if set(names) <= set(batch):
                return {name: batch[name] for name in names}
        if names is not None and len(names) == 1 and hasattr(batch, "shape"):
            return {names[0]: batch}
        if isinstance(batch, Mapping):
            got = f"a dict of {', '.join(map(repr, batch))}"
        elif isinstance(batch, (list, tuple)):
            got = f"a {type(batch).__name__} of {len(batch)}"
        else:
            got = f"a {type(batch).__name__}"
        allowed = "a dict of arrays" if names is None else f"{len(names)} arrays, or a dict, for {', '.join(names)}"
        raise UsageError(
            f"the loader gave {got} as a batch; allowed: {allowed}; remedy: the names of its parts, names="
        )


class _DataLoaderSource(LoaderSource):
    """See `from_dataloader`."""

    no_prefetch = (
        "batches of a DataLoader, which swaps PyTorch's global generator for each of them while the training step "
        "may draw from it; allowed: sources that do not use it; remedy: no prefetching here, but the "
        "loader's own, DataLoader(…, num_workers=2, prefetch_factor=2)"
    )

    def __init__(self, loader: Any, names: Sequence[str] | None, seed: int) -> None:
        super().__init__(names)
        import torch
        from torch.utils import data

        if not isinstance(loader, data.DataLoader):
            raise UsageError(f"from_dataloader: got {brief(loader)}; allowed: a torch.utils.data.DataLoader")
        if loader.persistent_workers:
            raise UsageError(
                "from_dataloader: got a DataLoader with persistent_workers=True, whose processes continue drawing from "
                "epoch to epoch, so a resumed run would draw other samples; allowed: workers that start with the "
                "epoch; remedy: persistent_workers=False"
            )
        self.loader, self.dataset, self.batch_size, self.seed = loader, loader.dataset, loader.batch_size, seed
        self._torch, self._sized = torch, not isinstance(loader.dataset, data.IterableDataset)
        self._quiet = _quiet(loader, data)

    def steps(self, epoch: int) -> int | None:
        """The loader's length; None for an `IterableDataset`, whose length is only a guess."""
        try:
            return len(self.loader) if self._sized else None
        except TypeError:
            return None

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """See `LoaderSource.batches`; skipped batches are made and dropped."""
        return self._batches(epoch, first_batch(start, self.steps(epoch)))

    def _batches(self, epoch: int, start: int) -> Iterator[Batch]:
        loader, torch, named = self.loader, self._torch, self._named
        seed = derive_seed(self.seed, "order", epoch)
        generators = {id(found): found for found in map(_generator, (loader, loader.sampler, loader.batch_sampler))}
        for generator in generators.values():
            if generator is not None:
                generator.manual_seed(seed)
        for part in (loader.sampler, loader.batch_sampler, loader.dataset):
            set_epoch = getattr(part, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        # All draws of the loader from PyTorch's global generator come from a stream of this epoch: the rest of the run
        # draws as if there were no loader, and a resumed run like an uninterrupted one. The code is duplicated, because
        # a context manager would take as long as the rest of this adapter.
        read, write = torch.get_rng_state, torch.set_rng_state
        own, before = torch.Generator().manual_seed(seed).get_state(), read()
        write(own)
        try:
            batches = iter(loader)
        finally:
            own = read()
            write(before)
        for number in itertools.count():
            before = read()
            write(own)
            try:
                batch = next(batches, None)
            finally:
                own = read()
                write(before)
            if batch is None:
                return
            if number >= start:
                yield None, named(batch)
            if number == 0 and self._quiet:
                break
        for batch in itertools.islice(batches, max(0, start - 1), None):
            yield None, named(batch)


def _quiet(loader: Any, data: Any) -> bool:
    """Whether it is certain that this process does not draw from PyTorch's global generator after the first batch."""
    drawn_first = (data.SequentialSampler, data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler)
    if type(loader.sampler) not in drawn_first or type(loader.batch_sampler) not in {data.BatchSampler, type(None)}:
        return False
    plain = type(loader.dataset) is data.TensorDataset and loader.collate_fn is data.default_collate
    return bool(plain or loader.num_workers)


def _generator(part: Any) -> Any:
    return getattr(part, "generator", None)


class _TFDataSource(LoaderSource):
    """See `from_tf_data`."""

    def __init__(self, dataset: Any, names: Sequence[str] | None) -> None:
        super().__init__(names)
        self.dataset = dataset
        self._fixed = hasattr(dataset, "cardinality")
        if not self._fixed and not callable(dataset):
            raise _no_data(dataset)
        self._first = self._made(0)

    def _made(self, epoch: int) -> tuple[Any, int | None]:
        """An epoch's data set, and its number of batches or None."""
        if self._fixed and hasattr(self, "_first"):
            return self._first  # computing the cardinality takes as long as a small batch
        made = self.dataset if self._fixed else self.dataset(epoch)
        if not hasattr(made, "cardinality") or not hasattr(made, "skip"):
            raise _no_data(made)
        count = int(made.cardinality())
        if count == -1:
            raise UsageError(
                "from_tf_data: the data set is infinite, and so is its epoch; allowed: a finite one; remedy: "
                "omit repeat(), or add take(steps) after it"
            )
        return made, count if count >= 0 else None

    def steps(self, epoch: int) -> int | None:
        """The data set's cardinality; None if TensorFlow does not know it."""
        return self._made(epoch)[1]

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """See `LoaderSource.batches`; TensorFlow skips the initial batches."""
        made, count = self._made(epoch)
        start = first_batch(start, count)
        named = self._named
        return ((None, named(batch)) for batch in (made.skip(start) if start else made))


def _no_data(got: object) -> UsageError:
    return UsageError(
        f"from_tf_data: got {brief(got)}; allowed: a tf.data.Dataset of batches, or a function of the epoch that gives "
        "one"
    )


def from_dataloader(loader: Any, names: Sequence[str] | None = ("input", "label"), *, seed: int = 0) -> BatchSource:
    """A PyTorch `DataLoader` as a source of batches for a trainer.

    In each epoch, generators of the loader and its samplers are seeded with a function of (seed, epoch), `set_epoch` is
    called if it exists, and draws from PyTorch's global generator come from a stream of the epoch. So the order depends
    only on (seed, epoch), and so do random numbers of worker processes, which PyTorch seeds from there. Draws of a data
    set in this process from `random` or NumPy are not controlled.

    `Prefetched` does not accept it: the generator is process-wide, and steps draw from it, too. The loader itself
    prefetches, with `num_workers` and `prefetch_factor`.

    Args:
        loader: Its batches are tuples, lists or dicts of tensors. `drop_last` is allowed and skips samples.
            `persistent_workers` is rejected: random draws would not depend only on the epoch.
        names: The names of a batch's parts in their order, the network's inputs; for dicts, the parts to use, None for
            all.
        seed: The seed of the random draws above.

    Returns:
        The loader's batches of tensors, without sample ids.

    Raises:
        UsageError: Not a `DataLoader`, one with `persistent_workers`, or batches without these parts.
        ModuleNotFoundError: PyTorch is not installed.

    >>> import torch
    >>> import deep5 as d5
    >>> data = torch.utils.data.TensorDataset(torch.arange(5.0).reshape(5, 1), torch.arange(5))
    >>> source = d5.from_dataloader(torch.utils.data.DataLoader(data, batch_size=2, shuffle=True), seed=0)
    >>> [(ids, batch["input"].shape) for ids, batch in source.batches(epoch=0)]
    [(None, torch.Size([2, 1])), (None, torch.Size([2, 1])), (None, torch.Size([1, 1]))]
    >>> first, again = ([batch["label"].tolist() for _, batch in source.batches(epoch=3)] for _ in range(2))
    >>> first == again  # the order depends only on seed and epoch
    True
    """
    return _DataLoaderSource(loader, names, seed)


def from_tf_data(dataset: Any | Callable[[int], Any], names: Sequence[str] | None = ("input", "label")) -> BatchSource:
    """A `tf.data.Dataset` of batches as a source of batches for a trainer.

    A shuffling data set draws a new order at each iteration, counted from the start of the process: a resumed run would
    begin with the first order again. To avoid this, pass a function of the epoch whose data set shuffles by the epoch:
    `lambda epoch: data.shuffle(1000, seed=epoch).batch(64)`.

    Args:
        dataset: Its elements are batches: tuples or dicts of tensors; or a function of the epoch that returns such a
            data set.
        names: As for `from_dataloader`.

    Returns:
        TensorFlow's batches of tensors, without sample ids.

    Raises:
        UsageError: Not a `tf.data.Dataset`, an infinite one, or batches without these parts.

    >>> import tensorflow as tf
    >>> import deep5 as d5
    >>> data = tf.data.Dataset.from_tensor_slices(([[0.0], [1.0], [2.0]], [0, 1, 0]))
    >>> source = d5.from_tf_data(lambda epoch: data.shuffle(3, seed=epoch).batch(2))
    >>> [(ids, batch["input"].shape.as_list()) for ids, batch in source.batches(epoch=0)], source.steps(0)
    ([(None, [2, 1]), (None, [1, 1])], 2)
    """
    return _TFDataSource(dataset, names)
