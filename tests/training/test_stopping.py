"""Events that stop training: at the right step, with the stated reason, and again after a resume."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.canonical import canonical
from deep5.core.errors import UnknownName, UsageError
from deep5.core.plugins import load, name_of


class Scripted:
    """Executor and optimizer in one: with given losses of steps and scores of epochs."""

    def __init__(self, losses: list[float] | None = None, scores: list[dict[str, float]] | None = None) -> None:
        self.network = SimpleNamespace(outputs={"loss": None, "logits": None}, inputs={"label": None})
        self.losses, self.scores = losses or [1.0], scores or []
        self.wait_s = 0.0
        self.read: list[int] = []

    def synchronize(self) -> None:
        pass

    def bind(self, executor: Any) -> None:
        pass

    def step(self, inputs: Any, info: Any) -> Any:
        time.sleep(self.wait_s)
        return {"loss": Native(self, info.step)}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


class Native:
    """A loss that records when it is read."""

    def __init__(self, owner: Scripted, step: int) -> None:
        self.owner, self.step = owner, step

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.owner.read.append(self.step)
        return np.asarray(self.owner.losses[min(self.step, len(self.owner.losses) - 1)], dtype)


class Batches:
    """This many batches, each with its own four samples."""

    def __init__(self, count: int, known: bool = True) -> None:
        self.count, self.known = count, known

    def steps(self, epoch: int) -> int | None:
        return self.count if self.known else None

    def order_hash(self, epochs: int) -> None:
        return None

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        for number in range(start, self.count):
            yield np.arange(4) + 10 * number, {}


class ScriptedTrainer(d5.Trainer):
    """Its evaluations return the given scores."""

    def _evaluate(self, *arguments: Any) -> dict[str, float]:
        script: Any = self.executor
        return dict(script.scores[min(self.epoch - 1, len(script.scores) - 1)])


class Keep(d5.Event):
    """Records hooks, and a checkpoint after every step and epoch."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.states: dict[tuple[int, int], Any] = {}

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        self.heard.append(f"before_epoch {epoch}")

    def after_evaluation(self, trainer: Any, epoch: int, scores: Any) -> None:
        self.heard.append(f"after_evaluation {epoch}")

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self.heard.append(f"after_epoch {epoch}")

    def after_training(self, trainer: Any) -> None:
        self.heard.append("after_training")

    def after_all(self, trainer: Any) -> None:
        self.states[trainer.step, trainer.batch] = json.loads(json.dumps(trainer.state_dict()))


def trainer(
    losses: list[float] | None = None,
    scores: list[dict[str, float]] | None = None,
    *,
    batches: int = 3,
    known: bool = True,
    evaluated: bool = True,
) -> Any:
    fake: Any = Scripted(losses, scores or [{"loss": 1.0, "accuracy": 50.0, "samples": 1.0}])
    validation: Any = Batches(1) if evaluated else None
    return ScriptedTrainer(fake, fake, Batches(batches, known), validation)


def of_losses(*losses: float) -> Any:
    return trainer(scores=[{"loss": loss, "accuracy": 100.0 - loss, "samples": 1.0} for loss in losses])


# Early stopping


