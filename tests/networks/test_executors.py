"""Requirements on every back-end: native all the way, repeatable, built fast, one copy of the weights."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import Deep5Error, NetworkError, RuleError, ShapeError, Unsupported, UsageError
from poison import MESSAGE, WAYS, native, poisoned
from trajectory_cases import FRAMEWORKS, NETWORKS, batches

COMPILING = ("pytorch", "tensorflow", "jax", "pytorch:compiled", "tensorflow:xla")


def expensive(framework: str, name: str) -> bool:
    """Whether compilation takes more than five seconds."""
    if framework == "jax":
        return name not in ("mlp", "lenet")
    return ":" in framework or (framework, name) in (("tensorflow", "transformer"), ("tensorflow", "resnet18_small"))


def natives(names: Iterable[str]) -> list[Any]:
    return [
        pytest.param(framework, name, marks=pytest.mark.slow if expensive(framework, name) else ())
        for name in names
        for framework in COMPILING
    ]


@pytest.mark.parametrize(("framework", "name"), natives(NETWORKS))
def test_nothing_leaves_the_framework_between_input_and_output(framework: str, name: str) -> None:
    network, own = NETWORKS[name][0](), framework.partition(":")[0]
    executor = d5.framework(framework).executor(network)
    step = executor.train_step(d5.Adam(lr=0.002))
    feeds = [(info, native(own, batch)) for info, batch in batches(network, 3)]

    def run() -> tuple[list[Any], Any]:
        outputs = [executor.inference(feeds[0][1])]
        executor.inference_and_backprop(feeds[0][1], info=feeds[0][0])
        gradients = executor.gradients()
        outputs += [step(batch, info) for info, batch in feeds]
        executor.synchronize()
        return outputs, gradients

    if framework == "pytorch:compiled":
        before = executor.state_dict(), step.state_dict()
        run()  # torch's compiler reads constants as numbers
        executor.load_state_dict(before[0])
        step.load_state_dict(before[1])
    with poisoned(own):  # others trace and compile in here, at their first calls
        outputs, gradients = run()
    reference = d5.framework("reference").executor(network)
    wanted = [reference.inference(next(batches(network))[1])]
    info, batch = next(batches(network))
    reference.inference_and_backprop(batch, info=info)
    assert gradients.keys() == reference.gradients().keys()
    smooth = NETWORKS[name][1]
    for key, want in reference.gradients().items() if smooth else ():
        # Two float32 passes; differences from the cancellation of large sums are small relative to the largest.
        got = d5.to_numpy(gradients[key])
        assert np.linalg.norm(got - want) <= 1e-4 * max(np.linalg.norm(want), 1e-3), key
    reference.load_state_dict(d5.framework("reference").executor(network).state_dict())
    other = reference.train_step(d5.Adam(lr=0.002))
    wanted += [other(batch, info) for info, batch in batches(network, 3)]
    for got, want in list(zip(outputs, wanted, strict=True))[: None if smooth else 2]:  # then ReLU's roundings diverge
        np.testing.assert_allclose(float(d5.to_numpy(got["loss"])), float(want["loss"]), rtol=1e-5)


@pytest.mark.parametrize(("framework", "name"), natives(["mlp", "resnet18_small"]))
def test_nothing_leaves_the_framework_by_another_call(framework: str, name: str) -> None:
    """Running statistics, gradients by parameters and an input, sums, callbacks, the halves of a step, modifiers."""
    network, own = NETWORKS[name][0](), framework.partition(":")[0]
    (info, first), (_, second) = [(info, native(own, batch)) for info, batch in batches(network, 2)]
    executor = d5.framework(framework).executor(network)
    step = executor.train_step(d5.AcceleGrad(lr=0.01), modifier=lambda name, param, grad: grad + 0.1 * param)
    wrt, told = ["input", *list(network.parameter_specs)[-2:]], dict[str, Any]()

    def run() -> tuple[Any, list[Any]]:
        executor.inference(first, training=True, info=info)
        executor.inference_and_backprop(first, wrt=wrt, loss_scale=2.0, info=info, on_gradient=told.__setitem__)
        executor.inference_and_backprop(second, wrt=wrt, accumulate=True, info=info)
        sums = executor.gradients()
        outputs = [step(first, info), step.backprop(first, info, on_gradient=told.__setitem__)]
        step.apply(executor.gradients(), info)
        executor.parameters(), executor.buffers()
        executor.synchronize()
        return sums, outputs

    if framework == "pytorch:compiled":
        run()
    with poisoned(own):
        sums, outputs = run()
    assert set(told) == {"input", *network.parameter_specs}
    assert set(sums) == set(wrt)
    for value in (*told.values(), *sums.values(), *(output["loss"] for output in outputs)):
        assert np.isfinite(d5.to_numpy(value)).all()


# torch's own warning about NumPy 2.
@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept|__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(("framework", "way"), list(WAYS))
def test_the_poison_works(framework: str, way: str) -> None:
    d5.framework(framework)
    array = native(framework, {"x": np.ones(2, np.float32)})["x"]
    WAYS[framework, way](array)
    # CPython's own message when it finds no buffer.
    message = "a bytes-like object is required" if way == "memoryview" else MESSAGE
    with poisoned(framework), pytest.raises(TypeError if way == "memoryview" else AssertionError, match=message):
        WAYS[framework, way](array)
    WAYS[framework, way](array)  # and nothing of it remains


@pytest.mark.parametrize("framework", COMPILING[:3])
def test_the_poison_is_in_the_reference_too(framework: str) -> None:
    import onnx.reference

    network = NETWORKS["mlp"][0]()
    batch = next(batches(network))[1]
    judge = onnx.reference.ReferenceEvaluator(network.to_onnx())
    run = d5.framework("reference").executor(network).inference
    with poisoned(framework):
        with pytest.raises(NetworkError, match=MESSAGE):  # wrapped, as its own errors are
            run(batch)
        with pytest.raises(AssertionError, match=MESSAGE):
            judge.run(None, batch)


@pytest.mark.parametrize("framework", COMPILING[:3])
def test_a_back_end_asks_neither_for_buffers_nor_the_reference(framework: str) -> None:
    """The source contains nothing that patches cannot reach: names bound at import, and other kernels."""
    folder = Path(import_module(f"deep5.frameworks.{framework}").__path__[0])
    sources = {path.name: path.read_text() for path in folder.glob("*.py")}
    assert "emit.py" in sources
    for name, text in sources.items():
        found = re.findall(r"memoryview\(|from numpy(?:\.\w+)* import|frameworks\.reference|onnx\.reference", text)
        assert not found, (name, found)


def test_pytorch_applies_gradients_from_wherever_they_come_alike() -> None:
    """Tensors are read without a copy; NumPy arrays, other layouts and unsuitable values as before."""
    import torch

    network = NETWORKS["mlp"][0]()
    own = {
        name: torch.randn(*spec.shape, generator=torch.manual_seed(0)) for name, spec in network.parameter_specs.items()
    }
    name = "fc1.weight"
    turned = own[name].t().contiguous().t()
    negated = torch.complex(own[name], -own[name]).conj().imag  # a view whose negation is lazy
    assert not turned.is_contiguous()
    assert negated.is_neg()
    array, fixed = own[name].numpy().copy(), own[name].numpy().copy()
    fixed.flags.writeable = False
    ends, info = [], d5.StepInfo()
    for given in (own[name], turned, negated, array, fixed, own[name].clone().requires_grad_()):
        executor = d5.framework("pytorch").executor(network)
        step = executor.train_step(d5.SGD(lr=0.5))
        for wrong in (own[name][:1], own[name].double(), array[:1], array.astype(np.float64), None):
            with pytest.raises((ShapeError, Unsupported)):
                step.apply({**own, name: wrong}, info)
        with pytest.raises(ShapeError, match=f"the gradient of '{name}' is missing; allowed: "):
            step.apply({key: value for key, value in own.items() if key != name}, info)
        for key, value in executor.state_dict().items():  # the refused call has changed nothing
            np.testing.assert_array_equal(value, network.initial(key))
        step.apply({**own, name: given}, info)
        ends.append(executor.state_dict())
    for end in ends:
        for key, value in end.items():
            np.testing.assert_array_equal(value, ends[0][key])
            np.testing.assert_array_equal(value, network.initial(key) - np.float32(0.5) * own[key].numpy())


@pytest.mark.parametrize("name", ["mlp", "lenet_relu", "transformer"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_executors_repeat_each_other_bit_for_bit(framework: str, name: str) -> None:
    network, ends = NETWORKS[name][0](), []
    for _ in range(2):
        executor = d5.framework(framework).executor(network)
        step = executor.train_step(d5.Momentum(lr=0.01))
        losses = [float(d5.to_numpy(step(batch, info)["loss"])) for info, batch in batches(network, 5)]
        ends.append((losses, executor.state_dict()))
    assert ends[0][0] == ends[1][0]
    for key, value in ends[0][1].items():
        np.testing.assert_array_equal(value, ends[1][1][key])


TWICE = """
import sys
import numpy as np
import deep5 as d5

