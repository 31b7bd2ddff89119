"""Loggers and the progress bar: their output is read back, also after an interrupted and resumed run."""

from __future__ import annotations

import errno
import io
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import deep5 as d5
from deep5.core.errors import MissingDependency, OutputError, UnknownName, UsageError
from deep5.core.plugins import install_command, load
from deep5.training import loggers, tensorboard_logger
from deep5.training.datasets.class_templates import synthetic

pytestmark = pytest.mark.usefixtures("warm")

SCHEDULES = {"lr": d5.Polynomial(0.5), "momentum": 0.5}
EPOCHS, STEPS = 3, 4


class Keep(d5.Event):
    """Records what is logged; takes a checkpoint at one possible moment, and copies of the files at all later ones.

    A copy is the state of the files if the process is killed at that moment: no event sees the end.
    """

    def __init__(self, folder: Path, at: int = -1) -> None:
        self.folder, self.at, self.moment = folder, at, -1
        self.state: Any = None
        self.copies: dict[int, Path] = {}
        self.losses: list[float] = []
        self.scores: list[dict[str, float]] = []

    def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
        self.losses.append(float(outputs["loss"]))

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        self.scores.append(dict(scores))

    def after_all(self, trainer: Any) -> None:
        self.moment += 1
        if self.moment == self.at:
            self.state = trainer.state_dict()
        if 0 <= self.at <= self.moment:
            copy = self.folder.with_name(f"copy-{self.moment}")
            self.copies[self.moment] = Path(shutil.copytree(self.folder, copy))


def events(folder: Path, keep: d5.Event) -> list[d5.Event]:
    folder.mkdir(exist_ok=True)
    return [d5.Scheduled(SCHEDULES), d5.CSVLogger(folder / "log.csv"), d5.TensorBoardLogger(folder / "board"), keep]


def trainer(rule: Any = None, **options: Any) -> d5.Trainer:
    splits = synthetic(shape=(4,), classes=3, train=15, test=6)  # batches of 4, 4, 4 and 3
    executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=3, classes=3))
    train, test = d5.ShuffleSampler(splits.train, 4), d5.OrderedSampler(splits.test, 3)
    return d5.Trainer(executor, rule or d5.Momentum(), train, options.pop("test", test), **options)


def without_clock(path: Path) -> list[str]:
    """The rows, without the seconds."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    return [",".join(row[:3] + row[4:]) for row in rows]


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The data that TensorBoard shows: steps and values by tag."""
    # TensorBoard's name for "without TensorFlow", which it would load only to open files.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(point.step, point.value) for point in accumulator.Scalars(tag)] for tag in tags}


def float32(values: Any) -> list[float]:
    """As in event files."""
    return [float(np.float32(value)) for value in values]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    keep = Keep(folder)
    trainer().train(EPOCHS, events(folder, keep))
    return SimpleNamespace(
        folder=folder, keep=keep, rows=without_clock(folder / "log.csv"), board=points(folder / "board")
    )


def test_a_row_a_step(whole: Any) -> None:
    table = pd.read_csv(whole.folder / "log.csv")
    assert list(table) == ["step", "epoch", "loss", "seconds", "test_accuracy", "lr", "momentum"]
    assert list(table["step"]) == list(range(EPOCHS * STEPS))
    assert list(table["epoch"]) == [0] * 4 + [1] * 4 + [2] * 4
    assert list(table["loss"]) == whole.keep.losses
    assert list(table["lr"]) == pytest.approx([0.5 * (1 - step / 12) for step in range(12)], rel=1e-14)
    assert set(table["momentum"]) == {0.5}
    assert list(table["test_accuracy"].dropna().index) == [3, 7, 11]
    assert list(table["test_accuracy"].dropna()) == [scores["accuracy"] for scores in whole.keep.scores]
    assert (table["seconds"] > 0).all()


class Halving(d5.Event):
    """Changes the learning rate, like a user's schedule."""

    def before_step(self, trainer: Any, info: Any) -> None:
        trainer.optimizer.set_hyper("lr", 0.5 ** (info.step + 1))


