"""OpenVINO as a training engine, to show that any engine that reads ONNX can train."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from deep5.core.errors import NetworkError, Unsupported
from deep5.frameworks.openvino import from_model
from deep5.networks import Network, NetworkBuilder, lenet, mlp
from engine import EngineSuite, close, feed

# A crash ends its process: each network runs in a separate one, whose exit status is checked.
ALTERNATE = """
import sys
import numpy as np
from deep5.core.errors import NetworkError
from deep5.frameworks.openvino import from_model
from test_openvino import unfit

network, call = unfit(sys.argv[1]), sys.argv[2]
def run(rows):
    inputs = {"x": np.linspace(-1, 1, 3 * rows, dtype=np.float32).reshape(rows, 3)}
    outputs = getattr(executor, call)(inputs)
    return {**outputs, **(executor.gradients() if call != "inference" else {})}

executor = from_model(network)
first = run(5)
executor = from_model(network)
for number in range(200):
    try:
        run((4, 7, 2, 6, 1000)[number % 5])
    except NetworkError as error:
        assert "allowed: shapes that fit every node" in str(error), error
    else:
        raise SystemExit("a batch that does not fit was taken")
    again = run(5)
    assert again.keys() == first.keys()
    assert all(again[name].tobytes() == first[name].tobytes() for name in first), number
"""

# Models fail while they run, and other models run after them: some that existed before, some newly compiled.
BEHIND = """
import os, sys, time
import numpy as np

threads, processors = int(sys.argv[1]), int(sys.argv[2])
if processors:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:processors])
import deep5 as d5
from deep5.core.errors import NetworkError
from deep5.frameworks.openvino import from_model
from test_openvino import reshaped

d5.framework("openvino").set_threads(threads)
network, batch = d5.networks.lenet(), {"input": np.ones((3, 1, 28, 28), np.float32), "label": np.arange(3)}
older = from_model(network)
want = older.inference(batch)["logits"]
assert 1 <= older.settings()["threads"] <= min(threads, processors or threads), older.settings()
for number in range(10):
    executor = from_model(reshaped())
    for shape in ((5, 3), (3, 5), (3, 5), (5, 3))[number % 3 :]:
        try:
            executor.inference({"x": np.zeros(15, np.float32), "shape": np.array(shape)})
        except NetworkError as error:
            assert shape == (3, 5) and "openvino failed in the network" in str(error), error
        else:
            assert shape == (5, 3), "a failure was told to nobody"
    if number % 2:
        del executor
    for other in (older, from_model(network)):
        other.inference({"input": batch["input"][:2] * 2, "label": batch["label"][:2]})
        assert other.inference(batch)["logits"].tobytes() == want.tobytes(), number
if older.settings()["threads"] == 1:
    whole, own = time.process_time(), time.thread_time()
    while time.process_time() < whole + 0.3:
        older.inference(batch)
    others = 1 - (time.thread_time() - own) / (time.process_time() - whole)
    assert others < 0.1, f"other threads had {others:.0%} of the work"
