"""Scores of what a network decodes without the true tokens: error rates of phonemes and words, BLEU, chrF."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from deep5.core.arguments import is_whole
from deep5.core.communicator import TIMEOUT_S
from deep5.core.errors import UnknownName, UsageError, brief
from deep5.core.metric import Metric, Observer
from deep5.core.plugins import missing_dependency
from deep5.core.tensors import to_numpy
from deep5.distributed.texts import gather_texts
from deep5.metrics.after_training import AfterTraining
from deep5.metrics.error_rate import count_errors
from deep5.metrics.network_names import check_class_names
from deep5.training.decoding import greedy_tokens, until

__all__ = ["BLEU", "ChrF", "PhonemeErrorRate", "WordErrorRate"]

Sequences = Sequence[Sequence[int]]
Score = Callable[[Sequences, Sequences], float | None]

# The first of the characters that stand for tokens in chrF: private ones, of which none is white space.
_CHARACTERS = 0xF0000
_TARGET, _LABEL, _LOGITS = "target", "label", "logits"
# References and hypotheses of a trainer's test set by the token that ends them: the metrics of a run share them.
_DECODED: WeakKeyDictionary[Any, dict[int, tuple[Sequences, Sequences]]] = WeakKeyDictionary()


class _Decoded(AfterTraining):
    def __init__(self, score: Score, end: int) -> None:
        super().__init__()
        self._score, self._end = score, end

    def check_network(self, network: Any) -> None:
        check_class_names(network, _LOGITS, _LABEL)
        if _TARGET not in network.inputs:
            raise UnknownName("input", _TARGET, network.inputs)

    def before_training(self, trainer: Any) -> None:
        self.check_network(trainer.executor.network)
        self._score([[0]], [[0]])  # a package that it needs is missing now, not after hours of training
        _DECODED.pop(trainer, None)

    def measured(self, trainer: Any) -> float | None:
        known = _DECODED.setdefault(trainer, {})
        if self._end not in known:
            known[self._end] = _sequences(trainer, self._end)
        return self._score(*known[self._end])

    def state_dict(self) -> dict[str, Any]:
        return {}  # all is measured at the end


def _sequences(trainer: Any, end: int) -> tuple[Sequences, Sequences]:
    """The labels of all test samples of all ranks, and what the network decodes for them."""
    from deep5.networks.labels import ignored_label  # it loads onnx

    ignored = ignored_label(trainer.executor.network, _LABEL)
    references: list[list[int]] = []
    hypotheses: list[list[int]] = []
    with getattr(trainer.optimizer, "averaged", nullcontext)():
        for _, inputs in trainer.validation_sampler.batches(0):
            tokens = greedy_tokens(trainer.executor, inputs, end=end, target=_TARGET, logits=_LOGITS)
            references += until(end, to_numpy(inputs[_LABEL]), ignored)
            hypotheses += until(end, tokens)
    if trainer.communicator is None:
        return references, hypotheses
    # The other ranks may still be decoding.
    parts = gather_texts(trainer.communicator, json.dumps([references, hypotheses]), timeout_s=10 * TIMEOUT_S)
    every = [json.loads(part) for part in parts]
    return [row for own, _ in every for row in own], [row for _, own in every for row in own]


class _OfDecoded(Metric):
    """A score of all decoded test sequences."""

    unit = "%"

    def __init__(self, *, end: int = 1) -> None:
        if not is_whole(end) or end < 0:
            raise UsageError(f"{self.name} with end={brief(end)}; allowed: a token, an integer of at least 0")
        self.end = int(end)

    @staticmethod
    @abstractmethod
    def score(references: Sequences, hypotheses: Sequences) -> float | None:
        """The value for these sequences of tokens; None: there is none.

        Args:
            references: The true tokens of each sample.
            hypotheses: The decoded tokens of each sample.
        """

    def observer(self) -> Observer:
        """Samples: the value."""
        return _Decoded(self.score, self.end)


class PhonemeErrorRate(_OfDecoded):
    """Errors of the decoded test sequences in percent of the true tokens: substituted, inserted and deleted ones.

    Decoded after training, with the final weights, greedily and without the true tokens (`greedy_tokens`); the errors
    of a sequence are the fewest that explain it, its edit distance. Over 100 % if more tokens are wrong than there are.

    Nothing is on a clock.

    Args:
        end: The token that ends a sequence, as in `pronunciations`; labels that the loss ignores are left out.

    >>> import deep5 as d5
    >>> d5.PhonemeErrorRate().score([[5, 6, 7], [8]], [[5, 7], [8]])  # one of four is deleted
    25.0
    """

    name = "phoneme_error_rate"
    direction = "lower"

    @staticmethod
    def score(references: Sequences, hypotheses: Sequences) -> float | None:
        """See `ErrorCounts.error_rate`."""
        return count_errors(references, hypotheses).error_rate


class WordErrorRate(_OfDecoded):
    """Percentage of the test sequences, each of which is a word, that are not decoded without an error.

    Decoded as for `PhonemeErrorRate`.

    Nothing is on a clock.

    Args:
        end: As for `PhonemeErrorRate`.

    >>> import deep5 as d5
    >>> d5.WordErrorRate().score([[5, 6, 7], [8]], [[5, 7], [8]])
    50.0
    """

    name = "word_error_rate"
    direction = "lower"
    possible = (0.0, 100.0)

    @staticmethod
    def score(references: Sequences, hypotheses: Sequences) -> float | None:
        """See `ErrorCounts.sequence_error_rate`."""
        return count_errors(references, hypotheses).sequence_error_rate


class BLEU(_OfDecoded):
    """BLEU of the decoded test sequences, by sacrebleu: how many of their 1 to 4 successive tokens are true ones.

    One reference per sample; tokens are compared as they are, and orders without a match are smoothed exponentially,
    sacrebleu's default. Decoded as for `PhonemeErrorRate`.

    Nothing is on a clock.

    Args:
        end: As for `PhonemeErrorRate`.

    References:
        Papineni, Roukos, Ward and Zhu, BLEU: a method for automatic evaluation of machine translation, ACL 2002; Post,
        A call for clarity in reporting BLEU scores, WMT 2018.

    >>> import deep5 as d5
    >>> round(d5.BLEU().score([[5, 6, 7, 8, 9]], [[5, 6, 7, 8, 4]]), 2)  # of 5, 4, 3 and 2: 4, 3, 2 and 1
    66.87
    """

    name = "bleu"
    direction = "higher"
    possible = (0.0, 100.0)

    @staticmethod
    def score(references: Sequences, hypotheses: Sequences) -> float | None:
        """sacrebleu's corpus score."""
        with _sacrebleu("BLEU"):
            from sacrebleu.metrics import bleu
        scorer = bleu.BLEU(tokenize="none", force=True)
        one, other = ([" ".join(map(str, tokens)) for tokens in each] for each in (hypotheses, references))
        return float(scorer.corpus_score(one, [other]).score)


