"""`GenerationRequest`: what one request asks a language model for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deep5.core.arguments import is_finite, is_whole
from deep5.core.errors import UsageError, brief

__all__ = ["GenerationRequest"]

_MOST = 1 << 63


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """A prompt, and how to continue it.

    The prompt itself is checked by the generator: a prompt that cannot be read is a failure of this request only.

    Args:
        prompt: A string, or token ids.
        max_new_tokens: The largest number of tokens to generate, at least 1.
        temperature: Divides the logits before a token is drawn; 0: the most probable token, and the lowest id of
            several (greedy).
        top_k: Draw from this number of the most probable tokens only; None: from all.
        top_p: Draw from the smallest set of most probable tokens that has at least this probability, in (0, 1]; it is
            applied after `top_k`. None: from all.
        seed: Seed of the draws, an integer from 0 to 2**63 - 1.
        number: The request's number in the draws, such as its index in a load; None: its index in the call.
        stop: Tokens, and strings in the text, that end the generation. A token stays in the result's tokens, and
            neither is in its text.
        arrival_s: When the request arrived, in seconds of `time.perf_counter`; None: when the generator is called.

    Raises:
        UsageError: A value other than the prompt is out of its range.

    References:
        Holtzman et al., The curious case of neural text degeneration, ICLR 2020, section 3.1, defines `top_p`; Fan et
        al., Hierarchical neural story generation, ACL 2018, section 5.1, `top_k`.

    >>> import deep5 as d5
    >>> d5.GenerationRequest(prompt="Return the", max_new_tokens=8, temperature=0.7, top_k=20).seed
    0
    >>> d5.GenerationRequest(prompt="Return the", top_p=0.0)
    Traceback (most recent call last):
        ...
    deep5.core.errors.UsageError: top_p: got 0.0; allowed: None, or a number above 0, at most 1
    """

    prompt: str | Sequence[int]
    max_new_tokens: int = 32
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    number: int | None = None
    stop: Sequence[str | int] = ()
    arrival_s: float | None = None

    def __post_init__(self) -> None:
        _whole("max_new_tokens", self.max_new_tokens, 1)
        if not is_finite(self.temperature) or self.temperature < 0:
            raise UsageError(
                f"temperature: got {brief(self.temperature)}; allowed: a finite number of at least 0; remedy: 0 for "
                "the most probable token"
            )
        if self.top_k is not None:
            _whole("top_k", self.top_k, 1)
        if self.top_p is not None and (not is_finite(self.top_p) or not 0 < self.top_p <= 1):
            raise UsageError(f"top_p: got {brief(self.top_p)}; allowed: None, or a number above 0, at most 1")
        _whole("seed", self.seed, 0)
        if self.number is not None:
            _whole("number", self.number, 0)
        if self.arrival_s is not None and not is_finite(self.arrival_s):
            raise UsageError(f"arrival_s: got {brief(self.arrival_s)}; allowed: None, or a time of perf_counter")
        one = isinstance(self.stop, (str, int)) or not isinstance(self.stop, Sequence)
        if one or not all(is_whole(each) or (isinstance(each, str) and each) for each in self.stop):
            raise UsageError(
                f"stop: got {brief(self.stop)}; allowed: a list of token ids and of strings that are not empty"
            )


def _whole(name: str, value: Any, least: int) -> None:
    if not is_whole(value) or not least <= value < _MOST:
        raise UsageError(f"{name}: got {brief(value)}; allowed: an integer from {least} to 2**63 - 1")
