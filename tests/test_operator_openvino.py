"""Compiled operators in OpenVINO: what one call failed on is told of that call, and of no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.errors import OperatorError, ShapeError
from deep5.operators.cpp import CppOperator

DOMAIN = "test.openvino"


@d5.register_operator("Picky", domain=DOMAIN)
class Picky(CppOperator):
    """x + 1, but for four rows, which `specs` refuses, and 39 elements, which the C++ class does."""

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
    """Both nodes fail where one does: neither is told of a later call."""
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
