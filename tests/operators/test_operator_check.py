"""The checks of operators: correct ones pass, and each possible error is caught and reported."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from rich.console import Console

import deep5 as d5
from deep5.core import compiler as compiler_module
from deep5.core.errors import OperatorError, ShapeError, Unsupported, UsageError
from deep5.operators.check import check_forward, check_gradient
from deep5.operators.checks import survival
from deep5.operators.checks.conduct import same_bits
from deep5.operators.checks.heat_map import heat_map
from deep5.operators.checks.report import OperatorReport, Row
from operators_right import LOG, RIGHT, TANH, Gather, IPow, MatMul, Max, Polar, ReLU, Sum, Unary, constant, normal

pytestmark = pytest.mark.usefixtures("warm")

X = [constant(0, 3, 4)]


@pytest.fixture(autouse=True)
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures that no test requests are saved where pytest cleans up."""
    monkeypatch.setattr("deep5.operators.checks.collect.picture_folder", lambda: tmp_path / "unasked")


def rows(report: OperatorReport) -> dict[str, Row]:
    return {row.check: row for row in report.rows}


# -- correct operators ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes(name: str) -> None:
    operator, inputs, reference = RIGHT[name]
    before = [value.copy() for value in inputs]
    assert check_forward(operator, inputs, reference=reference)
    assert check_forward(operator, inputs)
    report = check_gradient(operator, inputs)
    assert same_bits(before, inputs)
    checked = [row for row in report.rows if row.check.startswith("gradient by input")]
    assert all(row.verdict == "passed" for row in checked)
    if all(value.size for value in inputs):
        assert len(checked) == sum(value.dtype.kind == "f" for value in inputs)
        assert all(row.allowed is not None and 0 < row.allowed < np.inf for row in checked)


@pytest.mark.parametrize("seed", range(5))
def test_other_directions_pass_too(seed: int) -> None:
    for name in ("matrix product", "large matrix product", "large layer norm", "convolution"):
        operator, inputs, _ = RIGHT[name]
        assert check_gradient(operator, inputs, dtypes=["float32"], seed=seed)


def test_tolerances_are_printed_with_how_they_came_about() -> None:
    text = str(check_forward(IPow(3), X, reference=lambda x: x**3) + check_gradient(IPow(3), X))
    assert re.search(r"8 eps \(\|y\| \+ sqrt\(n\) S\), eps = 1\.2e-07 \(float32\): forward, float32", text)
    assert "central differences in float64, the whole Jacobian: |R(h) - R(4h)|" in text
    assert "S = sum |dy/dx_j x_j|" in text
    assert re.search(r"IPow on NumPy: passed \(\d+ passed\)", text)


class Off(IPow):
    """x + power, with a constant error in float32; float64 has none."""

    def __init__(self, power: int, error: float = 0.0) -> None:
        super().__init__(power)
        self.error = error

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return x + x.dtype.type(self.power) + x.dtype.type(self.error if x.dtype == np.float32 else 0)


