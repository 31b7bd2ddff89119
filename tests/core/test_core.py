"""Events, tensors, seeds, metrics' goals and the communicator of one rank."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import array_api_strict
import ml_dtypes
import numpy as np
import pytest
import torch

import deep5 as d5
from deep5.core.communicator import Communicator, Request, SingleRank
from deep5.core.errors import GoalError, ShapeError, Unsupported, UsageError
from deep5.core.events import HOOKS, Event, Listeners, StepInfo
from deep5.core.metric import Metric, Observer, parse_goal
from deep5.core.seeds import derive_seed, generator
from deep5.core.tensors import CPUDevice, Device, GPUDevice, TensorSpec, array_namespace, device, to_numpy

# Events


class Counting(Event):
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self.epochs.append(epoch)


def test_only_overridden_hooks_are_kept() -> None:
    listeners = Listeners()
    with listeners.attached([Counting(), Event()]):
        assert {hook: len(getattr(listeners, hook)) for hook in HOOKS} == dict.fromkeys(HOOKS, 0) | {"after_epoch": 1}


def test_events_are_gone_after_the_block_and_after_an_exception() -> None:
    listeners, outer, inner = Listeners(), Counting(), Counting()
    with listeners.attached([outer]):
        with contextlib.suppress(ZeroDivisionError), listeners.attached([inner]):
            assert listeners.events == (outer, inner)
            raise ZeroDivisionError
        assert listeners.events == (outer,)
        assert listeners.after_epoch == (outer.after_epoch,)
    assert listeners.events == ()
    assert listeners.after_epoch == ()
    with listeners.attached([]):  # an empty list removes no other event
        pass


def test_the_callers_list_is_not_kept() -> None:
    listeners, events = Listeners(), [Counting()]
    with listeners.attached(events):
        events.clear()
        assert len(listeners.events) == 1
    assert events == []


@pytest.mark.parametrize("bad", [Counting, 3, "progress_bar", None])
def test_what_is_no_event_is_refused(bad: Any) -> None:
    listeners = Listeners()
    with pytest.raises(UsageError, match=r"as an event; allowed: objects of d5\.Event"), listeners.attached([bad]):
        pass
    assert listeners.events == ()


def test_step_info_is_immutable() -> None:
    info = StepInfo(step=3, epoch=1, batch_size=2, sample_ids=np.arange(2), seed=9)
    with pytest.raises(AttributeError):
        info.step = 4  # type: ignore[misc]
    assert StepInfo() == (0, 0, 0, None, 0, 0)


# Tensors


def test_tensor_spec() -> None:
    spec = TensorSpec(shape=("N", 3), dtype="float64")
    assert str(spec) == "float64[N, 3]"
    assert TensorSpec(shape=(2, 3)).size == 6
    assert TensorSpec(shape=()).size == 1
    assert spec.mismatch((7, 3), "float64") is None
    assert spec.mismatch((7, 3), "float32") == "got dtype float32, expected float64"
    for shape in ((7, 4), (3,), (7, 3, 1)):
        assert spec.mismatch(shape, "float64") == f"got shape {shape}, expected float64[N, 3]"
    with pytest.raises(ShapeError, match=r"float64\[N, 3\] has no known size: dimension 'N' is symbolic"):
        _ = spec.size
    with pytest.raises(ShapeError, match=r"float32\[-1\] has no known size: got the dimension -1; allowed: at least 0"):
        _ = TensorSpec(shape=(-1,)).size
    for given in (5, "N", None):
        with pytest.raises(ShapeError, match=r"got the shape .*; allowed: a tuple of dimensions, such as shape="):
            TensorSpec(shape=given)  # type: ignore[arg-type]


def test_devices() -> None:
    assert (str(device("cpu")), str(device("cuda")), str(device("cuda:3"))) == ("cpu", "cuda:0", "cuda:3")
    assert device("cpu") == CPUDevice() == Device()
    assert device("cuda:2") == GPUDevice(2) == device(GPUDevice(2))
    assert GPUDevice(1).describe() == "cuda:1"
    for bad in ("tpu", "cpu:1", "cuda:", "cuda:-1", "", 3, None):
        with pytest.raises(UsageError, match=r"unknown device .*; allowed: cpu, cuda, cuda:N"):
            device(bad)  # type: ignore[arg-type]


def test_to_numpy() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert to_numpy(array) is array
    tensor = torch.arange(6.0).reshape(2, 3)
    shared = to_numpy(tensor)
    shared[0, 0] = 9
    assert tensor[0, 0] == 9
    assert to_numpy(tensor.clone().requires_grad_() * 2).shape == (2, 3)
    assert to_numpy(tensor.T).tolist() == shared.T.tolist()
    np.testing.assert_array_equal(to_numpy(array_api_strict.asarray(array)), array)
    assert to_numpy(3.5).item() == 3.5
    assert to_numpy([[1, 2]]).tolist() == [[1, 2]]
    assert to_numpy(np.float32(2)).dtype == np.float32
    assert to_numpy(np.zeros(2, ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16
    for bad in ("text", object(), None, [[1], [2, 3]], {"a": 1}, np.datetime64("2020-01-01")):
        with pytest.raises(Unsupported, match="cannot make a NumPy array of"):
            to_numpy(bad)
    with pytest.raises(Unsupported, match="cannot make a NumPy array of Tensor"):
        to_numpy(torch.eye(2).to_sparse())


def test_array_namespace() -> None:
    assert array_namespace(np.zeros(1)) is np
    assert array_namespace(2.0, np.zeros(1), 1) is np
    assert array_namespace(array_api_strict.zeros(1)) is array_api_strict
    assert array_namespace(torch.zeros(1)).__name__ == "array_api_compat.torch"
    with pytest.raises(Unsupported, match="no array namespace for no array"):
        array_namespace()
    with pytest.raises(Unsupported, match="no array namespace for list; allowed: arrays of one of NumPy"):
        array_namespace([1.0])
    with pytest.raises(Unsupported, match="no array namespace for ndarray, Tensor"):
        array_namespace(np.zeros(1), torch.zeros(1))


# Seeds

PINNED_SEED, PINNED_DRAWS = 4596245305081238218, [439, 229, 434, 185]


def test_seeds_are_pinned() -> None:
    """A change here changes every network's start and every order of samples."""
    assert derive_seed(0, "weights", "conv1") == PINNED_SEED
    assert generator(0, "order", 0).integers(0, 1000, 4).tolist() == PINNED_DRAWS
    program = "from deep5.core.seeds import derive_seed; print(derive_seed(0, 'weights', 'conv1'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == PINNED_SEED


