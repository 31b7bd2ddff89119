"""The NumPy reference: kernels compared with ONNX Runtime, the executor's interface, LeNet with hand-written torch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

import deep5 as d5
from deep5.core.errors import NetworkError, ShapeError, UnknownName, Unsupported, UsageError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, ParameterGroup
from deep5.frameworks.reference.framework import Reference
from deep5.networks import Network, NetworkBuilder, lenet, mlp, ones, resnet, zeros
from deep5.networks.gradients import gradient_network
from deep5.training.rules.accelegrad import AcceleGrad

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def against_onnxruntime(network: Network, feeds: dict[str, np.ndarray], tolerance: float = 1e-5) -> dict[str, Any]:
    """Both run the float32 network; products of at most some hundred terms of size 1 differ by 1e-5 at most."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(network.to_onnx().SerializeToString(), options)
    expected = session.run(list(network.outputs), feeds)
    got = Reference().executor(network).inference(feeds)
    for (name, value), want in zip(got.items(), map(np.asarray, expected), strict=True):
        assert isinstance(value, np.ndarray), name
        assert (value.shape, value.dtype) == (want.shape, want.dtype), name
        np.testing.assert_allclose(value, want, rtol=tolerance, atol=tolerance, err_msg=name)
    return dict(got)


def single(op: str, feeds: dict[str, np.ndarray], *, constants: tuple[Any, ...] = (), outputs: int = 1, **attrs: Any):
    build = NetworkBuilder("single")
    inputs = [build.input(name, value.shape, str(value.dtype)) for name, value in feeds.items()]
    inputs += [None if c is None else build.constant(f"c{i}", np.asarray(c)) for i, c in enumerate(constants)]
    results = build.op(op, *inputs, outputs=outputs, **attrs)
    results = (results,) if outputs == 1 else results
    return build.network({f"y{i}": value for i, value in enumerate(results)})


def check_single(op: str, *values: np.ndarray, constants: tuple[Any, ...] = (), outputs: int = 1, **attrs: Any) -> None:
    feeds = {
        f"x{i}": value.astype(np.float32) if value.dtype == np.float64 else value for i, value in enumerate(values)
    }
    against_onnxruntime(single(op, feeds, constants=constants, outputs=outputs, **attrs), feeds)