class Small(Off):
    """x / 1000: as small as x - 1 near 1, and well-conditioned."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return x * x.dtype.type(1e-3) + x.dtype.type(self.error if x.dtype == np.float32 else 0)


NEAR_ONE = [np.float32(1) + constant(1, 20) * np.float32(1e-3)]
EPS = float(np.finfo(np.float32).eps)


def test_a_tolerance_follows_the_condition() -> None:
    """x - 1 near 1 loses digits, which is not an error; the same difference in x / 1000 is one."""

    def allowed(operator: Off) -> float:
        row = rows(check_forward(operator, NEAR_ONE, dtypes=["float32"], strict=False))[
            "forward, float32, against float64"
        ]
        assert row.allowed is not None
        return row.allowed

    # 8 eps (|y| + sqrt(n) S), with S = n = 1 for x - 1 and x + 1. S is never estimated below the root of the sum of
    # squares, which equals S for a single input; above, a median of 8 Cauchy numbers is within a factor of 3, which
    # sqrt(n) squares. With |y| only it would be 300 times less for x - 1.
    assert 0.99 * 8 * EPS < allowed(Off(-1)) < 9.1 * 8 * EPS
    assert 2.99 * 8 * EPS < allowed(Off(1)) < 11.1 * 8 * EPS
    # Here |y| and S are both 1e-3, since x is within 1 % of 1.
    assert 1.9e-3 * 8 * EPS < allowed(Small(0)) < 11e-3 * 8 * EPS


def test_an_error_within_the_condition_passes_and_a_hundred_times_it_fails() -> None:
    within = 4 * EPS  # half of the allowed roundings; for x - 1 near 1 it is a few thousand ulps
    ill = "forward, float32, against float64"

    def row(operator: Off) -> Row:
        return rows(check_forward(operator, NEAR_ONE, dtypes=["float32"], strict=False, raises=False))[ill]

    passed = row(Off(-1, within))
    assert passed.verdict == "passed"
    assert passed.ulps is not None
    assert passed.ulps > 500  # otherwise it would not be ill-conditioned
    failed = row(Off(-1, 100 * within))
    assert failed.verdict == "FAILED"
    assert failed.error == pytest.approx(100 * within, rel=0.01)  # x - 1 itself is exact
    # Equally small outputs of well-conditioned arithmetic may not have it.
    assert row(Small(0)).verdict == "passed"
    assert row(Small(0, within)).verdict == "FAILED"


# -- values -----------------------------------------------------------------------------------------------------------


def changed(kind: type[d5.Operator], **methods: Any) -> type[Any]:
    return type("Wrong", (kind,), methods)


def one_wrong(self: Any, x: Any) -> Any:
    y = x**3
    if y.ndim == 2 and y.size:
        y[1, 2] *= 1.0001
    return y


def test_one_wrong_element_is_named_and_drawn(tmp_path: Path) -> None:
    with pytest.raises(
        OperatorError, match=r"forward, float32, against <lambda>: output 0: at \[1, 2\] got .* 1 of 12"
    ) as told:
        check_forward(changed(IPow, forward=one_wrong)(3), X, reference=lambda x: x**3, out=tmp_path, strict=False)
    assert "allowed: an error of" in str(told.value)
    assert "eps = 1.2e-07 (float32)" in str(told.value)
    picture = tmp_path / "wrong_forward_float32_against_lambda_output_0.png"
    assert str(picture) in str(told.value)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 5000


def test_wrong_in_float16_alone() -> None:
    def forward(self: Any, x: Any) -> Any:
        return x * x * (1.05 if x.dtype == np.float16 else 1)

    with pytest.raises(OperatorError, match=r"1 of \d+ checks failed\n  forward, float16, against float64"):
        check_forward(changed(IPow, forward=forward)(2), X, strict=False)


def test_float64_that_is_computed_in_float32() -> None:
    def forward(self: Any, x: Any) -> Any:
        return (x.astype(np.float32) ** 3).astype(x.dtype)

    wrong = changed(IPow, forward=forward)(3)
    with pytest.raises(OperatorError, match=r"forward, float64, against <lambda>: output 0: at \[\d, \d\] got"):
        check_forward(wrong, X, reference=lambda x: x**3, strict=False)
    with pytest.raises(OperatorError, match="gradient by input 0"):
        check_gradient(wrong, X, strict=False)


def test_wrong_where_memory_is_not_contiguous() -> None:
    def forward(self: Any, x: Any) -> Any:
        # Like code that reads contiguous memory from the first element on.
        return np.lib.stride_tricks.as_strided(x, x.shape, np.zeros(x.shape, x.dtype).strides) ** self.power

    with pytest.raises(OperatorError, match=r"5 of .* checks failed") as told:
        check_forward(changed(IPow, forward=forward)(2), X, strict=False)
    for layout in ("in Fortran order", "with strides of 2", "with negative strides", "with strides of 0"):
        assert f"forward, input {layout}: output 0: at" in str(told.value)


def test_a_gradient_that_is_wrong_where_its_memory_is_not_contiguous() -> None:
    def backward(self: Any, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        dy = output_grads[0].T.copy().T if output_grads[0].flags.c_contiguous else output_grads[0][::-1]
        return (self.power * inputs[0] ** (self.power - 1) * dy,)

    with pytest.raises(OperatorError, match=r"backward, memory in Fortran order: gradient by input 0: at"):
        check_gradient(changed(IPow, backward=backward)(3), X, strict=False)


@pytest.mark.parametrize(
    ("forward", "told"),
    [
        (
            lambda self, x: np.where(np.isnan(x), 0, np.maximum(x, 0)).astype(x.dtype),
            r"NaN in an input: NaN in input 0 at \[0, 0\] gives 0.0 in output 0 at \[0, 0\], expected nan",
        ),
        (
            lambda self, x: np.maximum(x, 0) + 0 * x.sum(dtype=x.dtype),
            r"NaN in input 0 at \[0, 0\] gives nan in output 0 at \[0, 1\], expected",
        ),
        (
            lambda self, x: np.clip(x, 0, 1e30 if x.dtype.itemsize > 2 else 1e4),
            "infinity in an input: infinity in input 0",
        ),
    ],
    ids=["swallowed", "spread", "infinity"],
)
def test_nan_and_infinity_stay_where_they_belong(forward: Any, told: str) -> None:
    with pytest.raises(OperatorError, match=told):
        check_forward(changed(ReLU, forward=forward)(), X, reference=lambda x: np.maximum(x, 0), strict=False)


def test_nan_that_spreads_is_seen_without_a_reference() -> None:
    def forward(self: Any, x: Any) -> Any:
        return np.maximum(x, 0) if np.isfinite(x).all() else np.full_like(x, np.nan)

    with pytest.raises(OperatorError, match=r"NaN in input 0 at \[0, 0\] changes 11 other elements of output 0"):
        check_forward(changed(ReLU, forward=forward)(), X, strict=False)
    swallowed = changed(ReLU, forward=lambda self, x: np.fmax(x, 0).astype(x.dtype))()
    report = check_forward(swallowed, X, strict=False)
    assert any("only a reference can decide whether that is intended" in row.note for row in report.rows)


def test_empty_inputs() -> None:
    def forward(self: Any, x: Any) -> Any:
        return x / x[0].sum() * x[0].sum()

    with pytest.raises(OperatorError, match=r"forward, dimension 3 cut to 0: Wrong.forward raised IndexError"):
        check_forward(changed(ReLU, forward=forward)(), X, strict=False)
    report = check_forward(Max(), X)
    assert rows(report)["forward, dimension 4 cut to 0"].verdict == "refused"
    assert rows(report)["forward, dimension 3 cut to 0"].verdict == "passed"


def test_a_wrong_value_of_nothing_and_of_no_axes() -> None:
    def total(self: Any, x: Any) -> Any:
        return x.sum(dtype=x.dtype) if x.size > 1 else x.sum(dtype=x.dtype) + x.dtype.type(1)

    with pytest.raises(OperatorError, match=r"forward, dimension 3 cut to 0: output 0: at \[\] got 1.0, expected 0.0"):
        check_forward(changed(Sum, forward=total)(), X, reference=lambda x: x.sum(), strict=False)
    with pytest.raises(OperatorError, match=r"forward, rank 0: output 0: at \[\]"):
        check_forward(changed(Sum, forward=total)(), X, reference=lambda x: x.sum(), strict=False)


def test_numpy_itself_is_a_reference() -> None:
    report = check_forward(IPow(3), X, against="reference")
    assert rows(report)["forward, float64, against NumPy"].error == 0


class Odd(IPow):
    """Consistent with itself in every element type, but different on NumPy than everywhere else."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return x + (1 if isinstance(x, np.ndarray) else 0)


@pytest.mark.parametrize("framework", ["pytorch", "jax", "onnxruntime"])
def test_another_framework_is_a_reference(framework: str) -> None:
    found = rows(check_forward(IPow(3), X, against=framework, strict=False))
    for dtype in ("float32", "float64", "float16"):
        row = found[f"forward, {dtype}, against {framework}"]
        assert (row.verdict, row.values) == ("passed", 12)
    # Consistent with itself, so that only the other framework can detect it.
    assert check_forward(Odd(3), X, strict=False)
    with pytest.raises(OperatorError, match=rf"forward, float64, against {framework}: output 0: at \[\d, \d\]") as told:
        check_forward(Odd(3), X, against=framework, strict=False)
    assert re.search(
        rf"forward, float32, against {framework}: .*got one of 1, .*12 of 12 elements are", str(told.value)
    )


def test_another_framework_is_a_reference_for_one_that_is_not_numpy() -> None:
    """On either of the two frameworks, the other one is the reference."""
    with pytest.raises(OperatorError, match=r"Odd on jax: .*\n  forward, float32, against NumPy: .*got one of 1, "):
        check_forward(Odd(3), X, framework="jax", against="reference", strict=False)
    assert check_forward(Odd(3), X, framework="jax", against="pytorch", strict=False)


