"""The trainer, its events, the progress bar on a real terminal and the CSV log."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

import deep5 as d5
from deep5.core.errors import OutputError, UnknownName, UsageError
from deep5.core.events import HOOKS
from deep5.training.dataset import ArrayDataset
from deep5.training.datasets.class_templates import synthetic

SIZE = {"features": 4, "hidden": 3, "classes": 3}


def data(train: int = 11, test: int = 7) -> Any:
    return synthetic(shape=(4,), classes=3, train=train, test=test)


def trainer(rule: Any = None, *, batch_size: int = 4, framework: str = "reference", **options: Any) -> d5.Trainer:
    splits = data()
    executor = d5.framework(framework).executor(d5.networks.mlp(**SIZE))  # type: ignore[arg-type]
    rule = rule or d5.SGD(lr=0.1)
    train, test = d5.ShuffleSampler(splits.train, batch_size), d5.OrderedSampler(splits.test, 3)
    return d5.Trainer(executor, rule, train, test, **options)


class Recorder(d5.Event):
    """Records every call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.infos: list[d5.StepInfo] = []


def _record(hook: str) -> Any:
    def method(self: Any, trainer: Any, *rest: Any) -> None:
        self.calls.append(hook)
        if hook == "after_step":
            self.infos.append(rest[0])

    return method


for _hook in HOOKS:
    setattr(Recorder, _hook, _record(_hook))


class At(d5.Event):
    """Raises an error at a step."""

    def __init__(self, step: int, error: BaseException) -> None:
        self.step, self.error = step, error

    def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
        if info.step == self.step:
            raise self.error


# The loop


def test_every_sample_is_seen_once_an_epoch_and_the_last_batch_is_trained() -> None:
    recorder, run = Recorder(), trainer(seed=5)
    run.train(2, [recorder])
    assert [info.batch_size for info in recorder.infos] == [4, 4, 3] * 2
    assert [info.step for info in recorder.infos] == list(range(6))
    assert [info.epoch for info in recorder.infos] == [0] * 3 + [1] * 3
    assert {info.seed for info in recorder.infos} == {5}
    for epoch in (0, 1):
        ids = np.concatenate([info.sample_ids for info in recorder.infos if info.epoch == epoch])
        assert sorted(ids) == list(range(11))
    assert (run.step, run.epoch, run.status, run.reason) == (6, 2, "success", "")


def test_the_order_of_calls() -> None:
    recorder, run = Recorder(), trainer(batch_size=11)
    run.train(2, [recorder])
    step = ["before_batch", "before_step", "after_step", "after_batch", "after_all"]
    # Called once more than there are batches: the end is unknown before.
    judged = ["before_evaluation", *["after_evaluation_batch"] * 3, "after_evaluation"]
    epoch = ["before_epoch", *step, "before_batch", *judged, "after_epoch", "after_all"]
    assert recorder.calls == ["before_training", *epoch, *epoch, "after_training"]


def test_the_last_partial_batch_changes_the_weights_as_by_hand() -> None:
    run = trainer(d5.SGD(lr=0.1))
    order = run.train_sampler.order(0)
    run.train(1)
    other = d5.framework("reference").executor(d5.networks.mlp(**SIZE))  # type: ignore[arg-type]
    for begin in (0, 4, 8):
        feed = run.train_sampler.dataset.batch(order[begin : begin + 4])
        other.inference_and_backprop(feed)
        for name, value in other.parameters().items():
            np.subtract(value, np.float32(0.1) * other.gradients()[name], out=value)
    for name, value in other.parameters().items():
        # Two roundings of float32 per step.
        np.testing.assert_allclose(run.executor.parameters()[name], value, rtol=1e-6, atol=1e-7)


def test_evaluation_counts_every_sample_once() -> None:
    run = trainer()
    run.train(1)
    test = run.validation_sampler.dataset.batch(np.arange(7))  # type: ignore[union-attr]
    outputs = run.executor.inference(test)
    correct = int((d5.to_numpy(outputs["logits"]).argmax(1) == test["label"]).sum())
    assert run.scores["samples"] == 7  # in batches of 3, 3 and 1
    assert run.scores["accuracy"] == pytest.approx(100 * correct / 7, rel=1e-12)
    # Mean of means by batch in float32.
    assert run.scores["loss"] == pytest.approx(float(outputs["loss"]), rel=1e-6)


