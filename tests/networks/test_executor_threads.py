"""Executors that several threads call concurrently: each call returns what it returns in a single thread."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core.errors import OperatorError
from deep5.networks import custom
from deep5.networks.edit.builder import ones

FRAMEWORKS = ("reference", "pytorch", "onnxruntime", "openvino", "jax", "tensorflow")
THREADS = 6
# Arrays whose memory ONNX Runtime keeps bound, and arrays whose memory it does not.
SHAPES = ((2, 3), (60, 70))
DOMAIN = "test.threads"


class Line(d5.Operator):
    def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        return (x,)

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return 2 * x + 1

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (2 * output_grads[0],)


class CppLine(d5.CppOperator):
    """The same, except that it raises an error at run time for 39 elements."""

    source = """
    template <typename T>
    struct CppLine : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        if (x.size() == 39) throw std::runtime_error("39 are too many");
        for (int64_t i = 0; i < x.size(); ++i) y[i] = 2 * x[i] + 1;
      }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<T> dx) {
        for (int64_t i = 0; i < x.size(); ++i) dx[i] = 2 * dy[i];
      }
    };"""

    def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        return (x,)


# Each with its slope and offset.
OPERATORS: dict[str, tuple[Callable[[], d5.Operator], int, int]] = {
    "ONNX": (lambda: d5.ONNXOperator("Neg"), -1, 0),
    "Python": (Line, 2, 1),
    "C++": (CppLine, 2, 1),
}


@pytest.fixture(autouse=True)
def busy() -> Iterator[None]:
    """Python switches threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(calls: int, call: Callable[[int], None], threads: int = THREADS) -> None:
    """Call with the thread numbers, many times, in all threads; raise the error of the first thread that failed."""
    together, failures = threading.Barrier(threads), []

    def run(number: int) -> None:
        together.wait()
        try:
            for _ in range(calls):
                call(number)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]


def filled(shape: tuple[int, ...], number: int) -> np.ndarray:
    return np.full(shape, number, np.float32)


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_operator_in_threads(name: str, kind: str) -> None:
    """Includes the first calls, which compile."""
    make, slope, offset = OPERATORS[kind]
    for shape in SHAPES:
        executor = d5.framework(name).operator_executor(make())
        inputs = [executor.arrays(filled(shape, number)) for number in range(THREADS)]

        def forward(number: int, executor: Any = executor, inputs: Any = inputs, shape: Any = shape) -> None:
            (y,) = executor.inference(*inputs[number])
            np.testing.assert_array_equal(d5.to_numpy(y), filled(shape, slope * number + offset))

        def backward(number: int, executor: Any = executor, inputs: Any = inputs, shape: Any = shape) -> None:
            (y,), (dx,) = executor.inference_and_backprop(inputs[number], inputs[number])
            np.testing.assert_array_equal(d5.to_numpy(y), filled(shape, slope * number + offset))
            np.testing.assert_array_equal(d5.to_numpy(dx), filled(shape, slope * number))

        at_once(40, forward)
        at_once(20, backward)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_network_in_threads(name: str) -> None:
    """Batches of several sizes through one program: a convolution, which uses scratch memory, and a product."""
    build = d5.NetworkBuilder("threads")
    x = build.input("x", ("N", 2, 12, 12))
    y = build.op("Conv", x, build.parameter("w", (2, 2, 3, 3), ones), pads=[1, 1, 1, 1])
    network = build.network({"y": y, "z": build.op("Mul", x, build.parameter("v", (12,), ones))})
    executor = d5.framework(name).executor(network)

    def call(number: int) -> None:
        batch = filled((1 + number % 3, 2, 12, 12), number)
        outputs = executor.inference({"x": batch})
        np.testing.assert_array_equal(d5.to_numpy(outputs["z"]), batch)
        # Sums of 18 and 8 equal integers, which are exact.
        got = d5.to_numpy(outputs["y"])
        np.testing.assert_array_equal(got[:, :, 1:-1, 1:-1], 18 * batch[:, :, 1:-1, 1:-1])
        np.testing.assert_array_equal(got[:, :, 0, 0], 8 * batch[:, :, 0, 0])

    at_once(60, call)