def test_the_rate_of_each_step_stands_beside_a_schedule_of_something_else(tmp_path: Path) -> None:
    run = trainer(d5.RuleOptimizer(d5.SGD(), clip_norm=1.0))
    run.train(1, [d5.Scheduled({"clip_norm": d5.Polynomial(4.0)}), Halving(), d5.CSVLogger(tmp_path / "log.csv")])
    table = pd.read_csv(tmp_path / "log.csv")
    assert list(table["lr"]) == [0.5, 0.25, 0.125, 0.0625]
    assert list(table["clip_norm"]) == [4.0, 3.0, 2.0, 1.0]


def test_tensorboard_reads_back_what_was_written(whole: Any) -> None:
    board, steps, keep = whole.board, list(range(EPOCHS * STEPS)), whole.keep
    throughput = "throughput/samples_per_second"
    assert set(board) == {"loss/train", "loss/test", "accuracy/test", "hyper/lr", "hyper/momentum", throughput}
    assert board["loss/train"] == list(zip(steps, float32(keep.losses), strict=True))
    assert board["hyper/lr"] == [(step, pytest.approx(0.5 * (1 - step / 12))) for step in steps]
    for tag, name in (("loss/test", "loss"), ("accuracy/test", "accuracy")):
        assert board[tag] == list(zip([3, 7, 11], float32(scores[name] for scores in keep.scores), strict=True))
    assert [step for step, _ in board[throughput]] == [3, 7, 11]
    assert all(0 < value < 1e7 for _, value in board[throughput])


@pytest.mark.parametrize("at", range(EPOCHS * (STEPS + 1)))
def test_logs_go_on_from_a_checkpoint(whole: Any, tmp_path: Path, at: int) -> None:
    """Killed at that moment or at any later one: in both logs no row is lost or duplicated."""
    keep = Keep(tmp_path / "first", at)
    trainer().train(EPOCHS, events(tmp_path / "first", keep))
    for moment in sorted({at, *range(at + 1, keep.moment + 1, 3), keep.moment}):
        folder = keep.copies[moment]
        again = trainer()
        again.load_state_dict(keep.state)
        if again.epoch == EPOCHS:
            continue
        again.train(EPOCHS - again.epoch, events(folder, Keep(folder)))
        assert without_clock(folder / "log.csv") == whole.rows, moment
        board = points(folder / "board")
        for tag, expected in whole.board.items():
            if tag.startswith("throughput"):
                # Computed at checkpoints, too.
                assert {step for step, _ in expected} <= {step for step, _ in board[tag]}
                assert len({step for step, _ in board[tag]}) == len(board[tag])
            else:
                assert board[tag] == expected, (tag, moment)


def test_a_log_that_goes_on_without_a_checkpoint(tmp_path: Path) -> None:
    """A second training of the same trainer, with other loggers."""
    run = trainer()
    for _ in range(2):
        run.train(1, events(tmp_path, Keep(tmp_path)))
    assert list(pd.read_csv(tmp_path / "log.csv")["step"]) == list(range(8))
    assert [step for step, _ in points(tmp_path / "board")["loss/train"]] == list(range(8))
    # A new training starts over, whatever files exist.
    trainer().train(1, events(tmp_path, Keep(tmp_path)))
    assert list(pd.read_csv(tmp_path / "log.csv")["step"]) == list(range(4))
    assert [step for step, _ in points(tmp_path / "board")["loss/train"]] == list(range(4))


def test_half_a_row_is_none(tmp_path: Path) -> None:
    path, run = tmp_path / "log.csv", trainer()
    run.train(1, [d5.CSVLogger(path)])
    rows = path.read_bytes()
    for cut in (3, 40, 100):
        path.write_bytes(rows[:-cut])
        again = trainer()
        again.step, again.epoch = 4, 1
        again.train(1, [d5.CSVLogger(path)])
        found = path.read_bytes().splitlines()
        kept = rows[:-cut].splitlines()[: rows[:-cut].count(b"\n")]
        assert found[: len(kept)] == kept
        assert [line.split(b",")[0] for line in found[len(kept) :]] == [b"4", b"5", b"6", b"7"]


def test_a_log_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("name,age\nx,1\n")
    run = trainer()
    run.step, run.epoch = 4, 1
    with pytest.raises(
        OutputError, match=r"the log .*log.csv has other columns than step,.*; allowed: .*; remedy: name a"
    ):
        run.train(1, [d5.CSVLogger(path)])
    assert path.read_text() == "name,age\nx,1\n"


