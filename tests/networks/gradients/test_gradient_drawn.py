"""Gradients of nodes drawn from ONNX's schemas, against central differences and frameworks' own differentiation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import Phase, given, note, reject, seed, settings
from hypothesis.errors import FailedHealthCheck, Unsatisfiable
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import deep5 as d5
import gradient_drawn_layers
from deep5.core.errors import Unsupported
from deep5.frameworks.reference.framework import Reference
from deep5.frameworks.reference.kernels.shape import pad
from deep5.frameworks.reference.operators import supports
from deep5.networks import Network
from deep5.networks.gradients import build as differentiation
from deep5.networks.gradients import gradient_network
from deep5.networks.gradients.rules import RULES
from deep5.networks.transforms.lowering import lowered
from gradient_drawn import CASES, Case, drawn_case

assert gradient_drawn_layers.windows  # registers its operators in CASES

Arrays = Mapping[str, np.ndarray]


def model_of(case: Case, results: Arrays | None = None) -> onnx.ModelProto:
    """The node as a model; with its results, `loss` is the sum of the floating-point ones times seeds."""
    names, nodes, inputs, constants = [], [], [], []
    for position, value in enumerate(case.inputs):
        names.append("" if value is None else f"x{position}")
        if value is None:
            continue
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        if position in case.by:
            inputs.append(onnx.helper.make_tensor_value_info(names[-1], kind, value.shape))
        elif value.dtype.kind == "f":  # an initial value would be a parameter
            tensor = onnx.numpy_helper.from_array(value, names[-1])
            nodes.append(onnx.helper.make_node("Constant", [], names[-1:], value=tensor))
        else:
            constants.append(onnx.numpy_helper.from_array(value, names[-1]))
    while not names[-1]:
        names.pop()
    outputs = [f"y{position}" for position in range(case.outputs)]
    nodes.append(onnx.helper.make_node(case.op, names, outputs, name="node", **case.attributes))
    real = onnx.helper.np_dtype_to_tensor_dtype(real_type(case))
    known, ends = [], [onnx.ValueInfoProto(name=name) for name in outputs]
    if case.shape is not None:
        ends[0] = onnx.helper.make_tensor_value_info("y0", real, case.shape)
    if results is not None:
        terms = []
        for name in floating(results):
            shape = results[name].shape
            known.append(onnx.helper.make_tensor_value_info(name, real, shape))
            inputs.append(onnx.helper.make_tensor_value_info(f"seed_{name}", real, shape))
            nodes.append(onnx.helper.make_node("Mul", [name, f"seed_{name}"], [f"{name}_weighted"]))
            nodes.append(onnx.helper.make_node("ReduceSum", [f"{name}_weighted"], [f"{name}_sum"], keepdims=0))
            terms.append(f"{name}_sum")
        nodes.append(onnx.helper.make_node("Sum", terms, ["loss"]))
        ends = [onnx.helper.make_tensor_value_info("loss", real, [])]
    graph = onnx.helper.make_graph(nodes, "case", inputs, ends, constants, value_info=known)
    opset = onnx.helper.make_opsetid("", case.opset)
    model = onnx.helper.make_model(graph, opset_imports=[opset])
    model.ir_version = onnx.helper.find_min_ir_version_for([opset])
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def real_type(case: Case) -> np.dtype[Any]:
    found = case.inputs[case.by[0]]
    assert found is not None
    return found.dtype


def floating(results: Arrays) -> list[str]:
    return [name for name, value in results.items() if value.dtype.kind == "f"]


class Pad(OpRun):
    """ONNX's own evaluator does not support negative pads."""

    op_domain = ""

    def _run(self, x: Any, pads: Any, value: Any = None, axes: Any = None, mode: str = "constant") -> tuple[Any]:
        return (pad(x, pads, value, axes, mode=mode),)


def kernels(network: Network) -> bool:
    """Whether the reference has a kernel for each node."""
    return all(map(supports, lowered(network, supports).nodes))


def evaluated(network: Network, feeds: Arrays) -> dict[str, np.ndarray]:
    """Results of the reference's kernels, or of ONNX's own evaluator where the reference has none."""
    if kernels(network):
        results = Reference().executor(network).inference(dict(feeds))
        return {name: np.array(value) for name, value in results.items()}
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(network.to_onnx(), new_ops=[Pad]).run(None, dict(feeds))
    return dict(zip(network.outputs, map(np.asarray, found), strict=True))


# ONNX's own evaluator computes these in float32 for any input type; the result of the first is float32, too.
SINGLE = frozenset({"AffineGrid", "DeformConv", "GridSample"})
# Their backward pass is that of training, with its own noise or statistics: tests/support/gradient_layers.py.
TRAINED = frozenset({"BatchNormalization", "Dropout"})


