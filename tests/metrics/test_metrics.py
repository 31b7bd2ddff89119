"""Metrics: values worked by hand on tiny runs of an executor that the test scripts."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import UnknownName, UsageError
from deep5.core.metric import Metric, Observer, Sample
from deep5.core.plugins import load
from deep5.results.schema import metric_row
from deep5.training.divergence import NonFiniteLoss
from ending import StopIn

ALL: list[Metric] = [
    d5.TestAccuracy(),
    d5.TrainingLoss(),
    d5.WallClockTime(),
    d5.TimeToAccuracy(90),
    d5.Throughput(),
    d5.StepLatency(),
    d5.PeakMemory(),
]


class Fake:
    """Executor and optimizer in one: losses in turn, correct answers by count, and a stated time for each step."""

    def __init__(
        self, losses: list[float], right: list[int], *, step_s: float = 0.0, evaluation_s: float = 0.0
    ) -> None:
        self.network = SimpleNamespace(outputs={"loss": None, "logits": None}, inputs={"label": None})
        self.losses, self.right = iter(losses), iter(right)
        self.step_s, self.evaluation_s = step_s, evaluation_s
        self.synchronized = 0
        self.wrap: Callable[[float], Any] = np.float32

    def synchronize(self) -> None:
        self.synchronized += 1

    def inference(self, inputs: Any) -> Any:
        time.sleep(self.evaluation_s)
        label, right = inputs["label"], next(self.right)
        predicted = np.where(np.arange(len(label)) < right, label, 1 - label)
        return {"logits": np.eye(2)[predicted], "loss": np.float32(1)}

    def bind(self, executor: Any) -> None:
        pass

    def step(self, inputs: Any, info: Any) -> Any:
        time.sleep(self.step_s)
        return {"loss": self.wrap(next(self.losses))}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


class Batches:
    def __init__(self, *sizes: int, fetch_s: float = 0.0) -> None:
        self.sizes, self.fetch_s = sizes, fetch_s

    def __len__(self) -> int:
        return len(self.sizes)

    def batches(self, epoch: int) -> Iterator[Any]:
        for size in self.sizes:
            time.sleep(self.fetch_s)
            yield np.arange(size), {"label": np.arange(size) % 2}


def run(
    metric: Metric, fake: Fake, epochs: int, *, train: Batches | None = None, test: Batches | None = None
) -> Observer:
    observer = metric.observer()
    trainer = d5.Trainer(fake, fake, train or Batches(4, 4, 2), test or Batches(3, 1))  # type: ignore[arg-type]
    trainer.train(epochs, [observer])
    return observer


def test_accuracy_after_the_last_epoch_not_the_best() -> None:
    observer = run(d5.TestAccuracy(), Fake([1] * 9, [1, 1, 3, 1, 2, 0]), 3)
    assert observer.value() == 50.0  # 2 of 4: batches of 3 and 1 count by their samples
    assert [(s.value, s.step, s.epoch) for s in observer.samples()] == [(50.0, 3, 1), (100.0, 6, 2), (50.0, 9, 3)]
    times = [s.time_s or 0 for s in observer.samples()]
    assert times == sorted(times)


def test_loss_weights_the_partial_batch_right() -> None:
    observer = run(d5.TrainingLoss(), Fake([9, 9, 9, 1, 2, 5], [0] * 4), 2)
    assert observer.value() == (4 * 1 + 4 * 2 + 2 * 5) / 10
    assert [s.value for s in observer.samples()] == [9, 9, 9, 1, 2, 5]
    assert [(s.step, s.epoch) for s in observer.samples()] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]


def test_loss_of_a_run_that_was_cut_short() -> None:
    class Stop(d5.Event):
        def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
            if info.step == 4:
                raise d5.StopTraining

    fake, observer = Fake([9, 9, 9, 1, 2], [0] * 4), d5.TrainingLoss().observer()
    d5.Trainer(fake, fake, Batches(4, 4, 2), Batches(3, 1)).train(2, [observer, Stop()])  # type: ignore[arg-type]
    assert observer.value() == 1.5
    assert len(observer.samples()) == 5


def test_a_loss_that_the_network_does_not_have() -> None:
    with pytest.raises(UnknownName, match="unknown output 'los'; allowed: logits, loss; did you mean 'loss'"):
        run(d5.TrainingLoss("los"), Fake([1] * 3, [0, 0]), 1)


def test_a_loss_is_a_scalar() -> None:
    executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    data = load("datasets", "synthetic")(shape=(4,), classes=2, train=6, test=2)
    trainer = d5.Trainer(executor, d5.SGD(), d5.OrderedSampler(data.train, 3))
    with pytest.raises(UsageError, match=r"training_loss of the output 'logits', which is .*allowed: a scalar; remedy"):
        trainer.train(1, [d5.TrainingLoss("logits").observer()])
    assert trainer.step == 0


def test_losses_are_read_after_the_epoch_and_dropped() -> None:
    read: list[int] = []
    kept: list[Any] = []

    class Native:
        def __init__(self, value: float) -> None:
            self.value = value
            kept.append(weakref.ref(self))

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            read.append(len(kept))
            return np.array(self.value)

    fake = Fake([1, 2, 3], [0, 0])
    fake.wrap = Native
    observer = run(d5.TrainingLoss(), fake, 1)
    assert read == [3, 3, 3]  # none before the last step was done
    gc.collect()
    assert [reference() for reference in kept] == [None] * 3
    assert observer.value() == (4 * 1 + 4 * 2 + 2 * 3) / 10


def test_observers_hold_no_graph() -> None:
    torch = pytest.importorskip("torch")
    executor = d5.framework("pytorch").executor(d5.networks.mlp(features=4, hidden=3, classes=2))
    sampler = d5.OrderedSampler(load("datasets", "synthetic")(shape=(4,), classes=2, train=6, test=2).train, 3)
    seen: list[bool] = []

    class Look(d5.Event):
        def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
            seen.extend(value.requires_grad for value in outputs.values())

    observers = [metric.observer() for metric in ALL]
    d5.Trainer(executor, d5.Adam(), sampler).train(2, [*observers, Look()])
    assert not any(seen)
    for observer in observers:
        assert not any(isinstance(value, torch.Tensor) for value in gc.get_referents(vars(observer)))


def test_time_to_accuracy() -> None:
    fake = Fake([1] * 9, [1, 1, 2, 1, 0, 0], step_s=0.01)
    observer = run(d5.TimeToAccuracy(75), fake, 3)
    value = observer.value()
    assert value is not None
    assert len(observer.samples()) == 2  # up to the evaluation that reached it
    assert value == observer.samples()[-1].value == observer.samples()[-1].time_s
    # Six steps of 10 ms at least; a loaded machine may sleep ten times longer, not a hundred times.
    assert 0.06 <= value < 6


def test_time_to_an_accuracy_never_reached_is_infinite() -> None:
    observer = run(d5.TimeToAccuracy(100), Fake([1] * 6, [1, 1, 2, 1]), 2)
    assert observer.value() == math.inf
    assert len(observer.samples()) == 2
    goal = d5.Goal(relation="<=", bound=1e9)
    assert not goal.met(observer.value())
    assert d5.TimeToAccuracy(100).observer().value() == math.inf


@pytest.mark.parametrize("target", [0, -1, 100.1, True, "97", float("nan"), None])
def test_targets_that_nothing_can_reach(target: Any) -> None:
    with pytest.raises(UsageError, match="allowed: a number above 0 up to 100, in percent"):
        d5.TimeToAccuracy(target)


def test_times_around_known_sleeps() -> None:
    """Lower bounds are the time slept; upper ones are ten times that: a loaded machine wakes late, not that late."""

    def fake() -> Fake:
        return Fake([1] * 6, [0] * 4, step_s=0.02, evaluation_s=0.04)

    train = Batches(4, 4, 2, fetch_s=0.01)
    # Two epochs of 3 steps (20 ms and 10 ms of data) and 2 evaluations of 40 ms.
    observer = run(d5.WallClockTime(), fake(), 2, train=train)
    samples = observer.samples()
    assert 2 * 0.17 <= (observer.value() or 0) < 3.4
    assert 0.17 <= samples[0].value < samples[1].value == observer.value()
    # 20 samples in 2 x 90 ms: the clock excludes evaluation.
    observer = run(d5.Throughput(), fake(), 2, train=train)
    assert 11 < (observer.value() or 0) <= 20 / 0.18
    assert all(11 < s.value <= 10 / 0.09 for s in observer.samples())
    # 20 ms per step: the clock excludes data.
    slow = fake()
    observer = run(d5.StepLatency(), slow, 2, train=train)
    assert 20 <= (observer.value() or 0) < 200
    assert len(observer.samples()) == 6
    assert slow.synchronized >= 6  # waits for the device after every step
    other = fake()
    run(d5.Throughput(), other, 2, train=train)
    assert other.synchronized == 2  # only at the end of each epoch


def test_latency_leaves_the_first_epoch_out() -> None:
    observer = d5.StepLatency().observer()
    for step in range(20):
        info = d5.StepInfo(step=step, epoch=step // 10)
        observer.after_step(None, info, {}, 0, (100 if step < 10 else step - 9) * 1_000_000)
    assert observer.value() == 5.5
    interval = observer.interval()
    assert interval is not None
    assert interval[0] <= 5.5 <= interval[1]
    few = d5.StepLatency().observer()
    few.after_step(None, d5.StepInfo(), {}, 0, 3_000_000)
    assert (few.value(), few.interval()) == (3.0, None)


def test_first_calls_are_no_part_of_the_steady_state() -> None:
    latency = d5.StepLatency().observer()
    steps = [(64, 0, 900), (64, 0, 5), (64, 0, 7), (17, 0, 500), (17, 0, 6)]
    for step, (size, epoch, ms) in enumerate(steps):
        info = d5.StepInfo(step=step, epoch=epoch, batch_size=size)
        latency.after_step(None, info, {}, 0, ms * 1_000_000)
    assert latency.value() == 6  # one epoch: all but the first of each size
    assert [sample.value for sample in latency.samples()] == [900, 5, 7, 500, 6]

    class Slow(Fake):
        def step(self, inputs: Any, info: Any) -> Any:
            time.sleep(0.2 if info.step in (0, 2) else 0.0)  # the first of 4 and the first of 2
            return super().step(inputs, info)

    observer = run(d5.Throughput(), Slow([1] * 6, [0] * 4, step_s=0.02), 2)
    first, second = (sample.value for sample in observer.samples())
    # 4 samples in 20 ms; with the first calls it would be 10 in 460 ms: 22 per second. A loaded machine wakes late.
    assert 22 * 1.5 < first <= 4 / 0.02
    assert second <= 10 / 0.06


def test_throughput_of_a_run_of_first_calls_alone() -> None:
    observer = run(d5.Throughput(), Fake([1], [0] * 2, step_s=0.01), 1, train=Batches(4))
    assert 0 < (observer.value() or 0) <= 4 / 0.01
    assert [sample.value for sample in observer.samples()] == [observer.value()]


def test_throughput_is_over_all_epochs_and_not_a_mean_of_rates() -> None:
    observer = run(d5.Throughput(), Fake([1] * 6, [0] * 4, step_s=0.01), 2)
    samples = observer.samples()
    # Of the first epoch, the first batch of 4 and that of 2 do not count.
    seconds = 4 / samples[0].value + 10 / samples[1].value
    assert observer.value() == pytest.approx(14 / seconds, rel=1e-9)


class Slow(d5.Event):
    """Works after training, as metrics do that measure then, and before the first epoch."""

    def before_training(self, trainer: Any) -> None:
        time.sleep(0.3)

    after_training = before_training


@pytest.mark.parametrize("last", [1, 4])
def test_a_run_that_was_stopped_within_an_epoch_has_its_time(last: int) -> None:
    """In its first epoch or in its second; the clock excludes what others do before and after training."""
    metrics = [d5.WallClockTime(), d5.Cost(3600), d5.Throughput(), d5.PeakMemory(), d5.TimeBreakdown()]
    observers = [metric.observer() for metric in metrics]
    fake = Fake([1] * 9, [0] * 9, step_s=0.02)
    fake.capabilities = {"whole_step"}  # type: ignore[attr-defined]  # so that its parts are not measured
    trainer = d5.Trainer(fake, fake, Batches(4, 4, 4), Batches(3, 1))  # type: ignore[arg-type]
    begin = time.perf_counter()
    trainer.train(3, [Slow(), *observers, StopIn(last)])
    slept, epochs = 0.02 * (last + 1), last // 3
    for metric, observer in zip(metrics, observers, strict=True):
        assert [(s.step, s.epoch) for s in observer.samples()] == [(3, 1)] * epochs + [(last + 1, epochs)], metric
    wall, cost, throughput, memory, outside = (observer.value() or 0 for observer in observers)
    assert slept <= wall <= time.perf_counter() - begin - 0.6
    assert cost == pytest.approx(wall, rel=1e-9)  # at 1 USD a second
    # All but the first step; the clock excludes evaluation.
    assert 4 * last / wall * 0.9 <= throughput <= 4 / 0.02
    assert memory > 10
    assert 0 <= outside < 100
    assert fake.synchronized == epochs + 1 + (last + 1)  # also after the stop, and for TimeBreakdown after every step


def test_a_run_that_was_stopped_between_two_epochs_has_no_more_samples() -> None:
    class Stop(d5.Event):
        def after_epoch(self, trainer: Any, epoch: int) -> None:
            raise d5.StopTraining("enough")

    for first in (True, False):
        metrics = [d5.WallClockTime(), d5.Throughput(), d5.PeakMemory()]
        observers: list[Any] = [metric.observer() for metric in metrics]
        events = [Stop(), *observers] if first else [*observers, Stop()]
        fake = Fake([1] * 9, [0] * 9)
        d5.Trainer(fake, fake, Batches(4, 4, 2), Batches(3, 1)).train(3, events)  # type: ignore[arg-type]
        assert [[(s.step, s.epoch) for s in observer.samples()] for observer in observers] == [[(3, 1)]] * 3


def test_a_run_that_failed_has_no_more_samples() -> None:
    observer = d5.WallClockTime().observer()
    fake = Fake([1] * 4, [0] * 9)  # no fifth loss
    with pytest.raises(StopIteration):
        d5.Trainer(fake, fake, Batches(4, 4, 2), Batches(3, 1)).train(3, [observer])  # type: ignore[arg-type]
    assert [sample.step for sample in observer.samples()] == [3]


def test_peak_memory_never_falls_and_sees_an_allocation() -> None:
    first = run(d5.PeakMemory(), Fake([1] * 6, [0] * 4), 2)
    assert [s.epoch for s in first.samples()] == [1, 2]
    peak = first.value() or 0
    assert 10 < peak < 1e6  # a Python process with NumPy, in MiB
    # In a separate process, whose peak is not yet that of a long test run.
    program = (
        "import numpy as np, deep5 as d5\n"
        "for mib in (0, 256):\n"
        "    block = np.ones(mib * 2**17); o = d5.PeakMemory().observer()\n"
        "    class T: step = 1\n"
        "    o.after_epoch(T, 0); print(o.value())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    before, after = map(float, done.stdout.split())
    assert 200 < after - before < 300  # the block, and what the allocator adds or had left


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_every_run_has_its_own_observer(metric: Metric) -> None:
    first = run(metric, Fake([1] * 9, [1] * 6), 3)
    second = run(metric, Fake([1] * 3, [1] * 2), 1)
    assert len(second.samples()) < len(first.samples())
    assert first is not second
    fresh = metric.observer()
    assert fresh.samples() == []
    assert fresh.value() in (None, math.inf)
    first.samples().clear()  # a copy
    assert first.samples()
    assert all(isinstance(sample, Sample) for sample in first.samples())


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_what_a_metric_says_of_itself(metric: Metric) -> None:
    assert metric.direction in ("higher", "lower")
    assert metric.unit
    document = type(metric).__doc__ or ""
    assert "clock" in document
    assert metric.describe()["metric"] == metric.name
    found: Any = load("metrics", metric.name)
    assert found is type(metric)
    assert not vars(metric).keys() & {"samples", "values"}


def test_a_figure_that_is_not_a_number_passes_no_goal() -> None:
    for relation, bound in ((">=", -math.inf), (">", 0.0), ("<=", math.inf), ("<", 0.0)):
        assert not d5.Goal(relation=relation, bound=bound).met(math.nan)  # type: ignore[arg-type]
    observer = run(d5.TrainingLoss(), Fake([1, math.nan, 1], [0, 0]), 1)
    assert math.isnan(observer.value() or 0)
    row = metric_row(d5.TrainingLoss(), d5.Goal(relation="<", bound=math.inf), value=observer.value())
    assert row["passed"] is False


def test_logits_that_are_not_numbers_predict_nothing() -> None:
    class Lost(Fake):
        """Correct answers, except for the first sample, whose true class has a NaN logit."""

        def inference(self, inputs: Any) -> Any:
            logits = np.eye(2)[inputs["label"]]
            logits[0, inputs["label"][0]] = np.nan
            return {"logits": logits, "loss": np.float32(np.nan)}

    observer = run(d5.TestAccuracy(), Lost([1] * 3, []), 1, test=Batches(4))
    assert observer.value() == 75.0


# Reports of values that are not finite

OFTEN = [1.0, 2.0, math.inf, 1.0, math.nan, 1.0]


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        (OFTEN, "the training loss is inf at step 2 of epoch 0"),
        ([1.0, 1.0, 1.0, 1.0, math.nan, 1.0], "the training loss is nan at step 4 of epoch 1"),
        ([1.0, -math.inf, 1.0, 1.0, 1.0, 1.0], "the training loss is -inf at step 1 of epoch 0"),
    ],
)
def test_a_loss_that_is_not_finite_is_told_once(losses: list[float], says: str) -> None:
    told: list[str] = []
    fake = Fake(losses, [0] * 4)
    trainer = d5.Trainer(fake, fake, Batches(4, 4, 2), Batches(3, 1))  # type: ignore[arg-type]
    trainer.train(2, [NonFiniteLoss(told.append)])
    assert len(told) == 1
    assert told[0].startswith(f"{says}, counted from 0; ")


def test_a_finite_loss_is_not_told() -> None:
    told: list[str] = []
    fake = Fake([1e38] * 3, [0] * 2)
    d5.Trainer(fake, fake, Batches(4, 4, 2), Batches(3, 1)).train(  # type: ignore[arg-type]
        1, [NonFiniteLoss(told.append)]
    )
    assert told == []


def test_a_loss_is_looked_at_when_the_epoch_is_over() -> None:
    """No step waits for its loss; the losses of an incomplete epoch are read at the end."""
    read: list[int] = []

    class Native:
        def __init__(self, value: float) -> None:
            self.value = value

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            read.append(trainer.step)
            return np.asarray(self.value, dtype)

    class Stop(d5.Event):
        def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
            if info.step == 4:
                raise d5.StopTraining

    told: list[str] = []
    fake = Fake([1, 1, 1, 1, math.nan, 1], [0] * 4)
    fake.wrap = Native
    trainer = d5.Trainer(fake, fake, Batches(4, 4, 2), Batches(3, 1))  # type: ignore[arg-type]
    trainer.train(2, [NonFiniteLoss(told.append), Stop()])
    assert read == [3, 3, 3, 5, 5]
    assert told[0].startswith("the training loss is nan at step 4 of epoch 1")


def test_few_losses_are_kept_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long epoch does not fill the memory with losses."""
    monkeypatch.setattr("deep5.training.divergence._MOST", 2)
    told: list[tuple[int, str]] = []
    fake = Fake([1.0, math.nan, 1.0, 1.0, 1.0, 1.0], [0] * 4)
    trainer = d5.Trainer(fake, fake, Batches(4, 4, 2), Batches(3, 1))  # type: ignore[arg-type]
    trainer.train(2, [NonFiniteLoss(lambda text: told.append((trainer.epoch, text)))])
    ((epoch, text),) = told
    assert epoch == 0
    assert text.startswith("the training loss is nan at step 1 of epoch 0")


