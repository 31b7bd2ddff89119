"""Operators that are wrong only at kinks, some sizes, ranks, integers, layouts or values, or that share memory, and
right ones that resemble them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.operators.check import check_forward, check_gradient
from deep5.operators.checks.report import OperatorReport
from operators_right import ReLU, constant

pytestmark = pytest.mark.usefixtures("warm")

X = [constant(0, 3, 4)]
AB = [constant(1, 3, 4), constant(2, 3, 4)]
Specs = tuple[d5.TensorSpec, ...]


@pytest.fixture(autouse=True)
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures that no test requests are saved where pytest cleans up."""
    monkeypatch.setattr("deep5.operators.checks.collect.picture_folder", lambda: tmp_path / "unasked")


class Made(d5.Operator):
    """An operator of functions: forward of the inputs, backward of the output gradients and the inputs."""

    def __init__(
        self, forward: Callable[..., Any], backward: Callable[..., Any], specs: Callable[..., Specs] | None = None
    ) -> None:
        self.functions = forward, backward
        self.shapes = specs or (lambda *inputs: inputs[:1])

    def specs(self, *inputs: d5.TensorSpec) -> Specs:
        return self.shapes(*inputs)

    def forward(self, *inputs: Any) -> Any:
        return self.functions[0](*inputs)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return self.functions[1](*(grad for grad in output_grads if grad is not None), *inputs)


def square(x: Any) -> Any:
    return x * x


def square_back(dy: Any, x: Any) -> Any:
    return (2 * x * dy,)


def no_gradient(*_: Any) -> Any:
    raise NotImplementedError("no gradient")


def forward_of(operator: d5.Operator, inputs: Sequence[Any], reference: Any) -> OperatorReport:
    return check_forward(operator, inputs, reference=reference, strict=False, raises=False)


def gradient_of(operator: d5.Operator, inputs: Sequence[Any]) -> OperatorReport:
    return check_gradient(operator, inputs, strict=False, raises=False)


def failed(report: OperatorReport) -> list[str]:
    return [row.check for row in report.failures]


# -- kinks ------------------------------------------------------------------------------------------------------------


def rows(x: d5.TensorSpec) -> Specs:
    if not x.shape or x.shape[-1] == 0:
        raise d5.ShapeError(f"got {x}; allowed: at least one element along the last axis")
    return (d5.TensorSpec(shape=x.shape[:-1], dtype=x.dtype),)


def kinked(name: str) -> tuple[d5.Operator, list[np.ndarray]]:
    """Operators with kinks at 0 or at equal values, and inputs."""

    def largest(x: Any) -> Any:
        return x.max(axis=-1)

    def ties(x: Any) -> Any:
        return (x == x.max(axis=-1, keepdims=True)).astype(x.dtype)

    made: dict[str, tuple[Any, Any, Any, list[np.ndarray]]] = {
        "absolute, 5 at 0": (np.abs, lambda dy, x: (dy * np.where(x == 0, 5, np.sign(x)).astype(x.dtype),), None, X),
        "absolute": (np.abs, lambda dy, x: (dy * np.sign(x),), None, X),
        "maximum, all of it to each": (largest, lambda dy, x: (ties(x) * dy[..., None],), rows, X),
        "maximum, shared": (
            largest,
            lambda dy, x: ((ties(x) / ties(x).sum(axis=-1, keepdims=True) * dy[..., None]).astype(x.dtype),),
            rows,
            X,
        ),
        "larger, all of it to each": (np.maximum, lambda dy, a, b: (dy * (a >= b), dy * (b >= a)), None, AB),
        "larger, to one": (np.maximum, lambda dy, a, b: (dy * (a >= b), dy * (b > a)), None, AB),
    }
    forward, backward, specs, inputs = made[name]
    return Made(forward, backward, specs), inputs


@pytest.mark.parametrize("name", ["absolute, 5 at 0", "maximum, all of it to each", "larger, all of it to each"])
def test_a_gradient_at_a_kink_beyond_the_slopes_to_either_side_is_found(name: str) -> None:
    operator, inputs = kinked(name)
    report = gradient_of(operator, inputs)
    assert failed(report) == ["backward, zeros"]
    assert "the slopes to either side of a kink" in report.failures[0].note


