"""Checks of a backward: linear, no state from forward, every combination of needs, every memory layout."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import OperatorError
from deep5.operators.check import check_forward, check_gradient
from deep5.operators.checks.conduct import some_needs
from deep5.operators.checks.inputs import LAYOUTS
from deep5.operators.checks.report import OperatorReport
from operators_right import RIGHT, IPow, MatMul, ReLU, Unary, constant, normal

pytestmark = pytest.mark.usefixtures("warm")

X = [constant(0, 3, 4)]


@pytest.fixture(autouse=True)
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures that no test requests are saved where pytest cleans up."""
    monkeypatch.setattr("deep5.operators.checks.collect.picture_folder", lambda: tmp_path / "unasked")


class Square(d5.Operator):
    def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        return (x,)

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return x * x

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (2 * inputs[0] * output_grads[0],)


def backward_of(derivative: Callable[[Any, Any, Any], Any], kind: type[Any] = Square) -> type[Any]:
    """A class whose gradient is a function of the namespace, x and dy."""

    def backward(self: Any, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (derivative(d5.array_namespace(inputs[0]), inputs[0], output_grads[0]),)

    return type("Wrong", (kind,), {"backward": backward})


def failed(report: OperatorReport) -> list[str]:
    return [row.check for row in report.failures]


# -- linear in the gradients by the outputs ---------------------------------------------------------------------------

LINEAR = "backward is linear"
NAN = "backward, NaN in gradients by outputs"
# All of them are right where the gradient by an output is 1 at one place and 0 elsewhere, as in the Jacobian.
NOT_LINEAR: dict[str, Callable[[Any, Any, Any], Any]] = {
    "squared": lambda xp, x, dy: 2 * x * dy * dy,
    "without its sign": lambda xp, x, dy: 2 * x * xp.abs(dy),
    "cut off": lambda xp, x, dy: 2 * x * xp.clip(dy, -1.5, 1.5),
    "cut off far out": lambda xp, x, dy: 2 * x * xp.clip(dy, -50, 50),
    "small ones dropped": lambda xp, x, dy: 2 * x * xp.where(xp.abs(dy) < 1e-3, xp.zeros_like(dy), dy),
}


@pytest.mark.parametrize("framework", [None, "pytorch"])
@pytest.mark.parametrize("name", NOT_LINEAR)
def test_a_gradient_that_is_not_linear_is_found(name: str, framework: str | None) -> None:
    wrong = backward_of(NOT_LINEAR[name])()
    assert failed(check_gradient(wrong, X, framework=framework, raises=False))[0] == LINEAR


@pytest.mark.parametrize("name", ["squared", "without its sign", "cut off", "cut off far out"])
def test_a_gradient_of_a_large_input_that_is_not_linear_is_found(name: str) -> None:
    wrong = backward_of(NOT_LINEAR[name])()
    assert failed(check_gradient(wrong, [normal(20, 20)], raises=False))[0] == "gradient by input 0"


def test_a_loss_that_forgets_the_gradient_it_is_given_is_told() -> None:
    class Loss(d5.Operator):
        def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
            return (d5.TensorSpec(shape=(), dtype=x.dtype),)

        def forward(self, x: Any) -> Any:  # type: ignore[override]
            return d5.array_namespace(x).sum(x * x, dtype=x.dtype)

        def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
            return (2 * inputs[0],)

    with pytest.raises(
        OperatorError,
        match=r"backward is linear: gradient by input 0: for gradients by the outputs around -\d\S* got .* at "
        r"\[\d, \d\], expected .* the sum of what it gives for each of them by itself; 12 of 12 elements are wrong",
    ):
        check_gradient(Loss(), X)


@pytest.mark.parametrize("shape", [(3, 4), (20, 20)])
def test_nan_in_a_gradient_by_an_output_is_not_lost(shape: tuple[int, ...]) -> None:
    swallows = backward_of(lambda xp, x, dy: 2 * x * xp.where(xp.isnan(dy), xp.zeros_like(dy), dy))()
    report = check_gradient(swallows, [normal(*shape)], raises=False)
    assert failed(report) == [NAN]
    assert re.search(
        r"gradient by input 0 at \[\d+, \d+\] is 0 where all gradients by output 0 are NaN", report.story()
    )


def test_what_passes_no_gradient_need_not_pass_nan() -> None:
    assert not failed(check_gradient(ReLU(), X))


# -- nothing is kept between forward and backward ---------------------------------------------------------------------

KEPT, FRESH = "forward keeps nothing for backward", "backward on a new object"


class Saved(Square):
    def forward(self, x: Any) -> Any:  # type: ignore[override]
        self.x = x
        return x * x

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (2 * self.x * output_grads[0],)


class Made(Square):
    """What it keeps is the same after every call, so that only another object is without it."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        self.two = 2
        return x * x

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (self.two * inputs[0] * output_grads[0],)


@pytest.mark.parametrize("framework", [None, "pytorch"])
@pytest.mark.parametrize(("kind", "row"), [(Saved, KEPT), (Made, FRESH)])
def test_what_forward_keeps_for_backward_is_found(kind: type[d5.Operator], row: str, framework: str | None) -> None:
    assert failed(check_gradient(kind(), X, framework=framework, raises=False)) == [row]


def test_an_object_that_cannot_be_copied_is_checked_without_another() -> None:
    class Locked(Square):
        def __init__(self) -> None:
            self.stream = (value for value in ())  # a generator cannot be copied

    assert FRESH not in [row.check for row in check_gradient(Locked(), X).rows]


CPP = """#include <vector>
template <typename T> struct Kept : deep5::Operator {
  std::vector<T> kept;
  void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
    kept.resize(x.size());
    for (int64_t i = 0; i < x.size(); ++i) kept[i] = x[i], y[i] = x[i] * x[i];
  }
  void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y, deep5::Tensor<T> dx) {
    for (int64_t i = 0; i < x.size(); ++i) dx[i] = 2 * KEPT * dy[i];
  }
};"""


def test_what_forward_keeps_in_cpp_ends_the_child_alone() -> None:
    source = CPP.replace("KEPT", "kept[i]")
    kind = type("Kept", (d5.CppOperator,), {"source": source, "specs": lambda self, x: (x,)})
    with pytest.raises(OperatorError, match=r"in backward on float32.*a backward that reads what forward kept"):
        check_gradient(kind(), X, dtypes=["float32"])


def test_what_forward_keeps_in_cpp_is_found() -> None:
    source = CPP.replace("KEPT", "(kept.empty() ? x[i] : kept[i])")
    kind = type("Kept", (d5.CppOperator,), {"source": source, "specs": lambda self, x: (x,)})
    assert KEPT in failed(check_gradient(kind(), X, dtypes=["float32"], raises=False))


@d5.register_operator("Kept", domain="org.deep5.test.gradients")
class Registered(Saved):
    pass


HIDDEN: list[Any] = [None]


@d5.register_operator("Hidden", domain="org.deep5.test.gradients")
class Hidden(Square):
    def forward(self, x: Any) -> Any:  # type: ignore[override]
        HIDDEN[0] = x
        return x * x

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (2 * HIDDEN[0] * output_grads[0],)


def test_jax_says_what_forward_keeps() -> None:
    jax = pytest.importorskip("jax")
    x = np.ones((2, 3), np.float32)
    own = r"Registered\.forward keeps an array that JAX traces, in self\.x; allowed: nothing that is kept"
    run = d5.framework("jax").operator(Registered())
    with pytest.raises(OperatorError, match=own):
        jax.jit(jax.grad(lambda x: run(x).sum()))(x)
    for name, told in (("Kept", own), ("Hidden", r"an array that JAX traces was kept beyond the call")):
        build = d5.NetworkBuilder("kept")
        product = build.op("Mul", build.input("x", ("N", 3)), build.parameter("w", (3,), d5.networks.ones))
        node = build.op(name, product, domain="org.deep5.test.gradients")
        network = build.network({"loss": build.op("ReduceSum", node, keepdims=0)})
        with pytest.raises(OperatorError, match=told):
            d5.framework("jax").executor(network).inference_and_backprop({"x": x})


def test_jax_differentiates_by_an_array_of_numpy() -> None:
    jax = pytest.importorskip("jax")
    run = d5.framework("jax").operator(Square())
    found = jax.grad(lambda x: run(x).sum())(np.array([1.0, 2.0, 3.0], np.float32))
    assert found.tolist() == [2, 4, 6]


# -- which gradients are wanted ---------------------------------------------------------------------------------------


def test_every_way_to_want_some_of_the_gradients() -> None:
    assert [needs for _, needs in some_needs((True, False, True))] == [(True, False, False), (False, False, True)]
    assert len(list(some_needs((True,) * 3))) == 6
    assert len(list(some_needs((True,) * 4))) == 14
    assert len(list(some_needs((True,) * 6))) == 12  # one at a time, and all but one
    assert not list(some_needs((True, False)))


def test_a_gradient_that_is_wrong_beside_one_that_nobody_wants() -> None:
    class Product(d5.Operator):
        def specs(self, a: d5.TensorSpec, *others: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
            return (a,)

        def forward(self, a: Any, b: Any, c: Any) -> Any:  # type: ignore[override]
            return a * b * c

        def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
            (a, b, c), (dy,) = inputs, output_grads
            return dy * b * c, dy * a * c * (3 if tuple(needs) == (True, True, False) else 1), dy * a * b

    report = check_gradient(Product(), [normal(3, 4)] * 3, raises=False)
    assert failed(report) == ["needs, inputs 0 and 1 only"]
    assert "another gradient by input 1 with needs=(True, True, False)" in report.story()


# -- memory -----------------------------------------------------------------------------------------------------------


def of_numpy(value: Any, holds: Callable[[np.ndarray], bool]) -> bool:
    return isinstance(value, np.ndarray) and holds(value)


@pytest.mark.parametrize(
    ("holds", "row"),
    [
        (lambda dy: 0 in dy.strides, "backward, strides of 0"),
        (lambda dy: not dy.flags.aligned, "backward, misaligned memory"),
    ],
)
def test_a_gradient_that_is_wrong_in_unusual_memory(holds: Any, row: str) -> None:
    wrong = backward_of(lambda xp, x, dy: 2 * x * dy * (3 if of_numpy(dy, holds) else 1))()
    assert failed(check_gradient(wrong, X, raises=False)) == [row]


def test_every_layout_holds_the_same_values() -> None:
    for dtype in (np.float32, np.float64, np.int64, np.bool_):
        value = (normal(2, 3, 4) * 9).astype(dtype)
        for lay in LAYOUTS.values():
            np.testing.assert_array_equal(lay(value), value)
    assert not LAYOUTS["misaligned memory"](normal(2, 3)).flags.aligned


@pytest.mark.parametrize(
    ("holds", "told"),
    [
        (lambda x: x.dtype == np.float16, r"output 0 shares memory with input 0 \(float16, contiguous\)"),
        (lambda x: not x.flags.c_contiguous, r"output 0 shares memory with input 0 \(float32, Fortran order\)"),
    ],
)
def test_an_output_that_is_an_input_in_some_memory_alone(holds: Any, told: str) -> None:
    class Same(Square):
        def forward(self, x: Any) -> Any:  # type: ignore[override]
            return x if of_numpy(x, holds) else x + 0

    with pytest.raises(OperatorError, match=f"outputs are new memory: Same.forward: {told}"):
        check_forward(Same(), X)


def test_an_input_that_is_changed_in_one_element_type_alone() -> None:
    class Changes(Square):
        def forward(self, x: Any) -> Any:  # type: ignore[override]
            if of_numpy(x, lambda x: x.dtype == np.float64):
                x *= x
                return x + 0
            return x * x

    with pytest.raises(
        OperatorError, match=r"Changes.forward changed input 0 \(float64, contiguous\), .* and 4 more in place"
    ):
        check_forward(Changes(), X)


# -- limits of the given inputs ---------------------------------------------------------------------------------------


def test_what_the_inputs_cannot_show_is_told() -> None:
    def note(operator: d5.Operator, x: np.ndarray) -> str:
        return next(row.note for row in check_gradient(operator, [x]).rows if row.check == "gradient by input 0")

    size = Unary("abs", lambda x, y: d5.array_namespace(x).sign(x))
    for large in (1, 60):
        assert not note(size, normal(3, 4 * large))
        assert "all elements of input 0 are positive, and others were not" in note(size, np.abs(normal(3, 4 * large)))
        assert "input 0 has the size 1 along axis 0, where a sum equals a mean" in note(size, normal(1, 12 * large))


@pytest.mark.parametrize("name", ["matrix product", "softmax", "large layer norm"])
def test_what_is_right_is_linear_and_keeps_nothing(name: str) -> None:
    operator, inputs, _ = RIGHT[name]
    passed = {row.check for row in check_gradient(operator, inputs).rows if row.verdict == "passed"}
    assert {KEPT, FRESH, NAN} <= passed
    assert (LINEAR in passed) == ("large" not in name)


def test_a_linear_operator_in_other_memory_is_right() -> None:
    assert check_gradient(MatMul(), [normal(3, 4), normal(4, 2)])
    assert check_gradient(IPow(3), X, framework="jax")


# -- staircases --------------------------------------------------------------------------------------------------------

# A staircase, and its slope between the stairs. At steps longer than the stairs, its differences look like those of x.
STAIRS: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "round": (lambda xp, x: xp.round(x), 0.0),
    "floor": (lambda xp, x: xp.floor(x), 0.0),
    "ceil": (lambda xp, x: xp.ceil(x), 0.0),
    "trunc": (lambda xp, x: xp.trunc(x), 0.0),
    "remainder": (lambda xp, x: x % 1.0, 1.0),
    "sawtooth": (lambda xp, x: x - xp.floor(x), 1.0),
}


def stairs(name: str, added: float = 0.0) -> d5.Operator:
    forward, slope = STAIRS[name]

    def run(self: Any, x: Any) -> Any:
        return forward(d5.array_namespace(x), x)

    made = backward_of(lambda xp, x, dy: (slope + added) * dy)
    made.forward = run
    operator: d5.Operator = made()
    return operator


@pytest.mark.parametrize("name", STAIRS)
@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_a_staircase_is_that_between_its_stairs(name: str, seed: int) -> None:
    x = [np.random.default_rng(seed).standard_normal((4, 5)).astype(np.float32)]
    assert check_gradient(stairs(name), x)
    assert failed(check_gradient(stairs(name, 1e-3), x, raises=False))