def test_purposes_do_not_touch_each_other() -> None:
    seeds = {derive_seed(seed, purpose) for seed in range(50) for purpose in ("weights", "order", "noise")}
    assert len(seeds) == 150
    assert all(0 <= seed < 2**63 for seed in seeds)


# Goals


class Up(Metric):
    name, unit, direction = "up", "%", "higher"

    def observer(self) -> Observer:
        raise AssertionError("not asked for")


class Down(Up):
    name, unit, direction = "down", "s", "lower"


@pytest.mark.parametrize(
    ("metric", "goal", "text", "good", "bad"),
    [
        (Up(), 97, ">= 97", 97, 96.9),
        (Down(), 60, "<= 60", 60, 60.1),
        (Up(), "> 97 %", "> 97", 97.1, 97),
        (Down(), "<1e-3s", "< 0.001", 0.0009, 0.001),
        (Up(), ">= 97.1234567", ">= 97.1234567", 97.1234567, 97.1234566),
        (Up(), ">= -2.5", ">= -2.5", -2.5, -3),
    ],
)
def test_goals(metric: Metric, goal: Any, text: str, good: float, bad: float) -> None:
    parsed = parse_goal(metric, goal)
    assert parsed is not None
    assert str(parsed) == text
    assert parsed.met(good)
    assert not parsed.met(bad)
    assert not parsed.met(None)
    assert not parsed.met(float("nan"))
    assert parse_goal(metric, str(parsed)) == parsed


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("97", "cannot be read; allowed: a number, a string such as"),
        (">= many", "cannot be read"),
        ("", "cannot be read"),
        (">= 97 s", "is in 's'; allowed: '%', the metric's unit"),
        ("< 97", "points the wrong way: for this metric higher is better: use '>' or '>='"),
        (float("inf"), "is not finite"),
        (True, "is of type bool"),
        ([97], "is of type list"),
    ],
)
def test_bad_goals(goal: Any, message: str) -> None:
    with pytest.raises(GoalError, match=message):
        parse_goal(Up(), goal)


