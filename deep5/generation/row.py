"""One request while it runs: its prompt's tokens, what was generated, and when it ends."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from deep5.core.errors import Deep5Error, UsageError, brief
from deep5.generation.completion import Completion, TokenEvent
from deep5.generation.request import GenerationRequest
from deep5.generation.sampling import draw, probabilities, uniforms
from deep5.generation.tokenizer import TextStream, Tokenizer

__all__ = ["Row", "not_finite", "prompt_ids"]


def prompt_ids(prompt: object, tokenizer: Tokenizer | None, vocabulary: int) -> list[int]:
    """The token ids of a prompt.

    Args:
        prompt: A string, or token ids.
        tokenizer: Reads strings; None: there are token ids only.
        vocabulary: Number of different tokens of the network.

    Raises:
        UsageError: It is empty, of another type, or has a token that the network does not know.
    """
    if isinstance(prompt, str):
        if tokenizer is None:
            raise UsageError(
                f"the prompt is the string {brief(prompt)}, and the generator has no tokenizer; allowed: token ids; "
                "remedy: TextGenerator(…, tokenizer=…)"
            )
        given: object = tokenizer.encode(prompt)
    else:
        given = prompt
    if not isinstance(given, (Sequence, np.ndarray)) or isinstance(given, (str, bytes)):
        raise UsageError(f"the prompt is {brief(prompt)}; allowed: a string, or a list of token ids")
    if not len(given):
        raise UsageError(
            "the prompt has no tokens; allowed: at least one; remedy: begin with a token such as a newline"
        )
    try:
        ids = [operator.index(each) for each in given]
    except TypeError as error:
        raise UsageError(f"the prompt is {brief(prompt)}; allowed: a string, or a list of integers") from error
    for position, token in enumerate(ids):
        if not 0 <= token < vocabulary:
            raise UsageError(
                f"the prompt has the token {token} at position {position}; allowed: 0 to {vocabulary - 1}, the "
                "network's vocabulary; remedy: the tokenizer that the network learned with"
            )
    return ids


class Row:
    """A request in a batch.

    Args:
        index: The request's index in the call.
        request: The request.
        arrival_s: When it arrived.
        tokenizer: For strings; None: token ids only.

    Attributes:
        index: As given.
        ids: The prompt's tokens, once it is read.
        tokens: The generated tokens.
        ended: Whether the request has ended.
    """

    def __init__(self, index: int, request: GenerationRequest, arrival_s: float, tokenizer: Tokenizer | None) -> None:
        self.index, self._request, self._arrival, self._tokenizer = index, request, arrival_s, tokenizer
        self.ids: list[int] = []
        self.tokens: list[int] = []
        self.ended = False
        self._times: list[float] = []
        self._stream: TextStream | None = None
        self._stops = frozenset(each for each in request.stop if not isinstance(each, str))
        self._draws = np.zeros(0)

    @property
    def room(self) -> int:
        """Tokens of the sequence when it is complete."""
        return len(self.ids) + self._request.max_new_tokens

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken."""
        return self._request.temperature == 0

    def read(self, vocabulary: int, context: int) -> None:
        """Read the prompt.

        Args:
            vocabulary: Number of different tokens of the network.
            context: Tokens of its longest sequence.

        Raises:
            UsageError: It cannot be read, or the sequence would be too long.
        """
        request = self._request
        texts = [each for each in request.stop if isinstance(each, str)]
        ids = prompt_ids(request.prompt, self._tokenizer, vocabulary)
        if texts and self._tokenizer is None:
            raise UsageError(
                f"the request stops at {brief(texts[0])}, and the generator has no tokenizer; allowed: token ids; "
                "remedy: TextGenerator(…, tokenizer=…)"
            )
        unknown = [each for each in request.stop if not isinstance(each, str) and not 0 <= each < vocabulary]
        if unknown:
            raise UsageError(
                f"the request stops at the token {unknown[0]}; allowed: 0 to {vocabulary - 1}, the network's vocabulary"
            )
        size = len(ids) + request.max_new_tokens
        if size > context:
            raise UsageError(
                f"the request needs {size} tokens, {len(ids)} of the prompt and {request.max_new_tokens} new ones; "
                f"allowed: {context}, the longest sequence of the network; remedy: a shorter prompt, or fewer new "
                "tokens"
            )
        self.ids = ids
        if not self.greedy:
            number = self.index if request.number is None else request.number
            self._draws = uniforms(request.seed, number, len(ids), request.max_new_tokens)
        if self._tokenizer is not None:
            self._stream = TextStream(self._tokenizer, ids, texts)

    def drawn(self, logits: np.ndarray) -> int:
        """The next token by a draw.

        Args:
            logits: Scores of the tokens, (vocabulary,), of which none is NaN.
        """
        request = self._request
        shares = probabilities(logits, request.temperature, request.top_k, request.top_p)
        return draw(shares, float(self._draws[len(self.tokens)]))

    def next(self, token: int | Exception, time_s: float) -> TokenEvent:
        """The event of the next token.

        Args:
            token: Its id, or why there is none.
            time_s: When it was known.
        """
        if isinstance(token, Exception):
            return self.fail(token, time_s)
        try:
            return self._add(token, time_s)
        except Exception as error:  # of a tokenizer: a failure of this request only
            return self.fail(error, time_s)

    def _add(self, token: int, time_s: float) -> TokenEvent:
        self.tokens.append(token)
        self._times.append(time_s)
        stream, text = self._stream, ""
        by_token = token in self._stops
        if stream is not None and not by_token:
            text = stream.add(token)
        stopped = by_token or (stream is not None and stream.stopped)
        self.ended = stopped or len(self.tokens) == self._request.max_new_tokens
        if not self.ended:
            return TokenEvent(index=self.index, token=token, text=text, time_s=time_s)
        if stream is not None:
            text += stream.end()
        done = self._completion("stop" if stopped else "length", None, time_s)
        return TokenEvent(index=self.index, token=token, text=text, time_s=time_s, completion=done)

    def fail(self, error: Exception, time_s: float) -> TokenEvent:
        """The failure of the request; its tokens so far are kept.

        Args:
            error: What happened.
            time_s: When.
        """
        self.ended, text = True, ""
        if self._stream is not None:
            with suppress(Exception):  # of a tokenizer that fails
                text = self._stream.end()
        done = self._completion("error", error, time_s)
        return TokenEvent(index=self.index, token=None, text=text, time_s=time_s, completion=done)

    def _completion(self, ended: str, error: Exception | None, time_s: float) -> Completion:
        return Completion(
            request=self._request,
            prompt_tokens=len(self.ids),
            tokens=tuple(self.tokens),
            text=None if self._stream is None else self._stream.text,
            ended=ended,
            error=error,
            arrival_s=self._arrival,
            token_times_s=tuple(self._times),
            end_s=time_s,
        )


def not_finite(token: int) -> Deep5Error:
    """The error for logits that are not finite."""
    return Deep5Error(
        f"the logits are not finite (that of token {token}); allowed: finite numbers; remedy: other weights, such as "
        "those of a training that did not diverge"
    )