def test_evaluation_uses_the_averaged_parameters() -> None:
    run = trainer(d5.AcceleGrad(lr=0.5))
    run.train(2)
    live = run.executor.state_dict()
    scores = run.evaluate(run.validation_sampler)  # type: ignore[arg-type]
    averaged = d5.framework("reference").executor(run.executor.export(evaluation=True))
    plain = d5.framework("reference").executor(run.executor.export(evaluation=False))
    test = run.validation_sampler.dataset.batch(np.arange(7))  # type: ignore[union-attr]
    assert scores["loss"] == pytest.approx(float(averaged.inference(test)["loss"]), rel=1e-6)
    assert scores["loss"] != pytest.approx(float(plain.inference(test)["loss"]), rel=1e-6)
    for name, value in run.executor.state_dict().items():
        np.testing.assert_array_equal(value, live[name])


def test_a_network_without_classes_has_only_a_loss() -> None:
    build = d5.NetworkBuilder("autoencoder", seed=0)
    x = build.input("input", ("N", 4))
    weight = build.parameter("weight", (4, 4), lambda rng, shape: rng.normal(size=shape))
    difference = build.op("Sub", build.op("MatMul", x, weight), x)
    loss = build.op("ReduceMean", build.op("Mul", difference, difference), keepdims=0)
    executor = d5.framework("reference").executor(build.network({"loss": loss}))
    samples = ArrayDataset({"input": np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)})
    run = d5.Trainer(executor, d5.SGD(), d5.OrderedSampler(samples, 4), d5.OrderedSampler(samples, 3))
    accuracy = d5.TestAccuracy().observer()
    run.train(1, [accuracy])
    assert set(run.scores) == {"loss", "samples"}
    whole = float(executor.inference(samples.batch(np.arange(7)))["loss"])
    # Mean of means by batch in float32.
    assert run.scores["loss"] == pytest.approx(whole, rel=1e-6)
    assert accuracy.value() is None
    assert "not classes" in (accuracy.missing() or "")


def test_one_of_logits_and_label_without_the_other_is_refused() -> None:
    splits = data()
    executor = d5.framework("reference").executor(d5.networks.mlp(**SIZE))  # type: ignore[arg-type]
    samplers = d5.OrderedSampler(splits.train, 4), d5.OrderedSampler(splits.test, 4)
    with pytest.raises(UsageError, match="the network has no 'scores'; allowed: logits, loss"):
        d5.Trainer(executor, d5.SGD(), *samplers, logits="scores")
    with pytest.raises(UsageError, match="the network has no 'target'; allowed: input, label"):
        d5.Trainer(executor, d5.SGD(), *samplers, label="target")


@pytest.mark.parametrize("ignored", [-1, 2])
def test_ignored_labels_do_not_count(ignored: int) -> None:
    build = d5.NetworkBuilder("tagger", seed=0)
    x, label = build.input("input", ("N", 5, 3)), build.input("label", ("N", 5), "int64")
    weight = build.parameter("weight", (3, 3), lambda rng, shape: rng.normal(size=shape))
    logits = build.op("MatMul", x, weight)
    by_class = build.op("Transpose", logits, perm=[0, 2, 1])
    loss = build.op("SoftmaxCrossEntropyLoss", by_class, label, reduction="mean", ignore_index=ignored)
    executor = d5.framework("reference").executor(build.network({"logits": logits, "loss": loss}))
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, (6, 5))
    labels[:, 3:] = ignored
    samples = ArrayDataset({"input": draw.normal(size=(6, 5, 3)).astype(np.float32), "label": labels})
    run = d5.Trainer(executor, d5.SGD(), d5.OrderedSampler(samples, 4), d5.OrderedSampler(samples, 4))
    top, matrix = d5.TopK(1).observer(), d5.ConfusionMatrix().observer()
    run.train(1, [top, matrix])
    counted = labels != ignored
    hits = d5.to_numpy(executor.inference(samples.batch(np.arange(6)))["logits"]).argmax(-1) == labels
    right = 100 * hits[counted].sum() / counted.sum()
    assert run.scores["accuracy"] == top.value() == pytest.approx(right, rel=1e-12)
    rows = [line.split(",") for line in str(matrix.files()["confusion.csv"]).splitlines()[1:]]
    assert sum(int(count) for row in rows for count in row[1:]) == counted.sum()