def misjudged(case: Case) -> bool:
    """Whether ONNX's own evaluator deviates from the specification here."""
    return (
        (case.op == "LpNormalization" and case.attributes.get("p") == 1)  # without absolute values
        or (case.op == "GlobalMaxPool" and case.inputs[0] is not None and case.inputs[0].ndim != 4)  # another shape
        or (case.op == "GridSample" and case.attributes.get("mode") == "cubic")  # clips indices, not elements
    )


def forward(case: Case) -> tuple[dict[str, np.ndarray], bool]:
    """The node's results, and whether the reference's kernels gave them; rejects what neither implementation runs."""
    network = Network.from_onnx(model_of(case))
    own = kernels(network)
    if not own and misjudged(case):
        reject()
    try:
        return evaluated(network, {f"x{position}": np.asarray(case.inputs[position]) for position in case.by}), own
    except Exception as error:  # ONNX's own evaluator raises any error of NumPy's
        if own:
            raise
        note(f"{type(error).__name__}: {error}")
        return reject()


def strided(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same numbers; every second time as a non-contiguous view, with a negative stride along the last axis."""
    if not value.ndim or rng.random() < 0.5:
        return value
    wide = np.zeros((*value.shape[::-1], 2), value.dtype).T[..., ::-1]
    view = wide[1]
    view[...] = value
    assert view.size < 2 or not view.flags.c_contiguous
    return view


def check(case: Case) -> tuple[Network, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Compare the gradients with a central difference; returns the network, its feeds and the gradients."""
    (found, own), rng = forward(case), np.random.default_rng(7)
    if not own and case.op == "AffineGrid":
        case = replace(case, inputs=[np.asarray(case.inputs[0], np.float32), *case.inputs[1:]])
    real = real_type(case)
    single = real == np.float32 or (not own and case.op in SINGLE)
    values = {f"x{position}": strided(np.asarray(case.inputs[position]), rng) for position in case.by}
    seeds = {f"seed_{name}": rng.uniform(0.5, 1.5, found[name].shape).astype(real) for name in floating(found)}
    network, feeds = Network.from_onnx(model_of(case, found)), {**values, **seeds}
    results = evaluated(gradient_network(network, wrt=list(values)), {**feeds, "loss_scale": np.ones((), real)})
    gradients = {name: results[f"grad:{name}"] for name in values}
    for name, value in values.items():
        assert gradients[name].shape == value.shape, (name, gradients[name].shape, value.shape)
        assert np.isfinite(gradients[name]).all(), (name, gradients[name])

    # float64: truncation h^2 = 1e-12 and cancellation eps/h = 2e-10, times a third derivative of a few thousand;
    # float32: 1e-6 and 1e-4, times a few dozen, and now and then a kink
    step, tolerance = (2.0**-10, 3e-2) if single else (1e-6, 1e-6)
    directions = {name: rng.uniform(-1.0, 1.0, value.shape) for name, value in values.items()}

    def central(width: float) -> float:
        losses = []
        for way in (1, -1):
            near = {name: (value + way * width * directions[name]).astype(real) for name, value in values.items()}
            losses.append(float(evaluated(network, {**feeds, **near})["loss"]))
        return (losses[0] - losses[1]) / (2 * width)

    parts = [gradients[name] * directions[name] for name in values]
    slope, size = (sum(float(f(part).sum()) for part in parts) for f in (np.asarray, np.abs))
    difference, allowed = central(step), tolerance * (size + abs(float(results["loss"]))) + 1e-20
    if abs(difference - slope) > allowed:  # slope and loss are 0 (a product of two zeros), h^2 dominates: remove it
        difference = (4 * difference - central(2 * step)) / 3
    assert abs(difference - slope) <= allowed, (difference, slope)
    return network, feeds, gradients


def supported(framework: str, network: Network) -> bool:
    return all(d5.framework(framework).supports(node) for node in network.nodes)


def native(framework: str, network: Network, feeds: Arrays, gradients: Arrays) -> bool:
    """Compare with the framework's own gradients; returns whether it runs the network."""
    node = next(node for node in network.nodes if node.name == "node")
    if node.op_type in TRAINED:
        return False
    # The body of ONNX's function computes in float32, or holds a Loop and an If of other shapes than ONNX infers.
    if node.op_type in ("ReduceL2", "AffineGrid") and not supported(framework, network):
        return False
    try:
        executor = d5.framework(framework).executor(network, device="cpu")
    except Unsupported:
        return False
    if node.op_type == "SoftmaxCrossEntropyLoss" and len(node.outputs) == 2 and framework == "pytorch":
        return False  # PyTorch's own backward pass fails: "grad_input must be contiguous"
    executor.inference_and_backprop(dict(feeds), loss="loss", wrt=list(gradients))
    for name, value in executor.gradients().items():
        want, got = d5.to_numpy(value), gradients[name]
        # two float64 programs, each a sum of about a hundred terms, times as much for cancellation; float32: 1e-7
        error = 1e-9 if got.dtype == np.float64 else 1e-4
        np.testing.assert_allclose(got, want, rtol=error, atol=error * (1.0 + float(np.abs(want).max(initial=0.0))))
    return True


def drawn(op: str, count: int, number: int, examine: Callable[[Case], None]) -> None:
    """Examine this many nodes, the same ones each time."""

    @seed(number)
    @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate])
    @given(drawn_case(op))
    def run(case: Case) -> None:
        examine(case)

    try:
        run()
    except (Unsatisfiable, FailedHealthCheck):
        pytest.skip(f"neither the reference nor ONNX's own evaluator runs {op}")


