"""Compiled operators in OpenVINO: an error is reported for the call that failed, and for no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import OperatorError, ShapeError
from deep5.operators.cpp import CppOperator
from processors import AVX512

DOMAIN = "test.openvino"
ENGINES = ("reference", "openvino")


@d5.register_operator("Picky", domain=DOMAIN)
class Picky(CppOperator):
    """x + 1, except for four rows, which `specs` refuses, and 39 elements, which the C++ class refuses."""

    source = r"""
    template <typename T>
    struct Picky : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        if (x.size() == 39) throw std::runtime_error("39 are too many");
        for (int64_t i = 0; i < x.size(); ++i) y[i] = x[i] + T(1);
      }
    };"""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        if inputs[0].shape[0] == 4:
            raise ShapeError(f"Picky: got {inputs[0]}; allowed: any number of rows but four")
        return inputs


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    framework: Any = d5.framework("openvino")
    before = framework.threads
    framework.set_threads(request.param)
    yield
    framework.set_threads(before)


def twice(build: d5.NetworkBuilder, x: Any) -> d5.Network:
    return build.network({"y": build.op("Picky", build.op("Picky", x, domain=DOMAIN), domain=DOMAIN)})


def test_after_a_call_that_failed_the_next_one_is_as_the_first() -> None:
    """Both nodes fail when one does: neither is reported for a later call."""
    build = d5.NetworkBuilder("rows")
    executor = d5.framework("openvino").executor(twice(build, build.input("x", ("N", 3))))

    def run(rows: int) -> None:
        got = executor.inference({"x": np.zeros((rows, 3), np.float32)})["y"]
        np.testing.assert_array_equal(got, np.full((rows, 3), 2))

    for _ in range(3):
        run(5)
        with pytest.raises(ShapeError, match="allowed: any number of rows but four"):
            run(4)
        run(5)
        with pytest.raises(OperatorError, match="Picky failed: 39 are too many"):
            run(13)


class Exponential(d5.Operator):
    def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        return (x,)

    def forward(self, *inputs: Any) -> Any:
        return d5.array_namespace(inputs[0]).exp(inputs[0])

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (outputs[0] * output_grads[0],)


# Operators with a NaN result, or one that depends on NaN, in ONNX and on the reference; docs/how_to/engines.md has it.
NAN_IS_LOST: list[tuple[d5.Operator, int]] = [
    (Exponential(), 1),
    *((d5.ONNXOperator(name), 1) for name in ("Exp", "Relu", "Celu", "HardSigmoid", "Max", "Min")),
    *((d5.ONNXOperator(name), 0) for name in ("Softmax", "LogSoftmax")),
    *((d5.ONNXOperator(f"Reduce{name}"), 0) for name in ("Max", "Min", "LogSumExp")),
]


@pytest.mark.parametrize(("operator", "place"), NAN_IS_LOST, ids=lambda value: getattr(value, "op_type", None))
def test_nan_is_lost_as_the_documentation_says(operator: d5.Operator, place: int) -> None:
    """If this fails, a newer OpenVINO has fixed it: then remove it here and in docs/how_to/engines.md."""
    x = np.array([1, np.nan, 2], np.float32)
    inputs = (x, np.ones(3, np.float32)) if getattr(operator, "op_type", "") in ("Max", "Min") else (x,)
    wanted, got = (d5.framework(name).operator_executor(operator).inference(*inputs) for name in ENGINES)
    assert np.isnan(wanted[0].flat[place])
    assert not np.isnan(got[0].flat[place])


def test_nan_is_greater_and_in_no_place_as_the_documentation_says() -> None:
    """As above; OpenVINO's kernels for AVX-512 treat NaN as greater."""
    x = np.array([1, np.nan, 2], np.float32)
    executor = d5.framework("openvino").operator_executor
    assert executor(d5.ONNXOperator("Greater")).inference(x, np.ones(3, np.float32))[0][1] == AVX512
    for name in ("ArgMax", "ArgMin"):
        assert executor(d5.ONNXOperator(name, axis=0, keepdims=0)).inference(x)[0] != 1


def test_shapes_that_values_say_are_refused_while_it_runs() -> None:
    build = d5.NetworkBuilder("values")
    rows = build.op("Reshape", build.input("x", (12,)), build.input("shape", (2,), "int64"))
    executor = d5.framework("openvino").executor(twice(build, rows))
    for _ in range(3):
        for shape in ((6, 2), (12, 1)):
            got = executor.inference({"x": np.zeros(12, np.float32), "shape": np.array(shape)})["y"]
            np.testing.assert_array_equal(got, np.full(shape, 2))
        with pytest.raises(ShapeError, match="allowed: any number of rows but four"):
            executor.inference({"x": np.zeros(12, np.float32), "shape": np.array([4, 3])})
