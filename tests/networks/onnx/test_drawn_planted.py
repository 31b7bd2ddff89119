"""Errors planted into right answers of drawn cases: each must be found, or the bounds accept too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from drawn_answers import OPERATORS, Case, opsets
from drawn_bounds import apart, unit
from drawn_runs import truth

# One element that is wrong by so much is found in every operator; where the element type rounds more, by that factor.
ERROR = {2.0**-53: 1e-9, 2.0**-24: 1e-4, 2.0**-11: 0.25, 2.0**-8: 1.0}
NUMBERS = range(24)


def drawn(operator: str, chosen: Callable[[Case], bool] = lambda case: True) -> Iterator[Case]:
    """Cases of the newest opset with a known answer of more than one element, in float32."""
    for number in NUMBERS:
        case = Case(operator=operator, opset=opsets(operator)[-1], number=number)
        x = case.drawn.inputs[0]
        if isinstance(x, np.ndarray) and x.dtype == np.float32 and chosen(case) and truth(case).outputs is not None:
            yield case


def altered(case: Case, **attributes: Any) -> Case:
    """The node of a case with other attributes."""
    other = Case(operator=case.operator, opset=case.opset, number=case.number)
    other.__dict__["drawn"] = replace(case.drawn, attributes={**case.drawn.attributes, **attributes})
    return other


def found(case: Case, wrong: Any) -> bool:
    right = truth(case).outputs
    assert right is not None
    return apart(case, right, wrong) is not None


@pytest.mark.parametrize("operator", [operator for operator in OPERATORS if "Random" not in operator])
def test_one_wrong_element_is_found_in_every_operator(operator: str) -> None:
    for number in (0, 1, 4):
        case = Case(operator=operator, opset=opsets(operator)[-1], number=number)
        right = truth(case).outputs
        if right is None or case.drawn.random:
            continue
        for index, value in enumerate(right):
            if not isinstance(value, np.ndarray) or not value.size:
                continue
            spoiled = value.astype(object) if value.dtype.kind in "US" else value.copy()  # of any length
            place = number % value.size
            spoiled.flat[place] = _spoiled(case, value, place)
            if value.dtype.kind in "fV" and not np.isfinite(float(value.flat[place])):
                continue
            wrong = [*right[:index], spoiled, *right[index + 1 :]]
            assert apart(case, right, wrong) is not None, (case.name, value.flat[place], spoiled.flat[place])


def _spoiled(case: Case, array: np.ndarray, place: int) -> Any:
    value, kind = array.flat[place], array.dtype
    if kind.kind == "b":
        return not value
    if kind.kind in "OUS":
        return f"{value}x"
    if kind.kind in "iu":
        return value + 1 if value < np.iinfo(kind).max - 1 else value - 1
    return kind.type(float(value) + ERROR[unit(case, array)] * (1 + abs(float(value))))


@pytest.mark.parametrize("operator", ["Gather", "MaxPool", "Pad", "Resize", "Slice", "Tile", "Transpose"])
def test_another_pixel_is_found(operator: str) -> None:
    """Two elements that differ are exchanged."""
    count = 0
    for case in drawn(operator):
        (y, *more) = truth(case).outputs or ()
        differ = np.flatnonzero(y.ravel() != y.ravel()[:1])
        if differ.size:
            wrong = y.copy()
            wrong.flat[0], wrong.flat[differ[0]] = y.flat[differ[0]], y.flat[0]
            assert found(case, [wrong, *more]), case.name
            count += 1
    assert count > 2


@pytest.mark.parametrize("operator", ["CumSum", "Hardmax", "LogSoftmax", "LpNormalization", "ReduceMean", "Softmax"])
def test_another_axis_is_found(operator: str) -> None:
    count = 0
    for case in drawn(operator, lambda case: case.drawn.inputs[0].ndim > 1 and case.drawn.inputs[0].size > 3):
        rank = case.drawn.inputs[0].ndim
        if operator in ("CumSum", "ReduceMean"):
            axes = case.array(1)
            if axes is None:
                continue
            x, moved = case.drawn.inputs[0], ((axes + 1) % rank).astype(axes.dtype)
            other = case.with_inputs([x, moved])
        else:
            other = altered(case, axis=(case.attribute("axis", -1) + 1) % rank)
        right, wrong = truth(case).outputs, truth(other).outputs
        assert right is not None
        if wrong is not None and not _alike(right[0], wrong[0]):
            assert found(case, wrong), case.name
            count += 1
    assert count > 1


def _alike(x: np.ndarray, y: np.ndarray) -> bool:
    return x.shape == y.shape and np.allclose(x, y, 1e-3, 1e-3, equal_nan=True)


@pytest.mark.parametrize("operator", ["AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool"])
def test_padding_on_the_other_side_is_found(operator: str) -> None:
    count = 0
    for number in range(60):
        case = Case(operator=operator, opset=opsets(operator)[-1], number=number)
        pads = case.attribute("pads")
        if pads is None or case.drawn.inputs[0].dtype != np.float32:
            continue
        half = len(pads) // 2
        other = altered(case, pads=[*pads[half:], *pads[:half]])
        right, wrong = truth(case).outputs, truth(other).outputs
        if right is not None and wrong is not None and not _alike(right[0], wrong[0]):
            assert found(case, wrong), case.name
            count += 1
    assert count > 2


@pytest.mark.parametrize("operator", ["GRU", "LSTM"])
def test_exchanged_activations_are_found(operator: str) -> None:
    count = 0
    usual = {"GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[operator]
    swapped = {"GRU": ["Tanh", "Sigmoid"], "LSTM": ["Sigmoid", "Sigmoid", "Tanh"]}[operator]
    for case in drawn(operator, lambda case: case.attribute("activations") is None):
        ways = case.drawn.inputs[2].shape[0]
        assert not found(altered(case, activations=usual * ways), truth(case).outputs), case.name
        wrong = truth(altered(case, activations=swapped * ways)).outputs
        assert found(case, wrong), case.name
        count += 1
    assert count > 2


def test_the_other_formula_of_gelu_is_found() -> None:
    for case in drawn("Gelu"):
        other = {"none": "tanh", "tanh": "none"}[case.attribute("approximate", "none")]
        wrong = truth(altered(case, approximate=other)).outputs
        assert wrong is not None
        x = case.drawn.inputs[0]
        if np.any((np.abs(x) > 0.5) & (np.abs(x) < 3)):
            assert found(case, wrong), case.name


@pytest.mark.parametrize("operator", ["Add", "Div", "Mul", "Reciprocal", "Sqrt", "Sub"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_short_result_that_is_rounded_twice_is_found(operator: str, kind: str) -> None:
    """It is rounded to 6 bits first."""
    rng = np.random.default_rng(0)
    short = np.dtype(getattr(ml_dtypes, kind, kind))
    case = Case(operator=operator, opset=opsets(operator)[-1], number=0)
    count = len(case.drawn.inputs)
    case = case.with_inputs([rng.uniform(0.5, 3, (5, 7)).astype(short) for _ in range(count)])
    right = truth(case).outputs
    assert right is not None
    assert right[0].dtype == short
    value = right[0].astype(np.float64)
    unit = 2.0 ** (np.floor(np.log2(np.abs(value) + 1e-300)) - 5)
    assert found(case, [(np.round(value / unit) * unit).astype(short)])
    assert not found(case, right)


def test_a_cast_that_rounds_twice_is_found() -> None:
    """1 + 2^-11 + 2^-40 is a tie for float16 once float32 has rounded it."""
    drawn_one = Case(operator="Cast", opset=13, number=0)
    case = altered(drawn_one.with_inputs([np.full(3, 1 + 2.0**-11 + 2.0**-40)]), to=10)
    right = [case.drawn.inputs[0].astype(np.float16)]
    assert apart(case, right, right) is None
    assert apart(case, right, [case.drawn.inputs[0].astype(np.float32).astype(np.float16)]) is not None


@pytest.mark.parametrize(
    "operator",
    ["AveragePool", "Conv", "Exp", "Gemm", "LayerNormalization", "MatMul", "ReduceMean", "Sigmoid", "Softmax", "Tanh"],
)
def test_float32_computed_in_float16_is_found(operator: str) -> None:
    count = 0
    for case in drawn(operator, lambda case: not case.drawn.training and case.drawn.inputs[0].size > 3):
        right = truth(case).outputs
        assert right is not None
        wrong = [
            value.astype(np.float16).astype(value.dtype) if value.dtype == np.float32 else value for value in right
        ]
        if not np.array_equal(wrong[0], right[0], equal_nan=True):
            assert found(case, wrong), case.name
            count += 1
    assert count > 2


def test_an_answer_in_float32_is_not_float64() -> None:
    """A rule explains what is computed in float32; an error that is larger than its rounding is none."""
    number = next(n for n in range(60) if Case(operator="Erf", opset=13, number=n).drawn.inputs[0].dtype == np.float64)
    case = Case(operator="Erf", opset=13, number=number)
    right = truth(case).outputs
    assert right is not None
    single = [value.astype(np.float32).astype(np.float64) for value in right]
    assert apart(case, right, single) is not None
    assert apart(case, right, single, least=2.0**-24) is None
    assert apart(case, right, [value + 1e-5 for value in right], least=2.0**-24) is not None
