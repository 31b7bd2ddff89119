"""Registered operators as nodes of networks, on every back-end: training, gradients, failures and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import deep5 as d5
from backend_operators import DOMAIN, THIRTEEN, CppPow, PyPow, batch, draw, normal, power, powers
from backends import COMPUTING, ENGINES, Backend, parametrized
from deep5.core.errors import OperatorError, Unsupported
from deep5.core.events import StepInfo
from deep5.networks import Network, NetworkBuilder
from deep5.networks.gradients import gradient_network
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.backward import Backward
from deep5.operators.native import NativeOperator

KINDS = pytest.mark.parametrize("kind", ["Py", "Cpp"])
ALL = (*COMPUTING, *ENGINES)


@KINDS
@parametrized(*COMPUTING, "pytorch:compiled", "tensorflow:xla", *ENGINES, daily=True, slow=("pytorch:compiled",))
def test_a_network_trains_as_one_of_products(backend: Backend, kind: str) -> None:
    """Batches of several sizes; only the order of float32 roundings may differ."""
    if kind not in backend.kinds:
        with pytest.raises(Unsupported, match=r"CppPow_1 \(CppPow\): CppPow is already compiled, and XLA"):
            backend.framework.executor(powers("CppPow"))
        return
    ours, products = (backend.framework.executor(powers(op), seed=1) for op in (f"{kind}Pow", "Mul"))
    start = ours.network.initial("w")
    steps = [each.train_step(d5.Momentum(lr=0.01, momentum=0.5)) for each in (ours, products)]
    for number in range(3):
        info = StepInfo(step=number, batch_size=5 - number)
        got, want = (step(batch(5 - number, seed=number), info) for step in steps)
        for name, value in want.items():
            np.testing.assert_allclose(d5.to_numpy(got[name]), d5.to_numpy(value), rtol=2e-5, atol=1e-6)
    for each in (ours, products):
        each.inference_and_backprop(batch(3))
    pairs = ((ours.state_dict(), products.state_dict()), (ours.gradients(), products.gradients()))
    for found, wanted in (*pairs, (ours.inference(batch(2)), products.inference(batch(2)))):
        for name, value in wanted.items():
            np.testing.assert_allclose(d5.to_numpy(found[name]), d5.to_numpy(value), rtol=2e-5, atol=1e-6)
    assert np.abs(ours.state_dict()["w"] - start).max() > 1e-3, "it must learn something"
    if backend.name == "pytorch:compiled":
        # Training, evaluation, and a backward pass that keeps its outputs: each for batches of any size.
        assert ours.compilations <= 3


@KINDS
@parametrized(*COMPUTING, "reference", daily=True)
def test_several_outputs_of_a_node(backend: Backend, kind: str) -> None:
    build = NetworkBuilder("mixed")
    x, w = build.input("x", ("N", 4)), build.parameter("w", (4,), normal)
    first = build.constant("first", np.array([3]))
    product, rows, twice = build.op(f"{kind}Mixed", x, w, first, domain=DOMAIN, outputs=3)
    loss = build.op("Add", build.op("ReduceMean", product, keepdims=0), build.op("ReduceMean", twice, keepdims=0))
    executor = backend.framework.executor(build.network({"rows": rows, "loss": loss}))
    outputs = executor.inference_and_backprop(batch(5), wrt=["w", "x"])
    given, w = batch(5)["x"], executor.network.initial("w")
    assert d5.to_numpy(outputs["rows"]).tolist() == [8]
    # Sums of at most twenty numbers in float32.
    np.testing.assert_allclose(d5.to_numpy(outputs["loss"]), (given * w).mean() + 2 * w.mean(), rtol=1e-5)
    np.testing.assert_allclose(d5.to_numpy(executor.gradients()["w"]), given.sum(0) / 20 + 0.5, rtol=1e-5)
    by_x = d5.to_numpy(executor.gradients()["x"])
    np.testing.assert_allclose(by_x, np.broadcast_to(w / 20, (5, 4)), rtol=1e-5)


@KINDS
@parametrized(*COMPUTING, *ENGINES, daily=True)
def test_a_backward_pass_runs_as_a_node(backend: Backend, kind: str) -> None:
    """When deep5 differentiates the network itself, and when a model contains such a node."""
    if (backend.name, kind) in (("onnxruntime", "Py"), ("openvino", "Py")):
        pytest.skip("these engines run operators in Python as networks of ONNX's operators")
    feed = batch(5)
    network = gradient_network(powers(f"{kind}Pow"), "loss", ["w"])
    made = backend.framework.executor(network).inference({**feed, "loss_scale": np.float32(1)})
    products = d5.framework("reference").executor(powers("Mul"))
    products.inference_and_backprop(feed)
    np.testing.assert_allclose(d5.to_numpy(made["grad:w"]), products.gradients()["w"], rtol=2e-5, atol=1e-6)
    node, value, said = onnx.helper.make_node, onnx.helper.make_tensor_value_info, {"domain": DOMAIN, "power": 3}
    op = f"{kind}Pow"
    slope = node(f"{op}.backward", ["dy", "x", "y"], ["dx"], **said, deep5_needs=[1], deep5_floating=[1])
    fed = [value(name, 1, ["N", 4]) for name in ("x", "dy")]
    graph = onnx.helper.make_graph([node(op, ["x"], ["y"], **said), slope], "slope", fed, [value("dx", 1, ["N", 4])])
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(DOMAIN, 1)]
    model = Network.from_onnx(onnx.helper.make_model(graph, opset_imports=opsets))
    given = {"x": draw(5, 4), "dy": draw(5, 4, seed=1)}
    got = d5.to_numpy(backend.framework.executor(model).inference(given)["dx"])
    want = 3 * given["x"].astype("f8") ** 2 * given["dy"]
    np.testing.assert_allclose(got, want, rtol=1e-6)  # four float32 products
    if backend.name in ("jax", "pytorch", "reference"):
        run = backend.framework.operator(Backward(power(kind), (True,), (True,)))
        found = run(*map(backend.native, (given["dy"], given["x"], given["x"] ** 3)))
        np.testing.assert_allclose(backend.numpy(found), want, rtol=1e-6)


@parametrized(*COMPUTING, *ENGINES)
def test_a_network_names_the_operator_that_fails_and_stays_as_it_was(backend: Backend) -> None:
    executor = backend.framework.executor(powers("CppPow", width=1))
    before, step = executor.state_dict(), executor.train_step(d5.SGD(lr=0.1))

    def run(rows: int) -> Any:
        made = executor.inference(batch(rows))
        executor.synchronize()
        return made

    def finished(call: Any) -> None:
        call()
        executor.synchronize()

    for _ in range(2):
        for call in (
            lambda: run(13),
            lambda: executor.inference_and_backprop(batch(13)),
            lambda: step(batch(13), StepInfo(batch_size=13)),
        ):
            with pytest.raises(OperatorError, match=rf"^{THIRTEEN}"):
                finished(call)
        want = (batch(4)["x"] @ before["w"]) ** 3
        np.testing.assert_allclose(d5.to_numpy(run(4)["y"]), want, rtol=1e-4, atol=1e-6)  # sums of four products
    for name, value in executor.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


@parametrized(*COMPUTING, "pytorch:compiled", *ENGINES, slow=("pytorch:compiled",))
def test_a_network_through_an_operator_without_backward_runs_and_does_not_train(backend: Backend) -> None:
    build = NetworkBuilder("forward")
    w = build.parameter("w", (2,), lambda rng, shape: np.ones(shape))
    y = build.op("NoBackward", build.op("Mul", build.input("x", ("N", 2)), w), domain=DOMAIN)
    executor = backend.framework.executor(build.network({"y": y, "loss": build.op("ReduceMean", y, keepdims=0)}))
    feed = {"x": np.ones((3, 2), "float32")}
    np.testing.assert_array_equal(d5.to_numpy(executor.inference(feed)["y"]), np.full((3, 2), 2))
    with pytest.raises(Unsupported, match=r"NoBackward has no backward in C\+\+"):
        executor.inference_and_backprop(feed)
    with pytest.raises(Unsupported, match=r"NoBackward has no backward in C\+\+"):
        executor.train_step(d5.SGD(lr=0.1))(feed, StepInfo(batch_size=3))


@d5.register_operator("Elsewhere", domain=DOMAIN)
class Elsewhere(NativeOperator):
    """A function of a framework on which no suite runs."""

    def __init__(self) -> None:
        super().__init__(abs, framework="another", specs=lambda x: (x,))


@parametrized(*COMPUTING, *ENGINES)
def test_nodes_that_cannot_run_are_refused_with_the_reason(backend: Backend) -> None:
    def reason(op: str, *inputs: ir.Value | None, **attributes: Any) -> str:
        answer = backend.framework.supports(ir.node(op, inputs, attributes, domain=DOMAIN))
        assert bool(answer) is not bool(answer.reason)
        return str(answer.reason)

    x = ir.Value(name="x", shape=ir.Shape((2,)), type=ir.TensorType(ir.DataType.FLOAT))
    w = ir.Value(name="w", shape=ir.Shape((1,)), type=ir.TensorType(ir.DataType.FLOAT))
    if backend.name in COMPUTING:
        assert "is a function of another" in reason("Elsewhere", x)
    network = powers("CppPow")
    (node,) = [node for node in network.nodes if node.domain == DOMAIN]
    assert backend.framework.supports(node)
    node.replace_input_with(0, None)
    assert (
        "input 0 is left out" in (message := backend.framework.supports(node).reason)
        or "leaves an input out" in message
    )
    python = backend.framework.supports(next(node for node in powers("PyPow").nodes if node.domain == DOMAIN))
    if backend.name in ("onnxruntime", "openvino"):
        assert "PyPow is written in Python" in python.reason
    else:
        assert python
        assert "input 1 is left out" in (message := reason("PyMixed", x, None, w)) or "leaves an input out" in message
        assert "with the attributes {'order': 2} cannot be made" in reason("PyPow", x, order=2)


@d5.register_operator("Torn", domain=DOMAIN)
class Torn(CppPow):
    source = "\n this is no C++ \n"


@parametrized(*COMPUTING, *ENGINES)
def test_an_operator_that_does_not_compile_is_named(backend: Backend) -> None:
    def run() -> None:
        backend.framework.executor(powers("Torn")).inference(batch(2))

    with pytest.raises(OperatorError, match=r"(?s)refused the operator Torn for float32.*error"):
        run()


@d5.register_operator("Wrong", domain=DOMAIN)
class Wrong(PyPow):
    """Its gradient does not match its values."""

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (inputs[0] * output_grads[0],)


@parametrized(*COMPUTING, "reference")
def test_a_wrong_backward_would_be_seen(backend: Backend) -> None:
    found = []
    for op in ("Mul", "Wrong"):
        run = backend.framework.executor(powers(op), seed=1)
        run.inference_and_backprop(batch(2))
        found.append(d5.to_numpy(run.gradients()["w"]))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        np.testing.assert_allclose(*found, rtol=1e-3)


@d5.register_operator("Conv", domain=DOMAIN)
class Conv(d5.Operator):
    """x * w, called like ONNX's operator, with another axis order of weights and images."""

    def specs(self, x: d5.TensorSpec, w: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        return (x,)

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] * inputs[1]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return output_grads[0] * inputs[1], output_grads[0] * inputs[0]