@pytest.mark.parametrize(
    ("losses", "options", "epochs"),
    [
        ((5, 4, 3, 2, 1), {"patience": 1}, None),
        ((5, 4, 4, 3, 2), {"patience": 1}, 3),  # equal is not better
        ((5, 4, 4.5, 4.4, 3), {"patience": 2}, 4),  # compared with the best one, not the previous one
        ((5, 4, 4.5, 3.9, 4, 4, 1), {"patience": 2}, 6),  # the count restarts
        ((5, 4.6, 4.2), {"patience": 1, "min_delta": 0.5}, 2),
        ((5, 4.6, 4.2, 3.8, 3.6), {"patience": 2, "min_delta": 0.5}, None),
        ((5, 4.5, 1), {"patience": 1, "min_delta": 0.5}, 2),  # by more than min_delta
        ((5, 6, 7), {"patience": 1, "mode": "max"}, None),
        ((5, 6, 5.5, 9), {"patience": 1, "mode": "max"}, 3),
        ((5, math.nan, 4, math.nan, math.nan, 1), {"patience": 2}, 5),
        ((math.nan, math.nan, 1), {"patience": 2}, 2),
        ((5, 4, 4, 3), {"patience": 1, "monitor": "accuracy"}, 3),
        ((5, 4, 4), {"patience": 1}, None),  # the last epoch: nothing left to stop
    ],
)
def test_early_stopping(losses: tuple[float, ...], options: dict[str, Any], epochs: int | None) -> None:
    run = of_losses(*losses)
    run.train(len(losses), [d5.EarlyStopping(**options)])
    assert run.epoch == (epochs or len(losses))
    assert run.status == ("success" if epochs is None else "stopped")
    assert run.reason.startswith(f"early stopping after {epochs} epochs: the " if epochs else "")


def test_what_early_stopping_says() -> None:
    event, run = d5.EarlyStopping(patience=2), of_losses(5, 0.25, 1, 2, 3)
    run.train(5, [event])
    assert run.reason == (
        "early stopping after 4 epochs: the loss has not become better in 2 evaluations; the best was 0.25 after 2"
    )
    assert (event.best, event.best_epoch) == (0.25, 2)
    run = of_losses(math.nan)
    run.train(5, [d5.EarlyStopping(patience=1)])
    assert run.reason.endswith("in 1 evaluations; none was a number")


def test_everybody_hears_of_the_epoch_that_decided() -> None:
    """For any order of events, and whatever they record: all of them see the last evaluation."""
    for place in (0, 1):
        keep, run = Keep(), of_losses(1, 2, 3)
        events: list[d5.Event] = [keep]
        events.insert(place, d5.EarlyStopping(patience=1))
        run.train(3, events)
        heard = [hook for hook in keep.heard if hook != "before_epoch 2"]
        assert heard == [
            *("before_epoch 0", "after_evaluation 0", "after_epoch 0"),
            *("before_epoch 1", "after_evaluation 1", "after_epoch 1"),
            "after_training",
        ]


def test_a_new_training_begins_anew_and_one_that_goes_on_does_not() -> None:
    event = d5.EarlyStopping(patience=2)
    for _ in range(2):
        run = of_losses(1, 2, 3, 4)
        run.train(4, [event])
        assert (run.epoch, run.status) == (3, "stopped")
    run = of_losses(1, 2, 3, 4)
    run.train(2, [event])
    assert run.status == "success"
    run.train(2, [event])
    assert (run.epoch, run.status) == (3, "stopped")


@pytest.mark.parametrize(
    "make", [lambda: d5.EarlyStopping(patience=2), lambda: d5.StopAtAccuracy(97.5), lambda: d5.StopOnNaN(4)]
)
def test_a_resume_stops_where_the_run_would_have(make: Callable[[], d5.Event]) -> None:
    scores = [{"loss": loss, "accuracy": 100 - loss, "samples": 1.0} for loss in (5, 3, 4, 2.5, 3, 4, 1)]
    losses, keep = [1.0] * 13 + [math.nan], Keep()
    whole = trainer(losses, scores)
    whole.train(7, [make(), keep])
    assert whole.status == "stopped"
    for (step, batch), state in keep.states.items():
        run = trainer(losses, scores)
        run.load_state_dict(state)
        assert (run.step, run.batch) == (step, batch)
        if run.epoch < 7:
            run.train(7 - run.epoch, [make(), Keep()])
        assert (run.step, run.epoch, run.batch) == (whole.step, whole.epoch, whole.batch), (step, batch)
        assert (run.status, run.reason) == (whole.status, whole.reason)


