"""Functions of a framework as operators: checked like any other, and timed without any overhead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

import deep5 as d5
from deep5.bench.candidates import Candidate, Prepared, prepare
from deep5.bench.plan import Plan, Workload
from deep5.core.errors import OperatorError, Unsupported
from deep5.measuring.loops import time_loop
from deep5.operators.check import check_forward, check_gradient
from deep5.operators.checks.report import OperatorReport, Row
from deep5.operators.problem import Direction, Problem
from operators_right import constant, normal

X = [constant(0, 3, 4)]
F = torch.nn.functional


@pytest.fixture(autouse=True)
def pictures(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures that no test requests are saved where pytest cleans up."""
    monkeypatch.setattr("deep5.operators.checks.collect.picture_folder", lambda: tmp_path_factory.mktemp("pictures"))


def row(report: OperatorReport, check: str) -> Row:
    return next(row for row in report.rows if row.check == check)


def judged(report: OperatorReport, check: str, values: int) -> None:
    """It passed, this many numbers were compared, and the tolerance is tight."""
    found = row(report, check)
    assert (found.verdict, found.values) == ("passed", values)
    assert found.allowed is not None
    assert 0 < found.allowed < 1e-4


# -- checks -----------------------------------------------------------------------------------------------------------


def test_a_function_of_jax_is_checked() -> None:
    operator = d5.NativeOperator(jnp.sin, framework="jax")
    report = check_forward(operator, X, reference=np.sin)
    assert report.framework == "jax"
    judged(report, "forward, float32, against sin", 12)
    judged(report, "forward, float64, against sin", 12)
    report = check_gradient(operator, X)
    judged(report, "gradient by input 0", 144)  # the whole Jacobian
    judged(report, "backward, float32, against float64", 12)


def test_a_wrong_function_of_jax_is_told() -> None:
    with pytest.raises(OperatorError, match=r"sin on jax: .*\n  forward, float32, against cos: output 0: at"):
        check_forward(d5.NativeOperator(jnp.sin, framework="jax"), X, reference=np.cos, dtypes=["float32"])

    def half_stopped(x: Any) -> Any:
        return 0.5 * jnp.sin(x) + 0.5 * jnp.sin(jax.lax.stop_gradient(x))

    operator = d5.NativeOperator(half_stopped, framework="jax")
    assert check_forward(operator, X, reference=np.sin, dtypes=["float32"])  # its values are right
    with pytest.raises(
        OperatorError, match=r"half_stopped on jax: 1 of \d+ checks failed\n  gradient by input 0: output 0: d output 0"
    ):
        check_gradient(operator, X, dtypes=["float32"])

    # A zero gradient from JAX is no better.
    stopped = d5.NativeOperator(lambda x: jnp.sin(jax.lax.stop_gradient(x)), framework="jax")
    with pytest.raises(OperatorError, match=r"gradient by input 0: output 0: .* got 0(\.0)? by backward, expected"):
        check_gradient(stopped, X, dtypes=["float32"])


@pytest.fixture
def dense() -> keras.layers.Dense:
    """Three inputs wide, with weights; in float64, so that differences can check its gradient."""
    layer = keras.layers.Dense(2, activation="tanh", dtype="float64")
    layer.build((None, 4))
    layer.set_weights([normal(4, 2).astype(np.float64), normal(2).astype(np.float64)])
    return layer


def test_a_layer_of_keras_in_float64_is_checked(dense: keras.layers.Dense) -> None:
    weights, bias = dense.get_weights()

    def layer(x: np.ndarray) -> np.ndarray:
        made: np.ndarray = np.tanh(x @ weights + bias)
        return made

    x = [normal(3, 4).astype(np.float64)]
    operator = d5.NativeOperator(dense, framework="tensorflow")
    report = check_forward(operator, x, reference=layer)
    assert report.framework == "tensorflow"
    judged(report, "forward, float64, against layer", 6)
    report = check_gradient(operator, x)
    judged(report, "gradient by input 0", 72)

    with pytest.raises(OperatorError, match=r"forward, float64, against wrong: output 0: at \[\d, \d\] got"):
        check_forward(operator, x, reference=_named("wrong", lambda x: layer(x) * (1 + 1e-9)))

    def half_stopped(x: Any) -> Any:
        return 0.5 * dense(x) + 0.5 * dense(tf.stop_gradient(x))

    operator = d5.NativeOperator(half_stopped, framework="tensorflow")
    assert check_forward(operator, x, reference=layer)
    with pytest.raises(
        OperatorError, match=r"half_stopped on tensorflow: 1 of \d+ checks failed\n  gradient by input 0: output 0: d"
    ):
        check_gradient(operator, x)