def test_evaluation_adds_up_over_ranks() -> None:
    class Twice(d5.SingleRank):
        def all_reduce(self, buffer: Any, *, op: str = "sum", timeout_s: float = 60.0) -> None:
            buffer *= 2

    one, two = trainer(), trainer(communicator=Twice())
    one.train(1)
    two.train(1)
    assert two.scores == {**one.scores, "samples": 14.0}


def test_training_can_go_on() -> None:
    whole, parts = trainer(d5.Adam()), trainer(d5.Adam())
    whole.train(3)
    parts.train(1)
    parts.train(2)
    assert (parts.step, parts.epoch, parts.epochs) == (9, 3, 3)
    for name, value in whole.executor.state_dict().items():
        np.testing.assert_array_equal(parts.executor.state_dict()[name], value)


def test_without_validation() -> None:
    splits = data()
    executor = d5.framework("reference").executor(d5.networks.mlp(**SIZE))  # type: ignore[arg-type]
    recorder, run = Recorder(), d5.Trainer(executor, d5.SGD(), d5.OrderedSampler(splits.train, 4))
    run.train(1, [recorder])
    assert run.scores == {}
    assert "before_evaluation" not in recorder.calls


def test_two_trainers_share_nothing() -> None:
    rule = d5.Adam(lr=0.01)
    first, alone = trainer(rule), trainer(d5.Adam(lr=0.01))
    second = trainer(rule)
    first.train(1)
    second.train(2)
    first.train(1)
    alone.train(2)
    for name, value in alone.executor.state_dict().items():
        np.testing.assert_array_equal(first.executor.state_dict()[name], value)
        np.testing.assert_array_equal(second.executor.state_dict()[name], value)
    assert first.scores is not second.scores


def test_only_overridden_hooks_are_called() -> None:
    class Deaf(d5.Event):
        def __getattribute__(self, name: str) -> Any:
            if name in HOOKS and name != "after_epoch":
                raise AssertionError(f"{name} was looked at")
            return super().__getattribute__(name)

        def after_epoch(self, trainer: Any, epoch: int) -> None:
            heard.append(epoch)

    heard: list[int] = []
    trainer().train(1, [Deaf()])
    assert len(heard) == 1


# Ends


def test_the_callers_list_is_not_changed() -> None:
    events: list[d5.Event] = [Recorder()]
    before = list(events)
    run = trainer()
    run.train(1, events)
    assert events == before
    assert run.listeners.events == ()


def test_an_event_may_stop_training() -> None:
    recorder, run = Recorder(), trainer()
    run.train(5, [recorder, At(3, d5.StopTraining("good enough"))])
    assert (run.status, run.reason, run.step, run.epoch) == ("stopped", "good enough", 4, 1)
    assert recorder.calls[-1] == "after_training"
    run.train(1)  # the incomplete epoch starts over
    assert (run.status, run.reason, run.epoch) == ("success", "", 2)


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("boom"), "failed"), (KeyboardInterrupt(), "aborted"), (SystemExit(2), "aborted")]
)
def test_an_exception_goes_through_and_leaves_nothing_attached(error: BaseException, status: str) -> None:
    recorder, run = Recorder(), trainer()
    with pytest.raises(type(error)):
        run.train(2, [recorder, At(1, error)])
    assert (run.status, run.reason) == (status, str(error) or type(error).__name__)
    assert run.listeners.events == ()
    assert recorder.calls.count("after_training") == 1
    run.train(1)
    assert recorder.calls.count("after_step") == 2  # the last one stopped before the recorder's second call
    assert run.status == "success"


