"""Metrics that measure after training: repeatability, time breakdown, utilization. They leave no trace."""

from __future__ import annotations

import csv
import io
import math
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import Deep5Error, Unsupported, UsageError
from deep5.core.metric import Metric, Observer
from deep5.metrics import breakdown, utilisation
from deep5.metrics.network_flops import forward_flops
from deep5.metrics.repeatability import spread
from deep5.training.trainer import Trainer


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for peaks uses small products: it is faster, and finds lower peaks."""
    monkeypatch.setattr(utilisation, "_SIZES", (256, 512))


FRAMEWORKS = [
    "reference",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("pytorch", "tensorflow", "jax", "onnxruntime")),
]


def made(
    framework: str = "reference", optimizer: Any = None, network: Any = None, batch_size: int = 8, **given: Any
) -> Trainer:
    try:
        found = d5.framework(framework)
    except Deep5Error as error:
        pytest.skip(str(error))
    data = d5.datasets.synthetic(shape=(6,), classes=3, train=20, test=6)
    network = network or d5.networks.mlp(features=6, hidden=5, classes=3)
    return Trainer(
        found.executor(network),
        optimizer or d5.Adam(),
        d5.ShuffleSampler(data.train, batch_size),
        d5.OrderedSampler(data.test, 6),
        **given,
    )


class AtTheEnd(d5.Event):
    """Keeps the final states of training, before any metric measures after it."""

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self.states = trainer.executor.state_dict(), trainer.optimizer.state_dict()


def run(trainer: Trainer, *metrics: Metric, epochs: int = 3, events: tuple[d5.Event, ...] = ()) -> list[Observer]:
    """Train, and check that the measurements left the weights and the optimizer's state unchanged."""
    end, observers = AtTheEnd(), [metric.observer() for metric in metrics]
    trainer.train(epochs, [*observers, end, *events])
    for before, after in zip(end.states, (trainer.executor.state_dict(), trainer.optimizer.state_dict()), strict=True):
        assert before.keys() == after.keys()
        assert before.pop("hyper", None) == after.pop("hyper", None)
        assert all(np.asarray(before[name]).tobytes() == np.asarray(after[name]).tobytes() for name in before)
    return observers


def rows(observer: Observer) -> dict[str, dict[str, str]]:
    text = observer.files()["time_breakdown.csv"]
    assert isinstance(text, str)
    return {row["part"]: row for row in csv.DictReader(io.StringIO(text))}


