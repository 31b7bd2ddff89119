"""Area under the ROC curve and F1 are those of scikit-learn, on one process and on several ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score

import deep5 as d5
from deep5.core.errors import ShapeError, UnknownName, UsageError
from deep5.core.metric import Metric, Observer
from deep5.distributed.communicators.threads import run_in_threads
from deep5.metrics.confusion import f1_scores
from deep5.metrics.roc_auc import area_under_roc
from deep5.training.scores import confusion

# The same sums in another order, of up to a thousand terms: float64 rounding.
CLOSE = {"rel": 1e-12}
NETWORK = SimpleNamespace(outputs={"logits": None, "loss": None}, inputs={"input": None, "label": None})


def evaluated(metric: Metric, batches: list[tuple[Any, Any]], communicator: Any = None, network: Any = NETWORK) -> Any:
    """The metric's observer after an evaluation of batches of scores and labels."""
    observer = metric.observer()
    trainer = SimpleNamespace(
        communicator=communicator, step=3, elapsed_ns=lambda: 0, executor=SimpleNamespace(network=network)
    )
    observer.before_training(trainer)
    again(observer, trainer, batches)
    observer.trainer = trainer
    return observer


def again(observer: Observer, trainer: Any, batches: list[tuple[Any, Any]]) -> None:
    observer.before_evaluation(trainer, 0)
    for scores, labels in batches:
        observer.after_evaluation_batch(trainer, None, {"label": labels}, {"logits": scores})
    observer.after_evaluation(trainer, 0, {})


# The area under the ROC curve


@pytest.mark.parametrize("kinds", [3, 20, 10**9], ids=["many ties", "ties", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_area_is_scikit_learns(kinds: int, dtype: str) -> None:
    draw = np.random.default_rng(kinds)
    for size in (2, 5, 100, 1000):
        labels = draw.integers(0, 2, size)
        labels[:2] = 0, 1
        scores = (draw.integers(0, kinds, size) / kinds + 0.2 * labels).astype(dtype)
        expected = 100 * roc_auc_score(labels, scores)
        found = evaluated(d5.ROCAUC(), [(part, label) for part, label in split(scores, labels, 3)])
        assert found.value() == pytest.approx(expected, **CLOSE)
        assert [sample.epoch for sample in found.samples()] == [1]


def split(scores: np.ndarray, labels: np.ndarray, parts: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(np.array_split(scores, parts), np.array_split(labels, parts), strict=True))


def test_areas_by_hand() -> None:
    labels = np.array([0, 0, 1, 1])
    for scores, area in (([1, 2, 3, 4], 100.0), ([4, 3, 2, 1], 0.0), ([7, 7, 7, 7], 50.0), ([1, 3, 3, 4], 87.5)):
        assert evaluated(d5.ROCAUC(), [(np.array(scores, np.float32), labels)]).value() == area


def test_logits_of_two_classes_score_by_their_difference() -> None:
    draw = np.random.default_rng(0)
    logits, labels = draw.standard_normal((50, 2)), draw.integers(0, 2, 50)
    expected = 100 * roc_auc_score(labels, logits[:, 1] - logits[:, 0])
    assert evaluated(d5.ROCAUC(), [(logits, labels)]).value() == pytest.approx(expected, **CLOSE)


def test_labels_may_be_floating_point() -> None:
    batch = (np.array([0.1, 0.9]), np.array([0.0, 1.0], np.float32))
    assert evaluated(d5.ROCAUC(), [batch]).value() == 100.0


def test_one_class_or_a_score_that_is_not_a_number_has_no_value_but_a_reason() -> None:
    observer = evaluated(d5.ROCAUC(), [(np.array([0.1, 0.2]), np.array([1, 1]))])
    assert (observer.value(), observer.samples()) == (None, [])
    assert observer.missing() == "not available here: the test labels are all of one class"
    observer = evaluated(d5.ROCAUC(), [(np.array([0.1, 0.2]), np.array([0, 1]))])
    assert (observer.value(), observer.missing()) == (100.0, None)
    # A later evaluation without a value: not that of the earlier one.
    again(observer, observer.trainer, [(np.array([0.1, np.nan]), np.array([0, 1]))])
    assert (observer.value(), observer.missing()) == (None, "not available here: a score is NaN")
    again(observer, observer.trainer, [(np.array([0.2, 0.1]), np.array([0, 1]))])
    assert (observer.value(), observer.missing()) == (0.0, None)


@pytest.mark.parametrize("counts", [(5, 3), (4, 0), (1, 6, 2)])
def test_ranks_with_different_numbers_of_samples(counts: tuple[int, ...]) -> None:
    draw = np.random.default_rng(1)
    total = sum(counts)
    scores, labels = draw.standard_normal(total).astype(np.float32), np.arange(total) % 2
    bounds = np.cumsum((0, *counts))

    def rank(communicator: Any) -> float:
        own = slice(bounds[communicator.rank], bounds[communicator.rank + 1])
        batches = [(scores[own], labels[own])] if counts[communicator.rank] else []
        value: float = evaluated(d5.ROCAUC(), batches, communicator).value()
        return value

    expected = 100 * roc_auc_score(labels, scores)
    assert run_in_threads(len(counts), rank) == pytest.approx([expected] * len(counts), **CLOSE)


def test_ignored_labels_do_not_count() -> None:
    from deep5.networks import NetworkBuilder

    build = NetworkBuilder("two", seed=0)
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    logits = build.op("MatMul", x, build.parameter("w", (4, 2)))
    network = build.network(
        {
            "logits": logits,
            "loss": build.op("SoftmaxCrossEntropyLoss", logits, label, reduction="mean", ignore_index=-1),
        }
    )
    batch = (np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 9.0]]), np.array([0, 1, -1]))
    assert evaluated(d5.ROCAUC(), [batch], network=network).value() == 100.0
    assert evaluated(d5.F1(1), [batch], network=network).value() == pytest.approx(200 / 3)