def test_every_event_hears_of_the_end_even_where_one_fails() -> None:
    class Bad(d5.Event):
        def after_training(self, trainer: Any) -> None:
            raise RuntimeError("cannot close")

    recorder, run = Recorder(), trainer()
    with pytest.raises(RuntimeError, match="cannot close"):
        run.train(1, [Bad(), recorder, Bad()])
    assert recorder.calls[-1] == "after_training"
    assert run.status == "failed"


def test_the_status_is_known_when_training_ends() -> None:
    seen: list[str] = []

    class Look(d5.Event):
        def after_training(self, trainer: Any) -> None:
            seen.append(trainer.status)

    for extra in ([], [At(0, d5.StopTraining())], [At(0, ValueError())]):
        run = trainer()
        assert run.status == "ready"
        with contextlib.suppress(ValueError):
            run.train(1, [Look(), *extra])
    assert seen == ["success", "stopped", "failed"]


class Waiting(d5.Event):
    """Takes its time while the clock does not run, and has a state; records the clock."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def before_training(self, trainer: Any) -> None:
        time.sleep(0.3)
        self.seen.append((trainer.elapsed_ns(), trainer.origin_ns))

    after_training = before_training

    def state_dict(self) -> dict[str, Any]:
        return {"kept": 1}

    def load_state_dict(self, state: Any) -> None:
        time.sleep(0.3)


def test_the_clock_runs_while_epochs_are_trained() -> None:
    """Not before the first epoch, and not after training, for a new training and for a resumed one."""

    class Keep(d5.Event):
        def after_all(self, trainer: Any) -> None:
            if trainer.step == 2:
                self.state = trainer.state_dict()

    class First(d5.Event):
        elapsed = 0

        def before_batch(self, trainer: Any, epoch: int) -> None:
            self.elapsed = self.elapsed or trainer.elapsed_ns()

    waiting, keep, first = Waiting(), Keep(), First()
    run = trainer()
    begin = time.perf_counter_ns()
    run.train(1, [waiting, keep, first])
    total = run.elapsed_ns()
    assert 0 < first.elapsed <= total <= time.perf_counter_ns() - begin - 600_000_000
    assert waiting.seen == [(0, 0), (total, 0)]
    again, waiting, first = trainer(), Waiting(), First()
    again.load_state_dict(keep.state)
    before = again.elapsed_ns()
    assert 0 < before < total
    begin = time.perf_counter_ns()
    again.train(1, [waiting, first])
    assert before < first.elapsed
    assert again.elapsed_ns() - before <= time.perf_counter_ns() - begin - 900_000_000
    assert waiting.seen == [(before, 0), (again.elapsed_ns(), 0)]


def test_the_throughput_of_an_epoch_that_goes_on_is_of_its_steps() -> None:
    """The new process's work before its first step does not count."""

    class Keep(d5.Event):
        def after_all(self, trainer: Any) -> None:
            if trainer.step == 2:
                self.state = trainer.state_dict()
                raise d5.StopTraining("killed")

    keep = Keep()
    trainer().train(1, [d5.Throughput().observer(), Waiting(), keep])
    observer, again = d5.Throughput().observer(), trainer()
    again.load_state_dict(keep.state)
    again.train(1, [observer, Waiting()])
    (sample,) = observer.samples()
    assert sample.step == 3
    # Eleven samples, minus the first of each size; with the waiting it would be less than 4 in 0.6 s.
    assert sample.value > 4 / 0.3


def test_a_device_that_fails_behind_a_stop_is_no_good_end() -> None:
    run = trainer()

    def broken() -> None:
        raise RuntimeError("device lost")

    run.executor.synchronize = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="device lost"):
        run.train(1, [At(1, d5.StopTraining("enough"))])
    assert (run.status, run.reason) == ("failed", "device lost")


def test_events_may_be_attached_around_several_calls() -> None:
    recorder, run = Recorder(), trainer()
    with run.listening(recorder):
        run.train(1)
        run.train(1)
    run.train(1)
    assert recorder.calls.count("after_epoch") == 2