@pytest.mark.parametrize("name", ["absolute", "maximum, shared", "larger, to one"])
def test_a_gradient_at_a_kink_between_the_slopes_passes(name: str) -> None:
    operator, inputs = kinked(name)
    report = gradient_of(operator, inputs)
    assert not failed(report)
    found = {row.check: row.verdict for row in report.rows}
    assert found["backward, zeros"] == found["backward, some zeros"] == "passed"


def test_a_maximum_of_equal_elements_that_are_given_is_checked() -> None:
    operator, _ = kinked("maximum, all of it to each")
    assert "gradient at kinks" in failed(gradient_of(operator, [np.array([[1.0, 1.0, 0.0], [2.0, 0.0, 2.0]])]))


def test_a_gradient_at_jumps_is_not_evaluated() -> None:
    report = gradient_of(Made(np.sign, lambda dy, x: (0 * dy,)), X)
    assert not failed(report)
    assert {row.check: row.verdict for row in report.rows}["backward, zeros"] == "not evaluated"


def test_gradients_of_zero_and_infinite_gradients_by_outputs_are_checked() -> None:
    added = Made(square, lambda dy, x: (2 * x * dy if dy.any() else dy + 1,))
    assert "backward, 0 in gradients by outputs" in failed(gradient_of(added, X))
    swallowed = Made(square, lambda dy, x: (2 * x * np.where(np.isinf(dy), 0, dy).astype(x.dtype),))
    assert failed(gradient_of(swallowed, X))[0] == "backward, inf in gradients by outputs"


def test_a_relu_with_zeros_is_right_on_a_framework() -> None:
    assert check_gradient(ReLU(), [np.round(X[0])], framework="pytorch")


# -- sizes ------------------------------------------------------------------------------------------------------------

MULTIPLES: dict[str, Callable[[Any], bool]] = {
    "last dimension, of 8": lambda x: x.ndim > 0 and x.size > 0 and x.shape[-1] % 8 == 0,
    "last dimension, of 64": lambda x: x.ndim > 0 and x.size > 0 and x.shape[-1] % 64 == 0,
    "elements, of 16": lambda x: x.size > 0 and x.size % 16 == 0,
    "both dimensions, of 32": lambda x: x.ndim == 2 and x.size > 0 and not x.shape[0] % 32 and not x.shape[1] % 32,
}


@pytest.mark.parametrize("name", MULTIPLES)
def test_results_that_are_wrong_at_multiples_are_found(name: str) -> None:
    def doubled(x: Any) -> Any:
        return 2 if MULTIPLES[name](x) else 1

    forward = Made(lambda x: x * x * doubled(x), square_back)
    assert failed(forward_of(forward, X, square))[0].split(", ", 1)[1].startswith(("dimension", "large"))
    backward = Made(square, lambda dy, x: (2 * x * dy * doubled(x),))
    assert failed(gradient_of(backward, X))[0].split(", ", 1)[1].startswith(("dimension", "large"))


# -- integers ---------------------------------------------------------------------------------------------------------

WHOLE = np.arange(12).reshape(3, 4)


def through_float(x: Any) -> Any:
    return (x.astype(np.float32) + 1).astype(x.dtype)


def summed(x: Any) -> Any:
    return np.cumsum(x, dtype=x.dtype).reshape(x.shape)


WRONG_INTEGERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "through float32": (through_float, lambda x: x + 1, "int64"),
    "through float32, of 32 bits": (through_float, lambda x: x + 1, "int32"),
    "through float64, above 2^63": (lambda x: x.astype(np.float64).astype(x.dtype), lambda x: x, "uint64"),
    "toward zero": (lambda x: np.trunc(x / 2).astype(x.dtype), lambda x: x // 2, "int8"),
    "in 16 bits": (lambda x: (x * x).astype(np.int16).astype(x.dtype), lambda x: x * x, "int64"),
    "sum": (lambda x: np.cumsum(x, dtype=np.float32).astype(x.dtype).reshape(x.shape), summed, "int32"),
}


@pytest.mark.parametrize("name", WRONG_INTEGERS)
def test_wrong_integers_are_found(name: str) -> None:
    forward, right, dtype = WRONG_INTEGERS[name]
    found = failed(forward_of(Made(forward, no_gradient), [WHOLE.astype(dtype)], right))
    assert "integers" in found[0]


