"""The two sides of the study: an epoch of every case, in random order, and an epoch of arrays already decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.errors import UsageError, brief
from deep5.core.seeds import generator
from deep5.measuring.page_cache import check_cold, fill_pages, resident_share
from deep5.recipes.loading.files import FORMATS, PACKED, decoded, image_files, opened, paths_of
from deep5.training.datasets.decoders import DECODERS, check_decoder

__all__ = ["AHEAD", "NONE", "ORDERS", "WORKERS", "Case", "Epochs", "cases", "cold_files", "ideal", "warm_files"]

ORDERS = ("shuffled", "sequential")
"""The order in which samples are read."""

WORKERS = (0, 1, 2, 4)
"""Threads that make batches ahead; 0: the requesting thread makes each batch when it is requested."""

NONE = "none"
"""The decoder of packed pixels."""

AHEAD = 2
"""Batches that are made ahead for each worker."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to load the images.

    Attributes:
        form: One of `files.FORMATS`.
        decoder: One of `DECODERS`, or `NONE` for packed pixels.
        workers: Threads that make batches ahead.
    """

    form: str
    decoder: str
    workers: int


def cases(
    formats: Iterable[str] = FORMATS, decoders: Iterable[str] = DECODERS, workers: Iterable[int] = WORKERS
) -> list[Case]:
    """All combinations; packed pixels have one decoder.

    >>> len(cases()), cases(["packed"], workers=[0])
    (40, [Case(form='packed', decoder='none', workers=0)])
    """
    decoders, workers = tuple(decoders), tuple(workers)
    return [
        Case(form=form, decoder=decoder, workers=threads)
        for form in formats
        for decoder in ((NONE,) if form == PACKED else decoders)
        for threads in workers
    ]


def ideal(*, seed: int, images: int, size: int, batch_size: int, order: str) -> Callable[[], None]:
    """An epoch of float32 arrays that are already decoded and in memory.

    Args:
        seed: Of images and order.
        images: Their number.
        size: Height and width.
        batch_size: Images of a batch.
        order: One of `ORDERS`.
    """
    data = decoded(image_files(images, size, 0))

    def work() -> None:
        for _ in _sampler(data, batch_size, order, seed).batches(0):
            pass

    return work


def warm_files(
    *,
    seed: int,
    images: int,
    size: int,
    batch_size: int,
    order: str,
    formats: Sequence[str] = FORMATS,
    decoders: Sequence[str] = DECODERS,
    workers: Sequence[int] = WORKERS,
) -> Epochs:
    """An epoch of each format, decoder and number of workers; the files are in the page cache.

    Args:
        seed: Of the order of cases and samples.
        images: Images of an epoch.
        size: Their height and width.
        batch_size: Images of a batch.
        order: One of `ORDERS`.
        formats: Some of `FORMATS`.
        decoders: Some of `DECODERS`.
        workers: Numbers of threads.

    Raises:
        UsageError: A value is not allowed.
        MissingDependency: A decoding library is not installed.
    """
    listed = _checked_cases(formats, decoders, workers, order, batch_size)
    made = Epochs(image_files(images, size, 0), listed, size=size, batch_size=batch_size, order=order, cold=False)
    made.prepare(seed)
    return made


def cold_files(
    *,
    seed: int,
    images: int,
    size: int,
    batch_size: int,
    order: str,
    formats: Sequence[str] = FORMATS,
    decoders: Sequence[str] = DECODERS,
    workers: Sequence[int] = WORKERS,
) -> Epochs:
    """The same with files that are removed from the page cache before each epoch; arguments as for `warm_files`.

    Raises:
        UsageError: Also if the files stay in the page cache.
        MissingDependency: A decoding library is not installed.
    """
    listed = _checked_cases(formats, decoders, workers, order, batch_size)
    made = Epochs(image_files(images, size, 0), listed, size=size, batch_size=batch_size, order=order, cold=True)
    made.prepare(seed)
    return made


def _checked_cases(
    formats: Sequence[str], decoders: Sequence[str], workers: Sequence[int], order: str, batch_size: int
) -> list[Case]:
    for name, given, allowed in (
        ("formats", formats, FORMATS),
        ("decoders", decoders, DECODERS),
        ("workers", workers, range(65)),
    ):
        _check(name, given, allowed)
    _check("order", [order], ORDERS)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"a study of loading with batch_size={brief(batch_size)}; allowed: an integer of at least 1")
    for decoder in decoders:
        check_decoder(decoder)
    return cases(formats, decoders, workers)


def _check(name: str, given: Any, allowed: Sequence[Any]) -> None:
    listed = isinstance(given, (list, tuple)) and given
    if not listed or any(value not in allowed or isinstance(value, bool) for value in given):
        shown = "0 to 64" if isinstance(allowed, range) else ", ".join(map(repr, allowed))
        raise UsageError(f"a study of loading with {name}={brief(given)}; allowed: a list of {shown}")


def _sampler(data: Any, batch_size: int, order: str, seed: int) -> Any:
    if order == "sequential":
        return d5.OrderedSampler(data, batch_size)
    return d5.ShuffleSampler(data, batch_size, seed=seed)


class Epochs:
    """A call loads an epoch of each case, in a new random order, and times each.

    Args:
        folder: The images in all formats.
        listed: The cases.
        size: Height and width of the images.
        batch_size: Images of a batch.
        order: One of `ORDERS`.
        cold: Whether files are removed from the page cache before each epoch; otherwise they are read before it.
    """

    def __init__(
        self, folder: Path, listed: Sequence[Case], *, size: int, batch_size: int, order: str, cold: bool
    ) -> None:
        self._folder, self._cases, self._size = folder, list(listed), size
        self._batch_size, self._order, self._cold = batch_size, order, cold
        self._paths = {form: paths_of(folder, form) for form in {case.form for case in listed}}
        self._sets: dict[tuple[str, str], Any] = {}
        self._seconds: dict[Case, list[float]] = {case: [] for case in self._cases}
        self._misplaced: list[float] = []
        self._difference, self._length, self._seed, self._calls = 0.0, 0, 0, 0

    @property
    def reported(self) -> dict[str, Any]:
        """What the metrics read.

        `seconds` of each call by case; `images` of an epoch; `misplaced`, for each epoch the fraction of the pages of
        its files that was in the page cache though cold, or not there though warm; `difference` of the pixels in
        levels; and `cache_state`, for the record.
        """
        return {
            "seconds": self._seconds,
            "images": self._length,
            "misplaced": self._misplaced,
            "difference": self._difference,
            "cache_state": "cold" if self._cold else "warm",
        }

    def prepare(self, seed: int) -> None:
        """Open the data sets, compare their pixels, and check that files become cold if they have to.

        Args:
            seed: Of the order of cases and samples.

        Raises:
            UsageError: Files stay in the page cache, or the labels of a format differ.
        """
        self._seed = seed
        reference = decoded(self._folder)
        self._length = len(reference)
        for form, decoder in dict.fromkeys((case.form, case.decoder) for case in self._cases):
            if form != PACKED:
                self._sets[form, decoder] = opened(self._folder, form, decoder, self._size)
                self._compare(form, self._sets[form, decoder], reference)
        # The packed file is not mapped now, so that its pages can be removed.
        for paths in self._paths.values() if self._cold else ():
            check_cold(paths)

    def _compare(self, form: str, data: Any, reference: Any) -> None:
        for first in range(0, self._length, self._batch_size):
            ids = np.arange(first, min(first + self._batch_size, self._length))
            ours, ideally = data.batch(ids), reference.batch(ids)
            if (ours["label"] != ideally["label"]).any():
                raise UsageError(
                    f"{self._folder}: the labels of the format {form!r} are not those of the rule; remedy: deep5 clean"
                )
            levels = 255 * float(np.abs(ours["input"] - ideally["input"]).max())
            self._difference = max(self._difference, levels)

    def __call__(self) -> None:
        """Load an epoch of each case."""
        for place in generator(self._seed, "loading order", self._calls).permutation(len(self._cases)):
            case = self._cases[place]
            paths = self._paths[case.form]
            if self._cold:
                self._misplaced.append(check_cold(paths))
            else:
                fill_pages(paths)
                self._misplaced.append(1 - resident_share(paths))
            self._seconds[case].append(self._epoch(case))
        self._calls += 1

    def _epoch(self, case: Case) -> float:
        """Seconds from the request of the first batch to the last batch; threads start and end within."""
        begin = perf_counter_ns()
        # Mapped again in each epoch: pages that a process has mapped cannot be removed from the page cache.
        data = opened(self._folder, PACKED) if case.form == PACKED else self._sets[case.form, case.decoder]
        source = _sampler(data, self._batch_size, self._order, self._seed + self._calls)
        if case.workers:
            source = d5.Prefetched(source, depth=AHEAD * case.workers, workers=case.workers)
        count = sum(len(batch["label"]) for _, batch in source.batches(0))
        took = (perf_counter_ns() - begin) / 1e9
        if count != self._length:
            raise UsageError(f"{case} gave {count} images; allowed: {self._length}")
        return took