@pytest.mark.parametrize("epochs", [0, -1, 1.5, True, "3"])
def test_bad_numbers_of_epochs(epochs: Any) -> None:
    with pytest.raises(UsageError, match="epochs; allowed: an integer of at least 1"):
        trainer().train(epochs)


def test_bad_parts_are_refused() -> None:
    for options, message in (
        ({"loss": "los"}, "the network has no 'los'; allowed: logits, loss"),
        ({"logits": "scores"}, "the network has no 'scores'; allowed: logits, loss"),
        ({"label": "y"}, "the network has no 'y'; allowed: input, label"),
        ({"rule": 3}, "got 3 as optimizer; allowed"),
    ):
        with pytest.raises(UsageError, match=message):
            trainer(**options)
    with pytest.raises(UsageError, match=r"as an event; allowed: objects of d5\.Event"):
        trainer().train(1, [Recorder])  # type: ignore[list-item]
    for events in (Recorder(), Recorder, None, 3):
        run: Any = trainer()
        with pytest.raises(UsageError, match=r"^got .* as events; allowed: a list of events; remedy: events=\[…\]"):
            run.train(1, events=events)
        assert (run.status, run.step) == ("ready", 0)


def test_what_stands_in_anothers_place_is_refused() -> None:
    splits = data()
    network = d5.networks.mlp(**SIZE)  # type: ignore[arg-type]
    executor, make = d5.framework("reference").executor(network), cast("Any", d5.Trainer)
    sampler = d5.OrderedSampler(splits.train, 4)
    for wrong in ("pytorch", network, None, d5.framework("reference")):
        with pytest.raises(
            UsageError, match=r"^Trainer: got .* as the executor; allowed: .*; remedy: deep5\.framework\("
        ):
            make(wrong, d5.SGD(), sampler)
    for wrong in (splits.train, splits, None, 3):
        with pytest.raises(UsageError, match=r"^Trainer: got .* as train_sampler; allowed: a deep5\.Sampler; remedy: "):
            make(executor, d5.SGD(), wrong)
    with pytest.raises(
        UsageError, match=r"^Trainer: got .* as validation_sampler; allowed: a deep5\.Sampler; remedy: "
    ):
        make(executor, d5.SGD(), sampler, splits.test)


@pytest.mark.parametrize(
    "ids", [[10**6], [-8], [0, 7], "a", ["a"], [0.5], [True, False], 3, None, [[0]], [[0], [1, 2]], [2**70]], ids=repr
)
def test_a_batch_is_of_samples_that_are_there(ids: Any) -> None:
    splits: Any = ArrayDataset({"input": np.zeros((7, 2), np.float32), "label": np.arange(7)})
    for given in (ids, np.array(ids, object) if ids == [[0], [1, 2]] else np.array(ids)):
        with pytest.raises(UsageError, match=r"^batch: got .*; allowed: (a list of integers|0 to 6, or from the end)"):
            splits.batch(given)


def test_a_batch_is_of_any_whole_numbers() -> None:
    splits: Any = ArrayDataset({"label": np.arange(7)})
    for ids in ([6, 0, -1], (6, 0, -1), np.array([6, 0, -1], np.int8), np.array([6, 0, -1], ">i8"), range(6, 7)):
        np.testing.assert_array_equal(splits.batch(ids)["label"], [6, 0, 6][: len(ids)])
    assert splits.batch([])["label"].shape == (0,)


@pytest.mark.parametrize("shape", [4, None, 4.0, {4}, "4"], ids=repr)
def test_synthetic_data_have_a_shape(shape: Any) -> None:
    with pytest.raises(UsageError, match=r"^synthetic data of .*; allowed: "):
        d5.datasets.synthetic(shape=shape)


@pytest.mark.parametrize("framework", ["pytorch", "reference"])
def test_the_trainer_is_the_same_on_each_back_end(framework: str) -> None:
    run = trainer(d5.Momentum(lr=0.05), framework=framework)
    losses: list[float] = []

    class Losses(d5.Event):
        def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
            losses.append(float(d5.to_numpy(outputs["loss"])))

    run.train(8, [Losses()])
    assert np.mean(losses[-3:]) < np.mean(losses[:3])


