"""`TextGenerator`: a language model on a back-end that continues prompts, one batch per call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, cast

import numpy as np

from deep5.core.arguments import is_whole
from deep5.core.errors import UsageError, brief
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.core.plugins import framework as framework_of
from deep5.generation.completion import Completion, TokenEvent
from deep5.generation.decoding import CachedDecoder, with_cache
from deep5.generation.request import GenerationRequest
from deep5.generation.row import Row, not_finite, prompt_ids
from deep5.generation.tokenizer import Tokenizer
from deep5.networks.network import Network

__all__ = ["TextGenerator"]


class TextGenerator:
    """Continues prompts by a decoder with a cache of keys and values.

    A call is one batch: a prefill of all prompts, then steps of one token per request until the last one ends. Tokens
    are chosen on the host in float64, greedily or by draws that depend on the request's seed, its number and the
    token's position only. In float64, back-ends and batches give a request the same tokens, unless two of them are as
    probable as each other to the last digits.

    Threads may share a generator if they may share its executor: see `GraphExecutor`.

    Args:
        network: A `gpt_cached`, a `gpt` with any weights (its form with a cache is used), or an executor of the former.
        framework: The back-end that runs it, by name or as an object; None: `network` is an executor.
        tokenizer: Reads and writes strings: an object with `encode` and `decode`. None: prompts are token ids.
        context: Tokens of the longest sequence; None: as many as the network has learned or has positions.
        granularity: Lengths of prompts and caches are padded to multiples of it, at most the context. Back-ends that
            compile do so once per batch size and padded length: the context itself gives one form of each step.

    Attributes:
        context: As given, or the network's.
        vocabulary: Number of different tokens.
        executor: The executor.

    Raises:
        UsageError: The network is no decoder with a cache, or an argument is out of its range.
        Unsupported: The back-end cannot run the network.

    >>> import deep5 as d5
    >>> network = d5.networks.gpt_cached(vocabulary=11, length=16, width=8, heads=2, layers=1, dtype="float64")
    >>> generator = d5.TextGenerator(network, framework="reference")
    >>> done = generator.generate([[3, 1], [4, 1, 5]], max_new_tokens=4)
    >>> [len(each.tokens) for each in done], [each.ended for each in done]
    ([4, 4], ['length', 'length'])
    >>> (single,) = generator.generate([[4, 1, 5]], max_new_tokens=4)
    >>> single.tokens == done[1].tokens
    True
    >>> long, unknown = generator.generate([[1] * 14, [11]], max_new_tokens=4)
    >>> print(long.error)
    the request needs 18 tokens, 14 of the prompt and 4 new ones; allowed: 16, the longest sequence of the network; \
