"""ONNX Runtime as a training engine."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import deep5 as d5
from conformance import cases, outcome
from deep5.core.errors import Unsupported
from deep5.frameworks.onnxruntime import from_model
from deep5.frameworks.onnxruntime.rewrite import rewritten
from deep5.networks import NetworkBuilder, lenet, mlp
from deep5.networks.gradients import gradient_network
from engine import EngineSuite, close, feed


class TestONNXRuntime(EngineSuite):
    name = "onnxruntime"

    def test_spinning_and_the_provider_are_read_back(self) -> None:
        settings = self.executor(lenet()).settings()
        assert settings["spinning"] is False
        assert settings["provider"] == "CPUExecutionProvider"
        assert from_model(mlp(features=4, hidden=3)).settings() == {**settings}

    def test_float64_runs_where_all_operators_have_it(self) -> None:
        network = mlp(features=6, hidden=5, classes=3, dtype="float64")
        executors = self.pair(network)
        for executor in executors:
            executor.inference_and_backprop(feed(network, classes=3))
        # float64 sums of some ten terms of size 1
        close(executors[0].gradients(), executors[1].gradients(), 1e-13)
        with pytest.raises(Unsupported, match=r"Conv_1 \(Conv\): ONNX Runtime has no kernel for Conv in float64; all"):
            self.executor(lenet(dtype="float64"))

    def test_only_a_one_hot_of_float64_is_rewritten(self) -> None:
        single, double = (
            gradient_network(mlp(features=3, hidden=2, classes=3, dtype=d)) for d in ("float32", "float64")
        )
        assert rewritten(single) is single
        before = {node.op_type: node.outputs[0].dtype for node in double.nodes}
        after = {node.op_type: node.outputs[0].dtype for node in rewritten(double).nodes}
        assert (before["OneHot"], after["OneHot"]) == (ir.DataType.DOUBLE, ir.DataType.FLOAT)

    def test_sums_of_int64_are_exact(self) -> None:
        build = NetworkBuilder("sums")
        x = build.input("x", ("N", 3), "int64")
        axis = build.constant("axis", np.array([1]))
        network = build.network({"y": build.op("ReduceSum", x, axis, keepdims=0), "all": build.op("ReduceSum", x)})
        value = np.array([[2**53, 1, -7], [-(2**62), 3, 2**62]])
        outputs = self.executor(network).inference({"x": value})
        np.testing.assert_array_equal(outputs["y"], value.sum(1))
        assert outputs["all"] == value.sum()

    @pytest.mark.parametrize(("op_type", "attributes"), [("ReduceProd", {}), ("ReduceMean", {}), ("Pow", {})])
    def test_what_it_computes_in_float64_is_refused_of_int64(self, op_type: str, attributes: dict[str, int]) -> None:
        build = NetworkBuilder("rounded")
        x = build.input("x", ("N", 3), "int64")
        inputs = [x, x] if op_type == "Pow" else [x]
        network = build.network({"y": build.op(op_type, *inputs, **attributes)})
        with pytest.raises(Unsupported, match=r"INT64 in float64, which changes numbers beyond 2\^53.*allowed: INT32"):
            self.executor(network)

    def test_a_one_hot_of_numbers_that_float32_lacks_is_refused(self) -> None:
        build = NetworkBuilder("hot", dtype="float64")
        label, depth = build.input("label", ("N",), "int64"), build.constant("depth", np.array(3))
        values = build.op("Constant", value=ir.tensor(np.array([0.0, 0.1])))
        network = build.network({"y": build.op("OneHot", label, depth, values)})
        assert rewritten(network) is network
        with pytest.raises(Unsupported, match=r"OneHot_1 \(OneHot\): .*float64; allowed: float32"):
            self.executor(network)


def test_a_factor_of_a_product_in_float64_keeps_its_digits() -> None:
    """ONNX Runtime turns the factor into a float32 attribute of the product unless deep5 prevents it."""
    build = NetworkBuilder("factor", dtype="float64")
    x, w = build.input("x", (3, 4)), build.input("w", (4, 5))
    scaled = build.op("Mul", x, build.constant("factor", np.array(3**-0.5)))
    network = build.network({"y": build.op("MatMul", scaled, w)})
    rng = np.random.default_rng(0)
    feed = {"x": rng.standard_normal((3, 4)), "w": rng.standard_normal((4, 5))}
    found = from_model(network).inference(feed)["y"]
    # Sums of four products in float64.
    np.testing.assert_allclose(np.asarray(found), feed["x"] * 3**-0.5 @ feed["w"], rtol=1e-13, atol=1e-15)


def test_what_it_lacks_altogether_is_refused_with_a_remedy() -> None:
    supports = d5.framework("onnxruntime").supports
    x = ir.Value(name="x", shape=ir.Shape([3]), type=ir.TensorType(ir.DataType.UINT8))
    lacking, foreign = ir.node("ImageDecoder", [x], version=20), ir.node("Foo", [x], domain="org.example")
    for node in (lacking, foreign):
        node.outputs[0].name = "y"
        node.outputs[0].shape, node.outputs[0].type = ir.Shape([1, 1, 3]), x.type
    assert supports(lacking).reason.startswith("ONNX Runtime has no kernel for ImageDecoder of UINT8; allowed: ")
    assert "; remedy: a Cast before it" in supports(lacking).reason
    assert supports(foreign).reason == (
        "ONNX Runtime has no operator org.example.Foo; allowed: ONNX's, its own, and registered ones; remedy: "
        "d5.register_operator('Foo', domain='org.example')"
    )


def test_a_body_that_cannot_be_copied_is_refused_with_a_remedy() -> None:
    found = outcome("onnxruntime", cases("node")["flexattention_causal_mask"])
    assert found.kind == "refused"
    assert found.reason.startswith("onnx-ir's inliner cannot copy the body of FlexAttention; allowed: ")