@pytest.mark.parametrize(
    ("scores", "labels", "error", "message"),
    [
        (np.zeros((2, 3)), np.array([0, 1]), ShapeError, r"scores 'logits' of shape \(2, 3\) .* allowed: one score"),
        (np.zeros(3), np.array([0, 1]), ShapeError, r"scores 'logits' of shape \(3,\) and labels of shape \(2,\)"),
        (np.zeros(2), np.array([0, 2]), UsageError, "roc_auc got the label 2; allowed: 0 and 1; remedy: "),
        (np.zeros(2), np.array([-1, 1]), UsageError, "roc_auc got the label -1; allowed: 0 and 1"),
        (np.zeros(2), np.array([0.5, 1]), UsageError, r"roc_auc got the label 0\.5; allowed: 0 and 1"),
    ],
)
def test_scores_and_labels_that_have_no_area(scores: Any, labels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        evaluated(d5.ROCAUC(), [(scores, labels)])


def test_an_area_of_one_class_is_none() -> None:
    assert area_under_roc(np.array([1.0]), np.array([True])) is None
    assert area_under_roc(np.array([]), np.array([], dtype=bool)) is None


# F1


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_f1_is_scikit_learns(classes: int) -> None:
    draw = np.random.default_rng(classes)
    logits, labels = draw.standard_normal((60, classes)), draw.integers(0, classes, 60)
    predicted = logits.argmax(axis=1)
    macro = evaluated(d5.F1(), split(logits, labels, 4)).value()
    assert macro == pytest.approx(100 * f1_score(labels, predicted, average="macro"), **CLOSE)
    each = [evaluated(d5.F1(label), [(logits, labels)]).value() for label in range(classes)]
    assert each == pytest.approx((100 * f1_score(labels, predicted, average=None)).tolist(), **CLOSE)


def test_classes_that_do_not_occur_are_left_out_of_the_mean_as_in_scikit_learn() -> None:
    labels, predicted = np.array([0, 0, 1]), np.array([0, 3, 0])
    logits = np.eye(5)[predicted]
    # Class 1 occurs and is never predicted, class 3 is predicted and never occurs: 0. Classes 2 and 4: not at all.
    assert f1_scores(confusion(logits, labels)).tolist()[:2] == [50.0, 0.0]
    expected = 100 * f1_score(labels, predicted, average="macro")
    assert evaluated(d5.F1(), [(logits, labels)]).value() == pytest.approx(expected, **CLOSE) == pytest.approx(50 / 3)
    absent = evaluated(d5.F1(2), [(logits, labels)])
    assert absent.value() is None
    assert absent.missing() == "not available here: no test label and no prediction is of the class"
    assert [evaluated(d5.F1(label), [(logits, labels)]).value() for label in (1, 3)] == [0.0, 0.0]


def test_logits_that_are_not_numbers_predict_no_class() -> None:
    logits = np.array([[2.0, 1.0], [np.nan, 1.0], [1.0, 2.0]])
    # Class 0: one hit, one miss that is a false positive of no class.
    assert evaluated(d5.F1(0), [(logits, np.array([0, 0, 1]))]).value() == pytest.approx(200 / 3)


def test_f1_of_ranks() -> None:
    draw = np.random.default_rng(0)
    logits, labels = draw.standard_normal((10, 3)), np.arange(10) % 3

    def rank(communicator: Any) -> float:
        own = slice(0, 7) if communicator.rank else slice(7, 10)
        value: float = evaluated(d5.F1(), [(logits[own], labels[own])], communicator).value()
        return value

    expected = 100 * f1_score(labels, logits.argmax(axis=1), average="macro")
    assert run_in_threads(2, rank) == pytest.approx([expected] * 2, **CLOSE)


@pytest.mark.parametrize("positive", [-1, 1.0, True, "1"])
def test_a_class_that_is_none(positive: Any) -> None:
    with pytest.raises(UsageError, match=r"f1 with positive=.*; allowed: a class from 0, or None"):
        d5.F1(positive)


def test_a_class_that_the_network_does_not_have() -> None:
    with pytest.raises(UsageError, match="f1 with positive=3 of a network of 3 classes; allowed: 0 to 2, or None"):
        evaluated(d5.F1(3), [], network=d5.networks.mlp(features=2, hidden=2, classes=3))
    with pytest.raises(UsageError, match="f1 with positive=3 of a network of 3 classes"):
        evaluated(d5.F1(3), [(np.zeros((1, 3)), np.array([0]))])


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (d5.ROCAUC(scores="logit"), "unknown output 'logit'; allowed: logits, loss"),
        (d5.ROCAUC(label="y"), "unknown input 'y'; allowed: input, label"),
        (d5.F1(logits="foo"), "unknown output 'foo'; allowed: logits, loss"),
        (d5.F1(label="labels"), "unknown input 'labels'; allowed: input, label"),
    ],
    ids=str,
)
def test_names_that_the_network_does_not_have(metric: Metric, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        evaluated(metric, [])
