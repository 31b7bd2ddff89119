"""Checkpoint files, when they are written and kept, and training resumed from one."""

from __future__ import annotations

import errno
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import CheckpointError, OutputError, UsageError
from deep5.core.metric import FirstCalls, Sample
from deep5.training.checkpoint_file import read_checkpoint, write_checkpoint
from deep5.training.checkpointer import BEST, Checkpointer, checkpoints, restore
from deep5.training.datasets.class_templates import synthetic

TREE: dict[str, Any] = {
    "none": None,
    "numbers": [1, -2, True, False, 0.1, 1e-300, math.inf, -math.inf, "a text", 2**70],
    "arrays": {"half": np.array([1.5, -0.0], np.float16), "no axes": np.array(3), "empty": np.zeros((0, 4), np.int8)},
    "strided": np.arange(12.0).reshape(3, 4)[:, ::2],
    "scalars": [np.float32(0.1), np.int64(-5), np.bool_(True)],
    "tuple": (1, (2, "x"), []),
    "set": {3, 1, 2},
    "keys": {5: "a number", "$": "the mark itself", "": "nothing"},
    "sample": Sample(0.25, 3, None, 1.5),
    "samples": [Sample(float(n), n, None if n % 2 else n, n / 7) for n in range(100)],
    "long": list(range(1000)),
    "floats": [n / 3 for n in range(500)],
    "flags": [n % 3 == 0 for n in range(99)],
    "huge": [2**80 + n for n in range(40)],
    "first": FirstCalls((64, 3)),
}


def same(got: Any, want: Any) -> None:
    """Equal in value, type and bits."""
    assert type(got) is type(want)
    if isinstance(want, (np.ndarray, np.generic)):
        assert (np.asarray(got).dtype, np.shape(got)) == (np.asarray(want).dtype, np.shape(want))
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()
    elif isinstance(want, dict):
        assert got.keys() == want.keys()
        for key, value in want.items():
            same(got[key], value)
    elif isinstance(want, FirstCalls):
        assert got.sizes == want.sizes
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for mine, theirs in zip(got, want, strict=True):
            same(mine, theirs)
    else:
        assert got == want


# Files


def test_a_file_holds_what_it_was_given_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    assert write_checkpoint(path, TREE, {"step": 7, "who": "me"}) == ()
    tree, about = read_checkpoint(path)
    same(tree, TREE)
    assert about == {"step": 7, "who": "me"}


def test_safetensors_reads_it(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    path = tmp_path / "a.safetensors"
    write_checkpoint(path, {"executor": {"w": np.eye(3, dtype=np.float32)}}, {})
    np.testing.assert_array_equal(load_file(path)["executor/w"], np.eye(3))


def test_the_same_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        write_checkpoint(tmp_path / name, TREE, {})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_no_file_can_hold_is_left_out_and_told(tmp_path: Path) -> None:
    tree = {"events": {"own": {"kept": 1, "file": object(), "deep": {"objects": np.array([object()])}}}}
    left = write_checkpoint(tmp_path / "a", tree, {})
    assert left == ("events/own/file", "events/own/deep/objects")
    same(read_checkpoint(tmp_path / "a")[0], {"events": {"own": {"kept": 1, "deep": {}}}})


def test_truncated_at_any_length_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, {"x": np.arange(300.0), "y": [1, 2]}, {"step": 1})
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="truncated or damaged"):
            read_checkpoint(path)


def _without_its_tree(whole: bytes) -> bytes:
    return whole.replace(b'\\"tree\\"', b'\\"tRee\\"')


def _of_another_version(whole: bytes) -> bytes:
    return whole.replace(b'\\"version\\": 1', b'\\"version\\": 9')


def _of_another_place(whole: bytes) -> bytes:
    return whole.replace(b'\\"at\\": \\"x\\"', b'\\"at\\": \\"z\\"')


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without_its_tree, "truncated or damaged"),
        (_of_another_version, "has version 9; allowed: 1"),
        (_of_another_place, "truncated or damaged"),
        (lambda whole: struct.pack("<Q", 2**62) + whole[8:], "truncated or damaged"),
        (lambda whole: b"", "truncated or damaged"),
    ],
)
def test_a_damaged_file_is_refused(spoil: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, {"x": np.arange(3.0)}, {})
    whole = path.read_bytes()
    assert spoil(whole) != whole
    path.write_bytes(spoil(whole))
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(path)


