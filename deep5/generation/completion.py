"""What a request came to: its tokens with their times, and the latencies that follow from them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from deep5.generation.request import GenerationRequest

__all__ = ["Completion", "TokenEvent"]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The end of a request: its tokens, or the error that ended it with those it had before.

    All times are in seconds of `time.perf_counter` on the host. The clock of a request starts before its prompt is
    tokenized. A token's time is when the host knows it, which includes the transfer of the logits and the choice of the
    token.

    Args:
        request: The request.
        prompt_tokens: Tokens of the prompt; 0 if it could not be read.
        tokens: The generated ids.
        text: Their text without what `stop` names; None without a tokenizer.
        ended: `"length"` (all tokens that were requested), `"stop"` or `"error"`.
        error: What failed; None if nothing did.
        arrival_s: When the request arrived.
        token_times_s: When each token was known.
        end_s: When the last token was known or the request failed.

    References:
        MLPerf inference rules, v5.0 (mlcommons.org), for LLM benchmarks in the server scenario, bound the time to the
        first token and the time per output token; vLLM's `vllm bench serve` reports the same, and the inter-token
        latency, with these definitions.

    >>> request = GenerationRequest(prompt=[1, 2], max_new_tokens=3)
    >>> done = Completion(
    ...     request=request, prompt_tokens=2, tokens=(5, 6, 7), text=None, ended="length", error=None,
    ...     arrival_s=10.0, token_times_s=(10.5, 10.75, 11.5), end_s=11.5,
    ... )
    >>> done.ttft_s, done.tpot_s, done.inter_token_s, done.latency_s
    (0.5, 0.5, (0.25, 0.75), 1.5)
    """

    request: GenerationRequest
    prompt_tokens: int
    tokens: tuple[int, ...]
    text: str | None
    ended: str
    error: Exception | None
    arrival_s: float
    token_times_s: tuple[float, ...]
    end_s: float

    @property
    def failed(self) -> bool:
        """Whether an error ended it."""
        return self.error is not None

    @property
    def ttft_s(self) -> float:
        """Time to first token: from the arrival until the first token is known; infinite for a failure."""
        return math.inf if self.failed else self.token_times_s[0] - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first: (last - first) / (tokens - 1); infinite for a failure.

        None if there is one token only.
        """
        if self.failed:
            return math.inf
        times = self.token_times_s
        return None if len(times) < 2 else (times[-1] - times[0]) / (len(times) - 1)

    @property
    def inter_token_s(self) -> tuple[float, ...]:
        """Inter-token latencies: each time between two tokens; a failure ends with an infinite one."""
        gaps = tuple(later - earlier for earlier, later in itertools.pairwise(self.token_times_s))
        return (*gaps, math.inf) if self.failed else gaps

    @property
    def latency_s(self) -> float:
        """From the arrival until the last token is known; infinite for a failure."""
        return math.inf if self.failed else self.end_s - self.arrival_s


@dataclass(frozen=True, kw_only=True)
class TokenEvent:
    """One token of a stream, or the failure of a request.

    Attributes:
        index: The request's index in the call.
        token: The token's id; None for a failure.
        text: The text that is certain with this token, possibly empty; empty without a tokenizer.
        time_s: When the token was known, or the request failed.
        completion: On the last event of a request, and of every request once: what it came to.

    >>> import deep5 as d5
    >>> network = d5.networks.gpt_cached(vocabulary=7, length=8, width=8, heads=2, layers=1)
    >>> events = list(d5.TextGenerator(network, framework="reference").stream([[1, 2]], max_new_tokens=2))
    >>> [(event.index, event.text, event.completion is None) for event in events]
    [(0, '', True), (0, '', False)]
    >>> events[-1].completion.tokens == tuple(event.token for event in events)
    True
    """

    index: int
    token: int | None
    text: str
    time_s: float
    completion: Completion | None = None
