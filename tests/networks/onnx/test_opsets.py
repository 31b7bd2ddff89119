"""Importing changes nothing: each operator of each opset from 7 on, on the original file and after the import.

Plain ONNX Runtime with optimizations off runs the file at its own opset, ONNX's reference where ONNX Runtime lacks the
operator; deep5 converts the file and runs it on the reference back-end. Cases are drawn from seeds.
"""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core.errors import Deep5Error
from deep5.networks import Network
from opset_cases import Draw, NoAnswer, declare, difference, expected, model_of, versions
from opset_draws import DRAWS

# It reads compressed images: that needs a package that deep5 does not install.
LEFT_OUT = {"ImageDecoder"}
# Deprecated versions, which ONNX's checker and ONNX Runtime refuse.
DEPRECATED = {("Scatter", 11), ("Upsample", 10)}
# Versions that neither ONNX Runtime 1.31 nor ONNX's reference runs.
UNANSWERED = {("GlobalLpPool", 22), ("MaxRoiPool", 22), ("Multinomial", 22), ("SwiGLU", 28)}
# What deep5 refuses, as a part of the message: statistics of empty batches; ONNX's body of Celu makes a scalar
# a vector; a dropout in a branch.
REFUSED = {
    "BatchNormalization": "nothing to train on",
    "Celu": "Inferred shape and existing shape differ in rank",
    "Dropout": "(Dropout) inside it: the reference has no kernel for Dropout",
}
PAIRS = 568
SLOW = 24
"""Cases of each operator and version in the long run; the daily run has one."""

OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain} - LEFT_OUT)


def pairs(operator: str) -> list[int]:
    return [version for version in versions(operator) if (operator, version) not in DEPRECATED]


def check(operator: str, version: int, number: int) -> str:
    """Who answered: ONNX Runtime, ONNX's reference, or neither."""
    drawn = DRAWS[operator](Draw(operator, version, number))
    nested = number % 4 == 3 and not any(isinstance(each, onnx.GraphProto) for each in drawn.attributes.values())
    # There ONNX infers an empty shape of a backward slice up to INT_MAX, which ONNX Runtime requires of a branch.
    nested = nested and (operator, version) != ("Slice", 10)
    model, fed = model_of(operator, version, drawn, symbolic=number % 3 == 2, nested=nested)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the one that answers
        try:
            who, want = expected(model, fed, drawn)
        except NoAnswer:
            return "neither"
    declare(model, want)
    called = f"{operator} of opset {version}, case {number}, {dict(drawn.attributes)}"
    try:
        executor = d5.framework("reference").executor(Network.from_onnx(model))
        got = executor.inference(fed, training=drawn.training)
    except Deep5Error as error:
        if operator in REFUSED and REFUSED[operator] in str(error):
            return who
        raise AssertionError(f"{called}: {error}") from error
    for value, right in zip(model.graph.output, want, strict=True):
        said = difference(right, got[value.name], random=drawn.random)
        assert said is None, f"{called}: {value.name} is {said} ({who})"
    return who


def test_every_operator_is_drawn() -> None:
    assert set(DRAWS) == set(OPERATORS)
    assert sum(len(pairs(operator)) for operator in OPERATORS) == PAIRS


@pytest.mark.daily
@pytest.mark.parametrize("part", range(8))
def test_one_case_of_each_version(part: int) -> None:
    answers = Counter[str]()
    with np.errstate(all="ignore"):
        for operator in OPERATORS[part::8]:
            for version in pairs(operator):
                answers[check(operator, version, 0)] += 1
    assert answers["onnxruntime"] > answers["onnx.reference"] > answers["neither"], answers


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_many_cases_of_each_version(operator: str) -> None:
    with np.errstate(all="ignore"):
        for version in pairs(operator):
            answers = Counter(check(operator, version, number) for number in range(1, SLOW + 1))
            assert (answers["neither"] == SLOW) == ((operator, version) in UNANSWERED), (version, answers)