CONVOLUTIONS = [
    ((2, 3, 7, 6), (4, 3, 3, 2), {}),
    ((1, 3, 7, 6), (4, 3, 1, 1), {}),
    ((2, 3, 7, 6), (4, 3, 1, 1), {"strides": [2, 2]}),
    ((1, 24, 5, 5), (4, 24, 3, 3), {"pads": [1, 1, 1, 1]}),  # columns with the channels last
    ((64, 2, 5, 5), (4, 2, 3, 3), {"pads": [1, 0, 0, 1]}),  # columns with the batch last
    ((2, 4, 9, 8), (6, 2, 3, 3), {"group": 2, "strides": [2, 1], "pads": [1, 2, 0, 1]}),
    ((2, 4, 9, 8), (4, 1, 3, 3), {"group": 4, "dilations": [2, 2]}),
    ((2, 3, 9, 8), (4, 3, 3, 2), {"dilations": [2, 3], "strides": [2, 2], "pads": [2, 2, 2, 2]}),
    ((1, 16, 9, 8), (4, 16, 3, 2), {"dilations": [2, 3], "strides": [3, 1], "pads": [2, 0, 1, 2]}),
    ((2, 3, 9, 8), (4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((2, 3, 9, 8), (4, 3, 2, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ((2, 3, 9, 8), (4, 3, 2, 4), {"auto_pad": "VALID"}),
    ((2, 3, 11), (4, 3, 4), {"strides": [3], "pads": [2, 1]}),
    ((2, 2, 5, 4, 6), (3, 2, 2, 2, 3), {"strides": [1, 2, 1]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_convolution(x: Any, w: Any, attributes: dict[str, Any], bias: bool) -> None:
    check_single("Conv", normal(*x), normal(*w), *([normal(w[0])] if bias else []), **attributes)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 3, 4, 5), (3, 4, 3, 2), {}),
        ((2, 3, 4, 5), (3, 4, 3, 3), {"strides": [2, 3], "pads": [1, 1, 1, 1], "output_padding": [1, 2]}),
        ((2, 3, 4, 5), (3, 4, 3, 3), {"strides": [3, 2], "pads": [0, 2, 2, 1]}),
        ((2, 4, 4, 5), (4, 2, 2, 3), {"group": 2, "dilations": [2, 1], "strides": [2, 2]}),
        ((3, 4, 6), (4, 1, 4), {"group": 4, "strides": [2], "pads": [1, 2]}),
        ((1, 2, 3, 4, 2), (2, 2, 2, 2, 2), {"strides": [2, 1, 2]}),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_transposed_convolution(x: Any, w: Any, attributes: dict[str, Any], bias: bool) -> None:
    m = w[1] * attributes.get("group", 1)
    check_single("ConvTranspose", normal(*x), normal(*w), *([normal(m)] if bias else []), **attributes)


WINDOWS = [
    ((2, 3, 6, 4), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 2], "strides": [2, 1]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 2, 2, 1]}),
    ((2, 3, 8, 9), {"kernel_shape": [2, 3], "strides": [3, 2], "ceil_mode": 1}),
    ((2, 3, 8, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1], "ceil_mode": 1}),
    ((2, 3, 8, 9), {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ((2, 3, 9, 9), {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [1, 2]}),
    ((2, 3, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((2, 3, 9, 8), {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((2, 3, 9), {"kernel_shape": [4], "strides": [2]}),
    ((1, 2, 5, 4, 6), {"kernel_shape": [2, 2, 3], "strides": [1, 2, 3]}),
]


@pytest.mark.parametrize(("x", "attributes"), WINDOWS)
@pytest.mark.parametrize("counted", [0, 1])
def test_average_pool(x: Any, attributes: dict[str, Any], counted: int) -> None:
    check_single("AveragePool", normal(*x), count_include_pad=counted, **attributes)


@pytest.mark.parametrize(("x", "attributes"), WINDOWS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_max_pool(x: Any, attributes: dict[str, Any], outputs: int) -> None:
    check_single("MaxPool", normal(*x), outputs=outputs, **attributes)
    check_single("MaxPool", np.round(normal(*x)), outputs=outputs, **attributes)  # with ties


def test_a_nan_is_not_lost_in_max_pool() -> None:
    x = np.array([[[[1, np.nan, 2, 3]]]], np.float32)
    executor = Reference().executor(single("MaxPool", {"x0": x}, kernel_shape=[1, 2], strides=[1, 2], outputs=2))
    np.testing.assert_array_equal(executor.inference({"x0": x})["y0"], [[[[np.nan, 3]]]])


X, Y = normal(2, 3, 4), normal(3, 1)
END = np.iinfo(np.int64).max
SINGLES: list[tuple[str, tuple[np.ndarray, ...], dict[str, Any]]] = [
    *((op, (X, Y), {}) for op in ("Add", "Sub", "Mul", "Div", "Greater", "Less")),
    *((op, (X,), {}) for op in ("Tanh", "Relu", "Sigmoid", "Exp", "Neg", "Identity", "Transpose", "Shape", "Size")),
    *((op, (np.abs(X),), {}) for op in ("Sqrt", "Log")),
    ("Sigmoid", (np.array([-1e4, -90.0, 0.0, 90.0, 1e4]),), {}),
    ("Div", (np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])), {}),
    ("Equal", (np.array([1, 2, 3]), np.array([[1], [3]])), {}),
    ("Softmax", (X,), {}),
    ("Softmax", (100 * X,), {"axis": 1}),
    ("Shape", (X,), {"start": 1, "end": -1}),
    ("Transpose", (X,), {"perm": [1, 2, 0]}),
    ("Flatten", (X,), {}),
    ("Flatten", (X,), {"axis": 0}),
    ("Flatten", (X,), {"axis": -1}),
    ("Reshape", (X,), {"constants": ([0, -1, 2],)}),
    ("Reshape", (X, np.array([4, 6])), {}),
    ("Unsqueeze", (X,), {"constants": ([0, -1],)}),
    ("Squeeze", (normal(1, 3, 1),), {"constants": ([0],)}),
    ("Squeeze", (normal(1, 3, 1),), {}),
    ("Expand", (Y,), {"constants": ([2, 1, 4],)}),
    ("Expand", (Y, np.array([2, 3, 4])), {}),
    ("Concat", (X, X), {"axis": 1}),
    ("Slice", (X,), {"constants": ([0, 1], [END, END], [1, 2], [2, 1])}),
    ("Slice", (X,), {"constants": ([-1, 2], [-END, -9], [1, 2], [-1, -2])}),
    ("Slice", (X,), {"constants": ([1, 1], [2, -1])}),
    ("Slice", (X,), {"constants": ([0], [2], None, [2])}),
    ("Pad", (X,), {"constants": ([0, 1, 0, 0, 2, 1],)}),
    ("Pad", (X,), {"constants": ([1, -1, 0, 0, 2, -1], np.float32(0.5))}),
    ("Pad", (X,), {"constants": ([1, 2], None, [-1])}),
    *(("Pad", (X,), {"constants": ([0, 1, 2, 0, 1, 1],), "mode": mode}) for mode in ("edge", "reflect", "wrap")),
    ("Cast", (X,), {"to": 7}),
    ("Cast", (np.array([1, 2]),), {"to": 1}),
    ("ConstantOfShape", (np.array([2, 3]),), {}),
    *(("ReduceSum", (X,), {"constants": (axes,), "keepdims": keep}) for axes in ([0, 2], [-1]) for keep in (0, 1)),
    ("ReduceSum", (X,), {}),
    ("ReduceSum", (X,), {"constants": (np.array([], np.int64),), "noop_with_empty_axes": 1}),
    ("ReduceMax", (X,), {"constants": ([1],)}),
    ("ReduceProd", (X,), {"constants": ([1],), "keepdims": 0}),
    ("NonZero", (np.round(X),), {}),
    ("Where", (X > 0, X, Y), {}),
    ("Where", (X[0] > 0, X, Y), {}),
    ("OneHot", (np.array([[0, 2], [-1, 5]]),), {"constants": ([3], np.array([2, 7], np.float32))}),
    ("OneHot", (np.array([[0, 2], [-1, 5]]),), {"constants": (3, np.array([2, 7], np.float32)), "axis": 1}),
    ("GlobalAveragePool", (normal(2, 3, 4, 5),), {}),
    ("MatMul", (normal(2, 1, 3, 4), normal(5, 4, 2)), {}),
    ("MatMul", (normal(4), normal(4)), {}),
    ("Gemm", (normal(3, 4), normal(4, 5)), {}),
    ("Gemm", (normal(4, 3), normal(5, 4), normal(3, 1)), {"alpha": 0.5, "beta": 2.0, "transA": 1, "transB": 1}),
    ("BatchNormalization", (normal(2, 3, 4), normal(3), normal(3), normal(3), np.abs(normal(3))), {"epsilon": 1e-3}),
]


@pytest.mark.parametrize(("op", "values", "options"), SINGLES, ids=[f"{i}-{s[0]}" for i, s in enumerate(SINGLES)])
def test_other_operators(op: str, values: tuple[np.ndarray, ...], options: dict[str, Any]) -> None:
    check_single(op, *values, **options)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize(("shape", "axis"), [((6,), 0), ((3, 4), 1), ((3, 4), 0), ((2, 3, 4), -2)])
def test_scatter_elements(reduction: str, shape: tuple[int, ...], axis: int) -> None:
    where = RNG.integers(-shape[axis], shape[axis], tuple(max(1, extent - 1) for extent in shape))
    if reduction == "none":  # where two updates meet, the winner is not defined
        where = np.broadcast_to(
            np.arange(where.shape[axis]).reshape([-1 if a == axis % len(shape) else 1 for a in range(len(shape))]),
            where.shape,
        )
    check_single("ScatterElements", normal(*shape), where.copy(), normal(*where.shape), axis=axis, reduction=reduction)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("ignore", [{}, {"ignore_index": 1}, {"ignore_index": -100}])
@pytest.mark.parametrize("shape", [(7, 4), (3, 4, 2, 2)])
def test_losses_over_classes(reduction: str, weights: bool, ignore: dict[str, int], shape: Any) -> None:
    label = RNG.integers(0, 4, (shape[0], *shape[2:]))
    if ignore.get("ignore_index", 0) < 0:
        label.reshape(-1)[::2] = ignore["ignore_index"]
    rest = [np.abs(normal(4)) + 0.5] if weights else []
    check_single("SoftmaxCrossEntropyLoss", normal(*shape), label, *rest, outputs=2, reduction=reduction, **ignore)
    check_single("NegativeLogLikelihoodLoss", normal(*shape), label, *rest, reduction=reduction, **ignore)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (lenet(), (5, 1, 28, 28)),
        (lenet(activation="relu", pooling="max"), (64, 1, 28, 28)),
        (mlp(features=20, hidden=16), (5, 20)),
        (resnet(depth=8), (3, 3, 32, 32)),
    ],
)
def test_networks_against_onnxruntime(network: Network, shape: tuple[int, ...]) -> None:
    feeds = {"input": normal(*shape).astype(np.float32), "label": RNG.integers(0, 10, shape[0])}
    # up to eight layers of float32 in sequence
    against_onnxruntime(network, feeds, 1e-4)


@pytest.mark.parametrize("options", [{}, {"activation": "relu", "pooling": "max"}])
def test_gradient_networks_against_onnxruntime(options: dict[str, str]) -> None:
    network = lenet(**options)
    feeds = {"input": normal(9, 1, 28, 28).astype(np.float32), "label": RNG.integers(0, 10, 9)}
    feeds["loss_scale"] = np.array(2.0, np.float32)
    # sums over 9 * 784 products in float32
    against_onnxruntime(gradient_network(network, wrt=[*network.parameter_specs, "input"]), feeds, 1e-4)


def test_float64_is_kept_by_every_operator_of_a_step() -> None:
    network = gradient_network(mlp(features=6, hidden=5, dtype="float64"))
    feeds = {"input": normal(4, 6), "label": np.arange(4), "loss_scale": np.array(1.0)}
    expected = ReferenceEvaluator(network.to_onnx()).run(None, feeds)
    got = Reference().executor(network).inference(feeds)
    for (name, value), want in zip(got.items(), expected, strict=True):
        assert value.dtype == np.float64, name
        # float64 sums of some ten terms of size 1
        np.testing.assert_allclose(value, want, rtol=1e-12, atol=1e-12, err_msg=name)


def torch_lenet(values: dict[str, torch.Tensor], x: torch.Tensor, label: torch.Tensor) -> tuple[Any, Any]:
    def layer(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        return values[f"{name}.weight"], values[f"{name}.bias"]

    x = F.avg_pool2d(torch.tanh(F.conv2d(x, *layer("conv1"), padding=2)), 2)
    x = F.avg_pool2d(torch.tanh(F.conv2d(x, *layer("conv2"))), 2).flatten(1)
    x = torch.tanh(F.linear(torch.tanh(F.linear(x, *layer("fc1"))), *layer("fc2")))
    logits = F.linear(x, *layer("fc3"))
    return logits, F.cross_entropy(logits, label)


def images(batch: int, dtype: str = "float32") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch)
    return {"input": rng.standard_normal((batch, 1, 28, 28)).astype(dtype), "label": rng.integers(0, 10, batch)}


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_lenet_against_torch_written_by_hand(batch: int) -> None:
    network, feeds = lenet(dtype="float64", seed=4), images(batch, "float64")
    executor = Reference().executor(network)
    outputs = executor.inference_and_backprop(feeds)
    values = {name: torch.tensor(network.initial(name), requires_grad=True) for name in network.parameter_specs}
    logits, loss = torch_lenet(values, torch.tensor(feeds["input"]), torch.tensor(feeds["label"]))
    loss.backward()
    # float64 over five layers: 1e-16 times sums of 50 thousand terms stays below 1e-10
    np.testing.assert_allclose(outputs["loss"], loss.item(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(outputs["logits"], logits.detach().numpy(), rtol=0, atol=1e-10)
    for name, gradient in executor.gradients().items():
        np.testing.assert_allclose(gradient, values[name].grad.numpy(), rtol=0, atol=1e-10, err_msg=name)


def test_the_executor_keeps_the_interface() -> None:
    executor = Reference().executor(lenet())
    assert isinstance(executor, GraphExecutor)
    assert executor.capabilities == {"early_gradients", "float64"}
    assert str(executor.device) == "cpu"
    assert list(executor.parameters()) == list(executor.network.parameter_specs)
    for value in executor.parameters().values():
        assert value.flags.c_contiguous
        assert value.ctypes.data % 64 == 0
    assert executor.buffers() == {}
    assert list(Reference().executor(resnet(depth=8)).buffers())[:2] == ["conv0.mean", "conv0.variance"]
    settings = executor.settings()
    assert (settings["dtype"], settings["tf32"], settings["deterministic"]) == ("float32", False, True)
    executor.synchronize()


def test_the_same_call_gives_the_same_bits() -> None:
    feeds, runs = images(32), []
    for _ in range(2):
        executor = Reference().executor(lenet(activation="relu", pooling="max"))
        for _ in range(3):
            outputs = executor.inference_and_backprop(feeds)
            runs.append([outputs["loss"].tobytes(), *(g.tobytes() for g in executor.gradients().values())])
    assert all(run == runs[0] for run in runs)


def test_inference_and_backprop_return_the_same_outputs() -> None:
    executor, feeds = Reference().executor(lenet()), images(8)
    forward, both = executor.inference(feeds, training=True), executor.inference_and_backprop(feeds)
    assert list(forward) == list(both) == ["logits", "loss"]
    for name in forward:
        np.testing.assert_array_equal(forward[name], both[name])


def test_gradients_before_any_backprop_are_refused() -> None:
    executor = Reference().executor(lenet())
    executor.inference(images(2))
    with pytest.raises(Unsupported, match="there are no gradients; remedy: call inference_and_backprop first"):
        executor.gradients()


def test_loss_scale_and_accumulate() -> None:
    executor, first, second = Reference().executor(lenet(dtype="float64")), images(4, "float64"), images(6, "float64")
    executor.inference_and_backprop(first)
    one = executor.gradients()
    executor.inference_and_backprop(second, loss_scale=8.0)
    two = executor.gradients()
    executor.inference_and_backprop(first, accumulate=False)
    kept = executor.gradients()
    executor.inference_and_backprop(second, accumulate=True)
    total = executor.gradients()
    for name in one:
        np.testing.assert_array_equal(one[name], kept[name])  # returned arrays are not overwritten later
        # 8 is a power of two: scaling by it is exact in every product; sums round alike
        np.testing.assert_array_equal(total[name], one[name] + two[name] / 8)


def test_gradients_by_an_input() -> None:
    executor, feeds = Reference().executor(lenet(dtype="float64")), images(3, "float64")
    executor.inference_and_backprop(feeds, wrt=["input", "fc3.bias"])
    assert list(executor.gradients()) == ["input", "fc3.bias"]
    x = torch.tensor(feeds["input"], requires_grad=True)
    values = {name: torch.tensor(value) for name, value in executor.parameters().items()}
    torch_lenet(values, x, torch.tensor(feeds["label"]))[1].backward()
    # float64, as above
    np.testing.assert_allclose(executor.gradients()["input"], x.grad.numpy(), rtol=0, atol=1e-12)


def test_on_gradient_sees_every_gradient_once_and_the_last_layer_first() -> None:
    executor, seen = Reference().executor(lenet()), {}
    executor.inference_and_backprop(images(4), on_gradient=lambda name, gradient: seen.update({name: gradient}))
    assert set(list(seen)[:2]) == {"fc3.weight", "fc3.bias"}
    assert set(list(seen)[-2:]) == {"conv1.weight", "conv1.bias"}
    assert seen.keys() == executor.gradients().keys()
    for name, gradient in executor.gradients().items():
        assert gradient is seen[name]
        assert gradient.flags.c_contiguous
        assert gradient.flags.writeable


def test_gradients_and_outputs_share_memory_with_nothing() -> None:
    build = NetworkBuilder("shared", dtype="float64")
    x, w, v = build.input("x", (3,)), build.parameter("w", (3,), lambda r, s: r.random(s)), None
    v = build.parameter("v", (3,), lambda r, s: r.random(s))
    total = build.op("Add", build.op("Add", w, v), x)
    network = build.network(
        {
            "loss": build.op("MatMul", total, build.constant("ones", np.ones(3))),
            "same": build.op("Identity", w),
            "fed": build.op("Reshape", x, build.constant("to", np.array([3, 1]))),
            "sum": build.op("Identity", total),
        }
    )
    executor, fed = Reference().executor(network), {"x": np.arange(3.0)}
    outputs = executor.inference_and_backprop(fed, wrt=["w", "v", "x"])
    arrays = [*outputs.values(), *executor.gradients().values(), *executor.parameters().values(), fed["x"]]
    for i, one in enumerate(arrays):
        for other in arrays[:i]:
            assert not np.shares_memory(one, other)
    assert not np.shares_memory(executor.inference(fed)["same"], executor.parameters()["w"])


def test_writing_a_parameter_in_place_changes_the_network_that_runs() -> None:
    network = lenet()
    executor, feeds = Reference().executor(network), images(4)
    before = executor.inference(feeds)["logits"]
    executor.parameters()["fc3.bias"][...] += 1
    # adding 1 to numbers of size 1 rounds once, at 1e-7
    np.testing.assert_allclose(executor.inference(feeds)["logits"], before + 1, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(network.initial("fc3.bias"), np.zeros(10))
    np.testing.assert_array_equal(executor.export().initial("fc3.bias"), np.ones(10))


def test_read_and_write_are_packed_and_exact() -> None:
    executor, names = Reference().executor(resnet(depth=8)), ["fc.bias", "conv0.mean", "conv0.weight"]
    values = {**executor.parameters(), **executor.buffers()}
    packed = np.empty(10 + 16 + 16 * 3 * 9, np.float32)
    executor.read(names, packed)
    np.testing.assert_array_equal(packed, np.concatenate([values[name].ravel() for name in names]))
    executor.write(names, packed * 2 + 1)
    back = np.empty_like(packed)
    executor.read(names, back)
    np.testing.assert_array_equal(back, packed * 2 + 1)
    np.testing.assert_array_equal(values["conv0.mean"], np.ones(16))
    with pytest.raises(UnknownName, match=r"unknown parameter or buffer 'fc\.bais'.*did you mean 'fc\.bias'"):
        executor.read(["fc.bais"], packed)
    with pytest.raises(ShapeError, match=r"packed array: got float32\[474\], expected float32\[10\]"):
        executor.write(["fc.bias"], np.zeros(474, np.float32))
    with pytest.raises(ShapeError, match=r"packed array: got float64\[10\], expected float32\[10\]"):
        executor.read(["fc.bias"], np.zeros(10))
    with pytest.raises(UsageError, match="ndarray that is not contiguous; allowed: a C-contiguous NumPy array"):
        executor.read(["fc.bias"], np.zeros(20, np.float32)[::2])


def test_state_is_restored_bit_for_bit() -> None:
    executor = Reference().executor(lenet())
    state = executor.state_dict()
    for value in executor.parameters().values():
        value[...] = -1
    other = Reference().executor(lenet(seed=9))
    other.load_state_dict(state)
    for name, value in other.parameters().items():
        assert value.tobytes() == state[name].tobytes()
        assert not np.shares_memory(value, state[name])
    with pytest.raises(NetworkError, match=r"missing \['fc3.bias'\], unknown \['fc4.bias'\]"):
        other.load_state_dict({("fc4.bias" if name == "fc3.bias" else name): v for name, v in state.items()})
    with pytest.raises(ShapeError, match=r"the state of 'fc3.bias': got shape \(11,\), expected float32\[10\]"):
        other.load_state_dict({**state, "conv1.bias": state["conv1.bias"] + 1, "fc3.bias": np.zeros(11, np.float32)})
    assert other.parameters()["conv1.bias"].tobytes() == state["conv1.bias"].tobytes()  # all or nothing


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("label"), "missing input 'label'; got: input, expected: input, label"),
        (lambda f: f.update(labels=f["label"]), "unknown input 'labels'; expected: input, label; did you mean 'label'"),
        (
            lambda f: f.update(input=f["input"][:, :, 1:]),
            r"input 'input': got shape \(4, 1, 27, 28\), expected float32",
        ),
        (lambda f: f.update(input=f["input"].astype(np.float64)), "input 'input': got dtype float64, expected float32"),
        (lambda f: f.update(label=f["label"][:3]), r"input 'label': got N = 3 in shape \(3,\), expected N = 4"),
    ],
)
def test_wrong_inputs_are_refused(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    executor, feeds = Reference().executor(lenet()), images(4)
    change(feeds)
    with pytest.raises(ShapeError, match=message):
        executor.inference(feeds)
    with pytest.raises(ShapeError, match=message):
        executor.inference_and_backprop(feeds)


@pytest.mark.parametrize("label", [-1, 10])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    feeds = images(4)
    feeds["label"][2] = label
    with pytest.raises(NetworkError, match="allowed: 0 to 9"):
        Reference().executor(lenet()).inference(feeds)


def test_arrays_of_other_libraries_are_taken() -> None:
    executor, feeds = Reference().executor(lenet()), images(4)
    native = {name: torch.tensor(value) for name, value in feeds.items()}
    np.testing.assert_array_equal(executor.inference(native)["loss"], executor.inference(feeds)["loss"])


def test_what_cannot_run_is_refused_with_its_reason() -> None:
    framework, build = Reference(), NetworkBuilder("odd")
    x = build.input("x", (2, 2, 4, 4))
    scaled, pooled = build.op("LpNormalization", x, p=3), build.op("LpPool", x, kernel_shape=[2, 2], p=0)
    network = build.network({"scaled": scaled, "pooled": pooled})
    with pytest.raises(
        Unsupported, match=r"(?s)\(LpNormalization\): got p=3; allowed: 1, 2.*got p=0; allowed: above 0"
    ):
        framework.executor(network)
    assert len(framework.unsupported(network.nodes)) == 2
    assert framework.unsupported(lenet().nodes) == []
    with pytest.raises(Unsupported, match=r"does not run on device 'cuda:0'; allowed: cpu"):
        framework.executor(lenet(), device="cuda")


@pytest.mark.parametrize("call", ["inference", "inference_and_backprop"])
def test_running_statistics_move_in_training_alone(call: str) -> None:
    build = NetworkBuilder("statistics", dtype="float64")
    x = build.input("x", ("N", 2, 3))
    affine = [build.parameter(name, (2,), init) for name, init in (("scale", ones), ("bias", zeros))]
    running = [build.parameter(name, (2,), init) for name, init in (("mean", zeros), ("variance", ones))]
    y = build.op("BatchNormalization", x, *affine, *running, momentum=0.75)
    network = build.network({"loss": build.op("ReduceSum", build.op("Mul", y, y), keepdims=0)})
    executor, value = Reference().executor(network), 2 * normal(5, 2, 3) + 3
    executor.inference({"x": value})
    np.testing.assert_array_equal(executor.buffers()["mean"], np.zeros(2))
    mean, variance = np.zeros(2), np.ones(2)
    for _ in range(3):
        outputs = (
            executor.inference({"x": value}, training=True)
            if call == "inference"
            else getattr(executor, call)({"x": value})
        )
        assert list(outputs) == ["loss"]
        mean = 0.75 * mean + 0.25 * value.mean(axis=(0, 2))
        variance = 0.75 * variance + 0.25 * value.var(axis=(0, 2))
        # float64 sums of 15 numbers of size 3
        np.testing.assert_allclose(executor.buffers()["mean"], mean, rtol=1e-14)
        np.testing.assert_allclose(executor.buffers()["variance"], variance, rtol=1e-14)


def test_names_from_the_model_never_enter_the_generated_code() -> None:
    proto = mlp(features=4, hidden=3, classes=2).to_onnx()
    evil = '"); import os; os.abort() #\n'
    for node in proto.graph.node:
        node.name = evil + node.name
        for names in (node.input, node.output):
            names[:] = [evil if name == "fc1.weight" else name for name in names]
    for initializer in proto.graph.initializer:
        initializer.name = evil if initializer.name == "fc1.weight" else initializer.name
    executor = Reference().executor(Network.from_onnx(proto))
    executor.inference_and_backprop({"input": np.ones((2, 4), np.float32), "label": np.array([0, 1])})
    assert evil in executor.gradients()


def test_export_asks_the_train_step_in_force_for_averages() -> None:
    executor, feeds = Reference().executor(lenet()), images(4)
    step = executor.train_step(AcceleGrad(lr=0.1), groups=[ParameterGroup(lambda name: True, lr=0.05)])
    for index in range(3):
        step(feeds, StepInfo(step=index, batch_size=4))
    live = executor.parameters()["fc3.bias"].copy()
    with step.averaged():
        averaged = executor.parameters()["fc3.bias"].copy()
    assert not np.array_equal(averaged, live)
    np.testing.assert_array_equal(executor.export().initial("fc3.bias"), averaged)
    np.testing.assert_array_equal(executor.export(evaluation=False).initial("fc3.bias"), live)
    kept = weakref.ref(step)
    del step
    gc.collect()
    assert kept() is None
    np.testing.assert_array_equal(executor.export().initial("fc3.bias"), live)


def test_threads_are_set_and_read_back() -> None:
    framework = Reference()
    executor = framework.executor(mlp(features=4, hidden=3))
    before = executor.settings()["threads"]
    try:
        framework.set_threads(1)
        assert executor.settings()["threads"] == 1
    finally:
        framework.set_threads(before)
    assert executor.settings()["threads"] == before
    with pytest.raises(UsageError, match="got 0 threads; allowed: an integer from 1 to"):
        framework.set_threads(0)


def test_the_framework_names_numpy_and_runs_operators_as_they_are() -> None:
    class Double(d5.Operator):
        def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
            return inputs

        def forward(self, *inputs: Any) -> Any:
            return 2 * inputs[0]

        def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
            return (2 * output_grads[0],)

    framework = Reference()
    assert (framework.name, framework.version()) == ("reference", np.__version__)
    assert framework.operator(Double())(np.float32(3)) == 6
    onnx.checker.check_model(framework.executor(mlp(features=4, hidden=3)).export().to_onnx())
