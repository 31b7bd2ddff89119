"""Which side the operator checks report as the cause of an error, and messages on unusable arguments and inputs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from command import Command
from deep5.core.errors import OperatorError, ShapeError, UsageError
from deep5.operators.check import check_forward, check_gradient
from deep5.operators.checks.heat_map import heat_map
from deep5.operators.checks.inputs import without_elements

pytestmark = pytest.mark.usefixtures("warm")

X = np.random.default_rng(0).standard_normal((3, 4))


@pytest.fixture(autouse=True)
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures that no test requests are saved where pytest cleans up."""
    monkeypatch.setattr("deep5.operators.checks.collect.picture_folder", lambda: tmp_path / "unasked")


class Square(d5.Operator):
    def specs(self, x: Any) -> Any:
        return (x,)

    def forward(self, x: Any) -> Any:
        return x * x

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (2 * inputs[0] * output_grads[0],)


class Doubles(Square):
    def forward(self, x: Any) -> Any:
        x *= 2
        return x * 1


class Wipes(Square):
    def forward(self, x: Any) -> Any:
        y = x * x
        x[...] = 7
        return y


class Counts(Square):
    def __init__(self) -> None:
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x + self.calls


class Both(Wipes):
    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        output_grads[0][...] = 1
        return (2 * inputs[0],)


def _cpp(forward: str, **body: Any) -> d5.CppOperator:
    source = """
    template <typename T> class Made : public deep5::Operator {
     public:
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { FORWARD }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<T> dx) {
        for (int64_t i = 0; i < x.size(); ++i) dx[i] = dy[i];
      }
    };
    """.replace("FORWARD", forward)
    specs = {"specs": lambda self, x: (x,)}
    made: d5.CppOperator = type("Made", (d5.CppOperator,), {"source": source, **specs, **body})()
    return made


def _failed(report: Any) -> dict[str, str]:
    return {row.check: row.note for row in report.failures}


@pytest.mark.parametrize("operator", [Doubles(), Wipes()], ids=["what it gives changes too", "what it gives is right"])
def test_a_forward_that_changes_its_inputs_is_not_told_as_backward(operator: d5.Operator) -> None:
    told = _failed(check_gradient(operator, [X], raises=False))
    assert list(told) == ["forward, before backward"]
    assert "forward changed input 0 in place" in told["forward, before backward"]
    assert "backward changed" not in str(told)


def test_a_forward_that_is_not_repeatable_is_not_told_as_backward() -> None:
    told = _failed(check_gradient(Counts(), [X], raises=False))
    assert list(told) == ["forward, before backward"]
    assert "Counts.forward gave different bits for the same inputs" in told["forward, before backward"]


def test_a_backward_is_told_beside_a_forward_that_is_wrong_too() -> None:
    told = _failed(check_gradient(Both(), [X], raises=False))
    assert "forward changed input 0" in told["forward, before backward"]
    assert "Both.backward changed gradient by output 0 in place" in told["arguments of backward are not changed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forward", "says"),
    [
        (
            "T* q = const_cast<T*>(&x[0]); for (int64_t i = 0; i < x.size(); ++i) { y[i] = x[i]; q[i] = T(3); }",
            "Made.forward changed input 0 in place",
        ),
        (
            "static int n = 0; ++n; for (int64_t i = 0; i < x.size(); ++i) y[i] = x[i] + T(n);",
            "Made.forward gave different bits .*; in C.., threads that write to the same place",
        ),
    ],
    ids=["changes its input", "counts its calls"],
)
def test_in_cpp_too_what_forward_does_is_told_as_forwards(forward: str, says: str) -> None:
    told = _failed(check_gradient(_cpp("if (x.size() == 0) return; " + forward), [X], raises=False))
    assert list(told) == ["forward, before backward"]
    assert re.search(says, told["forward, before backward"])


def test_on_a_framework_what_forward_does_is_told_as_forwards() -> None:
    class Random(Square):
        def forward(self, x: Any) -> Any:
            return x + float(np.random.default_rng().standard_normal())

    told = _failed(check_gradient(Random(), [X], framework="pytorch", raises=False))
    assert list(told) == ["forward, before backward"]
    assert "Random.forward gave different bits" in told["forward, before backward"]


