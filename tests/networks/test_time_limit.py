"""Loops that run long are refused, or end at the time limit of the caller."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, RunFailed, Unsupported, UsageError
from deep5.core.tensors import to_numpy

HEAD = '<ir_version: 9, opset_import: ["": 20]> '
EAGER = ["reference", "pytorch", "jax"]
FRAMEWORKS = [*EAGER, "onnxruntime", "tensorflow", "openvino"]
TOO_MANY = r"iterations of a loop; allowed: at most 16,777,216 without a time limit; remedy: with d5\.time_limit"
ADDS = "body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) { d = Identity (c) t = Add (s, x) }"
UNTIL = """body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) {
    a = Abs (s) m = ReduceSum <keepdims = 0> (a) d = Greater (m, low) t = Identity (s) }"""
X = {"x": np.ones(2, np.float32)}


def network(count: str, body: str = ADDS, inputs: str = "", values: str = "") -> d5.Network:
    text = (
        f"g (float[2] x{inputs}) => (float[2] y) <bool go = {{1}}{values}> {{ {count} y = Loop (n, go, x) <{body}> }}"
    )
    return d5.Network.from_onnx(onnx.parser.parse_model(HEAD + text))


def without_nodes(count: int) -> d5.Network:
    """A loop whose body only passes its inputs on."""
    text = f"""g (float[2] x) => (float[2] y) <int64 n = {{{count}}}, bool go = {{1}}> {{ y = Loop (n, go, x) <
        body = b (int64 i, bool c, float[2] s) => (bool c, float[2] s) {{ unused = Identity (c) }}> }}"""
    made = onnx.parser.parse_model(HEAD + text)
    del made.graph.node[0].attribute[0].g.node[:]
    return d5.Network.from_onnx(made)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("count", [1 << 31, 1 << 62])
def test_a_long_loop_is_refused_before_it_runs(framework: str, count: int) -> None:
    nested = """body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) {
        d = Identity (c) t = Loop (m, go, s) <body = b2 (int64 j, bool e, float[2] u) => (bool f, float[2] v) {
            f = Identity (e) v = Add (u, x) }> }"""
    for made in (
        without_nodes(count),
        network("", values=f", int64 n = {{{count}}}"),
        network("", nested, values=", int64 n = {5000}, int64 m = {5000}"),
    ):
        with pytest.raises(Unsupported, match=TOO_MANY):
            d5.framework(framework).executor(made)


@pytest.mark.parametrize("framework", ["reference", "onnxruntime", "pytorch", "jax", "tensorflow"])
def test_a_long_loop_is_refused_when_its_count_is_fed(framework: str) -> None:
    executor = d5.framework(framework).executor(network("", inputs=", int64 n"))
    with pytest.raises(NetworkError, match=f"input 'n': got 2,147,483,648 {TOO_MANY}"):
        executor.inference({**X, "n": np.array(1 << 31)})
    found = to_numpy(executor.inference({**X, "n": np.array(3)})["y"])
    assert found.tolist() == [4, 4]


@pytest.mark.parametrize("framework", [*EAGER, "tensorflow"])
def test_a_long_loop_is_refused_when_its_count_is_computed(framework: str) -> None:
    executor = d5.framework(framework).executor(network("n = Mul (k, k)", inputs=", int64 k"))
    with pytest.raises(RunFailed, match=f"Loop: 4,294,967,296 {TOO_MANY}"):
        executor.inference({**X, "k": np.array(1 << 16)})
    assert to_numpy(executor.inference({**X, "k": np.array(2)})["y"]).tolist() == [5, 5]


@pytest.mark.parametrize("framework", ["reference", "pytorch", "jax", "tensorflow", "onnxruntime"])
def test_a_loop_without_end_ends_at_the_time_limit(framework: str) -> None:
    executor = d5.framework(framework).executor(network("", UNTIL, values=", int64 n = {-1}, float low = {-1.0}"))
    long = d5.framework(framework).executor(
        network("", UNTIL, values=f", int64 n = {{{(1 << 63) - 1}}}, float low = {{-1.0}}")
    )
    assert to_numpy(executor.inference(X)["y"]).tolist() == [1, 1]
    begin = time.monotonic()
    with (
        d5.time_limit(1),
        pytest.raises(RunFailed, match=r"was stopped by its time limit of 1 s; allowed: .*; remedy:"),
    ):
        long.inference(X)
    assert time.monotonic() - begin >= 1


@pytest.mark.parametrize("framework", ["reference", "onnxruntime"])
def test_a_time_limit_lets_a_long_loop_begin(framework: str) -> None:
    for made in (without_nodes(1 << 62), network("", values=f", int64 n = {{{1 << 31}}}")):
        with d5.time_limit(0.5):
            executor = d5.framework(framework).executor(made)
            with pytest.raises(RunFailed, match=r"stopped by its time limit of 0\.5 s"):
                executor.inference(X)


@pytest.mark.parametrize("framework", ["reference", "pytorch", "onnxruntime"])
def test_a_signal_handler_of_the_caller_ends_a_loop(framework: str) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the caller's own")

    assert threading.current_thread() is threading.main_thread()
    made = network("", UNTIL, values=f", int64 n = {{{(1 << 63) - 1}}}, float low = {{-1.0}}")
    executor = d5.framework(framework).executor(made)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(TimeoutError, match="the caller's own"):
            executor.inference(X)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_limit_that_ends_first_applies() -> None:
    from deep5.core.time_limit import current_limit

    assert current_limit() is None
    with d5.time_limit(100), d5.time_limit(200):
        limit = current_limit()
        assert limit is not None
        assert limit.seconds == 100
        assert 90 < limit.remaining_s() <= 100
    assert current_limit() is None


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "60", True])
def test_a_limit_is_above_zero(seconds: float) -> None:
    with (
        pytest.raises(UsageError, match=r"time_limit: got .*; allowed: seconds above 0; remedy:"),
        d5.time_limit(seconds),
    ):
        pass


def test_a_scan_over_too_many_empty_rows_is_refused() -> None:
    text = """g (float[N, 0] x, float[0] z) => (float[0] y) { y = Scan <num_scan_inputs = 1,
        body = b (float[0] s, float[0] e) => (float[0] t) { t = Add (s, e) }> (z, x) }"""
    executor = d5.framework("reference").executor(d5.Network.from_onnx(onnx.parser.parse_model(HEAD + text)))
    with pytest.raises(RunFailed, match="Scan: 2,147,483,648 iterations; allowed: at most 16,777,216; remedy:"):
        executor.inference({"x": np.empty((1 << 31, 0), np.float32), "z": np.empty(0, np.float32)})


def test_openvino_refuses_a_loop_that_nothing_would_stop() -> None:
    endless = "g (float[2] x, bool go) => (float[2] y) { y = Loop (, go, x) <" + ADDS + "> }"
    with pytest.raises(Unsupported, match=r"got no number of iterations.*remedy: framework 'onnxruntime'"):
        d5.framework("openvino").executor(d5.Network.from_onnx(onnx.parser.parse_model(HEAD + endless)))
    executor = d5.framework("openvino").executor(network("", values=", int64 n = {3}"))
    with (
        d5.time_limit(60),
        pytest.raises(Unsupported, match=r"cannot be stopped in a Loop; allowed: .*remedy: framework 'onnxruntime'"),
    ):
        executor.inference(X)
    np.testing.assert_array_equal(to_numpy(executor.inference(X)["y"]), [4, 4])


BODY = """body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] r) {
    d = Identity (c) t = Add (s, x) r = Mul (s, x) }"""


@pytest.mark.parametrize(
    ("inputs", "fed"),
    [
        (", int64 n", {"n": np.array(0)}),
        (", int64 n", {"n": np.array(-1)}),
        (", int64[1] n", {"n": np.array([-1])}),
        (", int64 n, bool go", {"n": np.array(3), "go": np.array(False)}),
        (", int64 n, bool go", {"n": np.array(2), "go": np.array(True)}),
    ],
    ids=["0", "-1", "-1 of shape 1", "false", "true"],
)
def test_numbers_of_iterations_on_openvino(inputs: str, fed: dict[str, np.ndarray]) -> None:
    """A negative number is a loop without end there."""
    known = "" if "go" in inputs else "<bool go = {1}>"
    text = f"g (float[2] x{inputs}) => (float[2] y, float[k, 2] z) {known} {{ y, z = Loop (n, go, x) <{BODY}> }}"
    made = d5.Network.from_onnx(onnx.parser.parse_model(HEAD + text))
    found, expected = (d5.framework(name).executor(made).inference({**X, **fed}) for name in ("openvino", "reference"))
    for name, value in expected.items():
        np.testing.assert_array_equal(to_numpy(found[name]), to_numpy(value))


@pytest.mark.parametrize(
    ("inputs", "values", "outputs", "said"),
    [
        (", bool go", "int64 n = {5}", 2, "rows without an iteration; allowed: a constant condition"),
        ("", "int64 n = {0}, bool go = {1}", 2, "no elements"),
        ("", "int64 n = {3}, bool go = {0}", 2, "no elements"),
        ("", "int64 n = {0}, bool go = {1}", 1, None),
        ("", "int64 n = {3}, bool go = {0}", 1, None),
    ],
)
def test_loops_without_an_iteration_on_openvino(inputs: str, values: str, outputs: int, said: str | None) -> None:
    """It gives rows that no iteration made, or memory that nothing wrote, or ends the process."""
    made, body = ("y, z", BODY) if outputs == 2 else ("y", ADDS)
    declared = ", ".join(["float[2] y", "float[k, 2] z"][:outputs])
    text = f"g (float[2] x{inputs}) => ({declared}) <{values}> {{ {made} = Loop (n, go, x) <{body}> }}"
    network_of = d5.Network.from_onnx(onnx.parser.parse_model(HEAD + text))
    if said is None:
        found = d5.framework("openvino").executor(network_of).inference(X)["y"]
        np.testing.assert_array_equal(to_numpy(found), X["x"])
        return
    with pytest.raises(Unsupported, match=said):
        d5.framework("openvino").executor(network_of)