def test_what_is_watched_is_there() -> None:
    with pytest.raises(UnknownName, match="unknown score 'top5'; allowed: accuracy, loss, samples"):
        trainer().train(2, [d5.EarlyStopping("top5", mode="max")])
    for event in (d5.EarlyStopping(), d5.StopAtAccuracy(90)):
        run = trainer(evaluated=False)
        with pytest.raises(UsageError, match=r"uses evaluations, and the trainer has no validation_sampler; remedy"):
            run.train(1, [event])
        assert run.step == 0


# Accuracy and time


def test_stop_at_accuracy() -> None:
    run = of_losses(20, 10, 2.5, 1)
    run.train(4, [d5.StopAtAccuracy(97.5)])
    assert (run.epoch, run.status) == (3, "stopped")
    assert run.reason == "accuracy 97.5 % after 3 epochs, and the target is 97.5 %"
    run = of_losses(20, 10, 2.5, 1)
    run.train(4, [d5.StopAtAccuracy(99.5)])
    assert (run.epoch, run.status) == (4, "success")


class Clock:
    """A trainer's clock that advances by a second per step."""

    def __init__(self, run: Any, monkeypatch: pytest.MonkeyPatch, before_s: float = 0.0) -> None:
        monkeypatch.setattr(type(run), "elapsed_ns", lambda trainer: int((before_s + trainer.step) * 1e9))


@pytest.mark.parametrize(
    ("seconds", "step", "epoch", "batch"),
    [
        (0.5, 1, 0, 1),
        (1, 1, 0, 1),
        (1.5, 2, 0, 2),
        (2.5, 3, 1, 0),  # the epoch is complete: it is evaluated
        (3, 3, 1, 0),
        (3.5, 4, 1, 1),
    ],
)
def test_stop_after(monkeypatch: pytest.MonkeyPatch, seconds: float, step: int, epoch: int, batch: int) -> None:
    run, keep = trainer(), Keep()
    Clock(run, monkeypatch)
    run.train(4, [keep, d5.StopAfter(seconds)])
    told = "500 ms" if seconds == 0.5 else f"{seconds:g} s"
    assert (run.step, run.epoch, run.batch, run.status) == (step, epoch, batch, "stopped")
    assert run.reason == f"{step} s of training, and the limit is {told}"
    assert keep.heard.count("after_evaluation 0") == epoch


def test_the_time_before_a_resume_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer()
    Clock(run, monkeypatch, before_s=10)
    run.train(4, [d5.StopAfter(11.5)])
    assert run.step == 2
    run = trainer()
    run.train(4, [d5.StopAfter(9)])
    assert (run.step, run.status) == (0, "stopped")


def test_the_time_that_a_run_takes() -> None:
    """With the real clock: a step of 20 ms, at least two of them and at most as many as fit."""
    run = trainer(batches=1000)
    run.executor.wait_s = 0.02
    run.train(1, [d5.StopAfter(0.05)])
    assert 1 <= run.step <= 3
    assert run.elapsed_ns() >= 50_000_000


def test_time_is_looked_at_where_the_length_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(known=False)
    Clock(run, monkeypatch)
    run.train(2, [d5.StopAfter(3)])
    assert (run.step, run.epoch, run.status) == (3, 0, "stopped")


# Losses that are not finite


@pytest.mark.parametrize(
    ("every", "at", "step"),
    [(1, 4, 5), (2, 4, 6), (2, 5, 6), (4, 5, 6), (4, 0, 3), (100, 4, 6), (4, 3, 4), (100, 8, 9)],
)
def test_stop_on_nan(every: int, at: int, step: int) -> None:
    """Three batches per epoch: losses are read after this many steps, and at the end of an epoch."""
    run = trainer([1.0] * at + [math.nan])
    run.train(3, [d5.StopOnNaN(every)])
    assert (run.status, run.step) == ("stopped", step)
    assert run.reason == (
        f"the training loss is nan at step {at} of epoch {at // 3}, counted from 0; it is of batch {at % 3} of the "
        f"epoch, samples {', '.join(str(10 * (at % 3) + sample) for sample in range(4))}"
    )


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_nan_in_the_last_step_is_found(evaluated: bool) -> None:
    run = trainer([1.0] * 5 + [-math.inf], evaluated=evaluated)
    run.train(2, [d5.StopOnNaN()])
    assert (run.status, run.step) == ("stopped", 6)
    assert run.reason.startswith("the training loss is -inf at step 5 of epoch 1")