@parametrized(*COMPUTING, "reference")
def test_operators_among_images_get_onnxs_order_of_axes(backend: Backend) -> None:
    build = NetworkBuilder("images")
    x = build.input("x", (2, 3, 4, 4))
    made = build.op("Conv", x, build.parameter("w", (2, 3, 4, 4), normal), domain=DOMAIN)
    image = build.op("Conv", made, build.parameter("k", (2, 3, 3, 3), normal), pads=[1] * 4)
    squares = build.op("PyPow", image, domain=DOMAIN, power=2)
    squares = build.op("Sub", build.op("CppPow", image, domain=DOMAIN, power=3), squares)
    flat = build.op("Gemm", build.op("Flatten", squares), build.parameter("v", (5, 32), normal), transB=1)
    network = build.network({"made": made, "flat": flat, "loss": build.op("ReduceMean", flat, keepdims=0)})
    run, same = backend.framework.executor(network), d5.framework("reference").executor(network)
    feed = {"x": draw(2, 3, 4, 4)}
    found, want = run.inference_and_backprop(feed), same.inference_and_backprop(feed)
    np.testing.assert_array_equal(d5.to_numpy(found["made"]), feed["x"] * network.initial("w"))
    for got, wanted in ((found, want), (run.gradients(), same.gradients())):
        for name, value in wanted.items():
            # Sums of about a hundred float32 products.
            scale = np.abs(value).max()
            np.testing.assert_allclose(d5.to_numpy(got[name]), value, rtol=1e-3, atol=1e-4 * scale, err_msg=name)