framework = d5.framework(sys.argv[1])
framework.set_threads(2)
for network, size in (
    (d5.networks.transformer(vocabulary=50, length=32, width=64, heads=4, layers=1, classes=10), 64),
    (d5.networks.resnet(depth=8), 32),
):
    draw, ends = np.random.default_rng(0), []
    image, label = network.inputs["input"], network.inputs["label"]
    shape = (size, *image.shape[1:])
    whole = image.dtype.startswith("int")
    given = {
        "input": draw.integers(0, 50, shape) if whole else draw.standard_normal(shape).astype(image.dtype),
        "label": draw.integers(0, 10, size).astype(label.dtype),
    }
    for _ in range(2):
        executor = framework.executor(network)
        assert executor.settings()["threads"] == 2 and executor.settings()["deterministic"]
        step = executor.train_step(d5.Momentum(lr=0.01))
        for number in range(6):
            step(given, d5.StepInfo(step=number, batch_size=size))
        ends.append(executor.state_dict())
    for key, value in ends[0].items():
        np.testing.assert_array_equal(value, ends[1][key], err_msg=key)
print("the same")
"""


@pytest.mark.parametrize(
    "framework",
    # A step of the reference takes thirty times as long, and back-ends that compile the whole network compile it twice.
    [
        *(
            pytest.param(name, marks=pytest.mark.slow if name in ("reference", "tensorflow", "jax") else ())
            for name in FRAMEWORKS
        ),
        "openvino",
    ],
)
def test_two_threads_repeat_each_other_bit_for_bit(framework: str) -> None:
    """In a separate process, since some fix their threads once; on networks large enough to be split."""
    if framework == "openvino":
        pytest.importorskip("openvino")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor")
    variables = {key: value for key, value in os.environ.items() if key not in ("PJRT_NPROC", "TF_NUM_INTRAOP_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", TWICE, framework],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=variables,
    )
    assert done.stdout.split("\n")[0] == "the same", done.stderr[-2000:]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_run_that_is_taken_up_again_goes_on_bit_for_bit(framework: str) -> None:
    """Parameters, running statistics, the rule's state and the masks' stream: the two state_dicts contain all of it."""
    network = NETWORKS["mlp"][0]()
    feeds = list(batches(network, 8))

    def start() -> tuple[Any, Any]:
        executor = d5.framework(framework).executor(network)
        return executor, executor.train_step(d5.AcceleGrad(lr=0.01))

    executor, step = start()
    for info, batch in feeds[:4]:
        step(batch, info)
    kept = executor.state_dict(), step.state_dict()
    for info, batch in feeds[4:]:
        step(batch, info)
    again, resumed = start()
    again.load_state_dict(kept[0])
    resumed.load_state_dict(kept[1])
    for info, batch in feeds[4:]:
        resumed(batch, info)
    for key, value in executor.state_dict().items():
        np.testing.assert_array_equal(value, again.state_dict()[key])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frozen_parameters_stay_and_the_others_move_as_without_them(framework: str) -> None:
    network = NETWORKS["mlp"][0]()
    frozen = d5.ParameterGroup(lambda name: name.startswith("fc1"), frozen=True)
    ends = []
    for found in (framework, "reference"):
        executor = d5.framework(found).executor(network)
        step = executor.train_step(d5.Adam(lr=0.01), groups=(frozen,))
        for info, batch in batches(network, 4):
            step(batch, info)
        ends.append(executor.state_dict())
    for key, value in ends[0].items():
        if key.startswith("fc1"):
            np.testing.assert_array_equal(value, network.initial(key))
        else:
            assert not np.array_equal(value, network.initial(key))
            np.testing.assert_allclose(value, ends[1][key], rtol=1e-4, atol=1e-5)  # four float32 steps of Adam


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_where_everything_is_frozen_there_is_nothing_to_train(framework: str) -> None:
    executor = d5.framework(framework).executor(NETWORKS["mlp"][0]())
    groups = [
        d5.ParameterGroup(lambda name: "fc1" in name, frozen=True),
        d5.ParameterGroup(lambda name: True, frozen=True),
    ]
    with pytest.raises(RuleError, match=r"^nothing to train by SGD: got 4 parameters, all of them frozen; remedy: "):
        executor.train_step(d5.SGD(), groups=groups)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_where_there_are_no_parameters_there_is_nothing_to_train(framework: str) -> None:
    network = d5.Network.from_onnx(NETWORKS["mlp"][0]().to_onnx(), parameters=[])
    executor = d5.framework(framework).executor(network)
    with pytest.raises(RuleError, match=r"^nothing to train by SGD: the network has no parameters; .*parameters=\["):
        executor.train_step(d5.SGD())
    with pytest.raises(UsageError, match=r"^wrt: nothing to differentiate by: the network has no parameters; "):
        executor.inference_and_backprop(next(batches(network))[1])


def summed(executor: Any, batch: dict[str, np.ndarray], **keywords: Any) -> dict[str, np.ndarray]:
    executor.inference_and_backprop(batch, info=d5.StepInfo(), **keywords)
    return {name: np.array(d5.to_numpy(value)) for name, value in executor.gradients().items()}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_training_step_uses_its_gradients_up_and_its_halves_leave_them(framework: str) -> None:
    network = NETWORKS["mlp"][0]()
    executor, (first, second) = d5.framework(framework).executor(network), [b for _, b in batches(network, 2)]
    step, info = executor.train_step(d5.SGD(lr=0.0)), d5.StepInfo()  # the parameters do not change
    one, other = summed(executor, first), summed(executor, second)
    for _ in range(2):
        step(first, info)
        found = summed(executor, second, accumulate=True)
        for name, value in found.items():
            np.testing.assert_array_equal(value, other[name])
        found = summed(executor, first, accumulate=True)  # a step's used-up gradients are discarded once
        for name, value in found.items():
            np.testing.assert_allclose(value, one[name] + other[name], rtol=1e-5, atol=1e-6)  # one float32 rounding
    step.backprop(first, info)
    step.apply(executor.gradients(), info)
    for name, value in summed(executor, second, accumulate=True).items():
        np.testing.assert_allclose(value, one[name] + other[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(4, 2), (4, 1), (1, 4)])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_by_an_input_add_up_over_batches_of_one_size_alone(framework: str, sizes: tuple[int, int]) -> None:
    """A batch of 1 would be broadcast over the larger one."""
    network = NETWORKS["mlp"][0]()
    whole = next(batches(network))[1]
    first, second = ({name: value[:size] for name, value in whole.items()} for size in sizes)
    executor, wrt = d5.framework(framework).executor(network), ["input", "fc1.bias"]
    want = summed(executor, second, wrt=wrt)
    for keywords in ({}, {"on_gradient": lambda name, value: None}):
        before = summed(executor, first, wrt=wrt)
        message = (
            rf"the gradient by 'input': got shape \({sizes[1]}, 12\), earlier \({sizes[0]}, 12\); allowed: .*remedy: "
        )
        with pytest.raises(ShapeError, match=message):
            executor.inference_and_backprop(second, wrt=wrt, accumulate=True, info=d5.StepInfo(), **keywords)
    # Parameters have one shape; gradients that are not requested again are kept.
    summed(executor, first, wrt=wrt)
    found = summed(executor, second, wrt=["fc1.bias"], accumulate=True)
    np.testing.assert_array_equal(found["input"], before["input"])
    np.testing.assert_allclose(found["fc1.bias"], before["fc1.bias"] + want["fc1.bias"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_empty_batch_trains_nothing(framework: str) -> None:
    """The mean over it is NaN, which weights and running statistics would keep."""
    network = d5.networks.resnet(depth=8)
    executor = d5.framework(framework).executor(network)
    before, step = executor.state_dict(), executor.train_step(d5.SGD(lr=0.1))
    empty = {"input": np.empty((0, 3, 32, 32), np.float32), "label": np.empty(0, np.int64)}
    info = d5.StepInfo()
    for call in (
        executor.inference_and_backprop,
        lambda batch: executor.inference(batch, training=True),
        lambda batch: step(batch, info),
        lambda batch: step.backprop(batch, info),
    ):
        for _ in range(2):
            with pytest.raises(ShapeError, match=r"^input 'input': got N = 0, nothing to train on; allowed: "):
                call(empty)
    for name, value in executor.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_evaluation_of_an_empty_batch_is_empty_or_refused(framework: str) -> None:
    executor = d5.framework(framework).executor(NETWORKS["mlp"][0]())
    empty = {"input": np.empty((0, 12), np.float32), "label": np.empty(0, np.int64)}
    for _ in range(2):
        if framework == "onnxruntime":  # its own Reshape, within the loss, cannot
            with pytest.raises(NetworkError, match="onnxruntime failed in the network 'mlp': Reshape"):
                executor.inference(empty)
        else:
            outputs = executor.inference(empty)
            assert d5.to_numpy(outputs["logits"]).shape == (0, 4)
            assert np.isnan(float(d5.to_numpy(outputs["loss"])))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_unsupported_nodes_are_listed_before_anything_runs(framework: str) -> None:
    build = d5.networks.NetworkBuilder("odd")
    x = build.input("x", ("N", 4))
    y = build.op("Pad", x, build.constant("pads", np.array([0, 0, 0, 1])), mode="elsewhere")
    network = build.network({"y": y})
    with pytest.raises(Unsupported, match=r"cannot run this network:\n  Pad_1 \(Pad\): \S"):
        d5.framework(framework).executor(network)


@pytest.mark.parametrize("label", [-100, -1, 4, 2**40])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_label_that_is_no_class_is_never_a_number(framework: str, label: int) -> None:
    """torch ignores -100 by default; 2**40 is 0 in 32 bits."""
    executor = d5.framework(framework).executor(NETWORKS["lenet_relu"][0]())
    batch = {"input": np.ones((2, 1, 28, 28), np.float32), "label": np.array([0, label])}
    step = executor.train_step(d5.SGD(lr=0.0))
    for call in (executor.inference, executor.inference_and_backprop, lambda batch: step(batch, d5.StepInfo())):
        if framework == "jax":
            assert np.isnan(float(d5.to_numpy(call(batch)["loss"])))
        else:
            with pytest.raises(NetworkError, match="label"):
                call(batch)


@pytest.mark.parametrize("index", [30, -31, 2**33])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_index_outside_its_axis_is_never_a_number(framework: str, index: int) -> None:
    executor = d5.framework(framework).executor(NETWORKS["transformer"][0]())
    batch = {"input": np.full((2, 6), index), "label": np.array([0, 1])}
    try:
        loss = float(d5.to_numpy(executor.inference(batch)["loss"]))
    except Deep5Error:
        return
    assert framework == "jax"
    assert np.isnan(loss)


BUILD = """
import ctypes, gc, sys
import deep5 as d5, psutil
framework = d5.framework(sys.argv[1])
framework.executor(d5.networks.mlp(features=3, hidden=2, classes=2)).synchronize()
network = d5.networks.resnet18_small()
process, trim = psutil.Process(), ctypes.CDLL("libc.so.6").malloc_trim
gc.collect(), trim(0)
before = process.memory_info().rss
executor = framework.executor(network)
gc.collect(), trim(0)  # what the allocator keeps of the draws is no copy
grown = process.memory_info().rss - before
print(grown)
"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_executor_of_resnet18_has_one_copy_of_the_weights(framework: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, framework], capture_output=True, text=True, timeout=120, check=True
    )
    weights = sum(spec.size for spec in d5.networks.resnet18_small().parameter_specs.values()) * 4
    assert weights > 44e6
    # Code and graphs need some; a second copy would make it 2.
    assert float(done.stdout) < 1.5 * weights