def test_weights_are_no_checkpoint(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"w": np.zeros(2)}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match="is not a checkpoint of deep5"):
        read_checkpoint(tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match="is not there"):
        read_checkpoint(tmp_path / "other.safetensors")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no device that is always full")
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, {"x": np.zeros(3)}, {"step": 1})
    # A limit on file size fails like a full disk: in the middle of the file.
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OutputError, match=r"cannot be written .* MiB free; earlier checkpoints are unchanged"):
            write_checkpoint(path, {"x": np.zeros(10**6)}, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert read_checkpoint(path)[1] == {"step": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=os.strerror(errno.ENOENT)):
        write_checkpoint(tmp_path / "none" / "a.safetensors", {}, {})


# When they are written, and which are kept


def trainer(rule: Any = None, *, framework: str = "reference", **options: Any) -> d5.Trainer:
    data = synthetic(shape=(4,), classes=3, train=22, test=7)
    executor = d5.framework(framework).executor(d5.networks.mlp(features=4, hidden=3, classes=3))
    train, test = d5.ShuffleSampler(data.train, 4, seed=1), d5.OrderedSampler(data.test, 3)
    return d5.Trainer(executor, rule or d5.Adam(), train, test, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_so_many_steps_the_last_are_kept(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path / "c", every_steps=5, keep=2)
    trainer().train(3, [keeper])  # 6 steps per epoch
    assert names(tmp_path / "c") == ["step-0000000010.safetensors", "step-0000000015.safetensors"]
    assert keeper.written == 3
    assert keeper.seconds > 0
    assert checkpoints(tmp_path / "c")[0].name == "step-0000000015.safetensors"


def test_every_so_many_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 100000, 4))
    monkeypatch.setattr("deep5.training.checkpointer.perf_counter", lambda: next(now))
    keeper = Checkpointer(tmp_path, every_s=0)
    trainer().train(1, [keeper])
    assert keeper.written == 7  # after every step, and after the epoch
    keeper = Checkpointer(tmp_path / "other")
    trainer().train(8, [keeper])
    # Each clock reading takes 4 s, and writing needs two more: 30 s have passed at every eighth reading.
    assert 5 <= keeper.written <= 8


def test_the_best_evaluation_is_kept(tmp_path: Path) -> None:
    class Scores(d5.Event):
        accuracies: Iterator[float] = iter([10.0, 30.0, 20.0, 30.0, math.nan])

        def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
            scores["accuracy"] = next(self.accuracies)

    keeper = Checkpointer(tmp_path, every_steps=1000, best="accuracy")
    trainer().train(5, [Scores(), keeper])
    assert names(tmp_path) == [BEST]
    tree, about = read_checkpoint(tmp_path / BEST)
    assert (about["epoch"], tree["trainer"]["scores"]["accuracy"]) == (2, 30.0)
    assert keeper.written == 2


def test_the_best_stays_the_best_after_a_resume(tmp_path: Path) -> None:
    """A checkpoint at the epoch's end, triggered by time, records that its evaluation has been compared."""
    rule = d5.SGD(lr=0.3)
    trainer(rule).train(1, [Checkpointer(tmp_path, every_s=0, best="accuracy")])
    best = (tmp_path / BEST).read_bytes()
    again = trainer(rule)
    restore(again, tmp_path)

    class Worse(d5.Event):
        def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
            scores["accuracy"] = 0.0

    again.train(2, [Worse(), Checkpointer(tmp_path, every_s=0, best="accuracy")])
    assert (tmp_path / BEST).read_bytes() == best


def test_a_new_training_has_a_best_of_its_own(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path / "a", every_steps=1000, best="loss")
    trainer(d5.SGD(lr=0.3)).train(3, [keeper])
    keeper.folder = tmp_path / "b"
    trainer(d5.SGD(lr=1e-9)).train(1, [keeper])  # worse than the first in any case
    assert names(tmp_path / "b") == [BEST]


