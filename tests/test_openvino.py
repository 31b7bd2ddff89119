"""OpenVINO as a training engine: that any engine that reads ONNX can train."""

from __future__ import annotations

import numpy as np
import pytest

from deep5.errors import NetworkError
from deep5.frameworks.openvino import from_model
from deep5.networks import NetworkBuilder, lenet, mlp
from engine import EngineSuite, close, feed


class TestOpenVINO(EngineSuite):
    name = "openvino"

    def test_max_pooling_trains_without_an_operator_for_its_gradient(self) -> None:
        network = lenet(activation="relu", pooling="max")
        executors = self.pair(network)
        for executor in executors:
            executor.inference_and_backprop(feed(network, classes=10))
        # ReLU and max-pooling have kinks; at random values nothing lies within rounding of one
        close(executors[0].gradients(), executors[1].gradients())

    def test_from_model_makes_an_executor(self) -> None:
        assert from_model(mlp(features=4, hidden=3)).settings()["framework"] == "openvino"

    def test_integers_that_it_would_cut_off_are_refused(self) -> None:
        build = NetworkBuilder("double")
        x = build.input("x", ("N",), "int64")
        executor = self.executor(build.network({"y": build.op("Add", x, x)}))
        np.testing.assert_array_equal(
            executor.inference({"x": np.array([2**30 - 1, -(2**30)])})["y"], [2**31 - 2, -(2**31)]
        )
        for number in (2**31, -(2**31) - 1):
            with pytest.raises(NetworkError, match="input 'x' holds integers beyond 32 bits"):
                executor.inference({"x": np.array([1, number])})