def test_an_evaluation_whose_loss_is_not_finite_is_told() -> None:
    class Lost(Fake):
        def inference(self, inputs: Any) -> Any:
            return {**super().inference(inputs), "loss": np.float32(np.nan)}

    told: list[str] = []
    fake = Lost([1] * 6, [0] * 4)
    d5.Trainer(fake, fake, Batches(4, 4, 2), Batches(3, 1)).train(  # type: ignore[arg-type]
        2, [NonFiniteLoss(told.append)]
    )
    assert len(told) == 1
    assert told[0].startswith("the loss of the evaluation after epoch 1 is nan; ")


# The first calls of evaluation


def test_the_first_evaluation_of_each_size_is_timed_apart() -> None:
    class Compiling(Fake):
        """Sleeps at the first call of each size, as a compiler would."""

        sizes: ClassVar[dict[int, float]] = {3: 0.2, 1: 0.1}

        def inference(self, inputs: Any) -> Any:
            time.sleep(self.sizes.pop(len(inputs["label"]), 0.0))
            return super().inference(inputs)

    fake = Compiling([1] * 6, [0] * 8)
    trainer = d5.Trainer(fake, fake, Batches(4, 4, 2), Batches(3, 3, 1, 3))  # type: ignore[arg-type]
    trainer.train(2)
    assert list(trainer.first_evaluations_s) == [3, 1]
    # A sleep is never shorter than requested; how much longer depends on other load.
    assert trainer.first_evaluations_s[3] >= 0.2
    assert trainer.first_evaluations_s[1] >= 0.1


def test_evaluation_is_no_part_of_the_steady_state() -> None:
    """Neither its first calls nor the others: throughput and latency only measure training."""
    slow = Fake([1] * 6, [0] * 4, step_s=0.01, evaluation_s=0.2)
    throughput = run(d5.Throughput(), slow, 2)
    assert (throughput.value() or 0) > 10 / 0.2  # 10 samples an epoch, and a single evaluation takes that long
    slow = Fake([1] * 6, [0] * 4, step_s=0.01, evaluation_s=0.2)
    assert (run(d5.StepLatency(), slow, 2).value() or 0) < 200
