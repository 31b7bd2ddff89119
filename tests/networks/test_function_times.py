"""Networks of operators that ONNX writes as functions take no longer than each framework's own functions by hand."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("PJRT_NPROC", "1")  # JAX fixes its threads when it starts, once a process

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import deep5 as d5
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Support
from deep5.measuring.statistics import median_ratio
from deep5.measuring.timing import time_rounds
from deep5.networks import Network
from deep5.networks.transforms.lowering import lowered

BATCH, HEADS, LENGTH, SIZE = 16, 8, 64, 32
CLASSES = 1000
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "Attention": dict.fromkeys(("q", "k", "v"), (BATCH, HEADS, LENGTH, SIZE)),
    "LayerNormalization": {"x": (64, 128, 256), "scale": (256,), "bias": (256,)},
    "Gelu": {"x": (32, 128, 256)},
    "SoftmaxCrossEntropyLoss": {"x": (4096, CLASSES), "label": (4096,)},
}
ATTRIBUTES: dict[str, dict[str, Any]] = {"Attention": {"is_causal": 1}}
# What deep5 adds to a call, tens of microseconds, is judged elsewhere: docs/overhead.md. Here calls take a millisecond
# or more, and the bound is what a body exceeds: see `test_the_body_would_be_seen`. It holds for the median: an interval
# of thirty rounds beside other programs is wider than what is to be seen.
BOUND = 1.1


def network(op: str) -> Network:
    """The operator between inputs, and a loss."""
    shapes, is_loss = SHAPES[op], op.endswith("Loss")
    nodes = [helper.make_node(op, list(shapes), ["loss" if is_loss else "y"], **ATTRIBUTES.get(op, {}))]
    if not is_loss:
        nodes.append(helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0))
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.INT64 if n == "label" else TensorProto.FLOAT, s)
        for n, s in shapes.items()
    ]
    outputs = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])]
    graph = helper.make_graph(nodes, op, inputs, outputs)
    return Network.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11))


def feed(op: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, CLASSES, shape) if name == "label" else rng.standard_normal(shape).astype(np.float32)
        for name, shape in SHAPES[op].items()
    }


def torch_loss(op: str) -> Callable[..., Any]:
    import torch.nn.functional as F  # noqa: N812 - torch's own convention

    return {
        "Attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True).mean(),
        "LayerNormalization": lambda x, scale, bias: F.layer_norm(x, (256,), scale, bias).mean(),
        "Gelu": lambda x: F.gelu(x).mean(),
        "SoftmaxCrossEntropyLoss": F.cross_entropy,
    }[op]


def tensorflow_attention(q: Any, k: Any, v: Any) -> Any:
    import tensorflow as tf

    allowed = tf.linalg.band_part(tf.ones((LENGTH, LENGTH), tf.bool), -1, 0)
    scores = tf.matmul(q, k, transpose_b=True) * SIZE**-0.5
    return tf.reduce_mean(tf.matmul(tf.nn.softmax(tf.where(allowed, scores, -np.inf)), v))


def tensorflow_layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    import tensorflow as tf

    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.reduce_mean(tf.nn.batch_normalization(x, mean, variance, bias, scale, 1e-5))


def tensorflow_gelu(x: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean(tf.nn.gelu(x))


def tensorflow_cross_entropy(x: Any, label: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, x))


def jax_loss(op: str) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    def attention(q: Any, k: Any, v: Any) -> Any:
        operands = (jnp.moveaxis(value, 1, 2) for value in (q, k, v))
        return jax.nn.dot_product_attention(*operands, is_causal=True).mean()

    def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return (centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * scale + bias).mean()

    def cross_entropy(x: Any, label: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(x), label[:, None], 1).mean()

    return {
        "Attention": attention,
        "LayerNormalization": layer_norm,
        "Gelu": lambda x: jax.nn.gelu(x, approximate=False).mean(),
        "SoftmaxCrossEntropyLoss": cross_entropy,
    }[op]


def by_hand(framework: str, op: str, inputs: Mapping[str, Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The forward pass, and that with the gradient by the first input."""
    values = list(inputs.values())
    if framework == "pytorch":
        import torch

        loss = torch_loss(op)
        first = values[0].clone().requires_grad_()

        def forward() -> Any:
            with torch.inference_mode():
                return loss(*values)

        return forward, lambda: torch.autograd.grad(loss(first, *values[1:]), first)
    if framework == "tensorflow":
        import tensorflow as tf

        functions: dict[str, Callable[..., Any]] = {
            "Attention": tensorflow_attention,
            "LayerNormalization": tensorflow_layer_norm,
            "Gelu": tensorflow_gelu,
            "SoftmaxCrossEntropyLoss": tensorflow_cross_entropy,
        }
        loss = functions[op]

        def gradient(*operands: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(operands[0])
                found = loss(*operands)
            return found, tape.gradient(found, operands[0])

        run, both = tf.function(loss), tf.function(gradient)
        return lambda: run(*values), lambda: both(*values)
    import jax

    loss, values = jax_loss(op), [jax.device_put(value) for value in values]
    run, both = jax.jit(loss), jax.jit(jax.value_and_grad(loss))
    return lambda: jax.block_until_ready(run(*values)), lambda: jax.block_until_ready(both(*values))


def native(framework: str, op: str) -> dict[str, Any]:
    if framework == "pytorch":
        import torch

        return {name: torch.from_numpy(value) for name, value in feed(op).items()}
    if framework == "tensorflow":
        import tensorflow as tf

        return {name: tf.constant(value) for name, value in feed(op).items()}
    import jax

    # JAX has numbers of 64 bits only where it is told so; by hand labels are shorter.
    return {name: value if name == "label" else jax.device_put(value) for name, value in feed(op).items()}


def through(executor: GraphExecutor, inputs: Mapping[str, Any], *, backward: bool) -> Callable[[], Any]:
    first = next(iter(inputs))

    def forward() -> None:
        executor.inference(inputs)
        executor.synchronize()

    def both() -> None:
        executor.inference_and_backprop(inputs, wrt=[first])
        executor.synchronize()

    return both if backward else forward


def times(call: Callable[[], Any], count: int) -> Callable[[], Any]:
    def run() -> Any:
        kept = None
        for _ in range(count):
            # A result lives, as an executor's gradients do, until there is the next.
            kept = call()
        return kept

    return run


def ratio(framework: str, op: str, executor: GraphExecutor, *, backward: bool, rounds: int = 30) -> float:
    """What deep5 takes of the time of the framework's own functions, the median; with its interval it is written."""
    inputs = native(framework, op)
    sides = [through(executor, inputs, backward=backward)]
    sides += [by_hand(framework, op, inputs)[backward] for _ in range(2)]
    for call in sides:  # whatever is compiled
        call()
    begin = time.perf_counter()
    sides[1]()
    count = max(1, int(5e-3 / (time.perf_counter() - begin)))
    found = time_rounds(*(times(call, count) for call in sides), rounds=rounds, steps=count)
    interval = median_ratio(found.candidate, found.baseline)
    alike = median_ratio(found.baseline_again, found.baseline)
    median = float(np.median(np.divide(found.candidate, found.baseline)))
    microseconds = np.median(found.baseline) / count * 1e6
    way = "forward and backward" if backward else "forward"
    sys.stdout.write(
        f"\n{framework} {op} {way}: {median:.3f} "
        f"[{interval.low:.3f}, {interval.high:.3f}] of {microseconds:.0f} us; "
        f"by hand again [{alike.low:.3f}, {alike.high:.3f}]\n"
    )
    return median


@pytest.mark.timing
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("op", SHAPES)
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
def test_a_function_costs_what_the_frameworks_own_does(framework: str, op: str, backward: bool) -> None:
    back_end = d5.framework(framework)
    back_end.set_threads(1)
    assert ratio(framework, op, back_end.executor(network(op)), backward=backward) <= BOUND


@pytest.mark.timing
def test_the_body_would_be_seen() -> None:
    """PyTorch without the operator in its table is slower by more than the bound."""
    op, torch = "LayerNormalization", d5.framework("pytorch")
    torch.set_threads(1)
    body = lowered(network(op), lambda node: Support(node.op_type != op and bool(torch.supports(node)), "left out"))
    assert op not in {node.op_type for node in body.nodes}
    assert ratio("pytorch", op, torch.executor(body), backward=False) > BOUND


@pytest.mark.timing
def test_to_ask_whether_to_expand_takes_no_time_of_an_import() -> None:
    """Of a network of a thousand nodes that a back-end has, less than a tenth of what reading it takes."""
    build = d5.NetworkBuilder("long")
    y = build.input("x", ("N", 16))
    for _ in range(1000):
        y = build.op("Gelu", y)
    proto = build.network({"y": y}).to_onnx()
    back_end = d5.framework("pytorch")
    asked, read = [], []
    for _ in range(5):
        begin = time.perf_counter()
        made = Network.from_onnx(proto)
        middle = time.perf_counter()
        assert lowered(made, back_end.supports) is made
        asked.append(time.perf_counter() - middle)
        read.append(middle - begin)
    sys.stdout.write(f"\nasked {min(asked) * 1e3:.1f} ms, read {min(read) * 1e3:.0f} ms\n")
    assert min(asked) <= min(read) / 10