def test_few_losses_are_kept_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long epoch does not fill the memory, and the file is the same."""
    trainer().train(1, [d5.CSVLogger(tmp_path / "one.csv"), d5.TensorBoardLogger(tmp_path / "one")])
    monkeypatch.setattr(loggers, "_MOST", 2)
    monkeypatch.setattr(tensorboard_logger, "_MOST", 2)
    most: list[int] = []

    class Look(d5.Event):
        def after_batch(self, trainer: Any, info: Any, outputs: Any) -> None:
            most.append(max(len(log._rows), len(board._rows)))

    log, board = d5.CSVLogger(tmp_path / "two.csv"), d5.TensorBoardLogger(tmp_path / "two")
    trainer().train(1, [log, board, Look()])
    assert max(most) == 1
    assert without_clock(tmp_path / "two.csv") == without_clock(tmp_path / "one.csv")
    one, two = points(tmp_path / "one"), points(tmp_path / "two")
    assert {tag: two[tag] for tag in one if "/s" not in tag} == {tag: one[tag] for tag in one if "/s" not in tag}
    assert [step for step, _ in two["throughput/samples_per_second"]] == [1, 3]


def test_without_evaluation_and_without_a_known_rate(tmp_path: Path) -> None:
    class Own:
        """A user's optimizer with unknown hyperparameters."""

        def bind(self, executor: Any) -> None:
            pass

        def step(self, inputs: Any, info: Any) -> Any:
            return {"loss": np.float32(info.step)}

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any) -> None:
            pass

    run = trainer(Own(), test=None)
    run.train(2, [d5.CSVLogger(tmp_path / "log.csv"), d5.TensorBoardLogger(tmp_path / "board", every=3)])
    table = pd.read_csv(tmp_path / "log.csv")
    assert list(table) == ["step", "epoch", "loss", "seconds", "test_accuracy"]
    assert list(table["loss"]) == list(range(8))
    assert table["test_accuracy"].isna().all()
    board = points(tmp_path / "board")
    assert board["loss/train"] == [(0, 0.0), (3, 3.0), (6, 6.0)]
    assert set(board) == {"loss/train", "throughput/samples_per_second"}


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 3, 5]), (4, [1, 5])])
def test_throughput_is_of_training_alone(
    every: int, steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock of milliseconds: three epochs of two steps, with evaluations and waiting between them."""
    now, second = [0], 10**9
    monkeypatch.setattr(tensorboard_logger, "perf_counter_ns", lambda: now[0])
    log, run = d5.TensorBoardLogger(tmp_path, every=every), trainer()

    def learn(begin_ms: int, end_ms: int, size: int) -> None:
        info = d5.StepInfo(step=run.step, batch_size=size)
        run.step += 1
        log.after_step(run, info, {"loss": np.float32(1)}, begin_ms * 10**6, end_ms * 10**6)
        now[0] = end_ms * 10**6

    log.before_training(run)
    for epoch, begin_ms in enumerate((1000, 7000, 13000)):
        learn(begin_ms, begin_ms + 100, 8)
        learn(begin_ms + 300, begin_ms + 400, 8)
        now[0] += second // 10  # the device finishes only now
        log.before_evaluation(run, epoch)
        now[0] += second
        log.after_evaluation(run, epoch, {"loss": 1.0, "accuracy": 50.0})
        log.after_epoch(run, epoch)
    log.after_training(run)
    # Sixteen samples in half a second, also after an epoch without a point.
    assert points(tmp_path)["throughput/samples_per_second"] == [(step, 32.0) for step in steps]


def test_a_loss_that_is_no_number_is_logged(tmp_path: Path) -> None:
    class Lost(d5.Event):
        def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
            outputs["loss"] = np.float32(math.nan if info.step == 1 else math.inf)

    trainer().train(1, [Lost(), d5.CSVLogger(tmp_path / "log.csv"), d5.TensorBoardLogger(tmp_path / "board")])
    np.testing.assert_array_equal(pd.read_csv(tmp_path / "log.csv")["loss"], [math.inf, math.nan, math.inf, math.inf])
    board = [value for _, value in points(tmp_path / "board")["loss/train"]]
    np.testing.assert_array_equal(board, [math.inf, math.nan, math.inf, math.inf])


# Errors


def test_bad_arguments(tmp_path: Path) -> None:
    for make, message in (
        (lambda: d5.CSVLogger(3), "CSVLogger: got path=3; allowed: the name of a file"),  # type: ignore[arg-type]
        (lambda: d5.CSVLogger(""), "CSVLogger: got path=''"),
        (lambda: d5.TensorBoardLogger(None), "TensorBoardLogger: got folder=None; allowed: the name of a folder"),  # type: ignore[arg-type]
        (lambda: d5.TensorBoardLogger("x", every=0), "TensorBoardLogger: got every=0; allowed: a number of steps"),
    ):
        with pytest.raises(UsageError, match=f"^{message}"):
            make()
    with pytest.raises(UnknownName, match="unknown output 'los'; allowed: logits, loss; did you mean 'loss'"):
        trainer().train(1, [d5.CSVLogger(tmp_path / "log.csv", loss="los")])


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here first")
    for event, message in (
        (d5.CSVLogger(tmp_path), r"the log .* cannot be written \(Is a directory\); allowed: a writable file"),
        (d5.CSVLogger(tmp_path / "file" / "log.csv"), r"the log .* cannot be written \(Not a directory\)"),
        (
            d5.TensorBoardLogger(tmp_path / "file"),
            r"the event file in .*file cannot be written \(File exists\); allowed",
        ),
    ):
        run = trainer()
        with pytest.raises(OutputError, match=message):
            run.train(1, [event])
        assert (run.status, run.step) == ("failed", 0)
    assert (tmp_path / "file").read_text() == "here first"


@pytest.mark.parametrize("kind", [d5.CSVLogger, d5.TensorBoardLogger])
def test_a_full_disk(kind: Any, tmp_path: Path) -> None:
    class Full:
        """A file on a disk that is full from a certain write on."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    class Fill(d5.Event):
        def before_epoch(self, trainer: Any, epoch: int) -> None:
            if epoch == 1:
                log._file = Full(log._file)
                if kind is d5.TensorBoardLogger:
                    log._records._writer = log._file

    log, run = kind(tmp_path / "log"), trainer()
    with pytest.raises(OutputError, match=r"cannot be written \(No space left on device\)"):
        run.train(2, [log, Fill()])
    assert run.status == "failed"
    # Earlier content is unchanged, and the trainer can continue.
    if kind is d5.CSVLogger:
        assert list(pd.read_csv(tmp_path / "log")["step"]) == list(range(4))
    else:
        assert [step for step, _ in points(tmp_path / "log")["loss/train"]] == list(range(4))


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    run = trainer()
    with pytest.raises(
        MissingDependency, match=r"needs the package 'tensorboard', .* pip install 'deep5\[tensorboard\]'"
    ):
        run.train(1, [d5.TensorBoardLogger(tmp_path / "board")])
    assert not (tmp_path / "board").exists()
    assert install_command("tensorboard") == "pip install 'deep5[tensorboard]'"


def test_tensorboard_brings_no_framework() -> None:
    """Its own writer would load TensorFlow, if installed, into a process that trains with another framework."""
    code = (
        "import sys, deep5 as d5; from deep5.training.datasets.class_templates import synthetic\n"
        "data = synthetic(shape=(4,), classes=3, train=8, test=4)\n"
        "executor = d5.framework('reference').executor(d5.networks.mlp(features=4, hidden=3, classes=3))\n"
        "run = d5.Trainer(executor, d5.SGD(), d5.OrderedSampler(data.train, 4))\n"
        "run.train(1, [d5.TensorBoardLogger(sys.argv[1])])\n"
        "assert not {'tensorflow', 'torch', 'jax'} & set(sys.modules), 'a framework was loaded'\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "error", "-c", code, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_event_files_come_in_their_order(tmp_path: Path) -> None:
    """By name, as TensorBoard reads them, even if one follows another quickly or the clock is set back."""
    (tmp_path / "events.out.tfevents.9000000000.host.1.0").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("no event file")
    run = trainer()
    for _ in range(3):
        run.train(1, [d5.TensorBoardLogger(tmp_path)])
    stamps = sorted(int(path.name.split(".")[3]) for path in tmp_path.glob("events.*.deep5"))
    assert stamps == [9 * 10**9 + more for more in (1, 2, 3)]


def test_they_are_registered() -> None:
    assert load("events", "tensorboard_logger") is d5.TensorBoardLogger
    assert load("events", "csv_logger") is d5.CSVLogger
    assert d5.TensorBoardLogger("x").describe() == {"event": "tensorboard_logger"}


# Progress


class Stream:
    """Batches of unknown number, or a decreasing number."""

    def __init__(self, counts: tuple[int, ...], *, known: bool) -> None:
        self.counts, self.known = counts, known

    def steps(self, epoch: int) -> int | None:
        return self.counts[epoch] if self.known else None

    def order_hash(self, epochs: int) -> None:
        return None

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        return iter([(np.arange(2), {})] * (self.counts[epoch] - start))


class Fixed:
    """A step that takes no time."""

    def __init__(self) -> None:
        self.network = SimpleNamespace(outputs={"loss": None}, inputs={})

    def synchronize(self) -> None:
        pass

    def bind(self, executor: Any) -> None:
        pass

    def step(self, inputs: Any, info: Any) -> Any:
        return {"loss": np.float32(0.25)}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def fixed(source: Any) -> d5.Trainer:
    fake: Any = Fixed()
    return d5.Trainer(fake, fake, source)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [80, 120])
def test_a_bar_without_a_known_length(terminal: bool, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deep5.training.progress._INTERVAL_NS", 0)
    monkeypatch.setattr("deep5.training.progress._SHARE", math.inf)
    for known in (True, False):
        out = io.StringIO()
        console = Console(file=out, width=width, force_terminal=terminal, _environ={"TERM": "xterm"})
        fixed(Stream((5, 3), known=known)).train(2, [d5.ProgressBar(console=console)])
        text = out.getvalue()
        assert "epoch 2/2" in text
        assert "step 8" in text.replace("\x1b[0m", "")
        assert ("s left" in text) == known
        assert ("step 8/8" in text) == (known and terminal and width == 120)


def test_a_bar_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are those of the whole run, and the total is known from the middle of an epoch."""
    monkeypatch.setattr("deep5.training.progress._INTERVAL_NS", 0)
    monkeypatch.setattr("deep5.training.progress._SHARE", math.inf)
    out = io.StringIO()
    bar = d5.ProgressBar(console=Console(file=out, width=120, force_terminal=True, _environ={"TERM": "xterm"}))
    run = fixed(Stream((5, 3), known=True))
    run.step, run.batch = 2, 2
    run.train(2, [bar])
    steps = re.findall(r"step (\d)/8", out.getvalue())
    assert list(dict.fromkeys(steps)) == list("2345678")


RECIPE = """
import time

import deep5 as d5


class Slowly(d5.Event):
    def describe(self):
        return {"event": "slowly"}

    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        time.sleep(0.01)


FIXED = {
    "model": "mlp", "model_kwargs": {"features": 4, "hidden": 3, "classes": 3},
    "dataset": "synthetic", "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 150, "test": 30}, "epochs": 8,
}
MUTABLE = {
    "batch_size": 4, "framework": "reference", "optimizer": "momentum",
    "schedules": {"lr": d5.WarmUp(d5.Cosine(0.1), epochs=1)},
    "events": [d5.CSVLogger("log.csv"), d5.TensorBoardLogger("board"), d5.EarlyStopping(patience=8), Slowly()],
}
METRICS = [(d5.TestAccuracy(), None)]
"""


@pytest.mark.slow
def test_logs_of_a_run_that_is_killed_and_resumed(tmp_path: Path) -> None:
    """With the command, and with a signal that cannot be caught."""
    logs = []
    for name, kills in (("whole", 0), ("killed", 2)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "logged.py").write_text(RECIPE)
        command = [sys.executable, "-m", "deep5", "run", "logged.py", "--checkpoint-every", "15", "--quiet"]
        for _ in range(kills):
            process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
            end = time.monotonic() + 60
            newest = max((path.name for path in folder.glob("results/*/checkpoints/*")), default="")
            while time.monotonic() < end and process.poll() is None:
                if max((path.name for path in folder.glob("results/*/checkpoints/*")), default="") > newest:
                    break
                time.sleep(0.01)
            time.sleep(0.25)
            process.kill()
            assert process.wait(60) == -9
            (run,) = (path for path in (folder / "results").iterdir() if path.is_dir())
            command = [*command[:8], "--resume", str(run)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        board = points(folder / "board")
        logs.append((without_clock(folder / "log.csv"), {tag: board[tag] for tag in board if "throughput" not in tag}))
    assert len(logs[0][0]) == 1 + 8 * 38
    assert logs[1] == logs[0]
