"""Metrics of the study: images per second of a case and of the ideal, the state of the page cache, and equal pixels."""

from __future__ import annotations

from statistics import median
from typing import Any

from deep5.core.errors import TooFewSamples
from deep5.core.metric import Metric, Observer, Sample
from deep5.measuring.samples import median_interval
from deep5.measuring.timing import Rounds
from deep5.recipes.loading.sides import Case

__all__ = ["IdealImagesPerSecond", "ImagesPerSecond", "LoadingShare", "MisplacedPages", "PixelDifference"]


class _Rates(Observer):
    """Images per second of each round."""

    def __init__(self, case: Case | None) -> None:
        self._case = case
        self._rates: list[float] = []
        self._missing: str | None = None

    def after_timing(self, rounds: Rounds) -> None:
        reported = rounds.reported["candidate"]
        if self._case is None:
            seconds = rounds.baseline
        elif self._case in reported["seconds"]:
            seconds = reported["seconds"][self._case][-len(rounds.candidate) :]  # without the warm-ups
        else:
            self._missing = "the settings of this run leave the case out"
            return
        self._rates = [reported["images"] / took for took in seconds]

    def samples(self) -> list[Sample]:
        return [Sample(rate) for rate in self._rates]

    def value(self) -> float | None:
        return median(self._rates) if self._rates else None

    def interval(self) -> tuple[float, float] | None:
        try:
            found = median_interval(self._rates)
        except TooFewSamples:
            return None
        return found.low, found.high

    def missing(self) -> str | None:
        return self._missing


class ImagesPerSecond(Metric):
    """Images per second that a case loads: the median over the rounds, with its interval.

    On the clock: an epoch, from the request of the first batch until the last one is there. Reading, decoding, scaling
    to float32 in [0, 1], assembling batches, and starting and ending of the threads are included; opening the data set
    is not, except mapping the packed file. Nothing else happens meanwhile: a training step would overlap.

    Args:
        form: The format of the files.
        decoder: The decoding library, or "none".
        workers: Threads that make batches ahead.
    """

    name = "images_per_second"
    unit = "images/s"
    direction = "higher"

    def __init__(self, form: str, decoder: str, workers: int) -> None:
        self.form, self.decoder, self.workers = form, decoder, workers

    def observer(self) -> Observer:
        """Samples: one per round."""
        return _Rates(Case(form=self.form, decoder=self.decoder, workers=self.workers))


class IdealImagesPerSecond(Metric):
    """Images per second from arrays that are already decoded and in memory: what no format can exceed.

    On the clock: as for `ImagesPerSecond`, with the baseline.
    """

    name = "ideal_images_per_second"
    unit = "images/s"
    direction = "higher"

    def observer(self) -> Observer:
        """Samples: one per round."""
        return _Rates(None)


class _Most(Observer):
    """The largest of the values that the candidate reports."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._values: list[float] = []

    def after_timing(self, rounds: Rounds) -> None:
        self._values = list(self._metric.of(rounds.reported["candidate"]))

    def samples(self) -> list[Sample]:
        return [Sample(value) for value in self._values]

    def value(self) -> float | None:
        return max(self._values, default=None)


class MisplacedPages(Metric):
    """Percent of the pages of files that are in the page cache before a cold epoch, or not there before a warm one.

    The value is the most of any epoch. Nothing is on a clock.
    """

    name = "misplaced_pages"
    unit = "%"
    direction = "lower"

    def of(self, reported: Any) -> list[float]:
        """From the shares of all epochs."""
        return [100 * share for share in reported["misplaced"]]

    def observer(self) -> Observer:
        """Samples: one per epoch, warm-ups included."""
        return _Most(self)


class PixelDifference(Metric):
    """The largest difference of a pixel between a format and decoder and the packed pixels, in levels of 255.

    The packed pixels are Pillow's. Nothing is on a clock.
    """

    name = "pixel_difference"
    unit = "levels"
    direction = "lower"

    def of(self, reported: Any) -> list[float]:
        """From the comparison before the timing."""
        return [reported["difference"]]

    def observer(self) -> Observer:
        """Samples: the difference."""
        return _Most(self)


class _Share(Observer):
    def __init__(self) -> None:
        self._shares: list[float] = []

    def after_timing(self, rounds: Rounds) -> None:
        self._shares = [
            100 * (1 - (first + second) / 2 / candidate)
            for candidate, first, second in zip(rounds.candidate, rounds.baseline, rounds.baseline_again, strict=True)
        ]

    def samples(self) -> list[Sample]:
        return [Sample(share) for share in self._shares]

    def value(self) -> float | None:
        return median(self._shares) if self._shares else None

    def interval(self) -> tuple[float, float] | None:
        try:
            found = median_interval(self._shares)
        except TooFewSamples:
            return None
        return found.low, found.high


class LoadingShare(Metric):
    """The share of the time of training steps on files that the same steps on decoded arrays do not take, in percent.

    It is what a training would gain if its images were already decoded; threads that share a processor with the step
    slow it down, which counts as loading. On the clock: whole calls of steps, their loading included.
    """

    name = "loading_share"
    unit = "%"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the share of every round, against the mean of the two baselines."""
        return _Share()
