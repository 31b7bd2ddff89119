"""An attribute that a node omits has the value of its written-out default: float32, in float64 networks too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError
from deep5.frameworks.reference.operators import OPERATORS
from deep5.networks import Network, NetworkBuilder, ones, zeros
from deep5.networks.onnx.attributes import attribute

Branch = Callable[[NetworkBuilder, Any, dict[str, Any]], Any]


def normalised(build: NetworkBuilder, x: Any, attributes: dict[str, Any]) -> Any:
    variables = (("bn.scale", ones), ("bn.bias", zeros), ("bn.mean", zeros), ("bn.variance", ones))
    return build.op("BatchNormalization", x, *(build.parameter(n, (4,), i) for n, i in variables), **attributes)


def layer_normalised(build: NetworkBuilder, x: Any, attributes: dict[str, Any]) -> Any:
    return build.op("LayerNormalization", x, build.parameter("ln.scale", (4,), ones), **attributes)


def product(build: NetworkBuilder, x: Any, attributes: dict[str, Any]) -> Any:
    weight, bias = build.parameter("gemm.weight", (4, 4)), build.parameter("gemm.bias", (4,), ones)
    return build.op("Gemm", x, weight, bias, **attributes)


def locally_normalised(build: NetworkBuilder, x: Any, attributes: dict[str, Any]) -> Any:
    axis = build.constant("lrn.axis", np.array([2]))
    return build.op("Squeeze", build.op("LRN", build.op("Unsqueeze", x, axis), size=3, **attributes), axis)


def function(op: str) -> Branch:
    return lambda build, x, attributes: build.op(op, x, **attributes)


BRANCHES: dict[str, Branch] = {
    "BatchNormalization": normalised,
    "Elu": function("Elu"),
    "Gemm": product,
    "HardSigmoid": function("HardSigmoid"),
    "LRN": locally_normalised,
    "LayerNormalization": layer_normalised,
    "LeakyRelu": function("LeakyRelu"),
}


def defaults(op: str) -> dict[str, float]:
    """The floating-point attributes for which ONNX has a default, with the default."""
    kind = onnx.defs.OpSchema.AttrType.FLOAT
    known = onnx.defs.get_schema(op).attributes.items()
    return {name: a.default_value.f for name, a in known if a.type == kind and a.default_value.name}


def network(*, written: bool, without: str = "") -> Network:
    """Every operator except one in its own branch, with a gradient by the branch's own scale."""
    build = NetworkBuilder("branches", dtype="float64", seed=5)
    x, outputs = build.input("input", ("N", 4)), {}
    for op, branch in BRANCHES.items():
        if op == without:
            continue
        scale = build.parameter(f"{op}.scale", (4,), lambda rng, shape: rng.uniform(0.5, 1.0, shape))
        y = branch(build, build.op("Mul", x, scale), defaults(op) if written else {})
        outputs[op] = build.op("ReduceSum", build.op("Mul", y, x), keepdims=0)
    return build.network({**outputs, "loss": build.op("Sum", *outputs.values())})


def results(framework: str, *, written: bool) -> dict[str, np.ndarray]:
    # ONNX Runtime has LRN only in float32.
    without = "LRN" if framework == "onnxruntime" else ""
    executor = d5.framework(framework).executor(network(written=written, without=without))
    x = np.random.default_rng(6).standard_normal((5, 4))
    evaluated = executor.inference({"input": x})
    trained = executor.inference_and_backprop({"input": x})
    found = {"evaluated": evaluated, "trained": trained, "gradient": executor.gradients(), "state": executor.buffers()}
    return {f"{kind} {name}": np.asarray(v) for kind, values in found.items() for name, v in values.items()}


def test_every_operator_with_such_an_attribute_is_here() -> None:
    # These have no gradient on the reference, or test_reference_order.py tests them forward; ONNX's own suite shows
    # that their omitted attributes have ONNX's defaults. Celu has no float64.
    forward = {
        "Celu",
        "GroupNormalization",
        "InstanceNormalization",
        "MaxRoiPool",
        "RMSNormalization",
        "Resize",
        "RoiAlign",
    }
    random = {op for op in OPERATORS if op.startswith("Random")}
    assert {op for op in OPERATORS if defaults(op)} - forward - random == set(BRANCHES)


@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow", "jax", "onnxruntime"])
def test_defaults_are_what_they_are_when_written_out(framework: str) -> None:
    left_out, written = results(framework, written=False), results(framework, written=True)
    assert {key.split()[0] for key in written} == {"evaluated", "trained", "gradient", "state"}
    for name, want in written.items():
        assert want.dtype == np.float64, name
        np.testing.assert_array_equal(left_out[name], want, err_msg=name)


def test_other_defaults_stay_as_they_are() -> None:
    node = ir.node("HardSigmoid", [ir.Value(name="x")], {"alpha": 0.25})
    assert attribute(node, "alpha", 0.2) == 0.25
    assert attribute(node, "beta", 0.1) == float(np.float32(0.1)) != 0.1
    assert (attribute(node, "axis", -1), attribute(node, "perm"), attribute(node, "mode", "none")) == (-1, None, "none")


def test_a_reference_to_an_attribute_of_no_function_is_refused() -> None:
    """ONNX's checker accepts it, and ONNX Runtime divided by the missing number of heads."""
    node = onnx.helper.make_node("LeakyRelu", ["x"], ["y"], name="leak")
    node.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]))
    onnx.checker.check_model(model)
    with pytest.raises(
        NetworkError, match=r"'leak' .*attribute 'alpha' refers to an attribute 'slope'.*allowed: a value"
    ):
        Network.from_onnx(model)