# Progress


def plain(run: d5.Trainer, epochs: int) -> list[str]:
    out = io.StringIO()
    run.train(epochs, [d5.ProgressBar(console=Console(file=out, width=200))])
    text = out.getvalue()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)  # a newline is the only control character
    return text.splitlines()


def test_lines_where_the_output_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    run = trainer()
    form = r"epoch {}/2  step {}  loss \d+\.\d{{4}}  accuracy \d+\.\d\d %  [\d,]+ samples/s  \d+ s left"
    for number, line in enumerate(plain(run, 2), start=1):
        assert re.fullmatch(form.format(number, 3 * number), line)
    assert len(plain(trainer(), 5)) == 5
    assert plain(run, 1)[0].startswith("epoch 3/3  step 9")


class Fixed:
    """A step of a given duration, and constant figures."""

    def __init__(self, seconds: float) -> None:
        self.network = SimpleNamespace(outputs={"loss": None, "logits": None}, inputs={"label": None})
        self.seconds = seconds

    def synchronize(self) -> None:
        pass

    def bind(self, executor: Any) -> None:
        pass

    def step(self, inputs: Any, info: Any) -> Any:
        time.sleep(self.seconds)
        return {"loss": np.float32(0.25)}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


class Batches:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def batches(self, epoch: int) -> Iterator[Any]:
        return iter([(np.arange(2), {})] * self.count)


def test_the_bar_is_drawn_at_most_ten_times_a_second() -> None:
    fake = Fixed(0.001)
    run = d5.Trainer(fake, fake, Batches(4))  # type: ignore[arg-type]
    out = io.StringIO()
    bar, times = d5.ProgressBar(console=Console(file=out, force_terminal=True, width=120)), []
    draw = bar._draw
    bar._draw = lambda *arguments: (times.append(time.perf_counter()), draw(*arguments))  # type: ignore[method-assign, func-returns-value]
    run.train(100, [bar])  # 100 epochs of 4 ms
    assert len(times) >= 2
    # All but the very last, which shows the end.
    assert all(after - before >= 0.0999 for before, after in itertools.pairwise(times[:-1]))


def test_the_bar_reads_the_loss_that_the_trainer_minimises() -> None:
    fake = Fixed(0)
    fake.network.outputs = {"total": None}
    fake.step = lambda inputs, info: {"total": np.float32(0.5), "loss": np.float32(9)}  # type: ignore[method-assign]
    run = d5.Trainer(fake, fake, Batches(2), loss="total")  # type: ignore[arg-type]
    assert "loss 0.5000  accuracy -" in plain(run, 1)[0]


CHILD = """
import sys, time, numpy as np
sys.path[:0] = {tests!r}
import deep5 as d5
from test_trainer import At, Batches, Fixed
fake = Fixed(0.02)
run = d5.Trainer(fake, fake, Batches(20))
run.scores = {{"accuracy": 87.5}}
print("ready", flush=True)
try:
    run.train(2, [d5.ProgressBar(), *{events}])
finally:
    print("status", run.status, flush=True)
"""


def on_terminal(events: str, interrupt: bool = False, **environment: str) -> tuple[str, int]:
    """A child process's output to a pseudo-terminal, and its status."""
    parent, child = pty.openpty()
    source = CHILD.format(tests=sys.path, events=events)
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30", **environment},
    )
    os.close(child)
    text, deadline, sent = b"", time.monotonic() + 60, False  # the imports take two seconds; the rest is slack
    while time.monotonic() < deadline:
        if select.select([parent], [], [], 0.1)[0]:
            try:
                piece = os.read(parent, 65536)
            except OSError:  # the child has closed its side
                break
            if not piece:
                break
            text += piece
        if interrupt and not sent and b"samples/s" in text:
            process.send_signal(signal.SIGINT)
            sent = True
    os.close(parent)
    return text.decode(), process.wait(timeout=30)


