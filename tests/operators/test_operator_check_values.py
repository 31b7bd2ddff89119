"""Errors that value checks find beyond the given point: memory around tensors, threads, sizes, mixed types."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from command import Command
from deep5.core.arguments import THREADS
from deep5.core.errors import OperatorError, ShapeError
from deep5.operators import plan
from deep5.operators.checks.collect import Collector
from deep5.operators.checks.inputs import LAYOUTS, cast, larger, repeated, resized
from deep5.operators.checks.memory import Guarded, guarded_memory
from deep5.operators.checks.report import OperatorReport, Row
from deep5.operators.checks.subject import Subject
from deep5.operators.checks.threads import check_threads
from deep5.operators.checks.tolerance import LEGEND

pytestmark = pytest.mark.usefixtures("warm")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4))
Specs = tuple[d5.TensorSpec, ...]


@pytest.fixture(autouse=True)
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deep5.operators.checks.collect.picture_folder", lambda: tmp_path / "unasked")


def rows(report: OperatorReport) -> dict[str, Row]:
    return {row.check: row for row in report.rows}


def in_cpp(body: str, specs: Callable[..., Specs] = lambda self, x: (x,)) -> d5.CppOperator:
    source = (
        "template <typename T> struct Made : deep5::Operator {"
        f"void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {{ {body} }} }};"
    )
    kind: Any = type("Made", (d5.CppOperator,), {"source": source, "specs": specs})
    made: d5.CppOperator = kind()
    return made


def forward_of(operator: d5.Operator, **options: Any) -> OperatorReport:
    return d5.check_forward(operator, [X], dtypes=["float64"], raises=False, **options)


class Alike(d5.Operator):
    """One input, and an output of the same shape and type."""

    def specs(self, x: d5.TensorSpec) -> Specs:  # type: ignore[override]
        return (x,)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        raise AssertionError("checks of forward ran it")


# -- layouts ----------------------------------------------------------------------------------------------------------


def test_an_input_with_strides_of_0_is_held_against_its_copy() -> None:
    class Square(Alike):
        def forward(self, x: Any) -> Any:  # type: ignore[override]
            return x * x * (3 if isinstance(x, np.ndarray) and 0 in x.strides else 1)

    report = forward_of(Square())
    assert [row.check for row in report.rows if row.verdict == "FAILED"] == ["forward, input with strides of 0"]


def test_equal_rows_that_are_no_input_are_left_out() -> None:
    class Inverse(Alike):
        def forward(self, x: Any) -> Any:  # type: ignore[override]
            return np.linalg.inv(x)

    report = d5.check_forward(Inverse(), [np.eye(3) + X[:, :3]], dtypes=["float64"], strict=False, raises=False)
    assert "forward, input with negative strides" in rows(report)
    assert "forward, input with strides of 0" not in rows(report)


def test_repeated_rows_are_one_memory_and_whole_numbers_stay() -> None:
    lengths = np.array([1, 2, 3])
    one, whole, scalar = repeated([X, lengths, np.float32(2.0)])
    assert one.strides[0] == 0
    np.testing.assert_array_equal(one, np.stack([X[0]] * 3))
    assert whole is lengths
    assert scalar == 2


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pages", [False, True])
def test_memory_knows_what_is_written_around_it(pages: bool) -> None:
    memory = Guarded(pages)
    made = memory.empty((3, 4), np.float32)
    assert made.shape == (3, 4)
    assert all(part is not None and part.all() for part in memory.untouched([made]))
    made[:] = 1
    assert not memory.wrong()
    assert not any(part is not None and part.any() for part in memory.untouched([made]))
    np.lib.stride_tricks.as_strided(made, (1,), (4,))  # the array itself
    before = np.ndarray((1,), np.float32, made.base, _offset(made) - 4)
    before[0] = 0
    assert "wrote 4 bytes before the first element" in memory.wrong()


def _offset(made: np.ndarray) -> int:
    base: Any = made.base
    return int(made.__array_interface__["data"][0]) - int(np.frombuffer(base, np.uint8).__array_interface__["data"][0])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_memory_copies_any_layout(layout: str, dtype: str) -> None:
    value = LAYOUTS[layout](RNG.standard_normal((2, 3, 4)).astype(dtype))
    copied = Guarded(True).copy(value)
    assert np.array_equal(copied, value)
    assert copied.strides == value.strides
    assert copied.flags.aligned == value.flags.aligned
    assert not np.shares_memory(copied, value)


def test_memory_is_numpys_again_afterwards() -> None:
    with guarded_memory() as outer, guarded_memory(pages=True) as inner:
        assert plan.make_memory == inner.empty != outer.empty
    assert plan.make_memory is np.empty


# The code reads through raw pointers, as third-party code does, so that no index is checked.
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("for (auto &v : y) v = 1; y.data()[y.size()] = 0;", r"was killed by SIGSEGV .* in forward on float64 inputs"),
        ("for (auto &v : y) v = x.data()[x.size()];", r"was killed by SIGSEGV .* in forward on float64 inputs"),
        ("for (auto &v : y) v = 1; y.data()[-1] = 0;", r"wrote 8 bytes before the first element of a tensor"),
        (
            "for (int64_t i = 0; i + 1 < x.size(); ++i) y[i] = 2 * x[i];",
            r"leaves 1 of 12 elements of output 0 unwritten in forward on float64 inputs",
        ),
    ],
)
def test_wrong_use_of_memory_in_cpp(body: str, told: str) -> None:
    with pytest.raises(OperatorError, match=told):
        forward_of(in_cpp(body))


# -- threads ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread() -> Iterator[None]:
    before, THREADS[0] = THREADS[0], 1
    yield
    THREADS[0] = before


def _scalar(self: Any, x: d5.TensorSpec) -> Specs:
    return (d5.TensorSpec(shape=(), dtype=x.dtype),)


SUM = """T s = 0;
#pragma omp parallel for {}
for (int64_t i = 0; i < x.size(); ++i) s += x[i];
y[0] = s;"""


def test_threads_that_add_to_one_number(one_thread: None) -> None:
    wrong = in_cpp(SUM.format(""), _scalar)
    assert rows(forward_of(wrong))["forward is repeatable"].verdict == "passed"
    into = Collector("Made", "NumPy", None)
    end = time.monotonic() + 30  # on a busy machine threads may run one after another for a while
    while not into.report().failures and time.monotonic() < end:
        check_threads(Subject(wrong, None), [X], False, into)
        assert THREADS[0] == 1
    told = into.report().failures
    assert told
    assert told[0].check in ("forward on 2 threads", "forward on 3 threads")
    right = rows(forward_of(in_cpp(SUM.format("reduction(+ : s)"), _scalar), reference=np.sum))
    assert right["forward on 2 threads"].verdict == right["forward on 3 threads"].verdict == "passed"


def test_threads_that_forget_a_rest(one_thread: None) -> None:
    body = """
    for (auto &v : y) v = 0;
    #pragma omp parallel
    {
      int64_t part = x.size() / omp_get_num_threads(), at = omp_get_thread_num() * part;
      for (int64_t i = at; i < at + part; ++i) y[i] = 2 * x[i];
    }"""
    report = rows(d5.check_forward(in_cpp(body), [X[:, :1]], dtypes=["float64"], raises=False))
    assert report["forward on 2 threads"].verdict == "FAILED"
    assert report["forward is repeatable"].verdict == "passed"


# -- values, sizes, types ---------------------------------------------------------------------------------------------


class Double(d5.Operator):
    """Right, unless a method is replaced."""

    def specs(self, *inputs: d5.TensorSpec) -> Specs:
        return inputs[:1]

    def forward(self, *inputs: Any) -> Any:
        return 2 * inputs[0]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (2 * output_grads[0],)


def changed(**methods: Any) -> d5.Operator:
    kind: Any = type("Wrong", (Double,), methods)
    made: d5.Operator = kind()
    return made


SHARED: dict[Any, Any] = {}


def _kept(own: Any, x: Any) -> Any:
    return own.setdefault((x.shape, str(x.dtype), type(x).__module__), 2 * x) + 0


def test_results_that_are_kept_by_shape() -> None:
    told = "forward, other values: .* different bits for the same inputs where it ran on others of their shape before"
    with pytest.raises(OperatorError, match=told):
        d5.check_forward(changed(forward=lambda self, x: _kept(vars(self).setdefault("kept", {}), x)), [X])
    # State that another object finds, too, cannot be distinguished from a constant: the report says so.
    shared = changed(forward=lambda self, x: _kept(SHARED, x))
    report = d5.check_forward(shared, [X], raises=False)
    assert rows(report)["forward, other values"].verdict == "not evaluated"
    assert not report.values
    assert "no value was evaluated" in report.verdict
    with pytest.raises(OperatorError, match="forward, other values: output 0"):
        d5.check_forward(shared, [X], reference=lambda x: 2 * x)
    constant = changed(forward=lambda self, x: d5.array_namespace(x).zeros_like(x))
    assert d5.check_forward(constant, [X], reference=np.zeros_like)


def _odd(self: Any, x: Any) -> Any:
    y = 2 * x
    if y.ndim and y.shape[0] % 2 and y.shape[0] > 1:
        y[-1] = 0
    return y


def test_wrong_for_sizes_that_were_not_given() -> None:
    report = rows(d5.check_forward(changed(forward=_odd), [X[:2]], reference=lambda x: 2 * x, raises=False))
    assert report["forward, all dimensions one more"].verdict == "FAILED"
    report = rows(d5.check_forward(Double(), [X[:2]], reference=lambda x: 2 * x))
    assert (
        report["forward, all dimensions one more"].verdict
        == report["forward, all dimensions one less"].verdict
        == "passed"
    )


def test_sizes_that_an_operator_does_not_take_are_left_out() -> None:
    def specs(self: Any, x: d5.TensorSpec) -> Specs:
        if x.shape != (3, 4):
            raise ShapeError(f"got {x}; allowed: [3, 4]")
        return (x,)

    report = rows(d5.check_forward(changed(specs=specs), [X]))
    assert report["forward, other sizes"].note == "it takes none that are one less or one more: only these"


def test_whole_numbers_stay_what_they_may_index() -> None:
    table, places = X, np.array([0, 2, 2, 1, 0])
    found = [(step, extents, [value.shape for value in values]) for step, extents, values in resized([table, places])]
    assert found == [(1, (3, 4), [(4, 5), (5,)]), (1, (3,), [(4, 4), (5,)]), (1, (4,), [(3, 5), (5,)])]
    assert larger([table, places]) is None


def test_an_error_in_float64_is_no_refusal() -> None:
    def specs(self: Any, x: d5.TensorSpec) -> Specs:
        return ({"float32": x}[x.dtype],)

    report = rows(d5.check_forward(changed(specs=specs), [X.astype(np.float32)], dtypes=["float32"], raises=False))
    assert report["forward, float64"].verdict == "FAILED"
    assert "Wrong.specs raised KeyError" in report["forward, float64"].note


MIXED = """
template <typename T> struct Mixed : deep5::Operator {
  void forward(deep5::Tensor<const T> x, deep5::Tensor<const double> w, deep5::Tensor<T> y) {
    for (int64_t i = 0; i < x.size(); ++i) y[i] = x[i] * w[i];
  }
  void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const double> w,
                deep5::Tensor<const T> y, deep5::Tensor<T> dx, deep5::Tensor<double> dw) {
    for (int64_t i = 0; i < x.size(); ++i) {
      if (dx) dx[i] = dy[i] * w[i];
      if (dw) dw[i] = dy[i] * x[i];
    }
  }
};"""


class Mixed(d5.CppOperator):
    source = MIXED

    def specs(self, x: d5.TensorSpec, w: d5.TensorSpec) -> Specs:  # type: ignore[override]
        if x.shape != w.shape:
            raise ShapeError(f"got {x} and {w}; allowed: one shape")
        return (x,)


def test_types_side_by_side_in_cpp() -> None:
    inputs = [X.astype(np.float32), X + 1]
    assert [str(value.dtype) for value in cast(inputs, "float16")] == ["float16", "float64"]
    report = d5.check_forward(Mixed(), inputs, dtypes=["float32"], reference=lambda x, w: x * w)
    assert rows(report)["forward, float32, against <lambda>"].verdict == "passed"
    assert d5.check_gradient(Mixed(), inputs, dtypes=["float32"])


class Scaled(d5.Operator):
    """Values of any type and statistics in float32, in which it computes."""

    def specs(self, x: d5.TensorSpec, by: d5.TensorSpec) -> Specs:  # type: ignore[override]
        if by.dtype != "float32" or x.shape != by.shape:
            raise ShapeError(f"Scaled: got {x} and {by}; allowed: the second in float32")
        return (x,)

    def forward(self, x: Any, by: Any) -> Any:  # type: ignore[override]
        xp = d5.array_namespace(x, by)
        return xp.astype(xp.astype(x, xp.float32) * by * self.off(x), x.dtype)

    def off(self, x: Any) -> float:
        return 1.0

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        raise NotImplementedError("of no use here")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_types_side_by_side_in_python(dtype: str) -> None:
    inputs = [X.astype(dtype), (X + 1).astype(np.float32)]

    def product(x: np.ndarray, by: np.ndarray) -> np.ndarray:
        return x * by

    report = rows(d5.check_forward(Scaled(), inputs, reference=product))
    assert report[f"forward, {dtype}, against product"].verdict == "passed"
    assert d5.check_forward(Scaled(), inputs)

    class Off(Scaled):
        def off(self, x: Any) -> float:
            return 1.05 if str(x.dtype) == "float16" else 1 + 1e-5

    report = rows(d5.check_forward(Off(), inputs, reference=product, raises=False))
    assert report[f"forward, {dtype}, against product"].verdict == "FAILED"


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["MatMul"], "its inputs are A, B; the inputs were A float32[3, 4], B float32[3, 4] (change them by --shape"),
        (["Conv"], "its inputs are X, W, B (optional); the inputs were X float32[3, 4], W float32[3, 4]"),
        (["Gather"], "integers, such as indices, by --dtype int64"),
        (["MatMul", *["--shape", "3x4"] * 3], "got 3 times --shape; allowed: once, or once per input, 2 times (A, B)"),
    ],
)
def test_an_operator_of_onnx_says_what_it_takes(deep5: Command, given: Sequence[str], told: str) -> None:
    answer = deep5("check", "operator", *given)
    assert told in answer.err
    assert answer.status != 0


def test_what_low_precision_lets_pass_is_printed() -> None:
    assert "in float16 that is 0.8 % of |y| + sqrt(n) S" in LEGEND
    report = d5.check_forward(Double(), [X.astype(np.float16)])
    assert LEGEND in str(report)


# -- subnormal numbers -------------------------------------------------------------------------------------------------


class Squares(Alike):
    """x², and zero where that is below `least` in float32."""

    def __init__(self, least: float = 0.0) -> None:
        self.least = least

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        y = x * x
        if self.least and y.dtype == np.float32:
            y = np.where(np.abs(y) < self.least, np.zeros_like(y), y)
        return y


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "pytorch"])
def test_frameworks_may_have_zeros_in_place_of_subnormal_numbers(framework: str) -> None:
    tiny = np.linspace(1e-21, 1e-19, 12, dtype=np.float32).reshape(3, 4)
    assert d5.check_forward(Squares(), [tiny], framework=framework)


def test_zeros_in_place_of_larger_numbers_are_found() -> None:
    tiny = np.linspace(1e-18, 1e-17, 12, dtype=np.float32).reshape(3, 4)
    assert d5.check_forward(Squares(1e-38), [tiny], strict=False)
    assert not d5.check_forward(Squares(1e-35), [tiny], strict=False, raises=False)