def waited(executor: Any, inputs: Any) -> Any:
    outputs = executor.inference(*inputs)
    executor.synchronize()
    return outputs


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_fails_in_one_thread_is_told_there(name: str) -> None:
    """Of one compiled operator, called with shapes that it refuses and with others."""
    executor = d5.framework(name).operator_executor(CppLine())
    shapes = ((13, 3), (5, 3))
    inputs = [executor.arrays(filled(shape, 1)) for shape in shapes]

    def call(number: int) -> None:
        if shapes[number % 2] == (5, 3):
            (y,) = waited(executor, inputs[number % 2])
            np.testing.assert_array_equal(d5.to_numpy(y), filled((5, 3), 3))
            return
        with pytest.raises(OperatorError, match="39 are too many"):
            waited(executor, inputs[number % 2])

    at_once(60, call)


@pytest.mark.parametrize("kind", ["operator", "network"])
def test_who_waits_for_jax_waits_for_calls_of_its_own(kind: str) -> None:
    """JAX returns before a large product is ready; a small one of another thread comes in between."""
    build = d5.NetworkBuilder("product")
    x = build.input("x", ("N", "N"))
    network = build.network({"y": build.op("MatMul", x, x)})
    framework = d5.framework("jax")
    executor: Any = framework.executor(network)
    run = lambda x: executor.inference({"x": x})["y"]  # noqa: E731
    if kind == "operator":
        executor = framework.operator_executor(d5.ONNXOperator("MatMul"))
        run = lambda x: executor.inference(x, x)[0]  # noqa: E731
    large, small = framework.operator_executor(Line()).arrays(filled((2000, 2000), 1), filled((2, 2), 1))
    for x in (large, small):
        run(x).block_until_ready()
    y = run(large)
    other = threading.Thread(target=run, args=(small,))
    other.start()
    other.join()
    executor.synchronize()
    assert y.is_ready()


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_whoever_is_told_of_a_gradient_may_call_the_executor(name: str) -> None:
    build = d5.NetworkBuilder("told")
    product = build.op("Mul", build.input("x", (3,)), build.parameter("w", (3,), ones))
    executor = d5.framework(name).executor(build.network({"loss": build.op("ReduceSum", product, keepdims=0)}))
    found: list[Any] = []

    def told(name: str, gradient: Any) -> None:
        executor.inference_and_backprop({"x": filled((3,), 5)})
        found.append((gradient.copy(), executor.gradients()["w"].copy()))

    # In a daemon thread, in case it deadlocks.
    arguments = {"inputs": {"x": filled((3,), 2)}, "on_gradient": told}
    worker = threading.Thread(target=executor.inference_and_backprop, kwargs=arguments, daemon=True)
    worker.start()
    worker.join(timeout=60)
    assert [[list(value) for value in pair] for pair in found] == [[[2] * 3, [5] * 3]]


def test_shapes_are_inferred_in_threads_from_the_first_call_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The placeholder for registered operators starts with a schema, which ONNX accepts only once."""
    d5.register_operator("Line", domain=DOMAIN)(Line)
    if onnx.defs.has(custom._OPERATOR, 1, custom._DOMAIN):
        onnx.defs.deregister_schema(custom._OPERATOR, 1, custom._DOMAIN)
    made = custom._schema

    def slow() -> Any:
        time.sleep(0.05)
        return made()

    monkeypatch.setattr(custom, "_schema", slow)

    def call(number: int) -> None:
        build = d5.NetworkBuilder("line")
        y = build.op("Line", build.input("x", (number + 1, 3)), domain=DOMAIN)
        assert build.network({"y": y}).outputs["y"].shape == (number + 1, 3)

    at_once(1, call)
    assert onnx.defs.has(custom._OPERATOR, 1, custom._DOMAIN)
