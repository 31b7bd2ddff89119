"""The sides of the recipes `text_inference_…`: generation with a cache, and by the whole sequence for each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import deep5 as d5
from deep5.generation.decoding import CachedDecoder
from deep5.measuring.samples import median_interval
from deep5.measuring.timing import WARMUPS
from deep5.networks.network import Network

__all__ = ["Cached", "Recomputed", "cached", "recomputed"]

_Point = tuple[int, int]


def cached(
    *,
    steps: int,
    seed: int,
    threads: int,
    framework: str,
    network_kwargs: Mapping[str, Any],
    batches: Sequence[int],
    prompts: Sequence[int],
) -> Cached:
    """Generation by `TextGenerator`.

    Args:
        steps: Tokens to generate per request.
        seed: Seed of weights and prompts.
        threads: Threads of the framework.
        framework: Name of the back-end.
        network_kwargs: Arguments of `gpt_cached`.
        batches: Numbers of requests in a batch.
        prompts: Tokens of a prompt; every batch runs with every length.
    """
    return Cached(framework, _network(network_kwargs, seed, threads, framework), _points(batches, prompts), steps, seed)


def recomputed(
    *,
    steps: int,
    seed: int,
    threads: int,
    framework: str,
    network_kwargs: Mapping[str, Any],
    batches: Sequence[int],
    prompts: Sequence[int],
) -> Recomputed:
    """Generation of the same tokens by a prefill of the whole sequence for each token; arguments as for `cached`."""
    network = _network(network_kwargs, seed, threads, framework)
    return Recomputed(framework, network, _points(batches, prompts), steps, seed)


class Cached:
    """All batches with all lengths of prompts, once per call.

    Args:
        framework: Name of the back-end.
        network: A `gpt_cached`.
        points: Batch sizes and lengths of prompts.
        steps: Tokens to generate per request.
        seed: Seed of the prompts.
    """

    def __init__(self, framework: str, network: Network, points: Sequence[_Point], steps: int, seed: int) -> None:
        self._generator = d5.TextGenerator(network, framework=framework, granularity=steps)
        self._prompts, self._steps = _prompts(network, points, seed), steps
        self._calls: list[dict[_Point, list[d5.Completion]]] = []
        exact = d5.networks.with_precision(network, "float64")
        self._exact = _tokens(d5.TextGenerator(exact, framework=framework, granularity=steps), self._prompts, steps)

    def __call__(self) -> None:
        """Generate; a token's time is when the host knows it."""
        self._calls.append(_completions(self._generator, self._prompts, self._steps))

    @property
    def reported(self) -> dict[str, Any]:
        """The table as `report`, and what the metrics read.

        `tokens` by point are those of float64, which rounding does not change; the times are of the timed calls.
        """
        timed = self._calls[1 + WARMUPS :]  # the very first call, and the warm-ups
        rows = {point: [d5.GenerationSummary.of(call[point]) for call in timed] for point in self._prompts}
        return {
            "tokens": self._exact,
            "failures": sum(each.failures for summaries in rows.values() for each in summaries),
            "largest": rows[max(rows)],
            "report": table(rows),
        }


class Recomputed:
    """As `Cached`, without a cache: each token by a prefill of all tokens before it. Lengths are padded likewise."""

    def __init__(self, framework: str, network: Network, points: Sequence[_Point], steps: int, seed: int) -> None:
        self._prompts, self._steps = _prompts(network, points, seed), steps
        self._decoder = CachedDecoder(d5.framework(framework).executor(network))
        exact = d5.networks.with_precision(network, "float64")
        decoder = CachedDecoder(d5.framework(framework).executor(exact))
        found = {point: self._generate(decoder, prompts) for point, prompts in self._prompts.items()}
        self.reported: dict[str, Any] = {"tokens": found}

    def __call__(self) -> None:
        """Generate."""
        for prompts in self._prompts.values():
            self._generate(self._decoder, prompts)

    def _generate(self, decoder: CachedDecoder, prompts: list[list[int]]) -> list[tuple[int, ...]]:
        sequences = [list(prompt) for prompt in prompts]
        for _ in range(self._steps):
            length = -(-len(sequences[0]) // self._steps) * self._steps
            logits = decoder.begin(sequences, length=length, capacity=length).logits
            for sequence, token in zip(sequences, logits.argmax(axis=1).tolist(), strict=True):
                sequence.append(token)
        return [tuple(sequence[len(prompt) :]) for sequence, prompt in zip(sequences, prompts, strict=True)]


def table(rows: Mapping[_Point, Sequence[d5.GenerationSummary]]) -> str:
    """Latencies and throughput by batch and length of the prompt.

    Args:
        rows: By batch size and length of the prompt, a summary per timed call.

    Returns:
        One line per point. A value is the median over the calls, with its interval if they are enough: of the median
        time to the first token, the median time per output token and the 99th percentile of the inter-token latencies,
        in milliseconds, and of tokens per second.
    """
    titles = ("batch", "prompt", "ttft_ms", "tpot_ms", "inter_token_p99_ms", "tokens_per_s", "requests", "failures")
    lines: list[tuple[str, ...]] = [titles]
    for (batch, prompt), summaries in sorted(rows.items()):
        values = (
            [1e3 * each.ttft.p50_s for each in summaries],
            [1e3 * each.tpot.p50_s for each in summaries if each.tpot is not None],
            [1e3 * each.inter_token.p99_s for each in summaries if each.inter_token is not None],
            [each.tokens_per_s for each in summaries],
        )
        counts = (sum(each.requests for each in summaries), sum(each.failures for each in summaries))
        lines.append((str(batch), str(prompt), *map(_shown, values), *map(str, counts)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "none"
    median = f"{np.median(values):.4g}"
    if len(values) < 6 or not np.isfinite(values).all():
        return median
    interval = median_interval(values)
    return f"{median} [{interval.low:.4g}, {interval.high:.4g}]"


def _network(network_kwargs: Mapping[str, Any], seed: int, threads: int, framework: str) -> Network:
    d5.framework(framework).set_threads(threads)
    network = d5.networks.gpt_cached(**network_kwargs, seed=seed)
    # The initial weights give nearly equal logits, whose order would hide an error in the cache.
    return network.with_values({name: 8 * value for name, value in network.parameters().items()})


def _points(batches: Sequence[int], prompts: Sequence[int]) -> list[_Point]:
    return [(batch, prompt) for batch in batches for prompt in prompts]


def _prompts(network: Network, points: Sequence[_Point], seed: int) -> dict[_Point, list[list[int]]]:
    vocabulary = int(network.outputs["logits"].shape[1])
    rng = d5.generator(seed, "prompts")
    return {(batch, length): rng.integers(0, vocabulary, (batch, length)).tolist() for batch, length in points}


def _completions(
    generator: d5.TextGenerator, prompts: Mapping[_Point, list[list[int]]], steps: int
) -> dict[_Point, list[d5.Completion]]:
    return {point: generator.generate(given, max_new_tokens=steps) for point, given in prompts.items()}


def _tokens(
    generator: d5.TextGenerator, prompts: Mapping[_Point, list[list[int]]], steps: int
) -> dict[_Point, list[tuple[int, ...]]]:
    done = _completions(generator, prompts, steps)
    return {point: [each.tokens for each in completions] for point, completions in done.items()}
