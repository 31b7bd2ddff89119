"""Operators that ONNX defines as functions: one node where a back-end supports it; those run as bodies are listed."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import deep5 as d5
from conformance import cases, model_of
from deep5.core.errors import NetworkError
from deep5.core.framework import Support
from deep5.networks import Network
from deep5.networks.run_modes import Forms
from deep5.networks.transforms.lowering import lowered
from operator_table import TABLES, is_function, operators

FRAMEWORKS = ("reference", "pytorch", "tensorflow", "jax", "onnxruntime")
# Constants, in all networks that give their lengths as such; and a recurrence with its loop, which no back-end has as a
# single call.
_NOBODY = {"BlackmanWindow", "HammingWindow", "HannWindow", "LinearAttention"}
# Bodies of a dozen simple operators with a handful of settings. On the reference a body costs as much as its NumPy
# calls, and its gradients are those of the body's operators; XLA compiles the others into the same program; in
# TensorFlow they take no longer than its own functions: docs/how_to/onnx_files.md.
_SEQUENCES = {"Attention", "CausalConvWithState", "RotaryEmbedding"}
BODIES: dict[str, set[str]] = {
    "reference": {
        *(_NOBODY | _SEQUENCES | {"ReduceL1", "ReduceLogSum"}),
        *("CastLike", "Mish", "PRelu", "ReduceLogSumExp", "Selu", "Shrink"),
        *("Softsign", "SwiGLU", "Swish", "ThresholdedRelu"),
    },
    "pytorch": _NOBODY | {"DynamicQuantizeLinear"},
    "tensorflow": _NOBODY | _SEQUENCES | {"CastLike", "CenterCropPad", "DynamicQuantizeLinear"},
    "jax": _NOBODY | _SEQUENCES | {"CenterCropPad", "DynamicQuantizeLinear", "SequenceMap"},
    # Newer than what ONNX Runtime supports, or with operators in a newer version.
    "onnxruntime": {"Bernoulli", "CausalConvWithState", "LinearAttention", "SwiGLU"},
}


@functools.cache
def networks() -> dict[str, list[tuple[str, Network]]]:
    """For each operator that is a function, the cases of ONNX's suite that consist of it; only its first output."""
    found: dict[str, list[tuple[str, Network]]] = {op: [] for op in operators() if is_function(op)}
    for name, case in cases("node").items():
        if "expanded" in name:
            continue
        model = model_of(case)
        if len(model.graph.node) == 1 and not model.graph.node[0].domain and model.graph.node[0].op_type in found:
            short = onnx.ModelProto()
            short.CopyFrom(model)
            del short.graph.output[1:], short.graph.node[0].output[1:]
            try:
                found[model.graph.node[0].op_type].append((name, Network.from_onnx(short)))
            except NetworkError:  # for those that need all their outputs
                found[model.graph.node[0].op_type].append((name, Network.from_onnx(model)))
    return found


def kept(framework: str, op: str) -> list[Network]:
    """The operator's networks that still contain it after lowering: those of that node only."""
    back_end = d5.framework(framework)
    return [network for _, network in networks()[op] if all(map(back_end.supports, network.nodes)) and network.nodes]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_runs_as_a_body_is_listed(framework: str) -> None:
    assert all(networks().values()), "each function has a case in ONNX's suite"
    assert {op for op in networks() if not kept(framework, op)} == BODIES[framework]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_function_that_the_table_holds_is_one_node_when_it_runs(framework: str) -> None:
    table = TABLES.get(framework)
    for op in networks().keys() - BODIES[framework]:
        assert table is None or op in table
        for network in kept(framework, op)[:2]:
            run = Forms(network, d5.framework(framework)).evaluation
            assert run is network, (op, [node.op_type for node in run.nodes])


# Attention: PyTorch's kernel against the body of ONNX's function, which PyTorch also runs


def attention(settings: dict[str, Any], feed: dict[str, np.ndarray], outputs: int, opset: int) -> Network:
    kinds = {np.dtype(np.float64): TensorProto.DOUBLE, np.dtype(bool): TensorProto.BOOL}
    places = ("q", "k", "v", "mask", "past_key", "past_value", "lengths")
    names = [name if name in feed else "" for name in places]
    while not names[-1]:
        names.pop()
    made = ["y", "present_key", "present_value"][:outputs]
    nodes = [helper.make_node("Attention", names, made, **settings)]
    for name in made:
        nodes += [
            helper.make_node("Sin", [name], [f"{name}_bent"]),
            helper.make_node("ReduceSum", [f"{name}_bent"], [f"{name}_sum"], keepdims=0),
        ]
    nodes.append(helper.make_node("Sum", [f"{name}_sum" for name in made], ["loss"]))
    inputs = [
        helper.make_tensor_value_info(name, kinds.get(value.dtype, TensorProto.INT64), value.shape)
        for name, value in feed.items()
    ]
    axes = feed["q"].ndim
    ends = [helper.make_tensor_value_info("loss", TensorProto.DOUBLE, [])]
    ends += [
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, [None] * (axes if name == "y" else 4)) for name in made
    ]
    for end in ends[1:]:
        for index, extent in enumerate(end.type.tensor_type.shape.dim):
            extent.dim_param = f"{end.name}_{index}"
    graph = helper.make_graph(nodes, "attention", inputs, ends)
    return Network.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11))