def test_a_framework_that_computes_in_float32_is_a_reference_too() -> None:
    """Its own rounding does not count as the operator's error: not in float64, and not where sums cancel."""
    inputs = [normal(20, 60), normal(60, 30)]  # outputs from 0 to 30, each of 60 terms that cancel
    row = rows(check_forward(MatMul(), inputs, against="openvino", strict=False))["forward, float64, against openvino"]
    assert (row.verdict, row.values) == ("passed", 600)
    assert row.tolerance == "2 x 8 eps (|y| + sqrt(n) S), eps = 1.2e-07 (float32)"
    # sqrt(n) S is 8 times 60 terms of size about 1, times a small factor where it is estimated too high.
    assert row.allowed is not None
    assert 2 * 8 * EPS < row.allowed < 2 * 8 * EPS * 8 * 60 * 8

    def forward(self: Any, a: Any, b: Any) -> Any:
        return a @ b + (0.01 if isinstance(a, np.ndarray) else 0)  # wrong only on NumPy

    off = changed(MatMul, forward=forward)
    with pytest.raises(OperatorError, match=r"forward, float32, against openvino: output 0: at .*got one of 0\.01"):
        check_forward(off(), inputs, against="openvino", strict=False)
    with pytest.raises(Unsupported, match="OpenVINO computes DOUBLE in float32"):
        check_forward(MatMul(), [value.astype(np.float64) for value in inputs], against="openvino", strict=False)


def test_whole_numbers_have_to_be_equal() -> None:
    class Places(Max):
        def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
            return (d5.TensorSpec(shape=x.shape[:-1], dtype="int64"),)

        def forward(self, x: Any) -> Any:
            return x.argmax(-1)

    assert check_forward(Places(), X, reference=lambda x: x.argmax(-1), strict=False)
    with pytest.raises(OperatorError, match=r"at \[0\] got .*; allowed: the same; 3 of 3 elements are wrong"):
        check_forward(Places(), X, reference=lambda x: x.argmax(-1) + 1, strict=False)


