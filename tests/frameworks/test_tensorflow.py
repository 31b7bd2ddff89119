"""The TensorFlow back-end beyond the interface that executors share: graphs, variables, Keras, threads, start-up."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from backends import BACKENDS
from deep5.core.errors import NetworkError, ShapeError, UnknownName, UsageError
from deep5.core.executors import GraphExecutor
from deep5.core.tensors import aligned_empty
from deep5.networks import NetworkBuilder, lenet, mlp, resnet
from executor_cases import RNG, SMALL, batch, info, normal, passing
from executor_cases import executor as shared_executor
from poison import poisoned

# Through the back-end, which keeps TensorFlow's start-up reports off the screen.
TF: Any = d5.framework("tensorflow")
XLA: Any = d5.framework("tensorflow:xla")

import tensorflow as tf  # noqa: E402

from deep5.core.library_reports import without_reports  # noqa: E402
from deep5.frameworks.tensorflow.framework import TensorFlow, from_model  # noqa: E402
from deep5.frameworks.tensorflow.memory import shared  # noqa: E402
from deep5.frameworks.tensorflow.placement import without_kernel  # noqa: E402
from deep5.frameworks.tensorflow.traced import Traced  # noqa: E402

executor = functools.partial(shared_executor, BACKENDS["tensorflow"])


def test_weights_lie_transposed_and_are_shown_in_onnx_order() -> None:
    network = lenet(seed=3)
    run = executor(network)
    assert tuple(run.live["conv2.weight"].variable.shape) == (5, 5, 6, 16)
    view, plain = run.parameters()["conv2.weight"], run.parameters()["fc1.weight"]
    assert isinstance(plain, tf.Variable)
    assert (tuple(view.shape), view.dtype) == ((16, 6, 5, 5), tf.float32)
    initial = network.initial("conv2.weight")
    for value in (
        view,
        view.numpy(),
        view.read_value(),
        tf.convert_to_tensor(view),
        view + tf.zeros(()),
        d5.to_numpy(view),
    ):
        np.testing.assert_array_equal(value, initial)
    assert "shape=(16, 6, 5, 5)" in repr(view)
    feed = {"input": normal(2, 1, 28, 28), "label": np.array([1, 2])}
    before = run.inference(feed)["logits"].numpy()
    view.assign(initial * 2)
    view.assign_add(tf.constant(initial * 2))
    view.assign_sub(initial * 2)
    np.testing.assert_array_equal(run.state_dict()["conv2.weight"], initial * 2)
    doubled = d5.framework("reference").executor(network.with_values({"conv2.weight": initial * 2}))
    # float32 sums of some hundred products, twice.
    np.testing.assert_allclose(run.inference(feed)["logits"], doubled.inference(feed)["logits"], rtol=1e-4, atol=1e-5)
    assert not np.allclose(before, doubled.inference(feed)["logits"])
    packed = np.empty(initial.size + 16, np.float32)
    run.read(["conv2.weight", "conv2.bias"], packed)
    np.testing.assert_array_equal(packed[: initial.size].reshape(initial.shape), initial * 2)
    packed[:] = np.arange(packed.size)
    run.write(["conv2.weight", "conv2.bias"], packed)
    np.testing.assert_array_equal(run.state_dict()["conv2.weight"].reshape(-1), packed[: initial.size])
    run.inference_and_backprop(feed)
    assert tuple(run.gradients()["conv2.weight"].shape) == initial.shape


def test_nothing_retraces_when_the_batch_or_the_rate_changes() -> None:
    run, rule = executor(mlp(**SMALL, dropout=0.5)), d5.Adam(lr=0.1)
    step = run.train_step(rule)
    for number, size in enumerate((5, 5, 3, 1, 7)):
        rule.lr = 0.1 / (number + 1)
        step(batch(size), info(number, size))
        run.inference(batch(size))
        run.inference(batch(size), training=True)
        run.inference_and_backprop(batch(size), loss_scale=2.0**number)
        outputs = step.backprop(batch(size), info(number, size))
        step.apply(run.gradients(), info(number, size))
        assert tuple(outputs["logits"].shape) == (size, 2)
    assert step.traces == 1
    assert {function.traces for function in run._functions.values()} == {1}
    assert run.compilations == step.compilations == 0


def test_xla_compiles_once_a_batch_size_and_traces_once() -> None:
    run = XLA.executor(mlp(**SMALL))
    step = run.train_step(d5.SGD(lr=0.1))
    for number, size in enumerate((5, 5, 3, 5, 3)):
        step(batch(size), info(number, size))
    assert (step.traces, step.compilations) == (1, 2)
    run.inference(batch(4))
    assert run.compilations == 1
    assert run.settings()["xla"] is True


def test_a_step_is_the_same_under_xla() -> None:
    network, feeds = resnet(depth=8, dtype="float64"), []
    feeds = [{"input": RNG.standard_normal((3, 3, 32, 32)), "label": np.arange(3)} for _ in range(2)]
    ends = []
    for framework in (TF, XLA):
        run = framework.executor(network)
        step = run.train_step(d5.Momentum(lr=0.01))
        losses = [float(step(feed, info(number, 3))["loss"]) for number, feed in enumerate(feeds)]
        ends.append((losses, run.state_dict()))
    # Two float64 steps through some dozen layers.
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-10)
    for name, value in ends[0][1].items():
        np.testing.assert_allclose(ends[1][1][name], value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("wrong", [99, 3])  # the engine refuses it, whether or not it could be another sample's entry
@pytest.mark.parametrize("loss", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_a_step_that_fails_leaves_running_statistics(loss: str, wrong: int) -> None:
    build = NetworkBuilder("normalised", dtype="float32", seed=1)
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    x = build.op("Gemm", x, build.parameter("w", (4, 3)))
    values = {"scale": np.ones(3), "bias": np.zeros(3), "mean": np.zeros(3), "variance": np.ones(3)}
    x = build.op("BatchNormalization", x, *(build.parameter(n, (3,), lambda *_, v=v: v) for n, v in values.items()))
    x = x if loss == "SoftmaxCrossEntropyLoss" else build.op("LogSoftmax", x, axis=1)
    run = executor(build.network({"logits": x, "loss": build.op(loss, x, label)}))
    optimizer = d5.RuleOptimizer(d5.Momentum())
    optimizer.bind(run)
    native = TF.optimizer("momentum")()
    native.bind(run)
    feed = batch(6)
    calls: list[Callable[[], Any]] = [
        lambda: optimizer.step(feed, info(0, 6)),
        lambda: native.step(feed, info(0, 6)),
        lambda: run.inference_and_backprop(feed),
        lambda: run.inference(feed, training=True),
    ]
    for call in calls:
        call()
        before, state = run.state_dict(), optimizer.train_step.state_dict()
        good, feed["label"] = feed["label"], np.array([0, 1, wrong, 0, 1, 0])
        for _ in range(5):
            with pytest.raises(NetworkError, match="cannot run the network on these inputs"):
                call()
        feed["label"] = good
        for now, then in ((run.state_dict(), before), (optimizer.train_step.state_dict(), state)):
            for name, value in then.items():
                np.testing.assert_array_equal(now[name], value, err_msg=name)
    call()  # with labels inside the classes they move
    assert not np.array_equal(run.state_dict()["mean"], before["mean"])


def test_modes_are_named() -> None:
    assert (TF.name, XLA.name, TF.version()) == ("tensorflow", "tensorflow:xla", tf.__version__)
    assert isinstance(from_model(mlp(**SMALL)), GraphExecutor)
    with pytest.raises(UnknownName, match="unknown tensorflow mode 'xlaa'; allowed: exported, xla"):
        d5.framework("tensorflow:xlaa")


def test_an_aligned_array_is_shared() -> None:
    aligned = aligned_empty((5, 4), "float32")
    assert np.shares_memory(np.from_dlpack(shared(aligned)), aligned)


def test_only_what_may_lie_in_the_caller_s_memory_is_copied() -> None:
    def copied(run: Any) -> int:
        return sum(operation.type == "DeepCopy" for operation in run.graph.get_operations())

    assert copied(executor(passing())) == 13  # all except a product, the logits and the loss
    for network in (mlp(**SMALL), lenet()):
        assert copied(executor(network)) == 0


def test_nothing_leaves_tensorflow_in_a_step() -> None:
    """No call back into Python, no other evaluator, no NumPy between input and output."""
    network = resnet(depth=8)
    feeds = [{"input": tf.constant(normal(2, 3, 32, 32)), "label": tf.constant([0, 1], tf.int64)} for _ in range(2)]

    run = executor(network)
    with poisoned("tensorflow"):
        step = run.train_step(d5.Adam(lr=0.01))
        losses = [step(feed, info(number, 2))["loss"] for number, feed in enumerate(feeds)]
        run.inference_and_backprop(feeds[0])
        gradients = run.gradients()
    types = {node.type for node in step.graph.get_operations()}
    assert not {name for name in types if "PyFunc" in name or name.startswith("Eager")}
    assert all(np.isfinite(value.numpy()).all() for value in (*losses, *gradients.values()))


NATIVE: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.8, "nesterov": True},
    "adam": {"lr": 0.05, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-7},
}


@pytest.mark.parametrize("name", list(NATIVE))
def test_native_optimizers_are_keras_own(name: str) -> None:
    import keras

    network, feeds = mlp(**SMALL, seed=4), [batch(8) for _ in range(5)]
    run = executor(network)
    optimizer: Any = TF.optimizer(name)(**NATIVE[name])
    optimizer.bind(run)
    w = [tf.Variable(network.initial(key)) for key in network.parameter_specs]
    by_hand: dict[str, Callable[[], Any]] = {
        "sgd": lambda: keras.optimizers.SGD(0.05),
        "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.8, nesterov=True),
        "adam": lambda: keras.optimizers.Adam(0.05, beta_1=0.8, beta_2=0.99, epsilon=1e-7),
    }
    theirs = by_hand[name]()
    for number, feed in enumerate(feeds):
        if number == 3:
            optimizer.set_hyper("lr", 0.01)
            theirs.learning_rate = 0.01
        loss = optimizer.step(feed, info(number, 8))["loss"]
        with tf.GradientTape() as tape:
            hidden = tf.tanh(tf.matmul(feed["input"], w[0], transpose_b=True) + w[1])
            logits = tf.matmul(hidden, w[2], transpose_b=True) + w[3]
            other = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(feed["label"], logits))
        theirs.apply_gradients(zip(tape.gradient(other, w), w, strict=True))
        assert float(loss) == pytest.approx(float(other), rel=1e-5)
    for value, wanted in zip(run.state_dict().values(), w, strict=True):
        # Five float32 steps; a graph and eager calls round in a different order.
        np.testing.assert_allclose(value, wanted.numpy(), rtol=1e-4, atol=1e-5)
    assert optimizer._step.traces == 1
    assert optimizer.state_dict()["iteration"] == 5


def test_what_keras_optimizers_refuse() -> None:
    optimizer: Any = TF.optimizer("adam")()
    with pytest.raises(UsageError, match=r"got momentum=2.0; allowed: a number of at least 0 and below 1"):
        TF.optimizer("momentum")(momentum=2.0).bind(executor())
    run = executor()
    optimizer.bind(run)
    with pytest.raises(UsageError, match="no hyperparameter 'beta1' that may change; allowed: lr"):
        optimizer.set_hyper("beta1", 0.1)
    state = optimizer.state_dict()
    key = "momentum/fc1.bias"
    with pytest.raises(ShapeError, match=r"'momentum/fc1.bias': got float32\(9,\), expected float32\(3,\)"):
        optimizer.load_state_dict({**state, key: np.zeros(9, np.float32)})


def python(code: str, *arguments: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run in a separate process; variables that are None in `environment` are not set there."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={name: value for name, value in {**os.environ, **environment}.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_keras_on_another_framework_is_refused() -> None:
    done = python(
        "import deep5 as d5\n"
        "framework = d5.framework('tensorflow')\n"
        "optimizer = framework.optimizer('adam')()\n"
        "optimizer.bind(framework.executor(d5.networks.mlp(features=2, hidden=2, classes=2)))\n",
        KERAS_BACKEND="numpy",
    )
    said = "UsageError: keras was imported with the backend 'numpy'; allowed: 'tensorflow'; remedy: set KERAS_BACKEND"
    assert said in done.stderr


def test_settings_are_read_back() -> None:
    settings = executor(mlp(**SMALL, dtype="float64")).settings()
    assert settings["threads"] == int(os.environ["TF_NUM_INTRAOP_THREADS"])
    assert (settings["dtype"], settings["device"], settings["tf32"]) == ("float64", "cpu", False)
    assert (settings["framework"], settings["version"]) == ("tensorflow", tf.__version__)
    assert (settings["deterministic"], settings["xla"]) == (True, False)


def test_threads_are_fixed_when_tensorflow_has_started() -> None:
    run = executor()
    have = run.settings()["threads"]
    TF.set_threads(have)  # the current number may be requested
    with pytest.raises(
        UsageError,
        match=rf"got {have + 1} threads for tensorflow, which has started with {have} and cannot change; "
        rf"allowed: {have} in this process; remedy: .*TF_NUM_INTRAOP_THREADS={have + 1}",
    ):
        TF.set_threads(have + 1)
    for bad in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="threads; allowed: an integer from 1 to"):
            TF.set_threads(bad)
    assert run.settings()["threads"] == have


@pytest.mark.slow
def test_threads_are_set_before_it_starts_and_nothing_is_said_but_errors() -> None:
    done = python(
        "import deep5 as d5\n"
        "framework = d5.framework('tensorflow')\n"
        "framework.set_threads(2)\n"
        "settings = framework.executor(d5.networks.mlp(features=2, hidden=2, classes=2)).settings()\n"
        "print(settings['threads'], settings['inter_threads'])\n"
    )
    assert done.stdout.split() == ["2", "1"], done.stderr
    assert all(line.startswith("E") for line in done.stderr.splitlines()), done.stderr


CPU_TIME = """
import os, sys
from pathlib import Path
import numpy as np
import deep5 as d5
framework = d5.framework("tensorflow")
framework.set_threads(int(sys.argv[1]))
executor = framework.executor(d5.networks.mlp(features=784, hidden=800))
step = executor.train_step(d5.SGD(lr=0.01))
feed = {"input": np.ones((256, 784), np.float32), "label": np.zeros(256, np.int64)}
def ran():
    tasks = Path("/proc/self/task").iterdir()
    return {int(task.name): int((task / "schedstat").read_text().split()[0]) for task in tasks}