def _named(name: str, function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    function.__name__ = name
    return function


CONVOLUTION = [constant(1, 2, 3, 5, 5), constant(2, 4, 3, 3, 3), constant(3, 4)]


def _convolution(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By the definition, with a stride of 2; without padding no framework can omit a product with 0."""
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::2, ::2]
    made: np.ndarray = np.einsum("nchwij,ocij->nohw", windows, w) + b[:, None, None]
    return made


def test_a_convolution_of_pytorch_is_checked() -> None:
    operator = d5.NativeOperator(F.conv2d, framework="pytorch", stride=2)
    report = check_forward(operator, CONVOLUTION, reference=_convolution)
    assert report.framework == "pytorch"
    judged(report, "forward, float32, against _convolution", 32)
    judged(report, "forward, float64, against _convolution", 32)
    report = check_gradient(operator, CONVOLUTION)
    for number in range(3):
        assert row(report, f"gradient by input {number}").verdict == "passed"


def test_the_threads_of_a_check_use_as_many_threads_as_the_process() -> None:
    """Without asking, a new thread of PyTorch uses every core: its sums had another order, and other bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        operator = d5.NativeOperator(F.conv2d, framework="pytorch", stride=2)
        report = check_gradient(operator, CONVOLUTION, dtypes=["float32"])
    finally:
        torch.set_num_threads(before)
    assert row(report, "backward, on a second thread").verdict == "passed"


@pytest.mark.slow
def test_a_wrong_convolution_of_pytorch_is_told() -> None:
    def turned(x: Any, w: Any, b: Any) -> Any:
        return F.conv2d(x, w.flip(-1), b, stride=2)

    with pytest.raises(OperatorError, match=r"forward, float64, against _convolution: output 0: at"):
        check_forward(d5.NativeOperator(turned, framework="pytorch"), CONVOLUTION, reference=_convolution)

    def weights_detached(x: Any, w: Any, b: Any) -> Any:
        return F.conv2d(x, w.detach(), b, stride=2)

    operator = d5.NativeOperator(weights_detached, framework="pytorch")
    assert check_forward(operator, CONVOLUTION, reference=_convolution)
    with pytest.raises(OperatorError, match=r"\n  gradient by input 1: output 0: .* got 0 by backward") as told:
        check_gradient(operator, CONVOLUTION)
    for right in ("gradient by input 0:", "gradient by input 2:"):
        assert right not in str(told.value)

    def half_detached(x: Any, w: Any, b: Any) -> Any:
        return 0.5 * F.conv2d(x, w, b, stride=2) + 0.5 * F.conv2d(x, w, b.detach(), stride=2)

    with pytest.raises(OperatorError, match=r"1 of \d+ checks failed\n  gradient by input 2: output 0:"):
        check_gradient(d5.NativeOperator(half_detached, framework="pytorch"), CONVOLUTION)

    def detached(x: Any, w: Any, b: Any) -> Any:
        return F.conv2d(x, w, b, stride=2).detach()

    with pytest.raises(Unsupported, match="detached has no gradient on torch"):
        check_gradient(d5.NativeOperator(detached, framework="pytorch"), CONVOLUTION)


# -- timings ----------------------------------------------------------------------------------------------------------

FRAMEWORKS = ["pytorch", "jax", "tensorflow"]
DIRECTIONS = [Direction(), Direction(name="backward", needs=(True,))]
SPEC = d5.TensorSpec(shape=(16, 16), dtype="float32")


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Prepared]:
    """Prepares a function of one array for timing, as `deep5 bench operator` does."""

    def ready(function: Callable[..., Any], framework: str, direction: Direction) -> Prepared:
        operator = d5.NativeOperator(function, framework=framework)
        monkeypatch.setattr("deep5.bench.candidates.make_operator_of", lambda *_: operator)
        problem = Problem(name="own", title="16x16", operator="own", inputs=(SPEC,), directions=(direction,))
        work = Workload(problem=problem, direction=direction, outputs=(SPEC,), flops=None, moved_bytes=None)
        values = normal(16, 16)
        grads = (np.ones_like(values),) if direction.needs else ()
        return prepare(Candidate(framework=framework), Plan(frameworks=(framework,)), work, (values,), grads)

    return ready


def prepared_input(prepared: Prepared, direction: Direction) -> Any:
    """The array that was converted before the clock starts."""
    (native,) = prepared.work.call.args[0] if direction.needs else prepared.work.arguments  # type: ignore[attr-defined]
    return native


def address(value: Any) -> int:
    """The address of an array's data."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    if isinstance(value, jax.Array):
        return int(value.unsafe_buffer_pointer())
    return int(np.asarray(memoryview(value)).ctypes.data)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, framework: str, seen: list[Any]) -> Iterator[Callable[..., Any]]:
    """A function that doubles its input, and appends the arrays on which it runs to `seen`.

    JAX and TensorFlow trace it. TensorFlow calls back when it runs; JAX always passes a copy to a callback, so that
    there the arrays are the arguments of the compiled function.
    """

    def of_jax(x: Any) -> Any:
        return x + x

    def called_back(x: Any) -> Any:
        seen.append(x)
        return x + x

    def of_tensorflow(x: Any) -> Any:
        made = tf.py_function(called_back, [x], x.dtype)
        made.set_shape(x.shape)
        return made

    compile_it = jax.jit

    class Watched:
        """A compiled function that records its arguments; otherwise unchanged."""

        def __init__(self, function: Callable[..., Any], **options: Any) -> None:
            self.compiled = compile_it(function, **options)

        def __call__(self, *given: Any) -> Any:
            seen.extend(jax.tree.leaves(given)[:1])
            return self.compiled(*given)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.compiled, name)

    with monkeypatch.context() as patch:
        if framework == "jax":
            patch.setattr(jax, "jit", Watched)
        yield {"pytorch": called_back, "jax": of_jax, "tensorflow": of_tensorflow}[framework]


@pytest.mark.parametrize("direction", DIRECTIONS, ids=["forward", "backward"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_timed_gets_the_arrays_as_they_were_prepared(
    framework: str, direction: Direction, ready: Callable[..., Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    with watched(monkeypatch, framework, seen) as function:
        prepared = ready(function, framework, direction)
        time_loop(prepared.work, 1)  # traces and compiles
        seen.clear()
        time_loop(prepared.work, 3)
    native = prepared_input(prepared, direction)
    assert len(seen) == 3
    for got in seen:
        assert type(got) is type(native)
        assert address(got) == address(native)
        assert got is native or framework == "tensorflow" or (framework == "pytorch" and direction.needs)


def _raises(name: str) -> Callable[..., Any]:
    def conversion(*_: Any, **__: Any) -> Any:
        raise AssertionError(f"{name} within what is timed")

    return conversion


CONVERSIONS: dict[str, list[tuple[Any, str]]] = {
    "pytorch": [
        *((torch, name) for name in ("from_numpy", "as_tensor", "asarray", "tensor", "from_dlpack", "clone")),
        *((torch.Tensor, name) for name in ("to", "cpu", "numpy", "tolist", "clone", "contiguous", "__array__")),
    ],
    "jax": [(jax, "device_put"), (jax, "device_get"), (jnp, "asarray"), (jnp, "array"), (jnp, "copy")],
    "tensorflow": [(tf, "constant"), (tf, "convert_to_tensor"), (tf, "identity"), (tf, "cast")],
}
OF_NUMPY = ("array", "asarray", "ascontiguousarray", "copy", "frombuffer", "from_dlpack", "copyto", "empty")


def no_conversions(monkeypatch: pytest.MonkeyPatch, framework: str, executor: Any) -> AbstractContextManager[Any]:
    """Every way to move arrays into a framework or out of it raises."""
    for owner, name in CONVERSIONS[framework]:
        monkeypatch.setattr(owner, name, _raises(name))
    for name in OF_NUMPY:
        monkeypatch.setattr(np, name, _raises(f"np.{name}"))
    monkeypatch.setattr(type(executor), "arrays", _raises("arrays"))
    for name, module in list(sys.modules.items()):
        if name.startswith("deep5.") and "to_numpy" in vars(module):
            monkeypatch.setattr(module, "to_numpy", _raises("to_numpy"))
    return jax.transfer_guard("disallow_explicit") if framework == "jax" else nullcontext()


@pytest.mark.parametrize("direction", DIRECTIONS, ids=["forward", "backward"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_is_converted_within_what_is_timed(
    framework: str, direction: Direction, ready: Callable[..., Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = ready(lambda x: x + x, framework, direction)
    call = prepared.work.call
    executor = (call.func if direction.needs else call).__self__  # type: ignore[attr-defined]
    time_loop(prepared.work, 1)  # traces and compiles
    native, values = prepared_input(prepared, direction), np.ones((16, 16), np.float32)
    with monkeypatch.context() as patch, no_conversions(patch, framework, executor):
        assert time_loop(prepared.work, 3) > 0
        outputs = call(*prepared.work.arguments)
        prepared.work.synchronize()
        for convert in (lambda: executor.arrays(values), lambda: prepared.read(outputs)):
            with pytest.raises(AssertionError, match="within what is timed"):
                convert()
    (x,), found = prepared.read((native,)), prepared.read(outputs)
    np.testing.assert_array_equal(found[0], x + x)
    if direction.needs:
        np.testing.assert_array_equal(found[1], np.full_like(x, 2))


def test_signatures_that_torch_lists_are_told() -> None:
    operator = d5.NativeOperator(torch.nn.functional.conv2d, framework="pytorch")
    with pytest.raises(OperatorError, match=r"expected one of: \* \(Tensor input, Tensor weight"):
        check_forward(operator, [normal(1, 1, 3, 3)])