def test_checkpoints_of_a_training_that_is_further_on_are_refused(tmp_path: Path) -> None:
    """They would count as the newest of this training, and its own as the oldest."""
    trainer().train(2, [Checkpointer(tmp_path, every_steps=5)])
    held = names(tmp_path)
    message = "holds step-0000000010.safetensors, and this training is at step 0; allowed: .*; remedy: resume from it"
    with pytest.raises(d5.UsageError, match=message):
        trainer().train(1, [Checkpointer(tmp_path, every_steps=5)])
    assert names(tmp_path) == held
    # An unreadable one is skipped, and does not interfere.
    last = tmp_path / held[-1]
    last.write_bytes(last.read_bytes()[:-5])
    again = trainer()
    restore(again, tmp_path, tell=lambda told: None)
    keeper = Checkpointer(tmp_path, every_steps=1)
    again.train(1, [keeper])
    assert names(tmp_path) == [
        "step-0000000005.safetensors",
        "step-0000000006.safetensors",
        "step-0000000010.unreadable",
    ]
    keeper.clear()
    assert not tmp_path.exists()


def test_where_there_is_no_accuracy_there_is_no_best(tmp_path: Path) -> None:
    class Without(d5.Event):
        def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
            del scores["accuracy"]

    with pytest.raises(
        d5.UsageError, match=r"Checkpointer\(best='accuracy'\): there is none: the labels are not classes"
    ):
        trainer().train(1, [Without(), Checkpointer(tmp_path, best="accuracy")])