def test_nothing_is_cut_away_that_whole_numbers_point_to() -> None:
    rows, places = np.zeros((4, 3)), np.array([0, 2, 1, 1, 0])
    assert [extent for extent, _, _ in without_elements([rows, places])] == [5]
    assert [extent for extent, _, _ in without_elements([rows, places.astype(float)])] == [4, 3, 5]


@pytest.mark.slow
def test_an_operator_that_trusts_its_indices_gets_a_table(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        """
import deep5 as d5

class Rows(d5.CppOperator):
    source = \"\"\"
    template <typename T> class Rows : public deep5::Operator {
     public:
      void forward(deep5::Tensor<const T> x, deep5::Tensor<const int64_t> at, deep5::Tensor<T> y) {
        for (int64_t i = 0; i < at.size(); ++i)
          for (int64_t j = 0; j < x.shape(1); ++j) y(i, j) = x(at[i], j);
      }
    };
    \"\"\"

    def specs(self, x, at):
        if len(x.shape) != 2 or len(at.shape) != 1:
            raise d5.ShapeError("rank")
        return (d5.TensorSpec(shape=(at.shape[0], x.shape[1]), dtype=x.dtype),)

class Beyond(Rows):
    source, template = Rows.source.replace("x(at[i], j)", "x(at[i] + 4, j)"), "Rows"
"""
    )
    given = ("--shape", "4x3", "--shape", "5", "--dtype", "float32", "--dtype", "int64")
    answer = deep5("check", "operator", "own.py:Rows", *given, "--all")
    assert (answer.status, answer.err) == (0, "")
    assert "forward, dimension 5 cut to 0" in answer.out
    answer = deep5("check", "operator", "own.py:Beyond", *given)
    assert answer.status == 3
    assert "throw where an integer that is an index is out of range" in answer.err


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), 0, -1.0, "3", True, None])
@pytest.mark.parametrize("check", [check_forward, check_gradient])
def test_a_time_limit_that_is_none_is_refused(check: Any, limit: Any) -> None:
    with pytest.raises(UsageError, match=r"got time_limit_s .*; allowed: more than 0 s"):
        check(Square(), [X], time_limit_s=limit)


def test_an_array_in_the_other_order_of_bytes_is_taken() -> None:
    other = X.astype(X.dtype.newbyteorder())
    assert check_forward(Square(), [other], reference=np.square)
    assert not other.dtype.isnative


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long double is float64 on this machine")
def test_long_doubles_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"got input 0 of float\d+; allowed: float32, .*float64.*; remedy: .astype"):
        check_forward(Square(), [X.astype(np.longdouble)])


def test_a_source_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Made: got source = 3; allowed: C\+\+ as a string"):
        check_forward(_cpp("", source=3), [X])


@pytest.mark.parametrize(
    ("reference", "says"),
    [("jax", "got reference='jax'; allowed: a function of NumPy arrays; remedy: against='jax'"), (3, "reference=3")],
)
def test_a_reference_that_is_no_function_is_refused(reference: Any, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as caught:
        check_forward(Square(), [X], reference=reference)
    assert str(caught.value).count("the reference") == 0


@pytest.mark.parametrize("given", [{"framework": ""}, {"against": ""}, {"framework": 3}])
def test_a_framework_without_a_name_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"got (''|3) as a framework; allowed: a name, such as 'pytorch'"):
        check_forward(Square(), [X], **given)


def test_a_native_function_that_gives_no_arrays_is_told() -> None:
    operator = d5.NativeOperator(lambda x: [x, {"a": x}], framework="pytorch")
    with pytest.raises(OperatorError, match=r"forward returned \{'a'.* as output 1; allowed: an array"):
        check_forward(operator, [X])


def _wrong(gradient: Any) -> d5.Operator:
    class Wrong(Square):
        def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
            return gradient(inputs[0])

    return Wrong()


@pytest.mark.parametrize(
    ("gradient", "says"),
    [
        (lambda x: (x.sum(),), "gradient by input 0: got"),
        (lambda x: (x, None), "returned 2 gradients"),
        (lambda x: None, "returned NoneType"),
        (lambda x: x.no_such_thing, "backward raised AttributeError"),
    ],
    ids=["shape", "count", "none", "raises"],
)
def test_a_backward_that_breaks_its_contract_is_a_row(gradient: Any, says: str) -> None:
    report = check_gradient(_wrong(gradient), [X], raises=False)
    assert says in _failed(report)["backward"]
    with pytest.raises(OperatorError, match=says):
        check_gradient(_wrong(gradient), [X])


