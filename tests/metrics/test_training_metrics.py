"""Metrics of training: values worked by hand, on an executor that gives the logits of the test."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import ShapeError, UnknownName, UsageError
from deep5.core.metric import Metric, Observer, parse_goal
from deep5.core.plugins import load, registered
from deep5.training.dataset import ArrayDataset
from deep5.training.scores import class_rows, confusion, recalls, top_k_hits
from ending import StopIn

# Four samples, three classes. Ranks of the true classes: first, second, third, second.
LABELS = np.array([0, 1, 2, 1])
LOGITS = np.array([[3.0, 2.0, 1.0], [5.0, 4.0, 0.0], [3.0, 2.0, 1.0], [0.0, 1.0, 2.0]])


class Fake:
    """Executor and optimizer in one: logits by sample, equal in training and evaluation; a loss for each sample."""

    def __init__(self, logits: np.ndarray = LOGITS, losses: tuple[float, ...] = ()) -> None:
        self.network = SimpleNamespace(outputs={"loss": None, "logits": None}, inputs={"input": None, "label": None})
        self.logits, self.losses = logits, iter(losses)
        self.device = d5.CPUDevice()

    def synchronize(self) -> None:
        pass

    def inference(self, inputs: Any) -> Any:
        return {"logits": self.logits[inputs["input"]], "loss": np.float32(next(self.losses, 1.0))}

    def bind(self, executor: Any) -> None:
        pass

    def step(self, inputs: Any, info: Any) -> Any:
        return {"logits": self.logits[inputs["input"]], "loss": np.float32(1)}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def samples(labels: np.ndarray = LABELS) -> ArrayDataset:
    return ArrayDataset({"input": np.arange(len(labels)), "label": labels})


def run(
    metric: Metric,
    fake: Fake | None = None,
    epochs: int = 1,
    *,
    train: Any = None,
    test: Any = None,
    events: tuple[d5.Event, ...] = (),
) -> Observer:
    observer, fake = metric.observer(), fake or Fake()
    train = train or d5.OrderedSampler(samples(), 3)
    trainer = d5.Trainer(fake, fake, train, test or d5.OrderedSampler(samples(), 3))  # type: ignore[arg-type]
    trainer.train(epochs, [observer, *events])
    return observer


def rows(observer: Observer, name: str) -> list[dict[str, str]]:
    text = observer.files()[name]
    assert isinstance(text, str)
    return list(csv.DictReader(io.StringIO(text)))


# Ranks


@pytest.mark.parametrize(("k", "hits"), [(1, 1), (2, 3), (3, 4)])
def test_hits_among_the_first_k(k: int, hits: int) -> None:
    assert top_k_hits(LOGITS, LABELS, k) == hits


def test_the_first_of_equal_logits_is_what_argmax_predicts() -> None:
    draw = np.random.default_rng(0)
    scores, labels = draw.integers(0, 3, (200, 4)).astype(np.float32), draw.integers(0, 4, 200)
    assert top_k_hits(scores, labels, 1) == np.count_nonzero(scores.argmax(axis=1) == labels)
    # By stable sorting, which keeps the order of equal scores.
    order = np.argsort(-scores, axis=1, kind="stable")
    for k in (2, 3, 4):
        assert top_k_hits(scores, labels, k) == np.count_nonzero((order[:, :k] == labels[:, None]).any(axis=1))


def test_no_label_and_no_number_is_no_hit() -> None:
    scores = np.array([[1.0, np.nan], [1.0, 0.0], [1.0, 0.0]])
    assert top_k_hits(scores, np.array([0, -1, 5]), 2) == 0
    assert confusion(scores, np.array([0, -1, 5])).tolist() == [[0, 0, 1], [0, 0, 0]]


def test_logits_of_several_rows_a_sample() -> None:
    scores, labels = class_rows(np.stack([LOGITS, LOGITS]), np.stack([LABELS, LABELS]))
    assert top_k_hits(scores, labels, 2) == 6
    with pytest.raises(ShapeError, match=r"logits of shape \(4, 3\) and labels of shape \(3,\), int64; allowed"):
        class_rows(LOGITS, LABELS[:3])
    with pytest.raises(ShapeError, match="float64; allowed: integers as labels"):
        class_rows(LOGITS, LABELS.astype(float))


def test_the_recall_of_a_class_without_samples_is_no_number() -> None:
    matrix = confusion(LOGITS, LABELS)
    assert matrix.tolist() == [[1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0]]
    assert recalls(matrix).tolist() == [100.0, 0.0, 0.0]
    assert math.isnan(recalls(confusion(LOGITS[:1], LABELS[:1]))[1])


# Of the test set


@pytest.mark.parametrize(("k", "value"), [(1, 25.0), (2, 75.0), (3, 100.0)])
def test_top_k(k: int, value: float) -> None:
    observer = run(d5.TopK(k), epochs=2)
    assert observer.value() == value
    assert [(s.value, s.step, s.epoch) for s in observer.samples()] == [(value, 2, 1), (value, 4, 2)]


def test_top_1_is_the_test_accuracy() -> None:
    assert run(d5.TopK(1)).value() == run(d5.TestAccuracy()).value() == 25.0


def test_top_k_of_too_few_classes() -> None:
    with pytest.raises(UsageError, match="top_k with k=4 of a network of 3 classes; allowed: 1 to 3"):
        run(d5.TopK(4))


@pytest.mark.parametrize("k", [0, -1, 1.5, True, "5"])
def test_a_k_that_is_none(k: Any) -> None:
    with pytest.raises(UsageError, match="allowed: an integer of at least 1"):
        d5.TopK(k)


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (d5.TopK(1, logits="logit"), "unknown output 'logit'; allowed: logits, loss; did you mean 'logits'"),
        (d5.TopK(1, label="foo"), "unknown input 'foo'; allowed: input, label"),
        (d5.ConfusionMatrix(logits="foo"), "unknown output 'foo'; allowed: logits, loss"),
        (d5.ConfusionMatrix(label="labels"), "unknown input 'labels'; allowed: input, label; did you mean 'label'"),
    ],
    ids=str,
)
def test_names_that_the_network_does_not_have(metric: Metric, told: str) -> None:
    class Untrained(Fake):
        def step(self, inputs: Any, info: Any) -> Any:
            raise AssertionError("an epoch is trained for nothing")

    with pytest.raises(UnknownName, match=told):
        run(metric, Untrained())


def test_test_loss_counts_every_sample_once() -> None:
    observer = run(d5.TestLoss(), Fake(losses=(1.0, 5.0, 2.0, 4.0)), epochs=2)
    # Batches of three and of one.
    assert [s.value for s in observer.samples()] == [(3 * 1 + 5) / 4, (3 * 2 + 4) / 4]
    assert observer.value() == 2.5


def test_the_confusion_matrix_is_that_of_the_last_epoch() -> None:
    observer = run(d5.ConfusionMatrix(), epochs=2)
    assert observer.value() == 0.0  # the worst class
    assert observer.files() == {"confusion.csv": "true\\predicted,0,1,2\n0,1,0,0\n1,1,0,1\n2,1,0,0\n"}
    right = run(d5.ConfusionMatrix(), Fake(np.eye(3)[LABELS]))
    assert right.value() == 100.0


def test_what_nothing_was_predicted_for_has_a_column() -> None:
    logits = LOGITS.copy()
    logits[1, 0] = np.nan
    observer = run(d5.ConfusionMatrix(), Fake(logits))
    assert rows(observer, "confusion.csv")[1] == {"true\\predicted": "1", "0": "0", "1": "0", "2": "1", "none": "1"}


def test_epochs_to_accuracy() -> None:
    class Learning(Fake):
        def inference(self, inputs: Any) -> Any:
            # Right from the second evaluation on; two batches each.
            self.calls = getattr(self, "calls", 0) + 1
            logits = LOGITS if self.calls <= 2 else np.eye(3)[LABELS]
            return {"logits": logits[inputs["input"]], "loss": np.float32(1)}

    observer = run(d5.EpochsToAccuracy(90), Learning(), epochs=3)
    assert observer.value() == 2.0
    assert [s.value for s in observer.samples()] == [25.0, 100.0, 100.0]
    assert run(d5.EpochsToAccuracy(90), Fake(), epochs=3).value() == math.inf
    with pytest.raises(UsageError, match="epochs_to_accuracy with target 0; allowed: a number above 0 up to 100"):
        d5.EpochsToAccuracy(0)


# Of the training set


def test_training_accuracy_counts_the_partial_batch_right() -> None:
    observer = run(d5.TrainingAccuracy(), epochs=2, train=d5.ShuffleSampler(samples(), 3))
    assert [s.value for s in observer.samples()] == [25.0, 25.0]
    assert observer.missing() is None


def test_training_accuracy_is_of_the_weights_that_learned() -> None:
    class Learning(Fake):
        def step(self, inputs: Any, info: Any) -> Any:
            logits = np.eye(3)[LABELS] if info.step else LOGITS
            return {"logits": logits[inputs["input"]], "loss": np.float32(1)}

    # One of three correct in the first batch, the last sample correct in the second.
    assert run(d5.TrainingAccuracy(), Learning()).value() == 50.0


def test_training_accuracy_reads_logits_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deep5.metrics.training_accuracy._MOST_UNREAD", 3)
    read: list[int] = []

    class Native:
        def __init__(self, values: np.ndarray, step: int) -> None:
            self.values, self.step = values, step

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            read.append(self.step)
            return self.values

    class Late(Fake):
        def step(self, inputs: Any, info: Any) -> Any:
            assert len(read) in (0, 3)
            return {"logits": Native(self.logits[inputs["input"]], info.step), "loss": np.float32(1)}

    observer = run(d5.TrainingAccuracy(), Late(), train=d5.OrderedSampler(samples(), 1))
    assert read == [0, 1, 2, 3]
    assert observer.value() == 25.0


class Unknown:
    """Batches that do not state which samples they hold."""

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        yield None, {"input": np.arange(4), "label": LABELS}

    def steps(self, epoch: int) -> int:
        return 1

    def order_hash(self, epochs: int) -> None:
        return None


@pytest.mark.parametrize("metric", [d5.TrainingAccuracy(), d5.SamplingBias(), d5.GeneralisationGap()], ids=str)
def test_samples_without_an_index_have_no_value_and_a_reason(metric: Metric) -> None:
    observer = run(metric, train=Unknown())
    assert observer.value() is None
    assert observer.samples() == []
    assert "the samples of the training set have no index" in (observer.missing() or "")


def test_logits_of_one_of_several_batches_are_not_taken_for_all() -> None:
    class Part(Fake):
        def step(self, inputs: Any, info: Any) -> Any:
            return {"logits": self.logits[:1], "loss": np.float32(1)}

    observer = run(d5.TrainingAccuracy(), Part())
    assert observer.value() is None
    assert "accumulated over several batches" in (observer.missing() or "")


# Sampling


class Drawn(d5.Sampler):
    """Draws the given samples, epoch by epoch."""

    def __init__(self, *orders: list[int]) -> None:
        super().__init__(samples(), 3)
        self._orders = orders

    def order(self, epoch: int) -> np.ndarray:
        return np.array(self._orders[epoch])

    def samples(self, epoch: int) -> int:
        return len(self._orders[epoch])


def test_sampling_bias_by_hand() -> None:
    """Labels 0, 1, 2, 1: shares of 1/4, 1/2, 1/4. The second epoch draws sample 0 twice and sample 2 never."""
    train = Drawn([3, 2, 1, 0], [0, 0, 1, 3])
    observer = run(d5.SamplingBias(), epochs=2, train=train)
    # Classes drawn 1/2, 1/2, 0: half of |1/4| + 0 + |1/4|.
    assert [s.value for s in observer.samples()] == [0.0, 25.0]
    assert observer.value() == 25.0
    other = run(d5.SamplingBias("samples"), epochs=2, train=train)
    # Samples drawn 1/2, 1/4, 0, 1/4 instead of 1/4 each.
    assert [s.value for s in other.samples()] == [0.0, 25.0]
    found = rows(other, "sampling.csv")
    assert [(row["drawn"], row["never"], row["once"], row["more_than_once"]) for row in found] == [
        ("4", "0", "4", "0"),
        ("4", "1", "2", "1"),
    ]


def test_classes_can_be_in_balance_where_samples_are_not() -> None:
    train = Drawn([0, 1, 1, 2])  # of the two samples of class 1, the same one twice
    assert run(d5.SamplingBias(), train=train).value() == 0.0
    assert run(d5.SamplingBias("samples"), train=train).value() == 25.0


def test_shuffling_has_no_bias() -> None:
    for of in ("labels", "samples"):
        observer = run(d5.SamplingBias(of), epochs=3, train=d5.ShuffleSampler(samples(), 3))
        assert [s.value for s in observer.samples()] == [0.0] * 3


class Files(ArrayDataset):
    """Labels that are not in memory: they are read with their samples."""

    read = 0

    def labels(self, name: str = "label") -> None:
        return None

    def batch(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        self.read += len(ids)
        return super().batch(ids)


@pytest.mark.parametrize(("of", "times"), [("labels", 1), ("samples", 0)])
def test_labels_that_are_not_at_hand_are_read_once(of: str, times: int) -> None:
    """Outside the clock; if only samples are counted, not at all."""
    data, clock = Files({"input": np.arange(4), "label": LABELS}), []

    class Look(d5.Event):
        def before_training(self, trainer: Any) -> None:
            clock.append((data.read, trainer.elapsed_ns()))

    observer = run(d5.SamplingBias(of), epochs=3, train=d5.ShuffleSampler(data, 3), events=(Look(),))
    assert data.read == 3 * 4 + 4 * times
    assert clock == [(4 * times, 0)]
    assert [s.value for s in observer.samples()] == [0.0] * 3
    assert [row["labels_percent"] for row in rows(observer, "sampling.csv")] == ["0.0" if times else ""] * 3
    assert {"_labels", "_dataset"}.isdisjoint(observer.state_dict())


def test_an_epoch_that_was_cut_short_is_no_bias() -> None:
    class Stop(d5.Event):
        def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
            raise d5.StopTraining("enough")

    observer = run(d5.SamplingBias(), events=(Stop(),))
    assert (observer.value(), observer.files()) == (None, {})
    with pytest.raises(UsageError, match="sampling_bias of 'classes'; allowed: 'labels', 'samples'"):
        d5.SamplingBias("classes")


# After training


def test_the_gap_is_of_the_final_weights_in_evaluation() -> None:
    """All training samples correct but one, all test samples but three, whatever the steps reported."""
    train, test = samples(), ArrayDataset({"input": np.arange(4, 8), "label": LABELS})
    good = np.eye(3)[LABELS]
    good[3] = [9, 0, 0]
    fake = Fake(np.concatenate([good, LOGITS]))
    observer = run(d5.GeneralisationGap(), fake, 2, train=d5.ShuffleSampler(train, 3), test=d5.OrderedSampler(test, 4))
    assert observer.value() == 75.0 - 25.0
    assert [(s.step, s.epoch) for s in observer.samples()] == [(4, 2)]


def test_the_training_set_is_evaluated_as_the_test_set_is() -> None:
    """Without augmentation: a training transform that changes every sample does not count, one of evaluation does."""

    def other(inputs: Any, ids: Any, epoch: int) -> Any:
        return {**inputs, "input": np.zeros_like(inputs["input"])}

    right = Fake(np.eye(3)[LABELS])
    train = d5.OrderedSampler(samples(), 3, transforms=[other])
    assert run(d5.GeneralisationGap(), right, train=train).value() == 0.0
    # The evaluation transform turns every sample into the first, of class 0: one of four correct, on both sides.
    fake, test = Fake(np.eye(3)[LABELS]), d5.OrderedSampler(samples(), 3, transforms=[other])
    assert run(d5.GeneralisationGap(), fake, test=test).value() == 0.0
    uneven = d5.OrderedSampler(samples(np.array([0, 0, 0, 1])), 3, transforms=[other])
    assert run(d5.GeneralisationGap(), Fake(np.eye(3)[LABELS]), test=uneven).value() == 25.0 - 75.0


def test_final_accuracy_of_a_run_that_was_stopped_within_an_epoch() -> None:
    class Learning(Fake):
        def step(self, inputs: Any, info: Any) -> Any:
            if info.step == 2:  # the first step of the second epoch
                self.logits = np.eye(3)[LABELS]
            return super().step(inputs, info)

    final, last = d5.FinalTestAccuracy().observer(), d5.TestAccuracy().observer()
    run(d5.TestLoss(), Learning(), 2, events=(final, last, StopIn(2)))
    assert (final.value(), last.value()) == (100.0, 25.0)
    assert final.samples()[0].step == 3


def test_a_run_that_failed_is_not_evaluated() -> None:
    class Failing(Fake):
        def step(self, inputs: Any, info: Any) -> Any:
            raise RuntimeError("broken")

    final, gap = d5.FinalTestAccuracy().observer(), d5.GeneralisationGap().observer()
    with pytest.raises(RuntimeError, match="broken"):
        run(d5.TestLoss(), Failing(), events=(final, gap))
    assert (final.value(), gap.value()) == (None, None)
    assert final.missing() == gap.missing() == "training did not finish"


# Money and the clock


class Clock(d5.Event):
    """Sets the trainer's clock to an hour and a half at the end of the epoch."""

    def before_training(self, trainer: Any) -> None:
        trainer.elapsed_ns = lambda: 5_400 * 10**9