LIMITS: dict[str, tuple[int, int]] = {
    dtype: (np.iinfo(dtype).min, np.iinfo(dtype).max) for dtype in ("int8", "int32", "uint64")
}
RIGHT_INTEGERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "square": (lambda x: x * x, lambda x: x * x),
    "absolute": (lambda x: np.where(x < 0, 0 - x, x), np.abs),
    "remainder": (lambda a, b: a - b * (a // b), lambda a, b: a % b),
    "bits": (np.bitwise_xor, lambda a, b: a ^ b),
    "saturates": (
        lambda a, b: np.clip(a.astype(object) + b.astype(object), *LIMITS[str(a.dtype)]).astype(a.dtype),
        np.add,
    ),
}


@pytest.mark.parametrize("name", RIGHT_INTEGERS)
@pytest.mark.parametrize("dtype", LIMITS)
def test_right_integers_pass_where_nothing_overflows(name: str, dtype: str) -> None:
    forward, right = RIGHT_INTEGERS[name]
    inputs = [(WHOLE + 1).astype(dtype)] * (1 if name in ("square", "absolute") else 2)
    report = forward_of(Made(forward, no_gradient), inputs, right)
    assert not failed(report)
    assert any("integers" in row.check and row.values for row in report.rows)


def test_indices_are_not_replaced_by_other_integers() -> None:
    def specs(x: d5.TensorSpec, places: d5.TensorSpec) -> Specs:
        return (d5.TensorSpec(shape=(*places.shape, *x.shape[1:]), dtype=x.dtype),)

    taken = Made(lambda x, places: x[places], no_gradient, specs)
    report = forward_of(taken, [X[0], np.array([0, 2])], lambda x, places: x[places])
    assert {row.check: row.verdict for row in report.rows}["forward, other integers"] == "not evaluated"


def test_integers_that_take_long_are_the_last() -> None:
    def slow(x: Any) -> Any:
        import time

        if x.size and np.abs(x.astype(float)).max() > 1000:
            time.sleep(0.4)
        return x + 1

    report = forward_of(Made(slow, no_gradient), [WHOLE], lambda x: x + 1)
    assert report.rows[-1].check != "forward, the limits of integers"
    assert any(row.check == "forward, larger integers" for row in report.rows)


# -- memory -----------------------------------------------------------------------------------------------------------


def two(x: d5.TensorSpec) -> Specs:
    return x, x


class Ring(Made):
    """x squared, in a ring of buffers, either of forward or of backward."""

    def __init__(self, count: int, backward: bool) -> None:
        super().__init__(square, square_back)
        self.count, self.back, self.calls = count, backward, 0
        self.buffers: dict[Any, list[np.ndarray]] = {}

    def __deepcopy__(self, memo: Any) -> Ring:
        return Ring(self.count, self.back)

    def _kept(self, made: np.ndarray) -> np.ndarray:
        ring = self.buffers.setdefault((made.shape, made.dtype), [np.empty_like(made) for _ in range(self.count)])
        self.calls += 1
        ring[self.calls % self.count][...] = made
        return ring[self.calls % self.count]

    def forward(self, *inputs: Any) -> Any:
        made = super().forward(*inputs)
        return made if self.back else self._kept(made)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (made,) = super().backward(output_grads, inputs, outputs, needs)
        return (self._kept(made) if self.back else made,)


class ByObject(Made):
    """x squared, kept for the array's object."""

    def __init__(self) -> None:
        super().__init__(square, square_back)
        self.kept: dict[int, Any] = {}

    def __deepcopy__(self, memo: Any) -> ByObject:
        return ByObject()

    def forward(self, *inputs: Any) -> Any:
        if id(inputs[0]) not in self.kept:
            self.kept[id(inputs[0])] = inputs[0], super().forward(*inputs)
        return np.array(self.kept[id(inputs[0])][1])


SHARED = "all results are new memory"
WRONG_MEMORY: dict[str, tuple[Callable[[], d5.Operator], Any, list[str]]] = {
    "x itself where none is negative": (
        lambda: Made(lambda x: x if (x >= 0).all() else np.maximum(x, 0), lambda dy, x: (dy * (x > 0),)),
        lambda x: np.maximum(x, 0),
        [SHARED],
    ),
    "x itself of one element": (
        lambda: Made(lambda x: x if x.size == 1 else x * 1, lambda dy, x: (dy,)),
        lambda x: x,
        [SHARED],
    ),
    "one array as two outputs": (
        lambda: Made(lambda x: (x * x,) * 2, lambda da, db, x: (2 * x * (da + db),), two),
        lambda x: (x * x, x * x),
        [SHARED],
    ),
    "a ring of 4": (lambda: Ring(4, False), square, [SHARED]),
    "a ring of 9": (lambda: Ring(9, False), square, [SHARED]),
    "kept for an object": (ByObject, square, ["forward, inputs that are written to"]),
    "another result of one array": (
        lambda: Made(lambda a, b: a * 1 if a is b else a + b, lambda dy, a, b: (dy, dy)),
        np.add,
        ["forward, one array as several inputs"],
    ),
}


@pytest.mark.parametrize("name", WRONG_MEMORY)
def test_shared_and_kept_memory_is_found(name: str) -> None:
    make, right, expected = WRONG_MEMORY[name]
    found = failed(forward_of(make(), AB if "one array of" in name or right is np.add else X, right))
    # Memory that is used again spoils one check or another, depending on the calls between.
    assert found if "ring" in name else found == expected


def test_shared_memory_of_gradients_is_found() -> None:
    assert failed(gradient_of(Ring(4, True), X))
    # Half of x squared, whose gradient is x itself where the gradient by the output is 1.
    itself = Made(lambda x: x * x / 2, lambda dy, x: (x if (dy == 1).all() else x * dy,))
    assert failed(gradient_of(itself, X)) == [SHARED]


def test_gradients_may_be_gradients_by_outputs_and_one_array() -> None:
    assert check_gradient(Made(np.add, lambda dy, a, b: (dy, dy)), AB, strict=False)
    assert check_gradient(Made(np.add, lambda dy, a, b: (dy * 1,) * 2), AB, strict=False)

    def halves(x: d5.TensorSpec) -> Specs:
        if len(x.shape) != 2 or int(x.shape[1]) % 2:
            raise d5.ShapeError(f"got {x}; allowed: two dimensions, the second one even")
        half = d5.TensorSpec(shape=(x.shape[0], int(x.shape[1]) // 2), dtype=x.dtype)
        return half, half

    split = Made(
        lambda x: tuple(np.split(x * 1, 2, axis=1)), lambda da, db, x: (np.concatenate([da, db], axis=1),), halves
    )
    assert forward_of(split, X, lambda x: np.split(x, 2, axis=1))
    assert gradient_of(split, X)


# -- ranks, values and layouts ----------------------------------------------------------------------------------------


def doubled_where(condition: Callable[[Any], Any]) -> d5.Operator:
    return Made(lambda x: x * x * (2 if condition(x) else 1), square_back)


WRONG_VALUES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "rank 1": (lambda x: x.ndim == 1, "forward, rank 1 (specs accepts it)"),
    "rank 4": (lambda x: x.ndim == 4, "forward, rank 4 (specs accepts it)"),
    "negative": (lambda x: x.size > 1 and (x < 0).all(), "forward, negative values"),
    "positive": (lambda x: x.size > 1 and (x > 0).all(), "forward, positive values"),
    "sorted": (lambda x: x.size > 4 and (np.diff(x.reshape(-1)) > 0).all(), "forward, sorted values"),
    "tiny": (lambda x: 0 < np.abs(x).max(initial=0) < 1e-30, "forward, tiny values in float64"),
    "huge": (lambda x: np.abs(x).max(initial=0) > 1e20, "forward, huge values in float64"),
    "part of rows": (
        lambda x: x.ndim == 2 and len(x) > 1 and x.strides[1] == x.itemsize and x.strides[0] > x.shape[1] * x.itemsize,
        "forward, input with longer rows",
    ),
    "read-only": (lambda x: not x.flags.writeable and x.flags.c_contiguous, "forward, input with read-only memory"),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_wrong_ranks_values_and_layouts_are_found(name: str) -> None:
    condition, check = WRONG_VALUES[name]
    assert check in failed(forward_of(doubled_where(condition), X, square))


def test_a_gradient_of_another_rank_is_found() -> None:
    wrong = Made(square, lambda dy, x: (2 * x * dy * (2 if x.ndim == 3 else 1),))
    assert "backward, rank 3 (specs accepts it)" in failed(gradient_of(wrong, X))


def test_what_is_wrong_with_two_inputs_is_found() -> None:
    def add_back(dy: Any, a: Any, b: Any) -> Any:
        return dy, dy

    met = Made(lambda a, b: np.where(np.isinf(a) & np.isinf(b), a, a + b), add_back)
    assert "forward, infinities that meet" in failed(forward_of(met, AB, np.add))
    strided = Made(lambda a, b: a * 1 if a.flags.c_contiguous and not b.flags.c_contiguous else a + b, add_back)
    assert "forward, input 1 with strides of 2" in failed(forward_of(strided, AB, np.add))


def test_negative_zeros_are_kept_by_what_only_moves_numbers() -> None:
    right = forward_of(Made(lambda x: x * 1, lambda dy, x: (dy,)), X, lambda x: x)
    assert "forward, negative zeros" in [row.check for row in right.rows]
    assert right
    assert failed(forward_of(Made(lambda x: x + 0, lambda dy, x: (dy,)), X, lambda x: x)) == ["forward, negative zeros"]
    # A rectifier may return either zero.
    relu = Made(lambda x: np.where(x > 0, x, 0), lambda dy, x: (dy * (x > 0),))
    assert "forward, negative zeros" not in failed(forward_of(relu, [np.abs(X[0])], lambda x: np.maximum(x, 0)))


def test_ranks_that_specs_refuses_or_that_the_reference_does_not_take_are_left_out() -> None:
    def matrices(x: d5.TensorSpec) -> Specs:
        if len(x.shape) != 2:
            raise d5.ShapeError(f"got {x}; allowed: two dimensions")
        return (d5.TensorSpec(shape=x.shape[::-1], dtype=x.dtype),)

    turned = Made(lambda x: np.array(x.T), lambda dy, x: (dy.T,), matrices)
    report = forward_of(turned, X, lambda x: x.T)
    assert report
    assert not [row for row in report.rows if "rank 3" in row.check]
    report = forward_of(Made(square, square_back), X, lambda x: np.einsum("ij,ij->ij", x, x))
    assert report
    assert {row.check: row.verdict for row in report.rows}["forward, rank 3 (specs accepts it)"] == "not evaluated"


# -- the process ------------------------------------------------------------------------------------------------------


EFFECTS: dict[str, tuple[Callable[[], object], str]] = {
    "numpy seed": (lambda: np.random.seed(0), "numpy.random"),  # noqa: NPY002
    "seed": (lambda: random.seed(0), "random"),
    "errors": (lambda: np.seterr(all="raise"), "geterr"),
    "print options": (lambda: np.set_printoptions(precision=3), "printoptions"),
    "folder": (lambda: os.chdir("/"), "working directory"),
    "environment": (lambda: os.environ.update(DEEP5_TEST_EFFECT="1"), "os.environ"),
}


@pytest.mark.parametrize("name", EFFECTS)
@pytest.mark.parametrize("backward", [False, True])
def test_effects_on_the_process_are_found_and_undone(name: str, backward: bool) -> None:
    effect, what = EFFECTS[name]
    before = Path.cwd(), dict(os.environ), np.geterr(), np.get_printoptions(), random.getstate()

    def with_effect(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            effect()
            return call(*given)

        return run

    if backward:
        report = gradient_of(Made(square, with_effect(square_back)), X)
    else:
        report = forward_of(Made(with_effect(square), square_back), X, square)
    assert failed(report) == ["the process's state is not changed"]
    assert what in report.failures[0].note
    assert before == (Path.cwd(), dict(os.environ), np.geterr(), np.get_printoptions(), random.getstate())


def test_an_operator_whose_first_call_changes_the_environment_passes() -> None:
    """As an import of a library does."""
    done: list[int] = []

    def imports(x: Any) -> Any:
        if not done:
            os.environ["DEEP5_TEST_EFFECT"] = "1"
        done.append(1)
        return x * x

    assert forward_of(Made(imports, square_back), X, square)