# -- broken contracts and refusals ------------------------------------------------------------------------------------


def _rows(report: Any) -> dict[str, Any]:
    return {row.check: row for row in report.rows}


class Rows(Square):
    """The mean of each row, whose `specs` forgets to reject other ranks."""

    def specs(self, x: Any) -> Any:
        return (d5.TensorSpec(shape=x.shape[:1], dtype=x.dtype),)

    def forward(self, x: Any) -> Any:
        xp = d5.array_namespace(x)
        return xp.mean(x, axis=-1)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        xp = d5.array_namespace(inputs[0])
        return ((output_grads[0][..., None] + xp.zeros_like(inputs[0])) / inputs[0].shape[-1],)


def test_a_rank_that_specs_accepts_and_forward_does_not_is_no_refusal() -> None:
    for rank in (1, 3, 4):
        check = f"rank {rank} (specs accepts it)"
        assert "as its specs says" in _failed(check_forward(Rows(), [X], raises=False))[f"forward, {check}"]
        assert "as its specs says" in _failed(check_gradient(Rows(), [X], raises=False))[f"backward, {check}"]
    assert "raised AxisError" in _failed(check_forward(Rows(), [X], raises=False))["forward, rank 0"]


class Broken(Square):
    """Gives another shape where a condition on the input holds."""

    def __init__(self, where: Any, backward: bool = False) -> None:
        self.where, self.wrong_back = where, backward

    def forward(self, x: Any) -> Any:
        return (x * x)[None] if self.where(x) and not self.wrong_back else x * x

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        made = 2 * inputs[0] * output_grads[0]
        return (made[None] if self.where(inputs[0]) and self.wrong_back else made,)


_ONLY_FORWARD = ("part of the rows", True)  # forward tries them before all rows
BROKEN: dict[str, tuple[Any, str]] = {
    "float16": (lambda x: x.dtype == np.float16, "float16, against float64"),
    "bfloat16": (lambda x: str(x.dtype) == "bfloat16", "bfloat16, against float64"),
    "size": (lambda x: x.shape == (17, 4), "dimension 3 = 17"),
    "rank": (lambda x: x.ndim == 3, "rank 3 (specs accepts it)"),
    "batch": (lambda x: x.shape == (0, 4), "dimension 3 cut to 0"),
    "empty": (lambda x: x.shape == (3, 0), "dimension 4 cut to 0"),
    "values": (lambda x: x.size > 1 and (x < 0).all(), "negative values"),
    "rows": (lambda x: x.size > 5000, "large, dimension 3 = 16385"),
    "part of the rows": (lambda x: x.shape == (1025, 4), "large, dimension 3 = 16385"),
}


@pytest.mark.parametrize(
    ("name", "backward"), [(name, back) for name in BROKEN for back in (False, True) if (name, back) != _ONLY_FORWARD]
)
def test_a_broken_contract_is_never_a_refusal(name: str, backward: bool) -> None:
    where, check = BROKEN[name]
    operator, given = Broken(where, backward), [X.astype(np.float32)]
    if not backward:
        failed = _failed(check_forward(operator, given, strict=False, raises=False))
        assert "got shape" in failed[f"forward, {check}"]
    report = check_gradient(operator, given, strict=False, raises=False)
    assert not [row for row in report.rows if row.verdict == "refused"]
    assert re.search("got shape|gradient by input 0: got", _failed(report)[f"backward, {check}"])


def test_a_broken_contract_is_found_in_rows_of_forward_only() -> None:
    equal = Broken(lambda x: x.ndim == 2 and len(x) > 1 and (x == x[0]).all())
    assert "got shape" in _failed(check_forward(equal, [X], raises=False))["forward, input with strides of 0"]
    large = Broken(lambda x: np.abs(x).max(initial=0) > 1 << 20)
    report = check_forward(large, [np.arange(6)], reference=np.square, strict=False, raises=False)
    assert "got shape" in _failed(report)["forward, integers around 2^24"]