def test_cost_by_hand() -> None:
    observer = d5.Cost(2.5, "EUR").observer()
    run(d5.TestLoss(), events=(Clock(), observer))
    assert observer.value() == 2.5 * 1.5
    assert observer.samples()[0].time_s == 5400.0


def test_a_cost_is_in_its_currency() -> None:
    assert (d5.Cost(1).unit, d5.Cost(1, "EUR").unit, d5.Cost.unit) == ("USD", "EUR", "USD")
    assert str(parse_goal(d5.Cost(1, "EUR"), "< 3 EUR")) == "< 3"
    with pytest.raises(UsageError, match="is in 'USD'; allowed: 'EUR'"):
        parse_goal(d5.Cost(1, "EUR"), "< 3 USD")
    assert d5.Cost(1, "EUR") != d5.Cost(1)


@pytest.mark.parametrize("price", [-1, math.inf, math.nan, "2", True, None])
def test_prices_that_are_none(price: Any) -> None:
    with pytest.raises(UsageError, match="allowed: a finite number of at least 0"):
        d5.Cost(price)


@pytest.mark.parametrize("currency", ["", " ", 1, None, "US\nD"])
def test_currencies_that_are_none(currency: Any) -> None:
    with pytest.raises(UsageError, match="allowed: a name such as 'USD'"):
        d5.Cost(1, currency)