def test_an_observer_says_what_it_saw() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Observer()  # type: ignore[abstract]
    assert d5.TimeToAccuracy(97) == d5.TimeToAccuracy(97.0) != d5.TimeToAccuracy(96)
    assert d5.TimeToAccuracy(97).describe() == {"metric": "time_to_accuracy", "target": 97.0}
    assert repr(d5.TimeToAccuracy(97)) == "TimeToAccuracy(target=97.0)"
    assert len({d5.TestAccuracy(), d5.TestAccuracy(), d5.TrainingLoss()}) == 2


# One rank


def test_a_single_rank_is_a_communicator() -> None:
    alone = SingleRank()
    assert isinstance(alone, Communicator)
    assert not isinstance(object(), Communicator)
    assert (alone.rank, alone.size) == (0, 1)
    buffer = np.array([1.0, 2.0])
    for op in ("sum", "max", "min", "prod"):
        alone.all_reduce(buffer, op=op)  # type: ignore[arg-type]
        request = alone.all_reduce_start(buffer, op=op)  # type: ignore[arg-type]
        assert isinstance(request, Request)
        request.wait(1.0)
    alone.broadcast(buffer)
    alone.barrier()
    assert buffer.tolist() == [1, 2]
    out = np.zeros((1, 2))
    alone.all_gather(buffer, out)
    assert out.tolist() == [[1, 2]]
    part = np.zeros(2)
    alone.reduce_scatter(out, part)
    assert part.tolist() == [1, 2]
    assert (alone.sent_bytes, alone.messages) == (0, 0)


def test_buffers_that_cannot_be_exchanged() -> None:
    alone, good = SingleRank(), np.zeros(4)
    for bad in ([1.0], np.zeros(8)[::2], np.zeros((2, 3)).T, torch.zeros(2)):
        with pytest.raises(UsageError, match="as a buffer; allowed: a C-contiguous NumPy array"):
            alone.all_reduce(bad)  # type: ignore[arg-type]
    for out in (np.zeros(3), np.zeros(4, np.float32)):
        for call in (alone.all_gather, alone.reduce_scatter):
            with pytest.raises(UsageError, match=r"got buffers of float64\[4\] and .*; allowed: the same dtype"):
                call(good, out)
    with pytest.raises(UsageError, match="got root 1; allowed: 0, the only rank"):
        alone.broadcast(good, root=1)
    for call in (alone.all_reduce, alone.all_reduce_start):
        with pytest.raises(UsageError, match="unknown reduction 'mean'; allowed: sum, max, min, prod"):
            call(good, op="mean")  # type: ignore[arg-type]


@pytest.mark.parametrize(("hook", "meant"), [("after_evaluate", "after_evaluation"), ("before_steps", "before_step")])
def test_a_hook_that_nobody_would_call_is_refused(hook: str, meant: str) -> None:
    with pytest.raises(UsageError, match=rf"Late.{hook} is not a hook; allowed: .*did you mean '{meant}'"):
        type("Late", (Event,), {hook: lambda self, trainer: None})


def test_a_hook_may_be_overridden_again() -> None:
    first = type("First", (Event,), {"after_epoch": lambda self, trainer, epoch: None})
    assert type("Second", (first,), {"after_epoch": lambda self, trainer, epoch: None})