def drawn(number: int) -> tuple[dict[str, Any], dict[str, np.ndarray], int, int]:
    """Settings, inputs, number of outputs and opset of one node."""
    rng = np.random.default_rng(number)
    flag = lambda: bool(rng.integers(2))  # noqa: E731 - short
    opset = int(rng.choice([23, 24, 25]))
    n, heads, shared, q, k = (int(rng.integers(1, high)) for high in (3, 4, 3, 6, 6))
    size, own = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    flat = flag()
    settings: dict[str, Any] = {"is_causal": int(flag())} | ({"scale": 0.37} if flag() else {})
    if flat:
        settings |= {"q_num_heads": heads * shared, "kv_num_heads": heads}

    def values(count: int, length: int, extent: int) -> np.ndarray:
        shape = (n, length, count * extent) if flat else (n, count, length, extent)
        return rng.standard_normal(shape)

    feed = {"q": values(heads * shared, q, size), "k": values(heads, k, size), "v": values(heads, k, own)}
    cache = rng.choice(["none", "past", "lengths"] if opset > 23 else ["none", "past"])
    past = int(rng.integers(1, 4)) if cache == "past" else 0
    masked = rng.choice(["none", "bool", "float"])
    if masked != "none":
        shape = [(q,), (heads * shared, q), (n, 1, q), (n, heads * shared, q)][rng.integers(4)]
        mask = rng.standard_normal((*shape, k + past))
        feed["mask"] = mask > -0.5 if masked == "bool" else np.where(mask > 1, -np.inf, mask)
    if cache == "past":
        feed["past_key"], feed["past_value"] = (rng.standard_normal((n, heads, past, each)) for each in (size, own))
    if cache == "lengths":
        feed["lengths"] = rng.integers(1, k + 1, n)
    if opset == 25:
        settings |= {name: int(rng.integers(0, 4)) for name in ("left_window_size", "right_window_size") if flag()}
    return settings, feed, 3 if cache == "past" else 1, opset


@pytest.mark.parametrize("number", range(60))
def test_attention_on_pytorch_computes_what_its_body_does(number: int) -> None:
    settings, feed, outputs, opset = drawn(number)
    network = attention(settings, feed, outputs, opset)
    torch = d5.framework("pytorch")

    def supports(node: ir.Node) -> Support:
        return Support(node.op_type != "Attention" and bool(torch.supports(node)), "left out by the test")

    body = lowered(network, supports)
    assert "Attention" not in {node.op_type for node in body.nodes}
    node = next(node for node in network.nodes if node.op_type == "Attention")
    assert torch.supports(node), torch.supports(node).reason
    found = []
    for each in (network, body):
        executor = torch.executor(each)
        outcome = executor.inference(feed)
        moving = [name for name, value in feed.items() if value.dtype == np.float64]
        executor.inference_and_backprop(feed, wrt=moving)
        both = {**outcome, **{f"gradient of {name}": value for name, value in executor.gradients().items()}}
        found.append({name: d5.to_numpy(value) for name, value in both.items()})
    for name, want in found[1].items():
        # float64: sums of about ten terms.
        np.testing.assert_allclose(found[0][name], want, rtol=1e-11, atol=1e-12, err_msg=name)


def exact(feed: dict[str, np.ndarray], *, seen: np.ndarray) -> np.ndarray:
    """Attention by its definition; a query that sees nothing gives 0."""
    scores = np.einsum("nhqd,nhkd->nhqk", feed["q"], feed["k"]) / np.sqrt(feed["q"].shape[-1])
    weights = np.where(seen, np.exp(scores), 0)
    total = weights.sum(-1, keepdims=True)
    return np.einsum("nhqk,nhkd->nhqd", weights / np.where(total == 0, 1, total), feed["v"])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_query_that_sees_no_key_has_the_gradient_zero(framework: str) -> None:
    """Of the body, too, to float64's last digits: heads of three features, whose root is not exact in float32."""
    rng = np.random.default_rng(1)
    feed = {name: rng.standard_normal((2, 2, 3, 3)) for name in ("q", "k", "v")}
    seen = np.array([[True, False, True], [False, False, False], [True, True, False]])
    executor = d5.framework(framework).executor(attention({}, {**feed, "mask": seen}, 1, 23))
    fed = {**feed, "mask": seen}
    outputs = executor.inference(fed)
    # float64: sums of about ten terms.
    np.testing.assert_allclose(d5.to_numpy(outputs["y"]), exact(feed, seen=seen), rtol=1e-12, atol=1e-13)
    executor.inference_and_backprop(fed, wrt=["q", "k", "v"])
    found = {name: np.array(d5.to_numpy(value)) for name, value in executor.gradients().items()}
    assert not found["q"][:, :, 1].any()
    direction, step = {name: rng.standard_normal(value.shape) for name, value in feed.items()}, 1e-6
    sides = [
        np.sin(exact({name: value + sign * step * direction[name] for name, value in feed.items()}, seen=seen)).sum()
        for sign in (1, -1)
    ]
    slope = sum(float(np.sum(found[name] * direction[name])) for name in feed)
    # A central difference is accurate to the square of the step, and to rounding (1e-16 of the loss) over the step.
    assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-6, abs=1e-7)


def test_a_mask_of_flags_stays_one_where_short_numbers_are_computed_in_float32() -> None:
    rng = np.random.default_rng(2)
    feed = {name: rng.standard_normal((1, 2, 4, 8)).astype(np.float16) for name in ("q", "k", "v")}
    seen = np.tril(np.ones((4, 4), bool))
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, value.shape) for name, value in feed.items()]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, seen.shape))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT16, (1, 2, 4, 8))
    graph = helper.make_graph(
        [helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"])], "short", inputs, [output]
    )
    network = Network.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11))
    found = d5.framework("pytorch").executor(network).inference({**feed, "mask": seen})["y"].numpy()
    wide = {name: value.astype(np.float64) for name, value in feed.items()}
    # Rounded once to float16: half of 2^-10.
    np.testing.assert_allclose(found, exact(wide, seen=seen), rtol=2**-10, atol=2**-20)