class ChrF(_OfDecoded):
    """chrF of the decoded test sequences, by sacrebleu: precision and recall of their 1 to 6 successive tokens.

    Each token counts as one character; recall weighs twice as much as precision (chrF2, sacrebleu's default). Decoded
    as for `PhonemeErrorRate`.

    Nothing is on a clock.

    Args:
        end: As for `PhonemeErrorRate`.

    References:
        Popović, chrF: character n-gram F-score for automatic MT evaluation, WMT 2015.

    >>> import deep5 as d5
    >>> d5.ChrF().score([[5, 6, 7]], [[5, 6, 7]])
    100.0
    """

    name = "chrf"
    direction = "higher"
    possible = (0.0, 100.0)

    @staticmethod
    def score(references: Sequences, hypotheses: Sequences) -> float | None:
        """sacrebleu's corpus score."""
        with _sacrebleu("chrF"):
            from sacrebleu.metrics import chrf
        names: dict[int, str] = {}
        one, other = (
            ["".join(names.setdefault(token, chr(_CHARACTERS + len(names))) for token in tokens) for tokens in each]
            for each in (hypotheses, references)
        )
        return float(chrf.CHRF().corpus_score(one, [other]).score)


@contextmanager
def _sacrebleu(what: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_dependency(what, error) from error