@pytest.mark.daily
@pytest.mark.parametrize("op", sorted(CASES))
def test_gradients_of_drawn_nodes(op: str) -> None:
    """Three nodes of each operator; PyTorch's own gradients agree where its back-end has the operator."""
    drawn(op, 3, 0, lambda case: native("pytorch", *check(case)) and None)


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(CASES))
def test_gradients_of_many_drawn_nodes(op: str) -> None:
    drawn(op, 150, 1, lambda case: native("pytorch", *check(case)) and None)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
@pytest.mark.parametrize("op", sorted(CASES))
def test_gradients_of_drawn_nodes_on_another_framework(op: str, framework: str) -> None:
    drawn(op, 5, 2, lambda case: native(framework, *check(case)) and None)


ODD = {
    "deviation 0 pytorch": Case(
        op="MeanVarianceNormalization", inputs=[np.ones((2, 3, 1, 1))], attributes={"axes": [2, 3]}
    ),
    "group of one pytorch": Case(
        op="GroupNormalization",
        inputs=[np.array([[[0.7], [0.2]]]), np.array([1.4, 0.1]), np.zeros(2)],
        by=(0, 1, 2),
        attributes={"num_groups": 2, "stash_type": onnx.TensorProto.DOUBLE, "epsilon": 2**-10},
        shape=(1, 2, 1),
    ),
    "nothing pytorch": Case(op="Flatten", inputs=[np.zeros((1, 0))], attributes={"axis": 2}),
    "no largest pytorch": Case(op="Softmax", inputs=[np.zeros((2, 0))]),
    "nothing twice pytorch": Case(op="Tile", inputs=[np.zeros((0, 1, 0)), np.array([2, 3, 1])]),
    "one element tensorflow": Case(op="GatherND", inputs=[np.array([-0.9]), np.array([0])], shape=()),
    "odd size tensorflow": Case(op="LRN", inputs=[np.full((1, 4, 2, 2), 0.3)], attributes={"size": 3, "alpha": 1.0}),
    "its values tensorflow": Case(
        op="OneHot", inputs=[np.array([2]), np.array(3), np.array([-0.9, -1.8])], by=(2,), shape=(1, 3)
    ),
    "its slices tensorflow": Case(op="Unique", inputs=[np.array([0.5, 0.2, 0.7])]),
    "no factor tensorflow": Case(op="CumProd", inputs=[np.zeros((2, 0)), np.array(1)]),
    "its step jax": Case(op="Range", inputs=[np.array(0.5), np.array(1.7), np.array(0.7)], by=(0, 2)),
}


@pytest.mark.parametrize("name", ODD)
def test_where_frameworks_own_gradients_failed_or_were_zero(name: str) -> None:
    assert native(name.rpartition(" ")[2], *check(ODD[name]))


@pytest.mark.parametrize("op", sorted(RULES.keys() & CASES.keys() - {"Dropout", "GlobalLpPool"}))
def test_a_wrong_rule_is_caught(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong by a tenth of a percent, or by a quarter where the node itself is computed in float32."""

    def wrong(b: Any, node: Any, grads: Any) -> Any:
        sent = rules[op](b, node, grads)
        error = 1.25 if op in SINGLE else 1.001
        pairs = zip(sent, node.inputs, strict=True)
        return [dx if dx is None or x is None or not b.wants(x) else b.scaled(dx, error, x) for dx, x in pairs]

    rules = dict(differentiation.RULES)
    monkeypatch.setattr(differentiation, "RULES", {**rules, op: wrong})
    with pytest.raises(AssertionError):
        drawn(op, 4, 0, lambda case: check(case) and None)