def test_every_time_is_the_runs_own() -> None:
    """The time that a resume adds to the trainer's clock appears in every metric that reads it."""
    observers = [m.observer() for m in (d5.WallClockTime(), d5.TimeToAccuracy(25), d5.TestAccuracy(), d5.TestLoss())]
    run(d5.TopK(1), events=(Clock(), *observers))
    assert [observer.samples()[-1].time_s for observer in observers] == [5400.0] * 4
    assert (observers[0].value(), observers[1].value()) == (5400.0, 5400.0)


# Resuming

SAVED: list[Metric] = [
    d5.TrainingLoss(),
    d5.TestLoss(),
    d5.TestAccuracy(),
    d5.TrainingAccuracy(),
    d5.TopK(2),
    d5.Perplexity(),
    d5.ConfusionMatrix(),
    d5.F1(),
    d5.EpochsToAccuracy(25),
    d5.FinalTestAccuracy(),
    d5.GeneralisationGap(),
    d5.SamplingBias(),
    d5.SamplingBias("samples"),
]


class Keep(d5.Event):
    """Saves the trainer's state after some steps, through a file, and ends the run there."""

    def __init__(self, step: int, path: Any) -> None:
        self.step, self.path = step, path

    def after_all(self, trainer: Any) -> None:
        if trainer.step == self.step and self.path is not None:
            from deep5.training.checkpoint_file import write_checkpoint

            left_out = write_checkpoint(self.path, trainer.state_dict(), {})
            assert left_out == ()
            raise d5.StopTraining("killed")