def test_an_evaluation_that_is_no_number_stops_training() -> None:
    run = of_losses(1, math.nan, 1)
    run.train(3, [d5.StopOnNaN()])
    assert (run.status, run.epoch) == ("stopped", 2)
    assert run.reason == "the loss of the evaluation after epoch 2 is nan"


def test_losses_are_read_late() -> None:
    run = trainer(batches=10)
    run.train(1, [d5.StopOnNaN(4)])
    assert run.executor.read == list(range(10))
    reads: list[tuple[int, int]] = []

    class Look(d5.Event):
        def after_batch(self, trainer: Any, info: Any, outputs: Any) -> None:
            reads.append((trainer.step, len(trainer.executor.read)))

    run = trainer(batches=10)
    run.train(1, [d5.StopOnNaN(4), Look()])
    assert reads == [(step, (step - 1) // 4 * 4) for step in range(1, 11)]


def test_many_samples_are_told_by_the_first_of_them() -> None:
    class Many(Batches):
        def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
            yield np.arange(100, 120), {}

    class Unknown(Batches):
        def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
            yield None, {"x": np.zeros((5, 2))}

    for source, told in (
        (Many(1), "samples 100, 101, 102, 103, 104, 105, 106, 107 and 12 more"),
        (Unknown(1), "5 samples that have no number"),
    ):
        fake: Any = Scripted([math.nan])
        run = d5.Trainer(fake, fake, source)
        run.train(1, [d5.StopOnNaN()])
        assert run.reason.endswith(f"it is of batch 0 of the epoch, {told}")


def test_a_real_run_that_diverges_names_the_step() -> None:
    """The learning rate is far too large; the step is the one with the first loss that is not finite."""
    build = d5.NetworkBuilder("bowl")
    product = build.op("MatMul", build.input("x", ("N", 2)), build.parameter("w", (2, 1), d5.networks.ones))
    network = build.network({"loss": build.op("ReduceMean", build.op("Mul", product, product), keepdims=0)})
    executor = d5.framework("reference").executor(network)
    data = d5.ArrayDataset({"x": np.random.default_rng(0).standard_normal((24, 2)).astype(np.float32)})
    losses: list[float] = []

    class Losses(d5.Event):
        def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
            losses.append(float(outputs["loss"]))

    run = d5.Trainer(executor, d5.SGD(lr=1e4), d5.ShuffleSampler(data, 4))
    with np.errstate(all="ignore"):
        run.train(3, [Losses(), d5.StopOnNaN(1)])
    first = next(step for step, loss in enumerate(losses) if not math.isfinite(loss))
    assert run.status == "stopped"
    assert run.reason.startswith(f"the training loss is {losses[first]} at step {first} of epoch {first // 6}, ")
    ids = ", ".join(map(str, run.train_sampler.order(first // 6)[first % 6 * 4 :][:4]))  # type: ignore[attr-defined]
    assert run.reason.endswith(f"samples {ids}")
    assert len(losses) == first + 1


# Arguments and recipes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: d5.EarlyStopping(3), "EarlyStopping: got monitor=3; allowed: the name of a score"),  # type: ignore[arg-type]
        (lambda: d5.EarlyStopping(patience=0), "EarlyStopping: got patience=0; allowed: a number of evaluations, at l"),
        (lambda: d5.EarlyStopping(patience=True), "EarlyStopping: got patience=True"),
        (lambda: d5.EarlyStopping(min_delta=-1), "EarlyStopping: got min_delta=-1; allowed: a number of at least 0"),
        (lambda: d5.EarlyStopping(min_delta=math.nan), "EarlyStopping: got min_delta=nan"),
        (lambda: d5.EarlyStopping(mode="low"), "EarlyStopping: got mode='low'; allowed: 'min', 'max', None"),  # type: ignore[arg-type]
        (lambda: d5.EarlyStopping("top5"), "EarlyStopping: got monitor='top5' and no mode; allowed: mode='min'"),
        (lambda: d5.StopAtAccuracy(0), "StopAtAccuracy: got target=0; allowed: percent, above 0 and at most 100"),
        (lambda: d5.StopAtAccuracy(100.5), "StopAtAccuracy: got target=100.5"),
        (lambda: d5.StopAtAccuracy("97 %"), "StopAtAccuracy: got target='97 %'"),  # type: ignore[arg-type]
        (lambda: d5.StopAfter(0), "StopAfter: got seconds=0; allowed: a number above 0"),
        (lambda: d5.StopAfter(math.inf), "StopAfter: got seconds=inf"),
        (lambda: d5.StopOnNaN(0), "StopOnNaN: got every=0; allowed: a number of steps, at least 1"),
        (lambda: d5.StopOnNaN(1.5), "StopOnNaN: got every=1.5"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        make()


def test_what_they_are_in_a_recipe() -> None:
    """Parameters, without the state of a run."""
    event, run = d5.EarlyStopping(patience=3), of_losses(1, 2, 3, 4, 5)
    before = canonical([event, d5.StopAtAccuracy(97), d5.StopAfter(60), d5.StopOnNaN()], "events")
    assert before == [
        {"event": "early_stopping", "monitor": "loss", "patience": 3, "min_delta": 0.0, "mode": "min"},
        {"event": "stop_at_accuracy", "target": 97.0},
        {"event": "stop_after", "seconds": 60.0},
        {"event": "stop_on_nan", "every": 100},
    ]
    run.train(5, [event])
    assert canonical([event], "events") == before[:1]
    for kind in (d5.EarlyStopping, d5.StopAtAccuracy, d5.StopAfter, d5.StopOnNaN):
        name = name_of("events", kind)
        assert name is not None
        assert load("events", name) is kind


RECIPE = """
import deep5 as d5

FIXED = {
    "model": "lenet", "model_kwargs": {"activation": "tanh", "pooling": "average"},
    "dataset": "digits", "dataset_kwargs": {"limit": 320}, "epochs": 9,
    "events": [d5.EarlyStopping(patience=1, min_delta=100.0), d5.StopOnNaN(), d5.CSVLogger("log.csv")],
}
MUTABLE = {
    "batch_size": 64, "framework": "pytorch", "optimizer": "adam",
    "schedules": {"lr": d5.WarmUp(d5.Cosine(0.003), epochs=1), "beta1": 0.8},
}
METRICS = [(d5.TestAccuracy(), None)]
"""


def test_a_recipe_with_events_and_schedules(tmp_path: Path, deep5: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stopped.py").write_text(RECIPE)
    done = deep5("run", "stopped.py", "--quiet", "--json")
    assert done.status == 0, done.err
    (folder,) = (path for path in (tmp_path / "results").iterdir() if path.is_dir())
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "success"
    # The required gain is larger than any: the second epoch decides.
    assert result["reasons"][0].startswith(
        "stopped: early stopping after 2 epochs: the loss has not become better in 1"
    )
    rows = [line.split(",") for line in (tmp_path / "log.csv").read_text().splitlines()]
    assert rows[0][-2:] == ["lr", "beta1"]
    assert len(rows) == 1 + 2 * 5
    rates = [float(row[5]) for row in rows[1:]]
    # Five steps of warm-up to the cosine's value at the fifth of 45 steps.
    peak = 0.0015 * (1 + math.cos(math.pi * 5 / 45))
    assert rates[:6] == pytest.approx([peak * step / 5 for step in range(6)])
    assert {row[6] for row in rows[1:]} == {"0.8"}
    first, *_ = result["components"]["events"]
    assert first["event"] == "scheduled"
    assert first["schedules"]["lr"] == result["recipe"]["mutable"]["schedules"]["lr"]