def work():
    for index in range(20):
        step(feed, d5.StepInfo(batch_size=256))
    executor.synchronize()
work()
before = ran()
work()
each = {task: time - before.get(task, 0) for task, time in ran().items()}
workers = [time for task, time in each.items() if task != os.getpid() and time > 0.2 * sum(each.values())]
print(executor.settings()["threads"], len(workers))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: any number of threads counts as one")
def test_one_thread_is_one_thread() -> None:
    # The environment of the tests requests one thread; only the number of set_threads must count.
    done = python(CPU_TIME, "1", TF_NUM_INTRAOP_THREADS=None, TF_NUM_INTEROP_THREADS=None)
    assert done.stdout.split() == ["1", "1"], done.stderr
    done = python(CPU_TIME, "2", TF_NUM_INTRAOP_THREADS=None, TF_NUM_INTEROP_THREADS=None)
    assert done.stdout.split()[:1] == ["2"], done.stderr


def test_errors_at_start_up_are_let_through(capfd: pytest.CaptureFixture[str]) -> None:
    def load() -> None:
        with without_reports():
            os.write(2, b"I0000 00:00:1.2 1 a.cc:1] report\nW0000 00:00:1.2 1 a.cc:1] warning\n")
            os.write(2, b"E0000 00:00:1.2 1 a.cc] error\n")
            os.write(2, b"To enable the following instructions: AVX\nsomething else\n")
            sys.stderr.write("from Python\n")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        load()
    os.write(2, b"after\n")
    said = capfd.readouterr().err.splitlines()
    assert sorted(said) == ["E0000 00:00:1.2 1 a.cc] error", "after", "from Python", "something else"]


