"""Gradients as ONNX graphs, on the reference and on ONNX Runtime, against PyTorch's, JAX's and TensorFlow's own.

In float32, for which some rules emit other operators than for float64: layers that combine several rules. The other
files of this folder compare each rule by itself, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import pytest

from deep5.core.plugins import framework
from deep5.core.tensors import to_numpy
from deep5.networks import Network, NetworkBuilder, lenet, ones, resnet
from deep5.networks.gradients import gradient_network
from deep5.networks.gradients.batch_normalization import expand_training
from deep5.networks.run_modes import training_form
from gradient_cases import dot_network, gradients_of, run

END = np.iinfo(np.int64).max
LABEL = np.array([0, 2, 1, 2])
INDEX = np.array([[0, 3], [3, 1]])


def ints(build: NetworkBuilder, *values: int) -> ir.Value:
    return build.op("Constant", value=ir.tensor(np.array(values, np.int64)))


def number(build: NetworkBuilder, value: float) -> ir.Value:
    return build.op("Constant", value=ir.tensor(np.array(value, np.float32)))


def torch_gradients(function: Any, values: list[np.ndarray], seed: np.ndarray) -> list[np.ndarray]:
    import torch

    leaves = [torch.tensor(value, requires_grad=True) for value in values]
    (function(torch, *leaves).reshape(-1) @ torch.tensor(seed)).backward()
    return [leaf.grad.numpy() for leaf in leaves]


def jax_gradients(function: Any, values: list[np.ndarray], seed: np.ndarray) -> list[np.ndarray]:
    import jax
    import jax.numpy as jnp

    def loss(*leaves: Any) -> Any:
        return function(jnp, *leaves).reshape(-1) @ seed

    return [np.asarray(g) for g in jax.grad(loss, argnums=tuple(range(len(values))))(*map(jnp.asarray, values))]


def tensorflow_gradients(function: Any, values: list[np.ndarray], seed: np.ndarray) -> list[np.ndarray]:
    import tensorflow as tf

    leaves = [tf.Variable(value) for value in values]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.reshape(function(tf, *leaves), [-1]) * seed)
    return [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, leaves)]


AUTOGRAD = {"pytorch": torch_gradients, "jax": jax_gradients, "tensorflow": tensorflow_gradients}


class Case(NamedTuple):
    """One function, in ONNX and in each framework's API."""

    shapes: tuple[tuple[int, ...], ...]
    onnx: Callable[..., Any]
    pytorch: Callable[..., Any]
    jax: Callable[..., Any]
    tensorflow: Callable[..., Any]


def layer_norm(m: Any, x: Any, scale: Any, bias: Any) -> Any:
    return (x - mean(m, x)) / sqrt(m, mean(m, (x - mean(m, x)) ** 2) + 1e-5) * scale + bias


def mean(m: Any, x: Any, axis: Any = -1) -> Any:
    return m.reduce_mean(x, axis, True) if hasattr(m, "reduce_mean") else m.mean(x, axis, keepdims=True)


def sqrt(m: Any, x: Any) -> Any:
    return m.sqrt(x)


def batch_norm(m: Any, x: Any, scale: Any, bias: Any) -> Any:
    axes, wide = (0, 2, 3), (1, -1, 1, 1)
    centred = x - mean(m, x, axes)
    slope = m.reshape(scale, wide) / sqrt(m, mean(m, centred**2, axes) + 1e-5)
    return centred * slope + m.reshape(bias, wide)


def batch_norm_onnx(build: Any, x: Any, scale: Any, bias: Any) -> Any:
    running = [build.parameter(name, (3,), ones) for name in ("mean", "variance")]
    return build.op("BatchNormalization", x, scale, bias, *running, training_mode=1, outputs=3)[0]


def attention_onnx(build: Any, q: Any, k: Any, v: Any) -> Any:
    scores = build.op("MatMul", q, build.op("Transpose", k, perm=[0, 2, 1]))
    return build.op("MatMul", build.op("Softmax", scores, axis=-1), v)