def shown(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_the_bar_on_a_terminal() -> None:
    text, status = on_terminal("[]")
    lines = shown(text)
    assert status == 0
    assert re.search(r"epoch 1/2 .* step \d+/40 loss 0\.2500  accuracy 87\.50 %  \d+ samples/s  \d+ s left", lines)
    assert re.search(r"epoch 2/2 .* step 40/40 .* 0 s left", lines)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor: hidden, shown again
    assert text.index("\x1b[?25h") < text.index("status success")


def test_a_narrow_terminal_has_all_the_figures() -> None:
    text, status = on_terminal("[]", COLUMNS="80")
    assert status == 0
    lines = [line for line in re.split(r"[\r\n]+", shown(text)) if "epoch 2/2" in line]
    assert re.fullmatch(r"epoch 2/2 step \d+ loss 0\.2500  accuracy 87\.50 %  \d+ samples/s  \d+ s left *", lines[-1])
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("how", ["exception", "interrupt"])
def test_the_terminal_is_left_as_it_was_whatever_happens(how: str) -> None:
    text, status = on_terminal("[At(30, ValueError('boom'))]" if how == "exception" else "[]", how == "interrupt")
    assert status != 0
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert text.index("\x1b[?25h") < text.index("status failed" if how == "exception" else "status aborted")
    assert ("ValueError: boom" if how == "exception" else "KeyboardInterrupt") in shown(text)


def test_lines_on_a_terminal_that_can_do_nothing() -> None:
    text, status = on_terminal("[]", TERM="dumb")
    assert status == 0
    assert "\x1b" not in text
    assert "epoch 2/2  step 40  loss 0.2500  accuracy 87.50 %" in text


# The log


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_log(tmp_path: Path) -> None:
    run, recorder = trainer(), Recorder()
    run.train(2, [d5.CSVLogger(str(tmp_path / "log.csv")), recorder])
    table = rows(tmp_path / "log.csv")
    assert list(table[0]) == ["step", "epoch", "loss", "seconds", "test_accuracy", "lr"]
    assert [row["step"] for row in table] == list("012345")
    assert [row["epoch"] for row in table] == list("000111")
    assert [bool(row["test_accuracy"]) for row in table] == [False, False, True] * 2
    assert float(table[-1]["test_accuracy"]) == run.scores["accuracy"]
    assert all(0 < float(row["loss"]) < 10 and float(row["seconds"]) > 0 for row in table)


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt(), d5.StopTraining()])
def test_the_log_of_a_run_that_was_cut_short(tmp_path: Path, error: BaseException) -> None:
    run = trainer()
    with contextlib.suppress(ValueError, KeyboardInterrupt):
        run.train(3, [d5.CSVLogger(str(tmp_path / "log.csv")), At(4, error)])
    table = rows(tmp_path / "log.csv")
    assert [row["step"] for row in table] == list("01234")
    # The unfinished epoch does not have the accuracy of the previous one.
    assert [bool(row["test_accuracy"]) for row in table] == [False, False, True, False, False]


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "log.csv", tmp_path):
        run = trainer()
        with pytest.raises(OutputError, match=r"the log .* cannot be written .*; allowed: a writable file"):
            run.train(1, [d5.CSVLogger(str(path))])
        assert (run.status, run.step) == ("failed", 0)
    with pytest.raises(UnknownName, match="unknown output 'los'; allowed: logits, loss; did you mean 'loss'"):
        trainer().train(1, [d5.CSVLogger(str(tmp_path / "log.csv"), loss="los")])
    assert not (tmp_path / "log.csv").exists()


def test_an_event_that_writes_into_its_batch_does_not_change_the_data() -> None:
    class Vandal(d5.Event):
        def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
            info.sample_ids[:] = 0
            for _, inputs in trainer.train_sampler.batches(0):
                for array in inputs.values():
                    array[...] = 0

    run, recorder = trainer(), Recorder()
    before = run.train_sampler.dataset.content_hash()
    run.train(1, [Vandal(), recorder])
    assert isinstance(run.train_sampler.dataset, ArrayDataset)
    assert run.train_sampler.dataset.content_hash() == before