PLACEMENT = """
import numpy as np
import deep5 as d5
from deep5.core.errors import NetworkError, Unsupported

framework = d5.framework("tensorflow")
import tensorflow as tf
from deep5.frameworks.tensorflow.traced import Traced

def product(dtype):
    spec = tf.TensorSpec([2, 2], dtype)
    return Traced(lambda x: tf.matmul(x, x), [spec], device="/GPU:0", xla=False), tf.ones([2, 2], dtype)

for soft in (False, True):
    tf.config.set_soft_device_placement(soft)
    for dtype in (tf.int64, tf.float32):
        function, value = product(dtype)
        try:
            print(soft, function(value).device)
        except (NetworkError, Unsupported) as error:
            print(soft, error)
"""


def test_on_the_host_soft_placement_is_left_as_it_was() -> None:
    before = tf.config.get_soft_device_placement()
    try:
        for soft in (True, False):
            tf.config.set_soft_device_placement(soft)
            executor().inference(batch())
            assert tf.config.get_soft_device_placement() is soft
    finally:
        tf.config.set_soft_device_placement(before)


@pytest.mark.slow
@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="test_devices.py does it there")
def test_without_soft_placement_nothing_falls_back_to_the_host() -> None:
    """The features that the back-end disables for a GPU, tested without one."""
    done = python(PLACEMENT)
    assert not done.returncode, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == (
        "False tensorflow has no kernel for /GPU:0 of MatMul of int64; allowed: operators that run there; "
        "remedy: run the network on the host, or on 'tensorflow:xla'"
    )
    assert "cannot run the network on these inputs (Unable to find any devices" in said[1]
    assert all(line.startswith("True /job") and line.endswith("CPU:0") for line in said[2:]), said
    assert len(said) == 4


@pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="this TensorFlow has no kernels for graphics processors")
@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "lenet",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "resnet18_small", "transformer")),
    ],
)
def test_operators_of_the_zoo_have_kernels_for_graphics_processors(name: str) -> None:
    """By the library's list of kernels, which is the same on every machine."""
    small: dict[str, Any] = {"mlp": {"dropout": 0.1}, "lstm": {"length": 3}, "resnet18_small": {"width": 1}}
    network = getattr(d5.networks, name)(**small.get(name, {}))
    run = executor(network)
    graphs = [run.graph, run._forward(training=True).graph]
    graphs.append(run.traced_gradients("loss", list(network.parameter_specs)).graph)
    shapes = {key: [2 if isinstance(e, str) else e for e in spec.shape] for key, spec in network.inputs.items()}
    given = {key: np.zeros(shape, network.inputs[key].dtype) for key, shape in shapes.items()}
    for rule in (d5.Adam(), d5.AcceleGrad(), d5.core.plugins.load("optimizers", "lars")()):
        step = run.train_step(rule)
        step(given, info(size=2))
        graphs += [value.graph for value in vars(step).values() if isinstance(value, Traced)]
    assert len(graphs) >= 6
    assert not [said for graph in graphs for said in without_kernel(graph)]


def test_an_operator_without_a_kernel_is_found() -> None:
    build = NetworkBuilder("whole")
    x = build.input("x", ("N", 3), "int64")
    y = build.op("MatMul", x, build.constant("w", np.arange(6).reshape(3, 2)))
    run = executor(build.network({"y": y, "z": build.op("Relu", build.op("Cast", y, to=1))}))
    assert without_kernel(run.graph) == ["MatMul of int64"]
    np.testing.assert_array_equal(run.inference({"x": np.ones((2, 3), np.int64)})["y"], [[6, 9], [6, 9]])


def test_the_back_end_is_made_anew_in_either_mode() -> None:
    assert TensorFlow().name == "tensorflow"
    assert TensorFlow("xla").executor(mlp(**SMALL)).settings()["xla"] is True


def test_division_of_whole_numbers_by_zero_is_told_in_our_words() -> None:
    build = NetworkBuilder("division")
    a, b = (build.input(name, ("N",), "int64") for name in "ab")
    run = executor(build.network({"y": build.op("Div", a, b)}))
    with pytest.raises(NetworkError, match="tensorflow cannot run the network on these inputs"):
        run.inference({"a": np.array([1, 2]), "b": np.array([1, 0])})
