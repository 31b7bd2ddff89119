"""`GeneratorDataset`: a stream of samples from a user's function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.tensors import TensorSpec, numpy_dtype
from deep5.training.dataset import StreamDataset, fitted

__all__ = ["GeneratorDataset"]


class GeneratorDataset(StreamDataset):
    """Samples from a function of the epoch, in any number.

    The samples must depend only on the epoch: a resumed run requests them again and skips those already processed.

    Args:
        make: Called with the epoch; returns an iterable of samples: arrays or numbers by name.
        specs: The shape and dtype of each part; a variable dimension has a name: `("T", 3)`.
        content_hash: SHA-256 of the samples' content, if known.

    Raises:
        UsageError: `make` is not a function, or there are no specs.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> def squares(epoch):
    ...     for number in range(epoch + 2):
    ...         yield {"input": np.float32([number, number**2])}
    >>> data = d5.GeneratorDataset(squares, {"input": d5.TensorSpec(shape=(2,))})
    >>> [sample["input"].tolist() for sample in data.samples(epoch=1, start=1)]
    [[1.0, 1.0], [2.0, 4.0]]
    """

    def __init__(
        self,
        make: Callable[[int], Iterable[Mapping[str, object]]],
        specs: Mapping[str, TensorSpec],
        *,
        content_hash: str | None = None,
    ) -> None:
        if not callable(make):
            raise UsageError(
                f"a GeneratorDataset of {brief(make)}; allowed: a function of the epoch that gives samples"
            )
        if not isinstance(specs, Mapping) or not specs or not all(isinstance(s, TensorSpec) for s in specs.values()):
            raise UsageError(f"a GeneratorDataset with specs {brief(specs)}; allowed: a d5.TensorSpec for each part")
        self._make, self.specs, self._content_hash = make, dict(specs), content_hash
        self._dtypes = {name: spec.dtype for name, spec in specs.items()}

    def samples(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """The function's samples for this epoch, from sample `start` on, each checked against the specs.

        Raises:
            UsageError: It returns no samples, not an iterable, or a sample that does not match the specs; the message
                names epoch and sample.
        """
        made = self._make(epoch)
        if not isinstance(made, Iterable):
            raise UsageError(f"epoch {epoch} of the stream is {brief(made)}; allowed: an iterable of samples")
        number = -1
        for number, sample in enumerate(islice(made, start, None), start=start):
            yield self._checked(sample, f"epoch {epoch}, sample {number}")
        if number < 0 and start == 0:
            raise UsageError(f"epoch {epoch} of the stream has no sample; allowed: at least one")

    def content_hash(self) -> str | None:
        """The hash given by the caller."""
        return self._content_hash

    def cast(self, specs: Mapping[str, TensorSpec]) -> GeneratorDataset:
        """The same samples; floating parts are converted after the check."""
        cast = GeneratorDataset(self._make, self.specs, content_hash=self._content_hash)
        cast._dtypes = fitted(self.specs, specs)
        return cast

    def _checked(self, sample: Mapping[str, object], where: str) -> dict[str, np.ndarray]:
        if not isinstance(sample, Mapping) or sample.keys() != self.specs.keys():
            raise UsageError(f"{where} of the stream is {brief(sample)}; allowed: arrays named {sorted(self.specs)}")
        arrays = {}
        for name, spec in self.specs.items():
            array = np.asarray(sample[name])
            if mismatch := spec.mismatch(array.shape, array.dtype.name):
                raise UsageError(f"{where} of the stream, {name!r}: {mismatch}")
            arrays[name] = array.astype(numpy_dtype(self._dtypes[name]))
        return arrays