def processor_times() -> dict[int, int]:
    """Processor time of each thread of this process, in nanoseconds."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(task.name): int((task / "schedstat").read_text().split()[0]) for task in tasks}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_thread_is_one_thread(framework: str) -> None:
    """Besides the calling thread, at most one thread does a fifth of the work or more."""
    found = d5.framework(framework)
    before = found.executor(d5.networks.mlp(features=2, hidden=2, classes=2)).settings()["threads"]
    found.set_threads(1)
    try:
        executor = found.executor(d5.networks.mlp(features=784, hidden=800))
        assert executor.settings()["threads"] == 1
        draw = np.random.default_rng(0)
        batch = {
            "input": draw.standard_normal((256, 784)).astype(np.float32),
            "label": draw.integers(0, 10, 256),
        }
        step = executor.train_step(d5.SGD(lr=0.01))

        def work() -> None:
            for _ in range(20):
                step(batch, d5.StepInfo(batch_size=256))
            executor.synchronize()

        work()
        earlier = processor_times()
        work()
        each = {task: time - earlier.get(task, 0) for task, time in processor_times().items()}
        caller = threading.get_native_id()
        assert sum(time > 0.2 * sum(each.values()) for task, time in each.items() if task != caller) <= 1, each
    finally:
        if before != 1:
            found.set_threads(before)
