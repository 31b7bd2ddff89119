"""Scores of decoded sequences: hand-counted, by jiwer and sacrebleu called directly, and after a training."""

from __future__ import annotations

import sys
from typing import Any

import jiwer
import numpy as np
import pytest
from sacrebleu.metrics import bleu as sacre_bleu
from sacrebleu.metrics import chrf as sacre_chrf

import deep5 as d5
from deep5.core.errors import MissingDependency, UnknownName, UsageError
from deep5.core.metric import Metric, Observer, parse_goal
from deep5.distributed.communicators.threads import run_in_threads
from deep5.training.dataset import ArrayDataset
from ending import StopIn
from next_tokens import chain

METRICS = (d5.PhonemeErrorRate, d5.WordErrorRate, d5.BLEU, d5.ChrF)
# From 0: 2, 3, end; from 4: 5, 5, 5, … to the last position.
NETWORK = {"following": {0: 2, 2: 3, 3: 1, 4: 5, 5: 5}, "length": 4}
# Decoded: 2 3, 2 3, 2 3 and 5 5 5 5.
TARGET = np.array([[0, 2, 3, 1], [0, 2, 2, 3], [0, 1, 1, 1], [4, 5, 5, 1]])
LABEL = np.array([[2, 3, 1, -1], [2, 2, 3, 1], [1, -1, -1, -1], [5, 5, 1, -1]])


def run(*metrics: Metric, rows: Any = slice(None), events: tuple[d5.Event, ...] = ()) -> list[Observer]:
    """Train without a step that changes a weight, and evaluate in batches of three and one."""
    data = ArrayDataset({"target": TARGET[rows], "label": LABEL[rows]})
    executor = d5.framework("reference").executor(chain(**NETWORK))
    trainer = d5.Trainer(executor, d5.SGD(0.0), d5.OrderedSampler(data, 2), d5.OrderedSampler(data, 3))
    observers = [metric.observer() for metric in metrics]
    trainer.train(2, events=[*observers, *events])
    return observers


def test_error_rates_by_hand() -> None:
    phonemes, words = run(d5.PhonemeErrorRate(), d5.WordErrorRate())
    # 2 3 is right; of 2 2 3, one is deleted; 2 3 is inserted where nothing is; 5 5 is inserted after 5 5.
    assert phonemes.value() == pytest.approx(100 * (1 + 2 + 2) / (2 + 3 + 0 + 2), rel=1e-15)
    assert words.value() == 75.0
    (sample,) = phonemes.samples()
    assert (sample.value, sample.step, sample.epoch) == (phonemes.value(), 4, 2)


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_the_libraries(seed: int) -> None:
    draw = np.random.default_rng(seed)
    references = [draw.integers(2, 8, draw.integers(4, 12)).tolist() for _ in range(30)]
    # Some tokens are replaced, left out or repeated.
    hypotheses = [
        [token for old in one for token in ([old], [7], [], [old, old])[draw.choice(4, p=(0.7, 0.1, 0.1, 0.1))]]
        for one in references
    ]
    names = "..abcdef"
    said, wanted = ([[names[token] for token in row] for row in part] for part in (hypotheses, references))
    spaced, spaced_wanted = ([" ".join(row) for row in part] for part in (said, wanted))
    joined, joined_wanted = (["".join(row) for row in part] for part in (said, wanted))
    # The same quotients of integers, times 100 here.
    assert d5.PhonemeErrorRate().score(references, hypotheses) == pytest.approx(
        100 * jiwer.wer(spaced_wanted, spaced), rel=1e-14
    )
    assert d5.WordErrorRate().score(references, hypotheses) == pytest.approx(
        100 * jiwer.wer(joined_wanted, [each or "." for each in joined]), rel=1e-14
    )
    # The same counts of the same library: equal.
    bleu = sacre_bleu.BLEU(tokenize="none", force=True).corpus_score(spaced, [spaced_wanted]).score
    assert d5.BLEU().score(references, hypotheses) == bleu
    assert 20 < bleu < 90
    assert d5.ChrF().score(references, hypotheses) == sacre_chrf.CHRF().corpus_score(joined, [joined_wanted]).score


def test_the_extremes() -> None:
    right = [[5, 6, 7, 8, 9], [2, 3, 4, 5]]
    wrong = [[10] * 5, [10] * 4]
    for metric, best in ((d5.PhonemeErrorRate(), 0.0), (d5.WordErrorRate(), 0.0), (d5.BLEU(), 100), (d5.ChrF(), 100)):
        assert metric.score(right, right) == pytest.approx(best, rel=1e-12)
    assert d5.PhonemeErrorRate().score(right, wrong) == d5.WordErrorRate().score(right, wrong) == 100.0
    assert d5.ChrF().score(right, wrong) == 0.0
    assert d5.BLEU().score(right, wrong) == 0.0
    # Three of four tokens; of three, two and one longer sequences none: counted as 1/2, 1/4 and 1/8 of a match.
    smoothed = 100 * (3 / 4 * (1 / 2) / 3 * (1 / 4) / 2 * (1 / 8) / 1) ** 0.25
    assert d5.BLEU().score([[5, 6, 7, 8]], [[5, 9, 6, 8]]) == pytest.approx(smoothed, rel=1e-12)