def test_python_operators_keep_to_the_array_standard() -> None:
    def forward(self: Any, x: Any) -> Any:
        return np.power(np.asarray(x), 2)

    with pytest.raises(
        OperatorError, match=r"Wrong\.forward does not run on arrays of the array API standard: .*ndarray"
    ):
        check_forward(changed(IPow, forward=forward)(2), X)
    assert check_forward(changed(IPow, forward=forward)(2), X, strict=False)

    def backward(self: Any, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (2 * inputs[0].clip(None, None) * output_grads[0],)

    with pytest.raises(
        OperatorError, match=r"Wrong\.backward does not run on arrays of the array API standard: Attribute"
    ):
        check_gradient(changed(IPow, backward=backward)(2), X)


def holes(word: float) -> type[Any]:
    """x to the power, and NaN or infinity where x is large."""
    return changed(IPow, forward=lambda self, x: np.where(x > 0.5, x.dtype.type(word), x**self.power))


def test_numbers_that_give_none_are_told_and_fail_without_a_reference() -> None:
    assert (X[0] > 0.5).any()
    assert not (X[0] > 0.5).all()
    for word, name in ((np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")):
        found = rf"\d+ of 12 elements of output 0 are {name}, the first at \[\d, \d\]"
        told = f"give finite outputs: {found}, and all inputs are"
        with pytest.raises(OperatorError, match=told):
            check_forward(holes(word)(2), X, strict=False)
    with pytest.raises(OperatorError, match=r"forward, float32, against <lambda>: output 0: at \[\d, \d\] got nan"):
        check_forward(holes(np.nan)(2), X, reference=lambda x: x * x, strict=False)
    report = check_forward(LOG, X, reference=np.log)
    (row,) = (row for row in report.rows if row.check == "finite inputs give finite outputs")
    assert row.verdict == "passed"
    assert "elements of output 0 are NaN" in row.note
    assert "so they are in what it is compared with" in row.note
    # For inputs that contain NaN there is no such note.
    assert "finite inputs give finite outputs" not in rows(check_forward(IPow(2), [np.array([1.0, np.nan])]))


def test_swallowed_nan_is_told_of_every_input() -> None:
    class Larger(Polar):
        def specs(self, x: d5.TensorSpec, y: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
            return (x,)

        def forward(self, x: Any, y: Any) -> Any:
            return np.fmax(x, y)

    inputs = [normal(3, 4), normal(3, 4)]
    report = check_forward(Larger(), inputs, strict=False)
    found = [row for row in report.rows if row.check == "forward, NaN in an input"]
    assert [row.verdict for row in found] == ["not evaluated"]
    for number in (0, 1):
        assert re.search(rf"NaN in input {number} at \[0, 0\] gives -?\d", check_story(Larger(), inputs, number))


def check_story(operator: d5.Operator, inputs: list[np.ndarray], number: int) -> str:
    """The note when NaN is swallowed from one input only; from the other it propagates."""

    def forward(self: Any, *given: Any) -> Any:
        return np.where(np.isnan(given[1 - number]), np.nan, operator.forward(*given)).astype(given[0].dtype)

    report = check_forward(changed(type(operator), forward=forward)(), inputs, strict=False)
    return rows(report)["forward, NaN in an input"].note


def test_reports_are_put_together() -> None:
    first, second = check_forward(IPow(2), X), check_gradient(IPow(2), X)
    both = first + second
    assert both.rows == (*first.rows, *second.rows)
    assert both.values == first.values + second.values > first.values > 0
    assert (both.operator, both.framework) == ("IPow", "NumPy")


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        (
            lambda x: (x, x),
            r"the reference <lambda> gives 2 outputs; allowed: 1, as IPow does; remedy: return one array",
        ),
        (
            lambda x: x.sum(),
            r"the reference <lambda> gives output 0 of the shape \[\]; allowed: \[3, 4\], as IPow does",
        ),
        (lambda x: x.reshape(-1), r"gives output 0 of the shape \[12\]; allowed: \[3, 4\]"),
        (lambda x: None, r"the reference <lambda> of IPow gives output 0 in object; allowed: float64"),
        (lambda x: [[1.0], [2.0, 3.0]], r"gives 2 outputs; allowed: 1"),
        (
            lambda x, y: x,
            r"the reference <lambda> of IPow raised TypeError for the inputs float64\[3, 4\]: .* 'y'; allowed",
        ),
        (lambda x: sys.exit(3), r"the reference <lambda> of IPow raised SystemExit"),
    ],
)
def test_references_that_do_not_fit(reference: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check_forward(IPow(2), X, reference=reference)


def test_what_was_not_judged_is_not_called_passed() -> None:
    for report in (
        check_forward(IPow(2), [np.arange(6)]),
        check_forward(IPow(2), [np.zeros((0, 3), np.float32)]),
        check_forward(IPow(2), [np.ones(3)], dtypes=["float64"]) + check_gradient(IPow(2), [np.zeros((0, 3))]),
    ):
        assert report.values == 0
        assert "IPow on NumPy: no value was evaluated, since there was nothing to compare with" in str(report)
        assert ": passed" not in str(report)
    # The given ones, one of rank 0, those of other sizes, and 14 times six other integers.
    values = check_forward(IPow(2), [np.arange(6)], reference=lambda x: x * x).values
    assert values == 6 + 1 + (1 + 2 + 3 + 13 + 17 + 64 + 16_385) + 84


def test_the_table_has_eighty_columns_and_says_what_its_words_mean() -> None:
    inputs = [normal(2, 3, 6, 5), normal(4, 3, 3, 2)]
    operator = RIGHT["convolution"][0]
    report = check_forward(operator, inputs) + check_gradient(operator, inputs)
    text = io.StringIO()
    report.print(Console(file=text, width=80, color_system=None))
    table = text.getvalue().splitlines()[: len(report.rows) + 1]
    for line, row in zip(table[1:], report.rows, strict=True):
        assert line.startswith(row.check)
        assert line.rstrip().endswith(row.verdict)
        assert len(line) <= 80
    assert {row.verdict for row in report.rows} == {"passed", "refused", "not evaluated"}
    for word in (
        "refused: the operator, or the library that runs it, does not take",
        "not evaluated: there is nothing to",
        "ulps: the error in units",
    ):
        assert word in text.getvalue()


class Drawn(NamedTuple):
    differences: np.ndarray
    shows: str


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    """The data of the pictures."""
    found: list[Drawn] = []

    def watched(differences: np.ndarray, title: str, shows: str, folder: Path) -> Path:
        found.append(Drawn(differences, shows))
        return heat_map(differences, title, shows, folder)

    monkeypatch.setattr("deep5.operators.checks.collect.heat_map", watched)
    return found


def of_the_message(told: str, drawn: list[Drawn]) -> tuple[int, ...]:
    """The place of the largest difference; message, picture and its caption have to agree."""
    (picture,) = drawn
    at = np.unravel_index(int(picture.differences.argmax()), picture.differences.shape)
    size = f"{picture.differences[at]:.2g}"
    place = tuple(map(int, at))
    assert f"; the largest is {size} at {list(place)}" in picture.shows
    assert picture.shows in told
    assert re.search(rf"(got one of|is off by) {re.escape(size)}\b", told), (size, told)
    return place


def test_message_and_picture_show_the_same_difference(drawn: list[Drawn]) -> None:
    """One entry has the larger error, another the larger one by its tolerance: the former is reported and drawn."""
    x = [np.array([[1e-6, 1.0], [3.0, 1e5]])]

    def forward(self: Any, x: Any) -> Any:
        y = x**self.power
        if x.shape == (2, 2) and x.dtype == np.float64:
            y[0, 0] *= 1.5
            y[1, 1] *= 1 + 1e-6
        return y

    with pytest.raises(OperatorError) as told:
        check_forward(changed(IPow, forward=forward)(1), x, reference=lambda x: x, dtypes=["float64"], strict=False)
    # Relative to its tolerance the other is worse.
    assert re.search(r"output 0: at \[1, 1\] got 100000\.\d+, expected 100000\.0; .* got one of 0\.1,", str(told.value))
    difference = drawn[0].differences
    assert difference[1, 1] == pytest.approx(0.1, rel=1e-3)
    assert difference[0, 1] == 0
    assert "the largest is 0.1 at [1, 1]" in str(told.value)


@pytest.mark.parametrize("n", [4, 20, 70])
def test_a_wrong_entry_of_the_jacobian_is_told_and_drawn(n: int, drawn: list[Drawn]) -> None:
    """For input 1, at [1, 2], by output [3, 2]; smaller elsewhere."""

    def backward(self: Any, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (a, b), (dy,) = inputs, output_grads
        db = a.T @ dy
        if db.shape == (n, n):
            db[1, 2] += 0.01 * dy[3, 2]
            db[3, 0] += 1e-4 * dy[0, 0]
        return dy @ b.T, db

    inputs = [normal(n, n), normal(n, n)]
    with pytest.raises(OperatorError, match=r"1 of \d+ checks failed\n  gradient by input 1: output 0: ") as told:
        check_gradient(changed(MatMul, backward=backward)(), inputs, dtypes=["float64"], strict=False)
    place = of_the_message(str(told.value), drawn)
    assert place == ((1, 2) if n < 70 else (0, 0))
    right = float(inputs[0][3, 1])
    number = r"(-?\d[-.e\d]*)"
    found = re.search(
        rf"d output 0\[3, 2\] / d input 1\[1, 2\]: got {number} by backward, expected {number} by", str(told.value)
    )
    assert found
    assert [float(each) for each in found.groups()] == pytest.approx([right + 0.01, right], abs=1e-7)  # of differences
    assert re.search(r"by (block of )?elements? of input 1", str(told.value))
    assert "elementss" not in str(told.value)
    # 4900 elements are drawn in blocks.
    blocks = drawn[0].differences.size > 4096
    assert np.count_nonzero(drawn[0].differences) == 2 * (77 if blocks else 1)


def test_a_picture_that_cannot_be_drawn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(OperatorError, match=r"no picture: .*not installed; remedy: pip install 'deep5\[report\]'"):
        check_forward(changed(IPow, forward=one_wrong)(3), X, reference=lambda x: x**3, strict=False)


# -- side effects -----------------------------------------------------------------------------------------------------


class Keeps(IPow):
    """Returns the same memory on every call with the same shape."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        if getattr(self, "kept", None) is None or self.kept.shape != x.shape or self.kept.dtype != x.dtype:
            self.kept = np.empty_like(x)
        self.kept[...] = x**self.power
        return self.kept


class KeepsTensor(IPow):
    """The same on PyTorch, whose arrays share memory in other ways."""

    kept: Any = None

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        import torch

        if self.kept is None or self.kept.shape != x.shape or self.kept.dtype != x.dtype:
            self.kept = torch.empty_like(x)
        return self.kept.copy_(x**self.power)


def in_place(self: Any, x: Any) -> Any:
    x *= x
    return x.copy()


CALLS = iter(range(10**9))
CONDUCT: dict[str, tuple[type[Any], str, str | None]] = {
    "in place": (
        changed(IPow, forward=in_place),
        r"inputs are not changed: Wrong.forward changed input 0 in place",
        None,
    ),
    "in place, where it refuses to be seen": (
        changed(IPow, forward=lambda self, x: np.multiply(x, x, out=x) * 1),
        r"Wrong on NumPy: [12] of \d checks failed\n  inputs are not changed",
        None,
    ),
    "kept": (Keeps, r"returned outputs are not changed: Keeps.forward wrote to the outputs of an earlier call", None),
    "kept, on PyTorch": (
        KeepsTensor,
        r"KeepsTensor on pytorch: 1 of \d+ checks failed\n  returned outputs are not changed: "
        r"KeepsTensor.forward wrote to",
        "pytorch",
    ),
    "alias": (
        changed(IPow, forward=lambda self, x: x.reshape(x.shape)),
        r"outputs are new memory: Wrong.forward: output 0 shares memory with input 0",
        None,
    ),
    "random": (
        changed(IPow, forward=lambda self, x: x + x.dtype.type(1e-3 * (next(CALLS) % 7))),
        r"forward is repeatable: Wrong.forward gave different bits",
        None,
    ),
}


@pytest.mark.parametrize("name", CONDUCT)
def test_what_forward_must_not_do(name: str) -> None:
    kind, told, framework = CONDUCT[name]
    with pytest.raises(OperatorError, match=told):
        check_forward(kind(2), X, framework=framework, strict=False)


def backward_of(body: Any) -> type[Any]:
    return changed(IPow, backward=body)


def _writes(which: int) -> Any:
    def backward(self: Any, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        found = self.power * inputs[0] ** (self.power - 1) * output_grads[0]
        (inputs, output_grads, outputs)[which][0][...] += 1
        return (found,)

    return backward


def _keeps(self: Any, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
    kept = vars(self).setdefault("kept", {})
    (x,), (dy,) = inputs, output_grads
    found = kept.setdefault((x.shape, x.dtype), np.empty_like(x))
    found[...] = self.power * x ** (self.power - 1) * dy
    return (found,)


def _random(self: Any, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
    return (self.power * inputs[0] ** (self.power - 1) * output_grads[0] + inputs[0].dtype.type(next(CALLS) % 7),)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (_writes(0), r"Wrong\.backward changed input 0 in place"),
        (_writes(1), r"Wrong\.backward changed gradient by output 0 in place"),
        (_writes(2), r"Wrong\.backward changed output 0 in place"),
        (_keeps, r"returned gradients are not changed: Wrong\.backward wrote to the gradients of an earlier call"),
        (_random, r"backward is repeatable: Wrong\.backward gave different bits"),
    ],
)
def test_what_backward_must_not_do(body: Any, told: str) -> None:
    with pytest.raises(OperatorError, match=told):
        check_gradient(backward_of(body)(3), X, strict=False)


@pytest.mark.parametrize(
    ("forward", "told"),
    [
        (lambda self, x: (x, x), r"returned 2 outputs; allowed: 1"),
        (lambda self, x: x[0], r"output 0: got shape \(4,\), expected"),
        (lambda self, x: x.astype(float), "output 0: got dtype float64, expected float32"),
        (lambda self, x: 1 / 0, r"Wrong\.forward raised ZeroDivisionError for the inputs float32\[3, 4\]"),
    ],
)
def test_outputs_that_are_not_as_specs_says(forward: Any, told: str) -> None:
    with pytest.raises(OperatorError, match=told):
        check_forward(changed(IPow, forward=forward)(2), X)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda g: (), "returned 0 gradients; allowed: one per input, 1"),
        (lambda g: (g, g), "returned 2 gradients; allowed: one per input, 1"),
        (lambda g: g, "returned ndarray; allowed: a tuple of gradients"),
        (lambda g: (None,), "returned None as the gradient by input 0"),
        (lambda g: (g[0],), r"gradient by input 0: got float32\[4\], expected float32\[3, 4\]"),
        (lambda g: (g.astype(float),), r"gradient by input 0: got float64"),
    ],
)
def test_gradients_of_the_wrong_count_or_shape(returned: Any, told: str) -> None:
    def backward(self: Any, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return returned(output_grads[0])

    with pytest.raises(OperatorError, match=told):
        check_gradient(backward_of(backward)(2), X)


def test_needs_are_honoured() -> None:
    def backward(self: Any, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        a, b = inputs
        return output_grads[0] @ b.T if needs[1] else 0 * a, a.T @ output_grads[0]

    with pytest.raises(OperatorError, match=r"needs, input 0 only: Wrong.backward gives another gradient by input 0"):
        check_gradient(changed(MatMul, backward=backward)(), [normal(3, 4), normal(4, 2)], strict=False)


# -- gradients --------------------------------------------------------------------------------------------------------


def scaled(kind: type[d5.Operator], factor: float, which: int = 0) -> type[Any]:
    """Its gradient by one input times a factor."""

    def backward(self: Any, *given: Any) -> Any:
        found = list(kind.backward(self, *given))
        found[which] = found[which] * factor if found[which] is not None else None
        return tuple(found)

    return changed(kind, backward=backward)


@pytest.mark.parametrize("shape", [(3, 4), (32, 32), (90, 60)])
@pytest.mark.parametrize("factor", [1 + 1e-6, 1 - 1e-6])
def test_a_gradient_that_is_off_by_a_millionth(shape: tuple[int, ...], factor: float) -> None:
    with pytest.raises(
        OperatorError, match=r"gradient by input 0: output 0: .*got .* by backward, expected .* by differences"
    ):
        check_gradient(scaled(IPow, factor)(3), [normal(*shape)], dtypes=["float32"], strict=False)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("kind", "which"), [(MatMul, 0), (MatMul, 1), (Polar, 0), (Polar, 1), (Sum, 0), (Gather, 0)])
def test_every_input_is_judged(kind: type[d5.Operator], which: int, large: bool) -> None:
    n = 20 if large else 4
    inputs: list[np.ndarray] = [normal(n, n), normal(n, n)]
    if kind is Gather:
        inputs[1] = np.arange(n - 1)
    with pytest.raises(OperatorError, match=rf"1 of \d+ checks failed\n  gradient by input {which}: "):
        check_gradient(
            scaled(kind, 1 + 1e-6, which)(), inputs[: 1 if kind is Sum else 2], dtypes=["float32"], strict=False
        )


def test_a_millionth_in_a_large_product_of_many_terms() -> None:
    operator, inputs, _ = RIGHT["large matrix product"]
    assert isinstance(operator, MatMul)
    with pytest.raises(OperatorError, match="gradient by input 0: output 0: along a random direction"):
        check_gradient(scaled(MatMul, 1 + 1e-6)(), inputs, dtypes=["float32"], strict=False)


@pytest.mark.parametrize("which", [0, 1])
def test_every_output_is_judged(which: int) -> None:
    def backward(self: Any, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        given = list(output_grads)
        given[which] = given[which] * (1 + 1e-6)
        return Polar.backward(self, given, inputs, outputs, needs)

    for shape in ((3, 2), (20, 20)):
        with pytest.raises(OperatorError, match=rf"gradient by input 0: output {which}: ") as told:
            check_gradient(
                changed(Polar, backward=backward)(), [normal(*shape), normal(*shape)], dtypes=["float32"], strict=False
            )
        assert f"output {1 - which}: " not in str(told.value)


@pytest.mark.parametrize("shape", [(5, 6), (40, 30)])
def test_one_wrong_element_of_a_gradient_is_found(shape: tuple[int, int], tmp_path: Path) -> None:
    def backward(self: Any, *given: Any) -> Any:
        (found,) = IPow.backward(self, *given)
        if found.shape == shape:
            found[3, 2] *= 1.001
        return (found,)

    with pytest.raises(OperatorError, match=r"d output 0\[3, 2\] / d input 0\[3, 2\]: got") as told:
        check_gradient(backward_of(backward)(2), [normal(*shape)], dtypes=["float64"], strict=False, out=tmp_path)
    (picture,) = tmp_path.glob("*.png")
    assert str(picture) in str(told.value)


def test_a_gradient_that_is_wrong_in_float16_alone() -> None:
    def backward(self: Any, *given: Any) -> Any:
        (found,) = IPow.backward(self, *given)
        return (found * (1.05 if found.dtype == np.float16 else 1),)

    with pytest.raises(OperatorError, match=r"1 of \d+ checks failed\n  backward, float16, against float64: gradient"):
        check_gradient(backward_of(backward)(2), X, strict=False)


def test_kinks_are_told_and_not_passed_in_silence() -> None:
    at_zero = [np.array([[0.0, 1.0, -1.0], [0.0, -0.5, 2.0]])]
    report = check_gradient(ReLU(), at_zero)
    assert "2 of 36 entries lie at a kink" in rows(report)["gradient by input 0"].note
    half = Unary("abs", lambda x, y: np.sign(x) + 3 * (x == 0))
    with pytest.raises(
        OperatorError, match=r"d output 0\[0, 0\] / d input 0\[0, 0\]: got 3 by backward, expected -1 to 1, the slopes"
    ):
        check_gradient(half, at_zero, strict=False)
    many = [np.round(normal(30, 30))]
    report = check_gradient(ReLU(), many)
    assert re.search(
        r"\d+ of 900 elements of the outputs, as at kinks, do not settle and were left out",
        rows(report)["gradient by input 0"].note,
    )


def test_a_sum_over_kinks_is_judged_beside_them() -> None:
    class Total(Sum):
        def forward(self, x: Any) -> Any:  # type: ignore[override]
            xp = d5.array_namespace(x)
            return xp.sum(xp.abs(x), dtype=x.dtype)

        def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
            return (d5.array_namespace(*inputs).sign(inputs[0]) * output_grads[0],)

    many = [np.round(normal(30, 30))]
    report = check_gradient(Total(), many)
    assert "at a point beside the inputs" in rows(report)["gradient by input 0"].note
    with pytest.raises(OperatorError, match="gradient by input 0: output 0: along a random direction"):
        check_gradient(scaled(Total, 1 + 1e-6)(), many, strict=False)


SQRT = Unary("sqrt", lambda x, y: 1 / (2 * y))


@pytest.mark.parametrize("shape", [(3, 5), (40, 30)])
@pytest.mark.parametrize("operator", [LOG, SQRT])
def test_where_outputs_are_no_numbers_the_others_are_judged(operator: Unary, shape: tuple[int, ...]) -> None:
    x = np.abs(normal(*shape)) + 0.5
    x[1, 2] = x[2, 3] = -1
    report = check_gradient(operator, [x])
    note = rows(report)["gradient by input 0"].note
    assert f"2 of {x.size} elements of the outputs are NaN or infinite: derivatives of these" in note
    assert ("and by 2 elements of the input were left out" in note) == (operator is SQRT)
    wrong = Unary(operator.title, lambda x, y: operator.derivative(x, y) * (1 + 1e-6))
    with pytest.raises(OperatorError, match=r"gradient by input 0: output 0: .*got .* by backward, expected"):
        check_gradient(wrong, [x], dtypes=["float32"], strict=False)
    with pytest.raises(
        OperatorError, match=r"all elements of the outputs are NaN or infinite, so that no gradient can"
    ):
        check_gradient(operator, [-x[:1, :2]], strict=False)


def test_a_gradient_that_is_no_number_beside_good_outputs_fails() -> None:
    x = [np.array([[0.0, 1.0, -1.0], [0.5, -0.5, 2.0]])]
    kink = Unary("abs", lambda x, y: x / y)
    with pytest.raises(
        OperatorError, match=r"d output 0\[0, 0\] / d input 0\[0, 0\]: got nan by backward, expected -1 to"
    ):
        check_gradient(kink, x, strict=False)
    spread = Unary("log", lambda x, y: 1 / x + 0 * np.sum(y))
    with pytest.raises(
        OperatorError, match=r"all elements of the gradient by input 0, and some of the outputs, are NaN"
    ):
        check_gradient(spread, [np.array([1.0, 2.0, -1.0])], strict=False)


def test_a_backward_that_is_not_there_is_no_gradient_but_one_that_lacks_something_fails() -> None:
    def absent(self: Any, *given: Any) -> Any:
        raise NotImplementedError("no backward yet")

    with pytest.raises(Unsupported, match=r"Wrong\.backward is not implemented: no backward yet"):
        check_gradient(changed(IPow, backward=absent)(2), X)

    def lacking(self: Any, *given: Any) -> Any:
        return absent(self)

    for methods in ({"backward": lacking}, {"forward": absent}):
        with pytest.raises(
            OperatorError, match=r"Wrong\.(back|for)ward raised NotImplementedError .*: no backward yet"
        ):
            check_gradient(changed(IPow, **methods)(2), X)


def test_an_operator_that_exits() -> None:
    def leave(self: Any, *given: Any) -> Any:
        sys.exit(3)

    with pytest.raises(
        OperatorError, match=r"Wrong\.forward called sys\.exit, with the status 3; allowed: an operator"
    ):
        check_forward(changed(IPow, forward=leave)(2), X)
    with pytest.raises(OperatorError, match=r"Wrong\.backward called sys\.exit, with the status 3"):
        check_gradient(changed(IPow, backward=leave)(2), X)


def test_a_framework_without_float64_is_held_to_numpy() -> None:
    report = check_forward(IPow(3), X, framework="openvino")
    assert rows(report)["forward, float32, against float64 on NumPy"].values
    report = check_gradient(IPow(3), X, framework="openvino")
    assert "gradients are checked on NumPy" in rows(report)["gradient in float64 on openvino"].note
    assert {"gradient by input 0", "backward, float32, against float64"} <= set(rows(report))
    with pytest.raises(OperatorError, match="gradient by input 0: output 0: d output 0"):
        check_gradient(scaled(IPow, 1 + 1e-6)(3), X, framework="openvino")


def test_a_module_in_float32_is_told_how_to_be_in_float64() -> None:
    import torch

    layer = torch.nn.Linear(4, 2)
    with pytest.raises(
        Unsupported, match=r"Linear does not compute in float64 on pytorch .*remedy: .*module\.double\(\)"
    ):
        check_gradient(d5.NativeOperator(layer, framework="pytorch"), X)
    report = check_forward(d5.NativeOperator(layer, framework="pytorch"), X)
    assert "module.double()" in rows(report)["forward"].note
    report = check_gradient(d5.NativeOperator(layer.double(), framework="pytorch"), [X[0].astype(np.float64)])
    assert rows(report)["gradient by input 0"].verdict == "passed"


def test_where_nothing_can_be_judged_nothing_passes() -> None:
    rough = changed(
        IPow, forward=lambda self, x: x + x.dtype.type(1e-3) * np.sin(1e9 * x.astype(float)).astype(x.dtype)
    )
    for shape in ((3, 4), (20, 20)):
        with pytest.raises(OperatorError, match="the differences do not settle, so that no gradient can be evaluated"):
            check_gradient(rough(1), [normal(*shape)], dtypes=["float32"], strict=False)


def test_inputs_without_gradients() -> None:
    class Whole(IPow):
        def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
            raise AssertionError("nobody needs a gradient")

    report = check_gradient(Whole(2), [np.arange(6)])
    assert [row.verdict for row in report.rows] == ["not evaluated"]
    assert check_forward(Whole(2), [np.arange(6).reshape(2, 3)], reference=lambda x: x * x)


# -- C++ --------------------------------------------------------------------------------------------------------------


def compiled(forward: str, backward: str = "", more: str = "") -> type[d5.CppOperator]:
    """A class that cannot be imported, like one defined in a notebook."""
    text = f"""#include <cmath>
#include <cstdio>
#include <cstdlib>
    template <typename T> struct Made : deep5::Operator {{
      {more}
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {{ {forward} }}
      {
        f'''void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<T> dx) {{ {backward} }}'''
        if backward
        else ""
    }
    }};
"""
    return type("Made", (d5.CppOperator,), {"source": text, "specs": lambda self, x: (x,)})


EACH = "for (int64_t i = 0; i < x.size(); ++i) "
CUBE = (EACH + "y[i] = x[i] * x[i] * x[i];", EACH + "dx[i] = T(3) * x[i] * x[i] * dy[i];")


def test_a_right_operator_in_cpp() -> None:
    operator = compiled(*CUBE)()
    report = check_forward(operator, X, reference=lambda x: x**3) + check_gradient(operator, X)
    assert {"forward, bfloat16, against <lambda>", "backward, float16, against float64"} <= set(rows(report))
    assert all(row.verdict == "passed" for row in report.rows)


def test_wrong_operators_in_cpp() -> None:
    operator = compiled(CUBE[0], EACH + "dx[i] = T(3 + 3e-6) * x[i] * x[i] * dy[i];")()
    with pytest.raises(OperatorError, match=r"Made on NumPy: 1 of .*\n  gradient by input 0: output 0: d output"):
        check_gradient(operator, X, dtypes=["float32"])
    with pytest.raises(OperatorError, match="forward is repeatable"):
        check_forward(
            compiled(EACH + "y[i] = x[i] + T(calls); ++calls;", more="int calls = 0;")(), X, dtypes=["float32"]
        )


DEATHS = {
    "segmentation fault": (
        "*(volatile int *)(8) = 1;",
        r"Made was killed by SIGSEGV \(segmentation fault\) in forward on float32 inputs",
    ),
    "abort": (
        'std::fprintf(stderr, "no way on\\n"); std::abort();',
        r"Made was killed by SIGABRT \(aborted\) .*its last output: no way on",
    ),
    "exit": ("std::_Exit(3);", r"Made ended its process with the status 3 in forward on float32 inputs"),
    "empty alone": (
        "if (x.size() == 0) std::abort(); " + CUBE[0],
        r"SIGABRT .* in forward on inputs with the dimension 3 cut to 0",
    ),
    "throw in OpenMP": (
        "\n#pragma omp parallel for\nfor (int64_t i = 0; i < x.size(); ++i) { if (i > 2) throw 1; y[i] = x[i]; }",
        r"Made was killed by SIGABRT .*remedy: .*an exception in a parallel region",
    ),
}


@pytest.mark.parametrize("name", DEATHS)
def test_a_crash_is_a_clear_error(name: str) -> None:
    forward, told = DEATHS[name]
    with pytest.raises(OperatorError, match=told):
        check_forward(compiled(forward)(), X, dtypes=["float32"])


def test_a_crash_in_backward_alone() -> None:
    operator = compiled(CUBE[0], "std::abort();")()
    with pytest.raises(OperatorError, match=r"Made was killed by SIGABRT \(aborted\) in backward on float32 inputs"):
        check_gradient(operator, X, dtypes=["float32"])


OUTSIDE = {
    "past the end": ("for (int64_t i = 0; i <= x.size(); ++i) y[i] = x[i];", r"element \[12\] of a tensor .* \[3, 4\]"),
    "before the beginning": (CUBE[0] + "y[-1] = 0;", r"element \[-1\] of"),
    "of another rank": ("y(0) = x[0];", r"element \(0\) of a tensor of the shape \[3, 4\]"),
    "beyond an axis": ("y(0, 4) = x[0];", r"element \(0, 4\) of"),
    "axis": ("y[0] = x.shape(2);", r"axis 2 of a tensor of the shape \[3, 4\]"),
    "in OpenMP": (
        "\n#pragma omp parallel for\nfor (int64_t i = 0; i < 13; ++i) y[i] = x[i];\n",
        r"element \[12\] of",
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_outside_of_a_tensor_is_told(name: str) -> None:
    """Few of them crash: most read another number, or overwrite one."""
    forward, told = OUTSIDE[name]
    values = [np.arange(12.0, dtype="f4").reshape(3, 4)]
    with pytest.raises(OperatorError, match=rf"Made uses {told}.* in forward on float32 inputs; allowed: what is"):
        check_forward(compiled(forward)(), values, dtypes=["float32"])


def test_a_loop_without_an_end() -> None:
    operator = compiled("for (volatile int i = 0; ; i = i) {} y[0] = x[0];")()
    with pytest.raises(
        OperatorError,
        match=r"Made did not finish within 1 s in forward on float32 .*allow more by --time-limit, or time_limit_s=",
    ):
        check_forward(operator, X, dtypes=["float32"], time_limit_s=1.0)


def test_an_exception_and_a_source_that_does_not_compile() -> None:
    with pytest.raises(OperatorError, match="Made failed: too cold"):
        check_forward(compiled('throw std::runtime_error("too cold");')(), X, dtypes=["float32"])
    with pytest.raises(OperatorError, match=r"refused the operator Made for float32:\n[\s\S]*error.*nonsense"):
        check_forward(compiled("nonsense();")(), X, dtypes=["float32"])


@pytest.mark.slow
def test_a_type_that_does_not_compile_is_refused_but_may_be_asked_for() -> None:
    only = 'static_assert(sizeof(T) > 2, "no half precision here"); ' + CUBE[0]
    report = check_forward(compiled(only)(), X)
    assert rows(report)["forward, float16, against float64"].verdict == "refused"
    with pytest.raises(OperatorError, match="no half precision here"):
        check_forward(compiled(only)(), X, dtypes=["float16"])


def test_a_source_in_a_file_finds_its_neighbours_in_the_child(tmp_path: Path) -> None:
    (tmp_path / "end.h").write_text("#include <cstdlib>\n#define END std::abort()\n")
    source = tmp_path / "made.cpp"
    source.write_text(
        '#include "end.h"\ntemplate <typename T> struct Made : deep5::Operator {\n'
        "  void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { END; y[0] = x[0]; }\n};\n"
    )
    operator = type("Made", (d5.CppOperator,), {"source": str(source), "specs": lambda self, x: (x,)})()
    with pytest.raises(OperatorError, match="Made was killed by SIGABRT"):
        check_forward(operator, X, dtypes=["float32"])


@pytest.mark.slow
def test_what_survived_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = compiled(CUBE[0])()
    check_forward(operator, X, dtypes=["float32"])
    ran: list[str] = []
    monkeypatch.setattr(survival, "_run", lambda name, data, limit: ran.append(name))
    check_forward(operator, X, dtypes=["float32"])
    assert ran == []
    check_forward(operator, [X[0][:2]], dtypes=["float32"])
    assert ran == ["Made"]


# -- arguments --------------------------------------------------------------------------------------------------------


def test_arguments_that_cannot_be_used() -> None:
    with pytest.raises(UsageError, match=r"remedy: IPow\(…\), with parentheses"):
        check_forward(IPow, X)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"got ndarray as inputs; allowed: a list of arrays"):
        check_forward(IPow(2), X[0])  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="got 2 inputs; allowed: 1"):
        check_forward(IPow(2), X * 2)
    with pytest.raises(UsageError, match="got the element type 'int8'; allowed: float32"):
        check_forward(IPow(2), X, dtypes=["int8"])
    with pytest.raises(UsageError, match="reference and against are both given"):
        check_forward(IPow(2), X, reference=abs, against="reference")
    with pytest.raises(UsageError, match=r"the reference <lambda> of IPow gives output 0 in float32; allowed: float64"):
        check_forward(IPow(2), X, reference=lambda x: x.astype(np.float32) ** 2)
    with pytest.raises(UsageError, match="the reference <lambda> of IPow raised ZeroDivisionError"):
        check_forward(IPow(2), X, reference=lambda x: 1 / 0)
    with pytest.raises(ShapeError, match="got input 0 of complex128; allowed: real numbers"):
        check_forward(IPow(2), [np.ones(2, complex)])


# -- speed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["Python", "C++"])
def test_a_second_gradient_check_compiles_and_starts_nothing(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = IPow(3) if language == "Python" else compiled(*CUBE)()
    inputs = [normal(32, 32)]
    check_gradient(operator, inputs)  # compiles, and starts the child
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **named: pytest.fail("a process was started"))
    monkeypatch.setattr(compiler_module, "_compile", lambda *given: pytest.fail("a source was compiled again"))
    assert check_gradient(operator, inputs).rows


def test_a_saturated_function_is_not_judged_by_its_own_zeros() -> None:
    """Backward reads y, which was rounded: 1 - y^2 has no correct digit where y is 1, and that is not an error."""
    row = rows(check_gradient(TANH, [normal(20, 20) * 4]))["backward, float32, against float64"]
    assert row.verdict == "passed"
    wrong = Unary("tanh", lambda x, y: 1 - y * y * (1 + 1e-4 if x.dtype == np.float32 else 1))
    with pytest.raises(OperatorError, match="backward, float32, against float64: gradient by input 0"):
        check_gradient(wrong, [normal(20, 20)], strict=False)


def test_a_gradient_that_is_written_though_nobody_wants_it_ends_the_child_alone() -> None:
    class Product(d5.CppOperator):
        source = """
        template <typename T> struct Product : deep5::Operator {
          void forward(deep5::Tensor<const T> a, deep5::Tensor<const T> b, deep5::Tensor<T> y) {
            for (int64_t i = 0; i < y.size(); ++i) y[i] = a[i] * b[i];
          }
          void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> a, deep5::Tensor<const T> b,
                        deep5::Tensor<const T> y, deep5::Tensor<T> da, deep5::Tensor<T> db) {
            for (int64_t i = 0; i < y.size(); ++i) da[i] = dy[i] * b[i], db[i] = dy[i] * a[i];
          }
        };"""

        def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
            return inputs[:1]

    values = [normal(4, 5), normal(4, 5)]
    with pytest.raises(
        OperatorError,
        match=r"Product uses the gradient by an input that needs none, .*with a gradient by input 0 only",
    ):
        check_gradient(Product(), values)