def test_specs_that_fails_for_rank_0_or_nothing_is_no_refusal() -> None:
    class Wide(Square):
        def specs(self, x: Any) -> Any:
            return (d5.TensorSpec(shape=(*x.shape[:-1], x.shape[-1] // x.shape[-1] * x.shape[-1]), dtype=x.dtype),)

    failed = _failed(check_forward(Wide(), [X], raises=False))
    assert "Wide.specs raised IndexError" in failed["forward, rank 0"]
    assert "Wide.specs raised ZeroDivisionError" in failed["forward, dimension 4 cut to 0"]


def test_a_gradient_that_fails_in_float64_is_a_row() -> None:
    report = check_gradient(Broken(lambda x: x.dtype == np.float64), [X.astype(np.float32)], raises=False)
    assert "got shape" in _failed(report)["backward, float64"]


def test_an_exception_refuses_values_but_no_shapes() -> None:
    class Picky(Square):
        def forward(self, x: Any) -> Any:
            if x.size > 1 and (x < 0).all():
                raise ValueError("all negative")
            if x.shape == (17, 4):
                raise ValueError("17 rows")
            return x * x

    for check in (check_forward, check_gradient):
        report = check(Picky(), [X], strict=False, raises=False)
        (failed,) = report.failures
        assert failed.check.endswith("dimension 3 = 17")
        assert "17 rows" in failed.note
        assert [row.check.split(", ")[1] for row in report.rows if row.verdict == "refused"] == ["negative values"]


def test_on_a_framework_too_neither_exceptions_nor_broken_contracts_are_refusals() -> None:
    class Picky(Square):
        def forward(self, x: Any) -> Any:
            if x.shape[0] == 4:
                raise ValueError("four rows")
            return x * x

    report = check_forward(Picky(), [X], framework="pytorch", raises=False)
    assert "four rows" in _failed(report)["forward, all dimensions one more"]
    assert "IndexError" in _failed(report)["forward, rank 0"]
    broken, given = Broken(lambda x: str(x.dtype) == "torch.float64"), [X.astype(np.float32)]
    for check, row in ((check_forward, "forward, float64"), (check_gradient, "backward, float64")):
        assert "got shape" in _failed(check(broken, given, framework="pytorch", raises=False))[row]
    # What a framework's own function does not take, it refuses.
    rows = d5.NativeOperator(lambda x: x.reshape(3, 4), framework="pytorch")
    report = check_forward(rows, [X], raises=False)
    assert not report.failures
    assert _rows(report)["forward, all dimensions one more"].verdict == "refused"


def test_an_exception_in_cpp_refuses_values() -> None:
    loop = "for (int64_t i = 0; i < x.size(); ++i) { %s y[i] = x[i]; }"
    report = check_forward(
        _cpp(loop % 'if (x[i] > 1e3 && x[i] < 1e30) throw std::range_error("large");'),
        [X],
        dtypes=["float64"],
        raises=False,
    )
    assert not report.failures
    assert [row.check for row in report.rows if row.verdict == "refused"] == ["forward, large values"]


def test_specs_of_an_operator_in_cpp_that_fails_for_larger_inputs_is_a_row() -> None:
    def specs(self: Any, x: d5.TensorSpec) -> Any:
        return (x,) if int(x.shape[0]) < 40 else None

    copies = "for (int64_t i = 0; i < x.size(); ++i) y[i] = x[i];"
    report = check_forward(_cpp(copies, specs=specs), [X], dtypes=["float64"], raises=False)
    assert "Made.specs returned None" in _failed(report)["forward on larger inputs"]


class Scale(Square):
    """A product with a Python float: the array API keeps the array's type, NumPy does not for bfloat16."""

    def __init__(self, factor: Any = 2.5) -> None:
        self.factor = factor

    def forward(self, x: Any) -> Any:
        return x * self.factor

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (output_grads[0] * self.factor,)


def test_bfloat16_that_numpy_widens_is_refused_with_the_reason() -> None:
    for check in (check_forward, check_gradient):
        report = check(Scale(), [X], raises=False)
        (row,) = (row for row in report.rows if row.verdict == "refused")
        assert "NumPy widens bfloat16 beside a Python float" in row.note
        assert "remedy: compute in the inputs' type" in row.note
        assert report.verdict == "Scale on NumPy: passed, but not in bfloat16, which NumPy widens"
        # Where bfloat16 is requested, it must work.
        assert any("bfloat16" in name for name in _failed(check(Scale(), [X], dtypes=["bfloat16"], raises=False)))
    assert check_forward(Square(), [X]).verdict == "Square on NumPy: passed"


def test_an_operator_that_widens_its_inputs_itself_fails() -> None:
    for wide in (np.float32(2.5), np.float64(2.5)):
        failed = _failed(check_forward(Scale(wide), [X], strict=False, raises=False))
        assert f"got dtype {wide.dtype}, expected float16" in failed["forward, float16, against float64"]


def test_a_type_that_a_library_refuses_is_named_in_the_verdict() -> None:
    class Determinant(Square):
        def forward(self, x: Any) -> Any:
            return x * np.linalg.det(np.ones((2, 2), x.dtype) + np.eye(2, dtype=x.dtype))

    report = check_forward(Determinant(), [X], strict=False)
    assert report.verdict == "Determinant on NumPy: passed, but not in float16; bfloat16, which NumPy widens"
    refused = {row.check: row.excluded for row in report.rows if row.verdict == "refused"}
    assert refused["forward, float16, against float64"] == "float16"
    assert refused["forward, bfloat16, against float64"] == "bfloat16, which NumPy widens"


# -- references and differences that say nothing ----------------------------------------------------------------------


class Softplus(Square):
    def forward(self, x: Any) -> Any:
        xp = d5.array_namespace(x)
        return xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(x, xp.zeros_like(x))


def test_a_reference_that_overflows_is_named_as_a_possible_cause() -> None:
    report = check_forward(Softplus(), [X], reference=lambda x: np.log(1 + np.exp(x)), raises=False)
    note = _failed(report)["forward, large values"]
    assert "expected inf; allowed: the same, since one of them is not finite" in note
    assert re.search(
        r"<lambda> is not finite at \d of these, the first at \[\d, \d\], where all inputs are finite", note
    )
    assert "either <lambda> overflows or leaves its domain on the way, or the operator is wrong; remedy: " in note
    assert check_forward(Softplus(), [X], reference=lambda x: np.logaddexp(0, x))


def test_an_operator_that_hides_an_infinity_fails() -> None:
    class Logarithm(Square):
        def forward(self, x: Any) -> Any:
            return d5.array_namespace(x).log(x + 1e-300)

    given = np.abs(X) + 0.1
    given[0, 0] = 0.0
    report = check_forward(Logarithm(), [given], dtypes=["float64"], reference=np.log, raises=False)
    note = _failed(report)["forward, float64, against log"]
    assert "expected -inf" in note
    assert "or the operator is wrong" in note
    # An infinity that is lost has another cause: the input is infinite.
    clipped = type("Clipped", (Square,), {"forward": lambda self, x: np.clip(x, -1e30, 1e30)})()
    report = check_forward(clipped, [np.array([np.inf, 1.0])], reference=lambda x: x * 1, strict=False, raises=False)
    assert "is not finite at" not in report.story()


def test_cancellation_is_named_where_differences_do_not_settle() -> None:
    class Cancels(Square):
        def forward(self, x: Any) -> Any:
            return d5.array_namespace(x).sqrt(x * x + 1) - 1

        def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
            return (output_grads[0] * inputs[0] / d5.array_namespace(inputs[0]).sqrt(inputs[0] ** 2 + 1),)

    row = _rows(check_gradient(Cancels(), [X], raises=False))["backward, small values"]
    assert row.verdict == "not evaluated"
    assert "nor where forward loses its digits by cancellation" in row.note
    tiny = _failed(check_gradient(Cancels(), [1e-4 * X], dtypes=["float64"], raises=False))
    assert "kinks or jumps there, or loses its digits, by cancellation" in tiny["gradient by input 0"]


FILE = """
import numpy as np
import deep5 as d5

class Square(d5.Operator):
    def specs(self, x): return (x,)
    def forward(self, x): return x * x
    def backward(self, output_grads, inputs, outputs, needs): return (2 * inputs[0] * output_grads[0],)

class WrongShape(Square):
    def backward(self, output_grads, inputs, outputs, needs): return ((inputs[0]).sum(),)

class Interrupts(Square):
    def forward(self, x): raise KeyboardInterrupt

class NoBackward(d5.Operator):
    def specs(self, x): return (x,)
    def forward(self, x): return x * x

class Nothing(d5.Operator):
    pass

class Whole(NoBackward):
    def backward(self, output_grads, inputs, outputs, needs): raise NotImplementedError("no gradient")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(FILE)
    return tmp_path / "own.py"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("own.py:Square", "--time-limit", "nan"), "got --time-limit nan; allowed: more than 0 s"),
        (("own.py:Square", "--time-limit", "inf"), "got --time-limit inf; allowed: more than 0 s"),
        (("own.py:Square", "--range", "0", "inf"), "got --range 0 inf; allowed: two numbers"),
        (("own.py:Square", "--range", "-1.5e308", "1.5e308"), "difference infinite"),
        (("own.py:Square", "--range", "-1e300", "1e300"), "for inputs of float32; allowed: from -3.40282e+38 to"),
        (("own.py:Square", "--range", "-1", "1", "--dtype", "uint8"), "for inputs of uint8; allowed: from 0 to 255"),
        (("own.py:Square", "--shape", "100000x1000000"), "inputs of the shape 100000x1000000 takes 1.09 TiB"),
        (
            ("own.py:Square", "--shape", "9" * 23),
            "GiB of memory are free; allowed: inputs that fit; remedy: smaller ones",
        ),
        (("own.py:Square", "--framework", ""), "got '' as a framework"),
        (("own.py:NoBackward",), "NoBackward has no backward; allowed: a class with specs, forward and backward"),
        (
            ("own.py:NoBackward",),
            'an operator without gradients, such as one of integers, it is `raise NotImplementedError("no gradient")`',
        ),
        (("own.py:Nothing",), "has no backward and no forward and no specs"),
    ],
)
def test_what_cannot_be_used_is_refused(deep5: Command, file: Path, given: Sequence[str], says: str) -> None:
    answer = deep5("check", "operator", *given)
    assert (answer.status, answer.out) == (2, "")
    assert says in answer.err
    assert "Warning" not in answer.err


def test_an_operator_that_is_at_fault_has_the_status_1_and_a_table(deep5: Command, file: Path) -> None:
    answer = deep5("check", "operator", "own.py:WrongShape", "--json")
    assert (answer.status, answer.err) == (1, "")
    failed = [row for row in json.loads(answer.out)["checks"] if row["verdict"] == "FAILED"]
    assert [row["check"] for row in failed] == ["backward"]


def test_an_interrupt_that_an_operator_raises_is_told_as_such(deep5: Command, file: Path) -> None:
    answer = deep5("check", "operator", "own.py:Interrupts")
    assert answer.status == 3
    assert "Interrupts raised KeyboardInterrupt, or was interrupted, in forward" in answer.err
    assert "index beyond" not in answer.err


def test_an_operator_without_gradients_is_written_as_the_message_says(deep5: Command, file: Path) -> None:
    answer = deep5("check", "operator", "own.py:Whole")
    assert answer.status == 0
    assert "Whole.backward is not implemented: no gradient" in answer.out


def test_numbers_that_the_command_draws_have_both_signs(deep5: Command, file: Path) -> None:
    for seed in ("1", "2", "4"):  # seeds for which both normal numbers have the same sign
        answer = deep5("check", "operator", "own.py:Square", "--shape", "2", "--seed", seed)
        assert (answer.status, "numbers of both signs" in answer.out) == (0, False)


def _drawn(differences: np.ndarray, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    import vl_convert

    charts: list[dict[str, Any]] = []
    real = vl_convert.vegalite_to_png

    def seen(chart: Any, *args: Any, **options: Any) -> bytes:
        charts.append(chart)
        return bytes(real(chart, *args, **options))

    monkeypatch.setattr(vl_convert, "vegalite_to_png", seen)
    assert heat_map(differences, "forward", "differences", folder).stat().st_size > 0
    color: dict[str, Any] = charts[0]["encoding"]["color"]
    return color


@pytest.mark.parametrize("largest", [0.01, 3e-16, 0.0])
def test_equal_differences_are_one_colour_on_a_scale_from_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: float
) -> None:
    differences = largest * (1 + 1e-13 * np.random.default_rng(0).standard_normal((3, 4)))
    color = _drawn(differences, tmp_path, monkeypatch)
    assert color["scale"]["domain"] == [0.0, differences.max() or 1.0]
    assert color["legend"]["format"] == ".3~g"


def test_a_value_that_is_lost_leaves_the_scale_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    color = _drawn(np.array([[np.inf, 0.5], [0.0, 0.25]]), tmp_path, monkeypatch)
    assert color["scale"]["domain"] == [0.0, 0.5]