@pytest.mark.parametrize("step", [1, 3, 4, 5])
def test_metrics_go_on_where_they_were(step: int, tmp_path: Any) -> None:
    """Three epochs of three steps, interrupted within or after an epoch, give what an uninterrupted run gives."""
    from deep5.training.checkpoint_file import read_checkpoint

    def trainer(path: Any) -> tuple[Any, list[Observer], list[d5.Event]]:
        fake = Fake(LOGITS, losses=())
        sampler = d5.ShuffleSampler(samples(), 2)
        made = d5.Trainer(fake, fake, sampler, d5.OrderedSampler(samples(), 3))  # type: ignore[arg-type]
        observers = [metric.observer() for metric in SAVED]
        return made, observers, [*observers, Keep(step, path)]

    whole, expected, events = trainer(None)
    whole.train(3, events)
    first, _, events = trainer(tmp_path / "a.safetensors")
    first.train(3, events)
    assert first.step == step
    second, observers, events = trainer(None)
    state, _ = read_checkpoint(tmp_path / "a.safetensors")
    second.load_state_dict(state)
    second.train(3 - second.epoch, events)
    assert second.step == whole.step
    for metric, here, there in zip(SAVED, observers, expected, strict=True):
        mine, theirs = ([s._replace(time_s=None) for s in observer.samples()] for observer in (here, there))
        assert mine == theirs, metric
        assert here.value() == there.value(), metric
        assert here.files() == there.files(), metric


