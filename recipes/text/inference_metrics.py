"""Metrics of the recipes `text_inference_…`: failures, other tokens, and latencies at the largest batch and prompt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from statistics import median
from typing import Any, ClassVar, Literal

import deep5 as d5
from deep5.core.metric import Metric, Observer, Sample
from deep5.measuring.samples import median_interval
from deep5.measuring.timing import Rounds

__all__ = ["FailedRequests", "FirstToken", "GeneratedTokens", "OtherTokens", "OutputToken"]

# An interval of a median needs as many samples.
_ENOUGH = 6


class _Samples(Observer):
    """Values of the timed calls, and their median."""

    def __init__(self, metric: _OfTimed) -> None:
        self._metric = metric
        self._values: list[float] = []

    def after_timing(self, rounds: Rounds) -> None:
        self._values = self._metric.of(rounds.reported["candidate"], rounds.reported["baseline"])

    def samples(self) -> list[Sample]:
        return [Sample(value) for value in self._values]

    def value(self) -> float | None:
        return median(self._values) if self._values else None

    def interval(self) -> tuple[float, float] | None:
        if len(self._values) < _ENOUGH:
            return None
        found = median_interval(self._values)
        return found.low, found.high


class _OfTimed(Metric):
    direction: ClassVar[Literal["higher", "lower"]] = "lower"

    @abstractmethod
    def of(self, candidate: Any, baseline: Any) -> list[float]:
        """The values, from what both sides report."""

    def observer(self) -> Observer:
        """Samples: the values."""
        return _Samples(self)


class FailedRequests(_OfTimed):
    """Requests of the timed calls that failed, of all batches."""

    name = "failed_requests"
    unit = "requests"

    def of(self, candidate: Any, baseline: Any) -> list[float]:
        """From the candidate."""
        return [float(candidate["failures"])]


class OtherTokens(_OfTimed):
    """Requests whose tokens differ from those without a cache, both greedy in float64: the proof of the cache."""

    name = "other_tokens"
    unit = "requests"

    def of(self, candidate: Any, baseline: Any) -> list[float]:
        """From the tokens of both sides."""
        ours, theirs = candidate["tokens"], baseline["tokens"]
        pairs = [pair for point in theirs for pair in zip(ours[point], theirs[point], strict=True)]
        return [float(sum(own != other for own, other in pairs))]


class FirstToken(_OfTimed):
    """Median time to first token at the largest batch and longest prompt, in milliseconds; one sample per call.

    From the call, before prompts are read, until the host knows the first tokens.
    """

    name = "time_to_first_token"
    unit = "ms"

    def of(self, candidate: Any, baseline: Any) -> list[float]:
        """From the candidate."""
        return [1e3 * each.ttft.p50_s for each in _largest(candidate)]


class OutputToken(_OfTimed):
    """Median time per output token after the first, at the largest batch and longest prompt, in milliseconds.

    (last - first) / (tokens - 1) of each request; one sample per call.
    """

    name = "time_per_output_token"
    unit = "ms"

    def of(self, candidate: Any, baseline: Any) -> list[float]:
        """From the candidate."""
        return [1e3 * each.tpot.p50_s for each in _largest(candidate) if each.tpot is not None]


class GeneratedTokens(_OfTimed):
    """Output tokens of the largest batch with the longest prompt, per second from the call to the last token."""

    name = "tokens_per_second"
    unit = "tokens/s"
    direction: ClassVar[Literal["higher", "lower"]] = "higher"

    def of(self, candidate: Any, baseline: Any) -> list[float]:
        """From the candidate."""
        return [each.tokens_per_s for each in _largest(candidate)]


def _largest(candidate: Any) -> Sequence[d5.GenerationSummary]:
    found: Sequence[d5.GenerationSummary] = candidate["largest"]
    return found