# Repeatability


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_same_steps_give_the_same_bits(framework: str) -> None:
    (observer,) = run(made(framework), d5.Repeatability(4))
    assert observer.value() == 0.0
    assert [(s.value, s.step, s.epoch) for s in observer.samples()] == [
        *((0.0, step, step // 3) for step in range(4)),
        (0.0, 4, 1),
    ]


def test_more_steps_than_there_are() -> None:
    (observer,) = run(made(), d5.Repeatability(100))
    assert observer.value() == 0.0
    assert len(observer.samples()) == 9 + 1


def test_steps_that_differ_are_seen() -> None:
    """A parameter moves by a millionth of itself in one step of the second pass only."""
    trainer = made()
    learn, calls = trainer.optimizer.step, []

    def step(inputs: Any, info: Any) -> Any:
        outputs = learn(inputs, info)
        calls.append(info.step)
        if calls.count(1) == 2 and info.step == 1:
            name = next(iter(trainer.executor.network.parameter_specs))
            trainer.executor.parameters()[name][...] *= np.float32(1 + 1e-6)
        return outputs

    trainer.optimizer.step = trainer._learn = step  # type: ignore[method-assign]
    (observer,) = run(trainer, d5.Repeatability(4))
    value = observer.value() or 0.0
    assert 1e-9 < value < 1e-4
    samples = [sample.value for sample in observer.samples()]
    assert samples[:2] == [0.0, 0.0]  # before it moved
    assert samples[-1] > 0.0  # the weights after the last step


def test_another_order_is_infinitely_far() -> None:
    class Forgetful(d5.ShuffleSampler):
        asked = 0

        def order(self, epoch: int) -> np.ndarray:
            self.asked += 1
            return np.roll(super().order(epoch), self.asked)

    trainer = made()
    trainer.train_sampler = Forgetful(trainer.train_sampler.dataset, 8)  # type: ignore[union-attr]
    (observer,) = run(trainer, d5.Repeatability(4))
    assert observer.value() == math.inf


def test_what_an_event_sets_behind_a_step_is_not_set_again() -> None:
    """A group that an event makes during the run does not apply when the first steps are repeated."""

    class Regroups(d5.Event):
        def after_step(self, trainer: Any, info: Any, *_: Any) -> None:
            if info.step == 1:
                trainer.optimizer.set_parameter("lr", 0.5, lambda name: name.endswith("bias"))

    trainer = made()
    (observer,) = run(trainer, d5.Repeatability(4), events=(Regroups(),))
    assert observer.value() == math.inf
    assert trainer.optimizer.describe()["groups"][0]["lr"] == 0.5


def test_a_schedule_gives_the_same_values_again() -> None:
    """With the last learning rate the first steps would diverge; at the end it is in force again."""

    class Tenth(d5.Schedule):
        def value(self, info: Any, plan: Any) -> float:
            return 0.5 * 0.1 ** int(info.epoch)

    trainer = made(optimizer=d5.SGD(lr=0.5))
    schedule = d5.Scheduled({"lr": Tenth()})
    (observer,) = run(trainer, d5.Repeatability(5), events=(schedule,))
    assert observer.value() == 0.0
    assert trainer.optimizer.rule.lr == pytest.approx(0.5 * 0.1**2)  # type: ignore[attr-defined]


def test_accumulated_steps_are_repeated() -> None:
    (observer,) = run(made(batch_size=4, accumulate=2), d5.Repeatability(4))
    assert observer.value() == 0.0
    assert len(observer.samples()) == 5


def test_spread() -> None:
    one = np.array([1.0, -4.0, 0.0], np.float32)
    assert spread(one, one.copy()) == 0.0
    assert spread(one, np.array([1.0, -5.0, 0.0], np.float32)) == pytest.approx(0.2)
    assert spread(np.array([np.nan]), np.array([np.nan])) == 0.0
    assert spread(np.array([np.nan]), np.array([1.0])) == math.inf
    assert 0.0 < spread(np.array([0.0]), np.array([-0.0])) < 1e-300  # other bits
    assert spread(one, one.astype(np.float64)) == math.inf
    with pytest.raises(UsageError, match="repeatability with steps=0; allowed"):
        d5.Repeatability(0)


# Time breakdown


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_parts_add_up_to_the_whole(framework: str) -> None:
    (observer,) = run(made(framework), d5.TimeBreakdown())
    found = rows(observer)
    seconds = {name: float(row["seconds"]) for name, row in found.items() if row["seconds"]}
    parts = ("data", "first_steps", "steps", "evaluation", "other")
    # The file has six digits.
    assert sum(seconds[name] for name in parts) == pytest.approx(seconds["total"], rel=1e-4)
    assert min(seconds.values()) >= 0
    value = 100 * (1 - (seconds["first_steps"] + seconds["steps"]) / seconds["total"])
    assert observer.value() == pytest.approx(value, abs=1e-2)
    inside = [found[name] for name in ("forward", "backward", "optimizer")]
    if framework in ("tensorflow", "jax"):
        assert {row["how"] for row in inside} == {"not available: the framework compiles the whole step as one"}
    elif inside[0]["seconds"]:
        assert sum(float(row["seconds"]) for row in inside) == pytest.approx(seconds["steps"], rel=1e-4)
    else:  # steps of microseconds need not add up
        assert all(row["how"].startswith("not available: ") for row in inside)


class Sleeping:
    """Executor and optimizer of known times: 20 ms forward, 40 ms more with gradients, 30 ms more for a whole step."""

    capabilities: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.network = SimpleNamespace(outputs={"loss": None, "logits": None}, inputs={"label": None})

    def synchronize(self) -> None:
        pass

    def inference(self, inputs: Any, *, training: bool = False, info: Any = None) -> Any:
        time.sleep(0.02)
        return {"logits": np.eye(2)[inputs["label"]], "loss": np.float32(1)}

    def inference_and_backprop(self, inputs: Any, loss: str, *, info: Any = None) -> Any:
        time.sleep(0.06)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def test_known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower bounds are the time slept; a loaded machine wakes late, in all parts alike."""
    from deep5.training.dataset import ArrayDataset
    from deep5.training.optimizer import RuleOptimizer

    class Step(RuleOptimizer):
        def bind(self, executor: Any) -> None:
            pass

        def step(self, inputs: Any, info: Any) -> Any:
            time.sleep(0.09)
            return {"loss": np.float32(1)}

        def averaged(self) -> Any:
            return nullcontext()

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any) -> None:
            pass

    class Slow(d5.OrderedSampler):
        def batches(self, epoch: int, start: int = 0) -> Any:
            for batch in super().batches(epoch, start):
                time.sleep(0.05)
                yield batch

    monkeypatch.setattr(breakdown, "_SECONDS", 0.0)
    data, executor = ArrayDataset({"label": np.arange(4) % 2}), Sleeping()
    trainer = Trainer(executor, Step(d5.SGD()), Slow(data, 2), d5.OrderedSampler(data, 4))  # type: ignore[arg-type]
    observer = d5.TimeBreakdown().observer()
    trainer.train(2, [observer])
    found = {name: float(row["seconds"]) for name, row in rows(observer).items()}
    # Two epochs of two steps of one size: one first step and three others.
    for name, least in {"data": 0.2, "first_steps": 0.09, "steps": 0.27, "evaluation": 0.04}.items():
        assert least <= found[name], name
    for name, least in {"forward": 0.06, "backward": 0.12, "optimizer": 0.09}.items():
        assert found[name] >= least * 0.75, name


def test_what_is_not_known_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        """An optimizer that owns its step."""

        def bind(self, executor: Any) -> None:
            self.step_of = executor.train_step(d5.SGD())

        def step(self, inputs: Any, info: Any) -> Any:
            return self.step_of(inputs, info)

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any) -> None:
            pass

    (observer,) = run(made(optimizer=Own()), d5.TimeBreakdown())
    for name in ("forward", "backward", "optimizer"):
        assert rows(observer)[name] == {
            "part": name,
            "seconds": "",
            "percent": "",
            "how": "not available: Own owns its step",
        }
    monkeypatch.setattr(breakdown, "_in_turn", lambda *_: {"forward": 3.0, "gradients": 2.0, "step": 4.0})
    (observer,) = run(made(), d5.TimeBreakdown())
    assert rows(observer)["forward"]["how"] == "not available: a part measured apart took longer than the whole"
    monkeypatch.setattr(breakdown, "_in_turn", lambda *_: {"forward": 1e3, "gradients": 2e3, "step": 4e3})
    (observer,) = run(made(), d5.TimeBreakdown())
    assert rows(observer)["forward"]["how"].startswith("not available: they do not add up")


# Utilization


def test_operations_by_hand() -> None:
    """LeNet on 28 x 28: two convolutions and three products; a multiplication and an addition are two."""
    products = 6 * 28 * 28 * 25 + 16 * 10 * 10 * 6 * 25 + 400 * 120 + 120 * 84 + 84 * 10
    shapes = {"input": (3, 1, 28, 28), "label": (3,)}
    assert forward_flops(d5.networks.lenet(), shapes) == 3 * 2 * products
    recurrent = forward_flops(
        d5.networks.lstm(),
        {
            name: tuple(4 if isinstance(e, str) else e for e in spec.shape)
            for name, spec in d5.networks.lstm().inputs.items()
        },
    )
    assert recurrent > 0


def test_what_has_no_formula_has_no_utilisation() -> None:
    build = d5.NetworkBuilder("sum", seed=0)
    x, label = build.input("input", ("N", 6)), build.input("label", ("N",), "int64")
    logits = build.op("Einsum", x, build.parameter("w", (6, 3)), equation="nk,km->nm")
    loss = build.op("SoftmaxCrossEntropyLoss", logits, label, reduction="mean")
    network = build.network({"logits": logits, "loss": loss})
    with pytest.raises(Unsupported, match="how many operations the network's Einsum takes is not known"):
        forward_flops(network, {"input": (2, 6), "label": (2,)})
    with pytest.raises(Unsupported, match="the network is native code"):
        forward_flops(SimpleNamespace(), {})


def test_utilisation_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that take 1 ms, by the trainer's clock, of a network of known work, under a peak of 1 GFLOP/s."""
    monkeypatch.setattr(utilisation, "_peak", lambda executor: 1e9)
    trainer, observer = made(), d5.Utilisation().observer()
    for step, (size, epoch) in enumerate(((8, 0), (8, 0), (4, 0), (8, 1), (4, 1))):
        info = d5.StepInfo(step=step, epoch=epoch, batch_size=size)
        observer.after_step(trainer, info, {}, 0, 1_000_000 if step else 50_000_000)
    trainer.status = "success"
    observer.after_training(trainer)
    work = 3 * 2 * (6 * 5 + 5 * 3)  # per sample, three passes
    per_step = [100 * work * size / 1e-3 / 1e9 for size in (8, 8, 4)]  # without the first of each size
    assert [sample.value for sample in observer.samples()] == pytest.approx(per_step)
    assert observer.value() == pytest.approx((per_step[1] + per_step[2]) / 2)  # of the second epoch
    assert observer.missing() is None


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_measured_share_of_a_measured_peak(framework: str) -> None:
    """More than no work, and less than the peak, within its noise."""
    network = d5.networks.mlp(features=6, hidden=64, classes=3)
    (observer,) = run(made(framework, network=network), d5.Utilisation())
    assert observer.missing() is None
    assert 0 < (observer.value() or 0) < 110


def test_a_run_of_first_steps_alone_has_no_utilisation() -> None:
    (observer,) = run(made(batch_size=20), d5.Utilisation(), epochs=1)
    assert observer.value() is None
    assert observer.missing() == "there were no steps but the first ones, which may compile"


# All at once


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_they_do_not_disturb_each_other(framework: str) -> None:
    """A run with all of them ends bit-identical to a run without."""
    network = d5.networks.lenet(seed=3)
    data = d5.datasets.synthetic(shape=(1, 28, 28), train=24, test=12)

    def weights(*metrics: Metric) -> dict[str, bytes]:
        executor = d5.framework(framework).executor(network)
        trainer = Trainer(executor, d5.AcceleGrad(), d5.ShuffleSampler(data.train, 8), d5.OrderedSampler(data.test, 12))
        trainer.train(2, [metric.observer() for metric in metrics])
        return {name: value.tobytes() for name, value in executor.state_dict().items()}

    try:
        d5.framework(framework)
    except Deep5Error as error:
        pytest.skip(str(error))
    measured = weights(d5.Repeatability(3), d5.TimeBreakdown(), d5.Utilisation(), d5.GeneralisationGap())
    assert measured == weights()