def test_what_a_killed_process_left_half_written_goes(tmp_path: Path) -> None:
    (tmp_path / ".step-0000000003.safetensors.abc.tmp").write_bytes(b"half")
    (tmp_path / ".best.safetensors.abc.tmp").write_bytes(b"half")
    (tmp_path / "mine.txt").write_text("stays")
    trainer().train(1, [Checkpointer(tmp_path, every_steps=6)])
    assert names(tmp_path) == ["mine.txt", "step-0000000006.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every_steps": 0}, "every_steps=0; allowed: an integer of at least 1"),
        ({"every_steps": True}, "every_steps=True"),
        ({"every_s": -1}, "every_s=-1; allowed: seconds"),
        ({"every_s": math.nan}, "every_s=nan"),
        ({"keep": 0}, "keep=0"),
        ({"best": "speed"}, "best='speed'; allowed: 'accuracy', 'loss', None"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Checkpointer("folder", **arguments)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be made"):
        trainer().train(1, [Checkpointer(tmp_path / "file" / "c")])
    with pytest.raises(UsageError, match="got no folder"):
        trainer().train(1, [Checkpointer()])


# Resuming


class Losses(d5.Event):
    """The losses and indices of every step, and whether the hooks of an epoch were called in order."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.ids: list[list[int]] = []
        self.epochs: list[int] = []

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        self.epochs.append(epoch)

    def after_step(self, trainer: Any, info: d5.StepInfo, outputs: Any, begin_ns: int, end_ns: int) -> None:
        self.losses.append(float(d5.to_numpy(outputs["loss"])))
        self.ids.append(info.sample_ids.tolist())

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: Any) -> None:
        vars(self).update(state)


FRAMEWORKS = ["reference", "pytorch", "tensorflow", "jax", "onnxruntime", "openvino"]


@pytest.mark.parametrize("at", [1, 6, 8])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_training_goes_on_to_the_same_bits(framework: str, at: int, tmp_path: Path) -> None:
    whole, losses = trainer(d5.AcceleGrad(lr=0.3), framework=framework), Losses()
    whole.train(3, [losses])

    class Stop(d5.Event):
        def after_all(self, trainer: Any) -> None:
            if trainer.step == at:
                raise d5.StopTraining("enough")

    first = trainer(d5.AcceleGrad(lr=0.3), framework=framework)
    first.train(3, [Losses(), Checkpointer(tmp_path, every_steps=1), Stop()])
    again, found = trainer(d5.AcceleGrad(lr=0.3), framework=framework), Losses()
    about, path = restore(again, tmp_path)
    assert (about["step"], path.name) == (at, f"step-{at:010d}.safetensors")
    # After the sixth step the epoch was not complete yet.
    assert (again.step, again.epoch, again.batch) == {1: (1, 0, 1), 6: (6, 0, 6), 8: (8, 1, 2)}[at]
    again.train(3 - again.epoch, [found, Checkpointer(tmp_path, every_steps=100)])
    assert (found.losses, found.ids, found.epochs) == (losses.losses, losses.ids, losses.epochs)
    assert again.scores == whole.scores
    for name, value in whole.executor.state_dict().items():
        assert again.executor.state_dict()[name].tobytes() == value.tobytes(), name


def test_time_between_does_not_count(tmp_path: Path) -> None:
    first = trainer()
    first.train(1, [Checkpointer(tmp_path, every_steps=6)])
    again = trainer()
    restore(again, tmp_path)
    before = again.elapsed_ns()
    assert 0 < before < 60 * 10**9
    assert again.elapsed_ns() == before  # the clock does not run outside training
    again.train(1, [Checkpointer(tmp_path, every_steps=100)])
    assert again.elapsed_ns() > before


def test_a_truncated_one_is_passed_over_where_there_is_one_before(tmp_path: Path) -> None:
    trainer().train(2, [Checkpointer(tmp_path, every_steps=5)])
    last = tmp_path / "step-0000000010.safetensors"
    last.write_bytes(last.read_bytes()[:-5])
    with pytest.raises(
        CheckpointError, match=r"step-0000000010.safetensors is truncated .* resume from an earlier one"
    ):
        restore(trainer(), tmp_path)
    told: list[str] = []
    about, _ = restore(trainer(), tmp_path, tell=told.append)
    assert about["step"] == 5
    assert "step-0000000010.safetensors is truncated" in told[0]
    first = tmp_path / "step-0000000005.safetensors"
    first.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"step-0000000005\.safetensors is truncated"):
        restore(trainer(), tmp_path, tell=told.append)


class CutsRate(d5.Event):
    """As on a plateau: once, and no schedule repeats it."""

    def before_step(self, trainer: Any, info: Any) -> None:
        if info.step == 3:
            trainer.optimizer.set_hyper("lr", 0.005)
            trainer.optimizer.set_parameter("lr", 0.5, lambda name: name.endswith("bias"))


@pytest.mark.parametrize("make", [d5.Momentum, lambda: d5.RuleOptimizer(d5.SGD(), clip_norm=1.0)])
def test_a_rate_that_an_event_has_set_holds_when_training_goes_on(tmp_path: Path, make: Any) -> None:
    first = trainer(make())
    first.train(2, [CutsRate(), Checkpointer(tmp_path, every_steps=5)])
    again = trainer(make())
    about, _ = restore(again, tmp_path / "step-0000000005.safetensors")
    assert (about["step"], again.optimizer.hyper["lr"]) == (5, 0.005)
    again.train(2 - again.epoch, [CutsRate()])
    same(again.executor.state_dict(), first.executor.state_dict())
    same(again.optimizer.state_dict(), first.optimizer.state_dict())


def test_one_of_another_network_or_optimizer_is_refused(tmp_path: Path) -> None:
    trainer().train(1, [Checkpointer(tmp_path, every_steps=6)])
    with pytest.raises(CheckpointError, match=r"is of another network or optimizer: .*state"):
        restore(trainer(d5.Momentum()), tmp_path)
    other = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=5, classes=3))
    data = synthetic(shape=(4,), classes=3, train=22, test=7)
    with pytest.raises(CheckpointError, match="is of another network or optimizer: the state of"):
        restore(d5.Trainer(other, d5.Adam(), d5.ShuffleSampler(data.train, 4)), tmp_path)


def test_an_event_that_kept_a_state_has_to_be_there(tmp_path: Path) -> None:
    trainer().train(1, [Losses(), Checkpointer(tmp_path, every_steps=6)])
    again = trainer()
    restore(again, tmp_path)
    with pytest.raises(UsageError, match="holds one of Losses-0, which is not attached"):
        again.train(1, [Checkpointer(tmp_path)])


def test_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        restore(trainer(), tmp_path)
