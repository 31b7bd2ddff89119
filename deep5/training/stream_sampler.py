"""`StreamSampler`: batches of a stream with an unknown number of samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.seeds import generator
from deep5.training.batch_source import first_batch
from deep5.training.dataset import StreamDataset
from deep5.training.sampler import seeded

__all__ = ["StreamSampler"]

_Numbered = tuple[int, dict[str, np.ndarray]]


class StreamSampler:
    """Batches of a stream, each sample exactly once per epoch; the last batch may be smaller and is never dropped.

    A batch's ids are the positions of its samples in the epoch's stream. To start in the middle of an epoch, an
    unshuffled stream skips the samples before it; a shuffled one is read from the beginning and samples are dropped,
    since the buffer may hold samples from any earlier position.

    Args:
        dataset: The stream.
        batch_size: Samples per batch, or a function of the epoch.
        seed: The order is a function of (seed, epoch) and of the stream.
        transforms: See `Sampler`.
        buffer: Size of the shuffle buffer from which the next sample is drawn; 0: the stream's own order. A sample
            comes at most this many positions early, so that a sorted stream needs a large buffer.

    Raises:
        UsageError: Not a stream, a batch size below 1, or a buffer below 0.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> specs = {"input": d5.TensorSpec(shape=(3,), dtype="float64")}
    >>> stream = d5.GeneratorDataset(lambda epoch: ({"input": np.full(3, float(n))} for n in range(5)), specs)
    >>> [(ids.tolist(), batch["input"].shape) for ids, batch in d5.StreamSampler(stream, 2).batches(epoch=0)]
    [([0, 1], (2, 3)), ([2, 3], (2, 3)), ([4], (1, 3))]
    >>> shuffled = d5.StreamSampler(stream, 2, buffer=4)  # draws the next sample from four that it holds
    >>> [ids.tolist() for ids, batch in shuffled.batches(epoch=0)], shuffled.steps(0)
    ([[0, 1], [2, 4], [3]], None)
    """

    def __init__(
        self,
        dataset: StreamDataset,
        batch_size: int | Callable[[int], int],
        *,
        seed: int = 0,
        transforms: Sequence[Callable[..., Any]] = (),
        buffer: int = 0,
    ) -> None:
        if not isinstance(dataset, StreamDataset):
            raise UsageError(
                f"got a {type(dataset).__name__} as a stream; allowed: a d5.StreamDataset; remedy: the samplers "
                "'shuffle' and 'ordered' for a d5.Dataset"
            )
        if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 0:
            raise UsageError(f"buffer: got {buffer!r}; allowed: an integer of at least 0")
        self.dataset, self.batch_size, self.seed, self.buffer = dataset, batch_size, seed, buffer
        self.transforms = seeded(transforms, seed)
        self.epoch_batch_size(0)

    def epoch_batch_size(self, epoch: int) -> int:
        """Samples per batch in the epoch, except for the last batch.

        Args:
            epoch: Counted from 0.

        Raises:
            UsageError: The batch size is not an integer of at least 1.
        """
        size = self.batch_size(epoch) if callable(self.batch_size) else self.batch_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"batch size {size!r}; allowed: an integer of at least 1")
        return size

    def steps(self, epoch: int) -> int | None:
        """None: the number of batches is unknown.

        Args:
            epoch: Counted from 0.
        """
        return None

    def order_hash(self, epochs: int) -> str | None:
        """None: the order is unknown until the stream ends.

        Args:
            epochs: Number of epochs, from the first.
        """
        return None

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """The epoch's batches from number `start` on; none if the stream ends earlier.

        Args:
            epoch: Counted from 0.
            start: Batches to skip at the beginning of the epoch.

        Returns:
            Pairs of the positions in the stream, int64 of shape (batch,), and the samples by name.

        Raises:
            UsageError: `start` is not an integer of at least 0, or the samples of a batch differ in name, shape or
                dtype.
        """
        return self._batches(epoch, first_batch(start, None), self.epoch_batch_size(epoch))

    def _batches(self, epoch: int, start: int, size: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        samples = self._ordered(epoch, start * size)
        while chunk := list(itertools.islice(samples, size)):
            ids = np.array([number for number, _ in chunk], dtype=np.int64)
            inputs = _stacked(chunk)
            for transform in self.transforms:
                inputs = transform(inputs, ids, epoch)
            yield ids, inputs

    def _ordered(self, epoch: int, skip: int) -> Iterator[_Numbered]:
        """The samples with their positions in the stream, in the epoch's order, without the first `skip`."""
        if self.buffer < 2:
            yield from enumerate(self.dataset.samples(epoch, skip), start=skip)
            return
        draw = generator(self.seed, "buffer", epoch)
        held: list[_Numbered] = []
        for sample in enumerate(self.dataset.samples(epoch)):
            if len(held) < self.buffer:
                held.append(sample)
                continue
            place = int(draw.integers(len(held)))
            chosen, held[place] = held[place], sample
            if skip:
                skip -= 1
            else:
                yield chosen
        for place in draw.permutation(len(held))[skip:]:
            yield held[place]


def _stacked(chunk: list[_Numbered]) -> dict[str, np.ndarray]:
    """The samples of a batch, stacked part by part."""
    first = chunk[0][1]
    batch = {}
    for name in first:
        try:
            parts = [np.asarray(sample[name]) for _, sample in chunk]
            if any(part.dtype != parts[0].dtype for part in parts):
                raise ValueError
            batch[name] = np.stack(parts)
        except (KeyError, ValueError) as error:
            number, odd = next(
                ((number, sample.get(name)) for number, sample in chunk if not _alike(first[name], sample.get(name))),
                (chunk[0][0], first[name]),
            )
            got = "nothing" if odd is None else f"{np.asarray(odd).dtype}{list(np.shape(odd))}"
            raise UsageError(
                f"sample {number} of the stream has {got} as {name!r} where sample {chunk[0][0]} has "
                f"{np.asarray(first[name]).dtype}{list(np.shape(first[name]))}; allowed: one shape and dtype in a batch"
            ) from error
    return batch


def _alike(one: Any, other: Any) -> bool:
    return other is not None and np.shape(one) == np.shape(other) and np.asarray(one).dtype == np.asarray(other).dtype