"""

Make = Callable[[NetworkBuilder, ir.Value, ir.Value], ir.Value]
UNFIT: dict[str, Make] = {
    "Add": lambda b, x, w: b.op("Add", x, w),
    "Add behind Softmax": lambda b, x, w: b.op("Add", b.op("Softmax", x), w),
    "Where": lambda b, x, w: b.op("Where", b.op("Greater", x, w), x, w),
    "MatMul": lambda b, x, w: b.op("MatMul", b.op("Transpose", x, perm=[1, 0]), w),
    "Gemm": lambda b, x, w: b.op("Gemm", x, w, transA=1),
    "Gemm with an addend": lambda b, x, w: b.op("Gemm", x, b.parameter("square", (3, 3)), w),
    "Concat": lambda b, x, w: b.op("Concat", x, w, axis=1),
    "Reshape": lambda b, x, w: b.op("Add", b.op("Reshape", x, b.constant("shape", np.array([3, 5]))), sums(b, w)),
}


def sums(b: NetworkBuilder, w: ir.Value) -> ir.Value:
    return b.op("ReduceSum", w, b.constant("axis", np.array([0, 1])))


def unfit(name: str) -> Network:
    """A network whose x must have 5 rows, although its inputs declare any number of rows."""
    build = NetworkBuilder("unfit")
    y = UNFIT[name](build, build.input("x", ("N", 3)), build.parameter("w", (5, 3)))
    return build.network({"y": y, "loss": build.op("ReduceMean", y, keepdims=0)})


def reshaped() -> Network:
    """A network that fails at run time unless the values of `shape` are 5 and 3."""
    build = NetworkBuilder("values")
    rows = build.op("Reshape", build.input("x", (15,)), build.input("shape", (2,), "int64"))
    return build.network({"y": build.op("Add", build.op("Softmax", rows), build.parameter("w", (5, 3)))})


def run_alone(script: str, *arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr or done.stdout}"


@pytest.mark.parametrize("call", ["inference", "inference_and_backprop"])
@pytest.mark.parametrize("name", UNFIT)
def test_a_batch_that_does_not_fit_is_an_error_and_spoils_nothing(name: str, call: str) -> None:
    run_alone(ALTERNATE, name, call)


# Two threads are one where a process may use only one processor.
@pytest.mark.parametrize(("threads", "processors"), [(1, 0), (2, 0), (2, 1)])
def test_what_fails_while_it_runs_is_told_and_leaves_other_models_alone(threads: int, processors: int) -> None:
    if processors and not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system cannot keep a process to one processor")
    run_alone(BEHIND, threads, processors)


def test_a_batch_that_does_not_fit_says_what_and_where() -> None:
    executor = from_model(unfit("Add"))
    message = r"on 'x' of shape \[4, 3\]: the node 'y' \(Add\) got \[4,3\] and \[5,3\]: .*; allowed: shapes that fit"
    for rows in (1, 5, 1):  # one row is broadcast
        assert executor.inference({"x": np.zeros((rows, 3), np.float32)})["y"].shape == (5, 3)
        with pytest.raises(NetworkError, match=message):
            executor.inference({"x": np.zeros((4, 3), np.float32)})


def test_shapes_that_values_say_are_found_while_it_runs_and_spoil_nothing() -> None:
    executor, x = from_model(reshaped()), np.zeros(15, np.float32)
    for _ in range(10):
        assert executor.inference({"x": x, "shape": np.array([5, 3])})["y"].shape == (5, 3)
        with pytest.raises(NetworkError, match="openvino failed"):
            executor.inference({"x": x, "shape": np.array([3, 5])})


class TestOpenVINO(EngineSuite):
    name = "openvino"

    def test_max_pooling_trains_without_an_operator_for_its_gradient(self) -> None:
        network = lenet(activation="relu", pooling="max")
        executors = self.pair(network)
        for executor in executors:
            executor.inference_and_backprop(feed(network, classes=10))
        # ReLU and max-pooling have kinks; at random values nothing is within rounding of one
        close(executors[0].gradients(), executors[1].gradients())

    def test_a_callback_may_run_the_executor(self) -> None:
        """On a larger batch, for which OpenVINO releases the memory of its outputs."""
        network = mlp(features=4, hidden=3)
        executor, plain = self.executor(network), self.executor(network)
        inputs = {size: feed(network, size, classes=3) for size in (2, 500)}
        want = {**plain.inference_and_backprop(inputs[2]), **plain.gradients()}
        got: dict[str, np.ndarray] = {}

        def told(name: str, gradient: Any) -> None:
            executor.inference_and_backprop(inputs[500])
            got[name] = gradient

        outputs = executor.inference_and_backprop(inputs[2], on_gradient=told)
        got = {**outputs, **{name: value.copy() for name, value in got.items()}}
        assert got.keys() == want.keys()
        for name, value in want.items():
            np.testing.assert_array_equal(got[name], value, err_msg=name)

    def test_from_model_makes_an_executor(self) -> None:
        assert from_model(mlp(features=4, hidden=3)).settings()["framework"] == "openvino"

    @pytest.mark.parametrize("dtype", ["int32", "int64"])
    def test_integers_that_it_would_take_for_others_are_refused(self, dtype: str) -> None:
        build = NetworkBuilder("double")
        x = build.input("x", ("N",), dtype)
        executor = self.executor(build.network({"y": build.op("Add", x, x)}))
        np.testing.assert_array_equal(
            executor.inference({"x": np.array([2**24, -(2**24)], dtype)})["y"], [2**25, -(2**25)]
        )
        for number in (2**24 + 1, -(2**31)):
            with pytest.raises(NetworkError, match=rf"input 'x' holds {number}; allowed: ±2\^24"):
                executor.inference({"x": np.array([1, number], dtype)})

    @pytest.mark.parametrize(
        ("dtype", "make", "reason"),
        [
            ("int64", lambda b, x: b.op("Mul", x, x), "counts in 32 bits: large values of INT64"),
            ("int8", lambda b, x: b.op("Add", x, x), "counts in 32 bits: large values of INT8"),
            ("int64", lambda b, x: b.op("ReduceSum", x), "computes inexactly: large values of INT64"),
            ("int64", lambda b, x: b.op("Equal", b.op("Add", x, x), x), "compares and divides in float32"),
            (
                "int64",
                lambda b, x: b.op("Max", x, b.constant("c", np.array(2**33))),
                "'c' holds 8589934592; OpenVINO has 32 bits; allowed: up to 2147483647; remedy: framework '",
            ),
            ("float32", lambda b, x: b.op("Cast", x, to=7), "casts to INT64 by 32 bits; allowed: INT32"),
        ],
    )
    def test_operators_whose_numbers_could_come_out_wrong_are_refused(self, dtype: str, make: Any, reason: str) -> None:
        build = NetworkBuilder("refused")
        x = build.input("x", ("N",), dtype)
        with pytest.raises(Unsupported, match=reason):
            self.executor(build.network({"y": make(build, x)}))

    def test_what_is_computed_of_extents_runs(self) -> None:
        build = NetworkBuilder("extents")
        x = build.input("x", ("N", 6))
        half = build.op("Div", build.op("Shape", x, start=1), build.constant("two", np.array([2])))
        shape = build.op("Concat", half, build.constant("rest", np.array([-1])), axis=0)
        executor = self.executor(build.network({"y": build.op("Reshape", x, shape), "n": build.op("Mul", half, half)}))
        outputs = executor.inference({"x": np.zeros((2, 6), np.float32)})
        assert outputs["y"].shape == (3, 4)
        assert outputs["n"] == [9]

    def test_an_input_that_no_node_reads_is_left_out(self) -> None:
        build = NetworkBuilder("spare")
        x, _ = build.input("x", ("N",)), build.input("spare", ("N",), "int64")
        executor = self.executor(build.network({"y": build.op("Neg", x)}))
        inputs = {"x": np.ones(2, np.float32), "spare": np.zeros(2, np.int64)}
        np.testing.assert_array_equal(executor.inference(inputs)["y"], [-1, -1])

    def test_a_wrong_index_says_which_node_got_it(self) -> None:
        build = NetworkBuilder("rows")
        index = build.input("index", ("N",), "int64")
        rows = build.op("Gather", build.parameter("table", (3, 2)), index)
        network = build.network({"loss": build.op("ReduceMean", rows, keepdims=0)})
        executor = self.executor(network)
        for call in (executor.inference, executor.inference_and_backprop):
            call({"index": np.array([2, -3])})
            for wrong in (3, -4):
                with pytest.raises(NetworkError, match=r"'Gather_1' \(Gather\) got an index .*; allowed: -3 to 2"):
                    call({"index": np.array([0, wrong])})
            call({"index": np.array([2, -3])})