def jax_conv(x: Any, w: Any, group: int) -> Any:
    import jax

    return jax.lax.conv_general_dilated(x, w, (2, 2), ((1, 1), (1, 1)), feature_group_count=group)


def tensorflow_conv(tf: Any, x: Any, w: Any, group: int) -> Any:
    x = tf.pad(tf.transpose(x, [0, 2, 3, 1]), [[0, 0], [1, 1], [1, 1], [0, 0]])
    w = tf.transpose(w, [2, 3, 1, 0])
    if w.shape[2] == 1 < group:  # (*kernel, channel, outputs per channel)
        w = tf.reshape(w, [*w.shape[:2], group, w.shape[3] // group])
        y = tf.nn.depthwise_conv2d(x, w, [1, 2, 2, 1], "VALID")
    else:  # TensorFlow has no grouped convolution on the CPU: convolve each group by itself
        parts = zip(tf.split(x, group, -1), tf.split(w, group, -1), strict=True)
        y = tf.concat([tf.nn.conv2d(images, weights, 2, "VALID") for images, weights in parts], -1)
    return tf.transpose(y, [0, 3, 1, 2])


def conv_case(group: int, x: tuple[int, ...], w: tuple[int, ...]) -> Case:
    return Case(
        (x, w),
        lambda b, x, w: b.op("Conv", x, w, strides=[2, 2], pads=[1, 1, 1, 1], group=group),
        lambda m, x, w: m.nn.functional.conv2d(x, w, stride=2, padding=1, groups=group),
        lambda m, x, w: jax_conv(x, w, group),
        lambda m, x, w: tensorflow_conv(m, x, w, group),
    )


def jax_pool(m: Any, x: Any, size: int, stride: int) -> Any:
    import jax

    window, steps = (1, 1, size, size), (1, 1, stride, stride)
    return jax.lax.reduce_window(x, -np.inf, jax.lax.max, window, steps, "VALID")


def tensorflow_pool(tf: Any, x: Any, size: int, stride: int) -> Any:
    y = tf.nn.max_pool2d(tf.transpose(x, [0, 2, 3, 1]), size, stride, "VALID")
    return tf.transpose(y, [0, 3, 1, 2])


def pool_case(size: int, stride: int) -> Case:
    return Case(
        ((2, 3, 7, 7),),
        lambda b, x: b.op("MaxPool", x, kernel_shape=[size] * 2, strides=[stride] * 2),
        lambda m, x: m.nn.functional.max_pool2d(x, size, stride),
        lambda m, x: jax_pool(m, x, size, stride),
        lambda m, x: tensorflow_pool(m, x, size, stride),
    )


def jax_function(name: str, *args: Any, **kwargs: Any) -> Any:
    import jax

    return getattr(jax.nn, name)(*args, **kwargs)


def jax_loss(m: Any, x: Any) -> Any:
    return -jax_function("log_softmax", x)[np.arange(4), LABEL].mean().reshape(1)


def tensorflow_loss(tf: Any, x: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(LABEL, x))


def loss_onnx(build: Any, x: Any) -> Any:
    return build.op("SoftmaxCrossEntropyLoss", x, build.constant("label", LABEL))


def squared_error_onnx(build: Any, x: Any, t: Any) -> Any:
    difference = build.op("Sub", x, t)
    return build.op("ReduceMean", build.op("Pow", difference, number(build, 2.0)), keepdims=0)


def gelu_case(approximate: str) -> Case:
    tanh = approximate == "tanh"
    return Case(
        ((3, 5),),
        lambda b, x: b.op("Gelu", x, approximate=approximate),
        lambda m, x: m.nn.functional.gelu(x, approximate=approximate),
        lambda m, x: jax_function("gelu", x, approximate=tanh),
        lambda m, x: m.nn.gelu(x, approximate=tanh),
    )


def cell_onnx(build: Any, x: Any, h: Any, c: Any, w: Any) -> Any:
    """One LSTM cell: the gates from one product, split and combined."""
    gates = build.op("MatMul", build.op("Concat", x, h, axis=1), w)
    i, f, o, g = build.op("Split", gates, ints(build, 2, 2, 2, 2), axis=1, outputs=4)
    kept = build.op("Mul", build.op("Sigmoid", f), c)
    state = build.op("Add", kept, build.op("Mul", build.op("Sigmoid", i), build.op("Tanh", g)))
    return build.op("Mul", build.op("Sigmoid", o), build.op("Tanh", state))


def cell(m: Any, x: Any, h: Any, c: Any, w: Any, join: Any, sigmoid: Any) -> Any:
    gates = join([x, h], 1) @ w
    i, f, o, g = (gates[:, 2 * k : 2 * k + 2] for k in range(4))
    return sigmoid(o) * m.tanh(sigmoid(f) * c + sigmoid(i) * m.tanh(g))


CASES = {
    "layer normalization": Case(
        ((4, 6), (6,), (6,)),
        lambda b, x, s, c: b.op("LayerNormalization", x, s, c, epsilon=1e-5),
        lambda m, x, s, c: m.nn.functional.layer_norm(x, (6,), s, c),
        layer_norm,
        layer_norm,
    ),
    "batch normalization": Case(
        ((4, 3, 2, 5), (3,), (3,)),
        batch_norm_onnx,
        lambda m, x, s, c: m.nn.functional.batch_norm(x, None, None, s, c, training=True),
        batch_norm,
        batch_norm,
    ),
    "attention": Case(
        ((2, 3, 4), (2, 5, 4), (2, 5, 6)),
        attention_onnx,
        lambda m, q, k, v: m.softmax(q @ k.transpose(1, 2), -1) @ v,
        lambda m, q, k, v: jax_function("softmax", q @ k.transpose(0, 2, 1)) @ v,
        lambda m, q, k, v: m.nn.softmax(q @ m.transpose(k, [0, 2, 1])) @ v,
    ),
    "gelu": gelu_case("none"),
    "gelu by tanh": gelu_case("tanh"),
    "convolution": conv_case(1, (2, 3, 6, 7), (4, 3, 3, 3)),
    "grouped convolution": conv_case(2, (2, 4, 6, 7), (6, 2, 3, 3)),
    "depthwise convolution": conv_case(3, (2, 3, 6, 7), (6, 1, 3, 3)),
    "max-pooling": pool_case(2, 2),
    "overlapping max-pooling": pool_case(3, 2),
    "cross-entropy": Case(
        ((4, 3),),
        loss_onnx,
        lambda m, x: m.nn.functional.cross_entropy(x, m.tensor(LABEL)),
        jax_loss,
        tensorflow_loss,
    ),
    "mean squared error": Case(
        ((4, 3), (4, 3)),
        squared_error_onnx,
        lambda m, x, t: ((x - t) ** 2).mean(),
        lambda m, x, t: ((x - t) ** 2).mean(),
        lambda m, x, t: m.reduce_mean((x - t) ** 2),
    ),
    "LSTM cell": Case(
        ((3, 4), (3, 2), (3, 2), (6, 8)),
        cell_onnx,
        lambda m, *v: cell(m, *v, join=m.cat, sigmoid=m.sigmoid),
        lambda m, *v: cell(m, *v, join=m.concatenate, sigmoid=lambda x: jax_function("sigmoid", x)),
        lambda m, *v: cell(m, *v, join=m.concat, sigmoid=m.sigmoid),
    ),
    "embedding": Case(
        ((5, 3),),
        lambda b, x: b.op("Gather", x, b.constant("index", INDEX)),
        lambda m, x: x[INDEX],
        lambda m, x: x[INDEX],
        lambda m, x: m.gather(x, INDEX),
    ),
    "slice": Case(
        ((4, 6, 5),),
        lambda b, x: b.op("Slice", x, ints(b, 1, 1), ints(b, END, 5), ints(b, 1, 2), ints(b, 2, 3)),
        lambda m, x: x[:, 1::2, 1:5:3],
        lambda m, x: x[:, 1::2, 1:5:3],
        lambda m, x: x[:, 1::2, 1:5:3],
    ),
    "padding": Case(
        ((3, 4),),
        lambda b, x: b.op("Pad", x, ints(b, 0, 1, 2, 0)),
        lambda m, x: m.nn.functional.pad(x, (1, 0, 0, 2)),
        lambda m, x: m.pad(x, ((0, 2), (1, 0))),
        lambda m, x: m.pad(x, ((0, 2), (1, 0))),
    ),
    "largest element": Case(
        ((3, 4),),
        lambda b, x: b.op("ReduceMax", x, ints(b, 1), keepdims=0),
        lambda m, x: x.amax(1),
        lambda m, x: x.max(1),
        lambda m, x: m.reduce_max(x, 1),
    ),
    "larger of two, chosen": Case(
        ((3, 4), (4,)),
        lambda b, x, c: b.op("Where", b.op("Greater", x, number(b, 0.0)), b.op("Max", x, c), b.op("Min", x, c)),
        lambda m, x, c: m.where(x > 0, m.maximum(x, c), m.minimum(x, c)),
        lambda m, x, c: m.where(x > 0, m.maximum(x, c), m.minimum(x, c)),
        lambda m, x, c: m.where(x > 0, m.maximum(x, c), m.minimum(x, c)),
    ),
}


def case_network(case: Case) -> tuple[Network, dict[str, np.ndarray], list[np.ndarray]]:
    names = [f"v{i}" for i in range(len(case.shapes))]
    network = dot_network(case.onnx, dict(zip(names, case.shapes, strict=True)), dtype="float32")
    values = [network.initial(name) for name in names]
    size = next(iter(node.outputs[0] for node in network.nodes[::-1] if node.op_type == "Reshape")).shape
    assert size is not None
    seed = np.random.default_rng(8).standard_normal(size.numpy()).astype(np.float32)
    return network, {"seed": seed}, values


def on_onnxruntime(network: Network, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(network.to_onnx().SerializeToString(), options)
    return dict(zip(network.outputs, session.run(list(network.outputs), feeds), strict=True))


def close(got: Any, want: Any, what: str) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype), what
    # float32 sums of about ten terms of size 1, some of them after a division by a variance
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=what)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("framework", AUTOGRAD)
def test_rules_against_the_frameworks(framework: str, name: str) -> None:
    network, feeds, values = case_network(CASES[name])
    expected = AUTOGRAD[framework](getattr(CASES[name], framework), values, feeds["seed"])
    names = [f"v{i}" for i in range(len(values))]
    _, gradients = gradients_of(network, feeds, names)
    for wrt, want in zip(names, expected, strict=True):
        close(gradients[wrt], want, wrt)


@pytest.mark.parametrize("name", CASES)
def test_rules_run_on_onnxruntime(name: str) -> None:
    network, feeds, values = case_network(CASES[name])
    names = [f"v{i}" for i in range(len(values))]
    graph = gradient_network(network, wrt=names)
    fed = {**feeds, "loss_scale": np.array(1.0, np.float32)}
    want = run(graph, fed)
    for output, got in on_onnxruntime(graph, fed).items():
        close(got, want[output], output)


# The other rules: the operator, its inputs' shapes, attributes. Tests in float64 show that they are right.
SINGLES: list[tuple[str, list[Any], dict[str, Any]]] = [
    *((op, [(3, 4)], {}) for op in ("Abs", "Cos", "Elu", "Erf", "HardSigmoid", "HardSwish", "LeakyRelu", "LogSoftmax")),
    *((op, [(3, 4)], {}) for op in ("Neg", "Reciprocal", "Relu", "Sin", "Softplus", "Identity", "Squeeze", "Flatten")),
    *((op, [(3, 4)], {"keepdims": 0}) for op in ("ReduceL2", "ReduceMin", "ReduceSum", "ReduceSumSquare")),
    ("Trilu", [(3, 4)], {}),
    ("GlobalAveragePool", [(2, 3, 4, 4)], {}),
    ("AveragePool", [(2, 3, 6, 6)], {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ("Clip", [(3, 4), -0.5, 0.5], {}),
    ("Div", [(3, 4), (3, 1)], {}),
    ("Expand", [(3, 1), [2, 3, 4]], {}),
    ("Gather", [(3, 4, 5), [1, -1, 1]], {"axis": 1}),
    ("GatherElements", [(3, 4), np.array([[0, 2, 1, 0]])], {}),
    ("Gemm", [(3, 4), (4, 5), (5,)], {}),
    ("Sum", [(3, 4), (4,), (3, 1)], {}),
    ("Tile", [(3, 4), [2, 3]], {}),
    ("Unsqueeze", [(3, 4), [0]], {}),
    ("Pad", [(3, 4), [-1, 2, 0, -1]], {}),
    ("Slice", [(5, 4), [-1], [-100], [0], [-2]], {}),
    ("Conv", [(2, 40, 13, 13), (5, 40, 3, 3), (5,)], {"pads": [1, 1, 1, 1]}),  # one product per kernel element
    ("Conv", [(2, 40, 13, 13), (5, 40, 1, 1)], {}),
    ("Conv", [(2, 3, 9), (5, 3, 2)], {"strides": [2]}),
    ("Conv", [(2, 64, 13, 13), (8, 32, 3, 3), (8,)], {"pads": [1, 0, 0, 1], "group": 2}),  # as many channels per group
    ("Conv", [(3, 4, 9), (4, 1, 2)], {"strides": [2], "dilations": [2], "pads": [1, 2], "group": 4}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), SINGLES, ids=[f"{i}-{s[0]}" for i, s in enumerate(SINGLES)])
def test_other_rules_run_on_onnxruntime(op: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    shapes = {f"v{i}": shape for i, shape in enumerate(inputs) if isinstance(shape, tuple)}

    def built(build: Any, *values: Any) -> Any:
        left = iter(values)
        arguments = [
            next(left)
            if isinstance(given, tuple)
            else number(build, given)
            if isinstance(given, float)
            else build.op("Constant", value=ir.tensor(np.array(given, np.int64)))
            for given in inputs
        ]
        return build.op(op, *arguments, **attributes)

    network, feeds, _ = case_network(Case(tuple(shapes.values()), built, *[lambda: None] * 3))
    graph = gradient_network(network, wrt=list(shapes))
    fed = {**feeds, "loss_scale": np.array(1.0, np.float32)}
    want = run(graph, fed)
    for output, got in on_onnxruntime(graph, fed).items():
        # sums of up to 400 products in float32
        np.testing.assert_allclose(got, want[output], rtol=1e-4, atol=1e-4, err_msg=output)


def training(network: Network) -> Network:
    """Batch normalization over the batch, with its new running statistics as outputs."""
    return training_form(network).network


def test_running_statistics_against_onnx() -> None:
    """Population variance, ONNX's momentum; the split nodes compute what ONNX's own reference computes."""
    from onnx.reference import ReferenceEvaluator

    build = NetworkBuilder("bn", dtype="float64")
    shapes = {"s": (3,), "b": (3,), "m": (3,), "v": (3,)}
    values = [build.parameter(n, shape, lambda rng, shape: rng.uniform(0.5, 1.5, shape)) for n, shape in shapes.items()]
    x = build.input("x", ("N", 3, 4))
    y = build.op("BatchNormalization", x, *values, epsilon=2**-6, momentum=0.75)
    network = training(build.network({"y": y}))
    split = expand_training(network)
    assert list(split.outputs) == list(network.outputs) == ["y", "new:m", "new:v"]
    assert [node.attributes.get("training_mode") for node in split.nodes if node.op_type == "BatchNormalization"] == [
        None
    ]
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 3, 4)) + 100.0}
    expected = dict(zip(network.outputs, ReferenceEvaluator(network.to_onnx()).run(None, feeds), strict=True))
    for subject in (split, network):
        for name, got in run(subject, feeds).items():
            # float64, values of size 100 that leave a variance of 1
            np.testing.assert_allclose(got, expected[name], rtol=1e-11, atol=1e-11, err_msg=name)
    assert expand_training(split) is split


def test_a_variance_is_not_lost_to_a_large_mean() -> None:
    """float32, mean 1000 and variance 1: the mean of squares minus the squared mean would be off by some tenths."""
    build = NetworkBuilder("bn")
    values = [build.parameter(n, (1,), ones) for n in "sbmv"]
    network = build.network({"y": build.op("BatchNormalization", build.input("x", ("N", 1, 8)), *values)})
    x = (np.random.default_rng(0).standard_normal((64, 1, 8)) + 1000.0).astype(np.float32)
    split = expand_training(training(network))
    for results in (run(split, {"x": x}), on_onnxruntime(split, {"x": x})):
        # adjacent float32 numbers around 1000 differ by 6e-5
        np.testing.assert_allclose(results["new:v"], 0.9 + 0.1 * x.astype(np.float64).var(), rtol=1e-4)


def test_networks_without_batch_normalisation_in_training_stay() -> None:
    network = lenet()
    assert expand_training(network) is network


def test_resnet_in_training_against_onnxruntime() -> None:
    network = training(resnet(depth=8))
    graph = gradient_network(network)
    assert [name for name in graph.outputs if name.startswith("new:")] == [
        f"new:{name}" for name in network.buffer_specs
    ]
    rng = np.random.default_rng(3)
    feeds = {
        "input": rng.standard_normal((6, 3, 32, 32)).astype(np.float32),
        "label": rng.integers(0, 10, 6),
        "loss_scale": np.array(1.0, np.float32),
    }
    want = run(graph, feeds)
    for name, got in on_onnxruntime(graph, feeds).items():
        # nine layers of float32 with kinks; relative to the norm
        assert np.linalg.norm(got - want[name]) <= 1e-3 * np.linalg.norm(want[name]) + 1e-6, name


def test_a_frozen_batch_normalisation_is_split_too() -> None:
    """No rule runs upstream of the differentiated parameters; engines need the evaluation form all the same."""
    network = training(resnet(depth=8))
    graph = gradient_network(network, wrt=["fc.weight"])
    nodes = [node for node in graph.nodes if node.op_type == "BatchNormalization"]
    assert nodes
    assert not any("training_mode" in node.attributes for node in nodes)


@pytest.mark.parametrize("framework_name", ["reference", "onnxruntime"])
@pytest.mark.parametrize(
    ("size", "stride", "pads"), [(7, 2, [0] * 4), (6, 2, [1] * 4), (7, 2, [0, 0, 1, 1]), (9, 3, [0] * 4)]
)
def test_windows_beside_each_other_may_leave_a_rest_and_reach_padding(
    framework_name: str, size: int, stride: int, pads: list[int]
) -> None:
    import torch

    build = NetworkBuilder("pool")
    x = build.input("x", ("N", 2, size, size))
    weight = build.parameter("w", (2, 1, 1))
    scaled = build.op("Mul", x, weight)
    y = build.op("MaxPool", scaled, kernel_shape=[2, 2], strides=[stride] * 2, pads=pads)
    network = build.network({"loss": build.op("ReduceMean", build.op("Mul", y, y), keepdims=0)})
    executor = framework(framework_name).executor(network)
    given = np.random.default_rng(0).standard_normal((3, 2, size, size)).astype(np.float32)
    executor.inference_and_backprop({"x": given})
    own = torch.tensor(network.initial("w"), requires_grad=True)
    sides = (pads[1], pads[3], pads[0], pads[2])
    padded = torch.nn.functional.pad(torch.from_numpy(given) * own, sides, value=-np.inf)
    torch.nn.functional.max_pool2d(padded, 2, stride).square().mean().backward()
    np.testing.assert_allclose(to_numpy(executor.gradients()["w"]), own.grad, rtol=1e-5)