# All metrics

ALL: list[Metric] = [
    *SAVED,
    d5.BitsPerByte(),
    d5.Cost(1),
    d5.Energy(),
    d5.ROCAUC(),
    d5.Repeatability(),
    d5.TimeBreakdown(),
    d5.Utilisation(),
    # test_decoded_metrics.
    d5.PhonemeErrorRate(),
    d5.WordErrorRate(),
    d5.BLEU(),
    d5.ChrF(),
    # test_frechet.
    d5.FrechetDistance(),
    # test_label_error_rate, test_mean_average_precision, test_reinforcement.
    d5.LabelErrorRate(),
    d5.MeanAveragePrecision(),
    d5.MeanReturn(),
]


@pytest.mark.parametrize("metric", ALL, ids=str)
def test_what_a_metric_says_of_itself(metric: Metric) -> None:
    from deep5.run.record import _scope

    assert load("metrics", metric.name) is type(metric)
    assert getattr(d5, type(metric).__name__) is type(metric)
    scope = _scope(metric)
    assert scope.startswith(("On the clock:", "Nothing is on a clock")), scope
    assert metric.describe()["metric"] == metric.name
    fresh = metric.observer()
    assert (fresh.samples(), fresh.files()) == ([], {})
    assert fresh.value() in (None, math.inf)


def test_every_metric_of_training_is_tested_here_or_beside() -> None:
    told = {metric.name for metric in ALL} | {"operator_time", "operator_cost", "operator_coverage", "bare_ratio"}
    told |= {"overhead", "slowdown", "wall_clock_time", "throughput", "step_latency", "time_to_accuracy", "peak_memory"}
    # Metrics of several ranks: test_ranks and test_audit_ranks.
    told |= {"communication_volume", "communication_share", "load_imbalance"}
    # test_communication_metrics.
    told |= {"communication_overlap", "staleness"}
    # test_recipe_collectives.
    told |= {"bus_bandwidth", "collective_latency", "right_results"}
    # tests/serving.
    told |= {"failed_requests", "goodput", "highest_rate", "latency_percentile", "request_throughput"}
    assert set(registered("metrics")) == told
