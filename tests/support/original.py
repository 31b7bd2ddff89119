"""The original file, run by plain ONNX Runtime without optimizations: what every import is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import deep5 as d5
from deep5.core.errors import MissingDependency

__all__ = ["BACK_ENDS", "compared", "declared", "graph_model", "plain"]

BACK_ENDS = ("jax", "onnxruntime", "openvino", "pytorch", "reference", "tensorflow")


def declared(name: str, shape: Sequence[int | str | None] | None, kind: int = 1) -> onnx.ValueInfoProto:
    """A declared value; None as its shape: it has none."""
    return helper.make_tensor_value_info(name, kind, shape)


def graph_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initial: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    domains: Mapping[str, int] | None = None,
    value_info: Sequence[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    """A model of these nodes."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (initial or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors, value_info=value_info)
    versions = {"": opset, **(domains or {})}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def plain(model: onnx.ModelProto, feed: Mapping[str, Any]) -> dict[str, Any]:
    """What ONNX Runtime computes from the model as it is, without optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def compared(network: d5.Network, model: onnx.ModelProto, framework: str, *feeds: Mapping[str, Any]) -> None:
    """Compare a network on a framework with the original file, for every feed, with one executor."""
    try:
        executor = d5.framework(framework).executor(network, device="cpu")
    except MissingDependency as error:
        pytest.skip(str(error))
    for feed in feeds:
        expected = plain(model, feed)
        got = executor.inference(feed)
        assert list(got) == list(expected)
        for name, value in expected.items():
            found = d5.to_numpy(got[name])
            assert found.shape == value.shape, name
            assert found.dtype == value.dtype or value.dtype.kind in "OU", name
            if value.dtype.kind == "f":
                np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5, err_msg=name)
            else:
                np.testing.assert_array_equal(found, value, err_msg=name)