@parametrized(*COMPUTING, "pytorch:compiled", "tensorflow:xla", *ENGINES, slow=("pytorch:compiled",))
def test_an_operator_of_onnx_runs_as_a_network_of_one_node(backend: Backend) -> None:
    dtype = "float32" if backend.name in ("onnxruntime", "openvino") else "float64"
    executor = backend.framework.operator_executor(ONNXOperator("Conv", pads=[1, 1, 1, 1]))
    for rows in (2, 3):
        x, w = draw(rows, 3, 5, 5, dtype=dtype), draw(4, 3, 3, 3, dtype=dtype, seed=1)
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype("f8")
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        want = np.einsum("nchwij,ocij->nohw", windows, w.astype("f8"))
        dy = draw(*want.shape, dtype=dtype, seed=2)
        (y,), (_, dw) = executor.inference_and_backprop(executor.arrays(x, w), executor.arrays(dy))
        # Sums of 27 and of 75 products of both signs.
        close = {"rtol": 1e-11, "atol": 1e-12} if dtype == "float64" else {"rtol": 1e-4, "atol": 1e-4}
        np.testing.assert_allclose(backend.numpy(y), want, **close)
        np.testing.assert_allclose(backend.numpy(dw), np.einsum("nchwij,nohw->ocij", windows, dy), **close)
        native = backend.framework.operator(ONNXOperator("Conv", pads=[1, 1, 1, 1]))
        np.testing.assert_allclose(backend.numpy(native(*map(backend.native, (x, w)))), want, **close)
    with pytest.raises(d5.Deep5Error):
        executor.inference(*executor.arrays(np.ones((2, 3), dtype), np.ones((2, 3), dtype)))
    if backend.name in ("jax", "tensorflow", "tensorflow:xla"):
        return  # they return None as the gradient
    shape = backend.framework.operator_executor(ONNXOperator("Shape"))
    with pytest.raises(Unsupported, match=r"no output is a floating-point number|has no gradient|differentiate"):
        shape.inference_and_backprop(shape.arrays(draw(2, 3)), (None,))