remedy: a shorter prompt, or fewer new tokens
    >>> unknown.failed, unknown.ttft_s
    (True, inf)
    """

    def __init__(
        self,
        network: Network | GraphExecutor,
        *,
        framework: str | Framework | None = None,
        tokenizer: Tokenizer | None = None,
        context: int | None = None,
        granularity: int = 16,
    ) -> None:
        executor, learned = _executor_of(network, framework)
        self._decoder = CachedDecoder(executor)
        self.executor, self.vocabulary = executor, self._decoder.vocabulary
        if context is not None and (not is_whole(context) or not 2 <= context <= learned):
            raise UsageError(
                f"context: got {brief(context)}; allowed: None, or 2 to {learned}, the network's positions"
            )
        if not is_whole(granularity) or granularity < 1:
            raise UsageError(f"granularity: got {brief(granularity)}; allowed: an integer of at least 1")
        methods = (getattr(tokenizer, name, None) for name in ("encode", "decode"))
        if tokenizer is not None and not all(map(callable, methods)):
            raise UsageError(
                f"tokenizer: got {brief(tokenizer)}; allowed: None, or an object with encode(text) and decode(ids), "
                "such as d5.VocabularyTokenizer(…)"
            )
        self.context = learned if context is None else int(context)
        self._tokenizer, self._granularity = tokenizer, int(granularity)

    def generate(self, prompts: Sequence[Any], **settings: Any) -> list[Completion]:
        """Continue prompts until the last one ends.

        An error of one request (a prompt that is too long, or has unknown tokens) is its `Completion.error`, and the
        others run. An error of the back-end ends all that have not ended, with the tokens they have.

        Args:
            prompts: Strings, lists of token ids, or `GenerationRequest`s.
            settings: Arguments of `GenerationRequest` for the prompts that are none.

        Returns:
            What each request came to, in their order.

        Raises:
            UsageError: `prompts` is not a list, or a setting is out of its range.
        """
        found = {event.index: event.completion for event in self.stream(prompts, **settings) if event.completion}
        return [found[index] for index in range(len(found))]

    def room(self, prompt: Any) -> int:
        """How many new tokens the network's longest sequence leaves after a prompt.

        Args:
            prompt: A string, or token ids.

        Raises:
            UsageError: It cannot be read.
        """
        return self.context - len(prompt_ids(prompt, self._tokenizer, self.vocabulary))

    def stream(self, prompts: Sequence[Any], **settings: Any) -> Iterator[TokenEvent]:
        """As `generate`, token by token: each is known before the next step is computed.

        The clock of requests without an arrival starts with this call. What the caller does between two events delays
        the following tokens.

        Args:
            prompts: As for `generate`.
            settings: As for `generate`.

        Returns:
            The events of all requests; for each request exactly one, its last, has the completion.

        Raises:
            UsageError: As for `generate`.

        >>> import deep5 as d5
        >>> network = d5.networks.gpt_cached(vocabulary=11, length=16, width=8, heads=2, layers=1)
        >>> generator = d5.TextGenerator(network, framework="reference")
        >>> events = list(generator.stream([[3, 1], [4], []], max_new_tokens=2, temperature=1.0))
        >>> [(event.index, event.completion is not None) for event in events]
        [(2, True), (0, False), (1, False), (0, True), (1, True)]
        """
        begin = perf_counter()
        if isinstance(prompts, str) or not isinstance(prompts, Sequence):
            raise UsageError(
                f"prompts: got {brief(prompts)}; allowed: a list of strings, of lists of token ids or of "
                "GenerationRequest; remedy: [prompt]"
            )
        rows = []
        for index, prompt in enumerate(prompts):
            request = prompt if isinstance(prompt, GenerationRequest) else GenerationRequest(prompt=prompt, **settings)
            arrival = begin if request.arrival_s is None else request.arrival_s
            rows.append(Row(index, request, arrival, self._tokenizer))
        return self._events(rows)

    def _events(self, rows: Sequence[Row]) -> Iterator[TokenEvent]:
        batch = []
        for row in rows:
            try:
                row.read(self.vocabulary, self.context)
            except Exception as error:  # also those of a tokenizer: a failure of this request only
                yield row.fail(error, perf_counter())
            else:
                batch.append(row)
        if not batch:
            return
        decoding = None
        while True:
            try:
                if decoding is None:
                    decoding = self._decoder.begin([row.ids for row in batch], **self._sizes(batch))
                else:
                    tokens = np.array([(row.tokens or row.ids)[-1] for row in batch])
                    decoding.step(tokens, np.array([not row.ended for row in batch]))
                chosen = _chosen(decoding.logits, batch)
            except Exception as error:  # a back-end may raise anything: a failure of all that run
                now = perf_counter()
                for row in batch:
                    if not row.ended:
                        yield row.fail(error, now)
                return
            now = perf_counter()
            for row, token in zip(batch, chosen, strict=True):
                if not row.ended:
                    yield row.next(token, now)
            if all(row.ended for row in batch):
                return

    def _sizes(self, batch: Sequence[Row]) -> dict[str, int]:
        """The padded lengths of the prompts and of the cache."""
        longest, room = max(len(row.ids) for row in batch), max(row.room for row in batch)
        return {"length": self._padded(longest), "capacity": self._padded(room)}

    def _padded(self, size: int) -> int:
        return min(-(-size // self._granularity) * self._granularity, self.context)


def _executor_of(network: Any, framework: Any) -> tuple[GraphExecutor, int]:
    """The executor, and the longest sequence of its network."""
    if hasattr(network, "inference"):
        if framework is not None:
            raise UsageError(f"framework: got {brief(framework)} with an executor; allowed: None with an executor")
        specs = network.network.parameter_specs
        return cast(GraphExecutor, network), int(specs["position"].shape[0]) if "position" in specs else 1
    if not isinstance(network, Network):
        raise UsageError(
            f"network: got {brief(network)}; allowed: a Network, or an executor; remedy: d5.networks.gpt(…)"
        )
    if framework is None:
        raise UsageError("framework: got None with a network; allowed: a name, such as 'pytorch'")
    made = framework_of(framework) if isinstance(framework, str) else framework
    cached, learned = with_cache(network)
    return made.executor(cached), learned


def _chosen(logits: np.ndarray, batch: Sequence[Row]) -> list[int | Exception]:
    """The next token of each row, or why there is none; those of rows that have ended are of no use."""
    best = logits.argmax(axis=1)
    # A NaN counts as the greatest for argmax, as an infinity does.
    finite = np.isfinite(logits[np.arange(len(batch)), best])
    found: list[int | Exception] = []
    for row, token, usable in zip(batch, best.tolist(), finite.tolist(), strict=True):
        if not usable:
            found.append(not_finite(token))
        else:
            drawn = not row.ended and not row.greedy
            found.append(row.drawn(logits[len(found)]) if drawn else token)
    return found
