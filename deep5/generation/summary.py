"""`GenerationSummary`: latencies and throughput of many requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from deep5.core.errors import UsageError
from deep5.generation.completion import Completion

__all__ = ["GenerationSummary", "Percentiles"]


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """The median and upper percentiles of some times, in seconds, each one of the times (the nearest rank).

    Attributes:
        p50_s: The smallest time that at least half of all times do not exceed.
        p90_s: The same for 90 % of them.
        p99_s: The same for 99 %.
        count: The number of times.
    """

    p50_s: float
    p90_s: float
    p99_s: float
    count: int

    @classmethod
    def of(cls, times_s: Iterable[float]) -> Self:
        """The percentiles of some times.

        Args:
            times_s: Seconds, at least one; infinite ones are greater than all others.

        Raises:
            UsageError: There are none.

        >>> Percentiles.of([0.3, 0.1, 0.2])
        Percentiles(p50_s=0.2, p90_s=0.3, p99_s=0.3, count=3)
        """
        ordered = sorted(times_s)
        if not ordered:
            raise UsageError("Percentiles: got no times; allowed: at least one")
        p50, p90, p99 = (ordered[-(-len(ordered) * share // 100) - 1] for share in (50, 90, 99))
        return cls(p50_s=p50, p90_s=p90, p99_s=p99, count=len(ordered))


@dataclass(frozen=True, kw_only=True)
class GenerationSummary:
    """What many requests came to. A failed request counts: its latencies are infinite, and its tokens are none.

    Attributes:
        requests: The number of requests.
        failures: The number of those that failed.
        prompt_tokens: Tokens of the prompts of the requests that did not fail.
        output_tokens: Generated tokens of the requests that did not fail.
        duration_s: From the first arrival to the last end, of all requests.
        tokens_per_s: `output_tokens` by `duration_s`; 0 without a token.
        ttft: Times to the first token, one per request.
        tpot: Times per output token after the first, one per request of at least two tokens.
        inter_token: Times between two tokens, of all requests.
        latency: From a request's arrival to its last token.

    >>> import deep5 as d5
    >>> network = d5.networks.gpt_cached(vocabulary=11, length=8, width=8, heads=2, layers=1)
    >>> generator = d5.TextGenerator(network, framework="reference")
    >>> done = generator.generate([[3, 1], [4] * 7, [12]], max_new_tokens=4)
    >>> summary = d5.GenerationSummary.of(done)
    >>> summary.requests, summary.failures, summary.output_tokens, summary.ttft.p99_s
    (3, 2, 4, inf)
    >>> summary.tokens_per_s == 4 / summary.duration_s
    True
    """

    requests: int
    failures: int
    prompt_tokens: int
    output_tokens: int
    duration_s: float
    tokens_per_s: float
    ttft: Percentiles
    tpot: Percentiles | None
    inter_token: Percentiles | None
    latency: Percentiles

    @classmethod
    def of(cls, completions: Sequence[Completion]) -> Self:
        """The summary of requests.

        Args:
            completions: Their ends, from one call or several; at least one.

        Raises:
            UsageError: There are none.
        """
        if not completions:
            raise UsageError("GenerationSummary: got no completions; allowed: at least one")
        done = [each for each in completions if not each.failed]
        tokens = sum(len(each.tokens) for each in done)
        duration = max(each.end_s for each in completions) - min(each.arrival_s for each in completions)
        tpot = [each.tpot_s for each in completions if each.tpot_s is not None]
        gaps = [gap for each in completions for gap in each.inter_token_s]
        return cls(
            requests=len(completions),
            failures=len(completions) - len(done),
            prompt_tokens=sum(each.prompt_tokens for each in done),
            output_tokens=tokens,
            duration_s=duration,
            tokens_per_s=tokens / duration if tokens and duration > 0 else 0.0,
            ttft=Percentiles.of(each.ttft_s for each in completions),
            tpot=Percentiles.of(tpot) if tpot else None,
            inter_token=Percentiles.of(gaps) if gaps else None,
            latency=Percentiles.of(each.latency_s for each in completions),
        )