def test_all_metrics_decode_once() -> None:
    calls = []

    class Counted(d5.Event):
        def before_training(self, trainer: Any) -> None:
            inference = trainer.executor.inference

            def counted(inputs: Any) -> Any:
                calls.append(len(inputs["target"]))
                return inference(inputs)

            trainer.executor.inference = counted

    found = run(*(metric() for metric in METRICS), events=(Counted(),))
    assert all(observer.value() is not None for observer in found)
    # Two evaluations of two batches; then three calls until the first batch has ended, four for the other.
    assert calls == [3, 1] * 2 + [3] * 3 + [1] * 4


def test_ranks_score_all_sequences_together() -> None:
    def trained(communicator: Any) -> list[float | None]:
        own = slice(communicator.rank, None, communicator.size)
        data = ArrayDataset({"target": TARGET[own], "label": LABEL[own]})
        executor = d5.framework("reference").executor(chain(**NETWORK))
        samplers = d5.OrderedSampler(data, 2), d5.OrderedSampler(data, 2)
        trainer = d5.Trainer(executor, d5.SGD(0.0), *samplers, communicator=communicator)
        observers = [metric().observer() for metric in METRICS]
        trainer.train(1, events=observers)
        return [observer.value() for observer in observers]

    one, other = run_in_threads(2, trained)
    assert one == other == pytest.approx([observer.value() for observer in run(*(metric() for metric in METRICS))])


def test_an_unfinished_training_has_no_value() -> None:
    class Failed(Exception):
        pass

    class Fail(d5.Event):
        def after_step(self, *_: Any) -> None:
            raise Failed

    observer = d5.PhonemeErrorRate().observer()
    data = ArrayDataset({"target": TARGET, "label": LABEL})
    trainer = d5.Trainer(d5.framework("reference").executor(chain(**NETWORK)), d5.SGD(0.0), d5.OrderedSampler(data, 2))
    with pytest.raises(Failed):
        trainer.train(1, events=[observer, Fail()])
    assert (observer.value(), observer.missing()) == (None, "training did not finish")
    (stopped,) = run(d5.PhonemeErrorRate(), events=(StopIn(1),))
    assert stopped.value() is not None
    trainer.train(1, events=[untested := d5.WordErrorRate().observer()])
    assert (untested.value(), untested.missing()) == (None, "there is no test set")


def test_a_test_set_without_tokens_has_no_error_rate() -> None:
    (observer,) = run(d5.PhonemeErrorRate(), rows=np.array([2, 2, 2]))
    assert observer.value() is None
    (words,) = run(d5.WordErrorRate(), rows=np.array([2, 2, 2]))
    assert words.value() == 100.0


@pytest.mark.parametrize("end", [-1, True, 1.5, "1"])
@pytest.mark.parametrize("metric", METRICS)
def test_bad_ends(metric: Any, end: Any) -> None:
    with pytest.raises(UsageError, match=rf"{metric.name} with end=.*; allowed: a token, an integer of at least 0"):
        metric(end=end)


def test_networks_that_decode_nothing_are_refused_before_training() -> None:
    data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    sampler = d5.OrderedSampler(data.train, 4)
    trainer = d5.Trainer(executor, d5.Adam(), sampler, sampler)
    with pytest.raises(UnknownName, match="unknown input 'target'; allowed: input, label"):
        trainer.train(1, events=[d5.PhonemeErrorRate().observer()])
    assert trainer.step == 0


@pytest.mark.parametrize(
    ("metric", "package", "module"),
    [
        (d5.PhonemeErrorRate(), "rapidfuzz", "rapidfuzz.distance"),
        (d5.BLEU(), "sacrebleu", "sacrebleu.metrics"),
        (d5.ChrF(), "sacrebleu", "sacrebleu.metrics"),
    ],
)
def test_packages_that_are_missing_are_reported_before_training(
    metric: Metric, package: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package, module):
        monkeypatch.setitem(sys.modules, name, None)
    steps = []

    class Steps(d5.Event):
        def after_step(self, *_: Any) -> None:
            steps.append(1)

    with pytest.raises(MissingDependency, match=rf"'{package}'.*pip install 'deep5\[text\]'"):
        run(metric, events=(Steps(),))
    assert not steps


def test_goals() -> None:
    assert str(parse_goal(d5.PhonemeErrorRate(), "<= 120 %")) == "<= 120", "insertions may exceed the reference"
    with pytest.raises(UsageError, match="outside the metric's values; allowed: 0 to 100 %"):
        parse_goal(d5.WordErrorRate(), "<= 120 %")
    assert d5.BLEU() == d5.BLEU(end=1) != d5.BLEU(end=2)
