"""PyTorch: every operator against ONNX Runtime, the executor's interface, its optimizers and custom operators."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

import deep5 as d5
from deep5.core.compiler import cache_folder
from deep5.core.errors import NetworkError, ShapeError, UnknownName, Unsupported, UsageError
from deep5.core.executors import GraphExecutor, StepOptimizer
from deep5.frameworks.pytorch.executor import PyTorchExecutor, _class_check
from deep5.frameworks.pytorch.framework import PyTorch, from_model
from deep5.frameworks.pytorch.operators import OPERATORS
from deep5.networks import Network, NetworkBuilder, lenet, lstm, mlp, ones, resnet, resnet18_small, transformer
from deep5.networks.check import check_executor
from deep5.networks.labels import Labels
from deep5.networks.onnx_operator import ONNXOperator
from deep5.training.dataset import ArrayDataset
from operator_cases import I7, RNG, cases, named, normal, runtime, single

SMALL: dict[str, Any] = {"features": 4, "hidden": 3, "classes": 2}
TORCH = PyTorch()
CASES = cases("pytorch")


def batch(count: int = 5, dtype: str = "float32") -> dict[str, np.ndarray]:
    return {"input": RNG.standard_normal((count, 4)).astype(dtype), "label": np.arange(count) % 2}


def executor(network: Network | None = None, **options: Any) -> Any:
    return TORCH.executor(network or mlp(**SMALL), **options)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Mod", "Pow", "Max", "Min", "Less"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_numbers_that_are_constant_nodes(op: str, dtype: str) -> None:
    build = NetworkBuilder("numbers", dtype=dtype)
    x, two = build.input("x", ("N", 3)), build.scalar(3.1, dtype)
    options = {"fmod": 1} if op == "Mod" else {}
    network = build.network(
        {
            "right": build.op(op, x, two, **options),
            "left": build.op(op, two, x, **options),
            "both": build.op(op, two, two, **options),
        }
    )
    assert not network.parameter_specs
    feed = {"x": np.array([[1, 2, 3], [4, 5, 6]], dtype)}
    run = executor(network)
    for got, want in zip(
        run.inference(feed).values(), ReferenceEvaluator(network.to_onnx()).run(None, feed), strict=True
    ):
        want = np.asarray(want)  # noqa: PLW2901 - a scalar comes as a number
        assert (tuple(got.shape), got.numpy().dtype) == (want.shape, want.dtype)
        # Powers by two libraries: some units in the last place.
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6 if dtype == "float32" else 1e-14)


def test_infinite_and_undefined_numbers_are_written_right() -> None:
    build = NetworkBuilder("odd")
    x = build.input("x", ("N", 2))
    outputs = {f"y{i}": build.op("Mul", x, build.scalar(value)) for i, value in enumerate((np.inf, -np.inf, np.nan))}
    got = executor(build.network(outputs)).inference({"x": np.array([[1, -2]], np.float32)})
    np.testing.assert_array_equal(
        np.concatenate(list(got.values())), [[np.inf, -np.inf], [-np.inf, np.inf], [np.nan] * 2]
    )


def test_an_input_that_is_an_output_and_a_constant_that_is_one() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]>'
        "g (float[N, 2] x) => (float[N, 2] x, float[N, 2] y, float[2] c) <float[2] c = {1, 2}> { y = Mul(x, c) }"
    )
    x = normal(3, 2)
    outputs = executor(Network.from_onnx(model)).inference({"x": x})
    np.testing.assert_array_equal(outputs["x"], x)
    np.testing.assert_array_equal(outputs["c"].detach(), [1, 2])


REFUSED: list[tuple[str, tuple[np.ndarray, ...], dict[str, Any], str]] = [
    ("Conv", (normal(1, 1, 3, 3, 3, 3), normal(1, 1, 2, 2, 2, 2)), {}, "4 spatial axes; 1 to 3"),
    (
        "GridSample",
        (normal(1, 1, 3, 3, 3), normal(1, 2, 2, 2, 3)),
        {"mode": "cubic"},
        "3 spatial axes; allowed: 2, and 3 that are not",
    ),
    ("Gemm", (I7[:, None], I7[None]), {}, "whole numbers"),
]


@pytest.mark.parametrize(("op", "values", "options", "reason"), REFUSED, ids=[case[0] for case in REFUSED])
def test_what_cannot_run_is_refused_with_its_reason(
    op: str, values: tuple[np.ndarray, ...], options: dict[str, Any], reason: str
) -> None:
    network = single(op, named(values), **options)
    answer = TORCH.supports(network.nodes[0])
    assert not answer
    with pytest.raises(Unsupported, match=rf"(?s)pytorch cannot run this network:\n  {op}_1 \({op}\): .*{reason}"):
        executor(network)


def test_all_nodes_that_cannot_run_are_listed() -> None:
    build = NetworkBuilder("two")
    weight = build.constant("w", normal(1, 1, 1, 1, 1, 1))
    x = build.op("Conv", build.input("x", ("N", 1, 2, 2, 2, 2)), weight)
    x = build.op("Conv", build.op("Tanh", x), weight)
    with pytest.raises(Unsupported, match=r"Conv_1 \(Conv\): .*\n  Conv_2 \(Conv\): .*$"):
        executor(build.network({"y": x}))
    foreign = ir.node("Add", [ir.Value(name="a")], domain="com.example", name="n")
    assert TORCH.supports(foreign).reason.startswith("the domain 'com.example' is not ONNX's own, and no operator")


def test_names_from_the_model_never_enter_the_source() -> None:
    proto = mlp(**SMALL).to_onnx()
    evil = '"); import os; os.abort() #\n'
    for node in proto.graph.node:
        node.name = evil + node.name
        for names in (node.input, node.output):
            names[:] = [evil if name == "fc1.weight" else name for name in names]
    for initializer in proto.graph.initializer:
        initializer.name = evil if initializer.name == "fc1.weight" else initializer.name
    run = executor(Network.from_onnx(proto))
    run.inference_and_backprop(batch())
    assert evil in run.gradients()
    for name in ("abort", "fc1", "logits", "label", "input"):
        assert name not in run.source
    plain = executor()
    plain.inference_and_backprop(batch())
    assert len(run.source.splitlines()) == len(plain.source.splitlines())


def test_the_source_is_a_straight_line() -> None:
    source = executor(lenet()).source
    assert source.count("def ") == 1
    assert not any(word in source for word in (" for ", " if ", "while", "import", "exec", "eval("))
    assert "del " in source  # activations go as soon as nothing needs them


# Several nodes as one call


def attention(dtype: str, **options: Any) -> Network:
    build = NetworkBuilder("attention", dtype=dtype)
    q, k, v = (build.input(name, ("N", 2, 5, 4)) for name in "qkv")
    turned = build.op("Transpose", k, perm=[0, 1, 3, 2])
    weights = build.op("Softmax", build.op("MatMul", build.op("Mul", q, build.scalar(0.5)), turned), **options)
    outputs = {"y": build.op("MatMul", weights, v)}
    return build.network(outputs | ({"weights": weights} if options.get("axis") == 3 else {}))


def dense(dtype: str, bias: tuple[int, ...] = (3,), *, first: bool = False) -> Network:
    build = NetworkBuilder("dense", dtype=dtype, seed=1)
    x, b = build.input("x", ("N", 2, 4)), build.parameter("b", bias, ones)
    product = build.op("MatMul", x, build.parameter("w", (4, 3)))
    return build.network({"y": build.op("Add", *((b, product) if first else (product, b)))})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda dtype: attention(dtype, axis=-1), "scaled_dot_product_attention"),
        (lambda dtype: attention(dtype, axis=3), "softmax"),  # its weights are an output
        (lambda dtype: attention(dtype, axis=2), "softmax"),  # over the other axis
        (dense, "f_linear"),
        (lambda dtype: dense(dtype, first=True), "f_linear"),
        (lambda dtype: dense(dtype, (1,)), "matmul"),
        (lambda dtype: dense(dtype, (2, 3)), "matmul"),
    ],
)
def test_nodes_that_are_one_call_mean_what_they_mean_apart(dtype: str, make: Any, words: str) -> None:
    network = make(dtype)
    run = executor(network)
    assert words in run.source
    feed = {name: RNG.standard_normal((3, *spec.shape[1:])).astype(dtype) for name, spec in network.inputs.items()}
    want = ReferenceEvaluator(network.to_onnx()).run(None, feed)
    for got, value in zip(run.inference(feed).values(), want, strict=True):
        # Sums of five products, in another order.
        np.testing.assert_allclose(got.numpy(), value, rtol=1e-5 if dtype == "float32" else 1e-13, atol=1e-6)


def test_a_transformer_against_the_reference() -> None:
    network = transformer(vocabulary=20, length=6, width=8, heads=2, layers=1, classes=3, dropout=0.2, dtype="float64")
    feed = {"input": RNG.integers(0, 20, (4, 6)), "label": np.arange(4) % 3}
    ours, reference = executor(network), d5.framework("reference").executor(network)
    for run in (ours, reference):
        run.inference_and_backprop(feed, info=d5.StepInfo(step=3, seed=5))
    for name, value in ours.gradients().items():
        # The same masks, so the same gradients, to the rounding of sums of some dozen float64 products.
        np.testing.assert_allclose(value.numpy(), reference.gradients()[name], rtol=1e-9, atol=1e-12)
    assert "scaled_dot_product_attention" in ours.source  # evaluation drops nothing
    np.testing.assert_allclose(
        ours.inference(feed)["logits"], reference.inference(feed)["logits"], rtol=1e-9, atol=1e-12
    )


# Forward, backward


def test_interfaces_are_met() -> None:
    run = executor()
    assert isinstance(run, GraphExecutor)
    assert isinstance(run, PyTorchExecutor)
    assert isinstance(from_model(mlp(**SMALL)), GraphExecutor)
    assert run.capabilities == {"early_gradients", "float64"}
    for make in TORCH.optimizers().values():
        assert isinstance(make(), StepOptimizer)
    with pytest.raises(
        UnknownName, match="unknown native optimizer of pytorch 'adm'; allowed: adadelta, adagrad, adam"
    ):
        TORCH.optimizer("adm")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lenet_against_torch_by_hand(dtype: str) -> None:
    network = lenet(dtype=dtype, seed=1)
    x, label = RNG.standard_normal((3, 1, 28, 28)).astype(dtype), np.array([1, 5, 9])
    run = executor(network)
    outputs = run.inference_and_backprop({"input": x, "label": label})
    w = {name: torch.from_numpy(network.initial(name)).requires_grad_() for name in network.parameter_specs}
    h = F.avg_pool2d(torch.tanh(F.conv2d(torch.from_numpy(x), w["conv1.weight"], w["conv1.bias"], padding=2)), 2)
    h = F.avg_pool2d(torch.tanh(F.conv2d(h, w["conv2.weight"], w["conv2.bias"])), 2).flatten(1)
    for name in ("fc1", "fc2"):
        h = torch.tanh(F.linear(h, w[f"{name}.weight"], w[f"{name}.bias"]))
    loss = F.cross_entropy(F.linear(h, w["fc3.weight"], w["fc3.bias"]), torch.from_numpy(label))
    loss.backward()
    assert outputs["loss"].item() == loss.item()  # the same calls, so the same bits
    for name, gradient in run.gradients().items():
        assert torch.equal(gradient, w[name].grad)  # type: ignore[arg-type]


def test_outputs_hold_no_graph() -> None:
    run = executor()
    for outputs in (run.inference(batch()), run.inference_and_backprop(batch())):
        for value in outputs.values():
            assert value.grad_fn is None
            assert not value.requires_grad
    for gradient in run.gradients().values():
        assert gradient.grad_fn is None
    # A function that is part of the graph dies with the call.
    died: list[int] = []

    class Witness(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            weakref.finalize(ctx, died.append, 1)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
            return grad

    inner = run._run
    run._run = lambda *arguments: tuple(Witness.apply(v) if v.requires_grad else v for v in inner(*arguments))
    outputs = run.inference_and_backprop(batch())
    gc.collect()
    assert died
    del outputs


def places(values: Any) -> set[int]:
    return {value.untyped_storage().data_ptr() for value in values if value.numel()}


@pytest.mark.parametrize("op", sorted({op for op, _, _ in CASES}))
def test_no_output_is_memory_of_an_input_or_of_a_constant(op: str) -> None:
    for name, values, options in CASES:
        if name != op:
            continue
        run = executor(single(op, named(values), **options))
        feed = {key: torch.from_numpy(np.array(value)) for key, value in named(values).items()}
        others = places(feed.values())
        outputs = run.inference(feed)
        assert places(outputs.values()).isdisjoint(others | places(run._known.values()))


def test_outputs_are_nobody_elses_memory() -> None:
    build = NetworkBuilder("views", seed=1)
    x, w = build.input("x", ("N", 2, 2)), build.parameter("w", (2, 2))
    flat = build.op("Flatten", build.op("Dropout", x, build.scalar(0.5, "float32")))
    shape = build.constant("shape", np.array([0, -1], np.int64))
    outputs = {
        "turned": build.op("Transpose", build.op("Identity", x), perm=[0, 2, 1]),
        "flat": build.op("Reshape", flat, shape),
        "weight": build.op("Identity", w),
        "row": build.op("Gather", w, build.constant("second", np.array(1, np.int64)), axis=0),
        "product": build.op("MatMul", x, w),
    }
    mean = build.constant("none", np.array([], np.int64))
    total = build.op("ReduceSum", build.op("Mul", outputs["product"], outputs["product"]), keepdims=0)
    network = build.network(outputs | {"loss": build.op("Reshape", total, mean)})
    run, value = executor(network), normal(3, 2, 2)
    assert run.source.count(".clone()") == 4  # what is computed is not copied
    kept, step = value.copy(), run.train_step(d5.SGD(lr=0.1))
    for call in (
        run.inference,
        run.inference_and_backprop,
        lambda feed: step(feed, d5.StepInfo(batch_size=3)),
    ):
        weight = run.state_dict()["w"]
        found = call({"x": value})
        np.testing.assert_array_equal(np.asarray(found["weight"]), weight)
        np.testing.assert_array_equal(found["turned"], kept.transpose(0, 2, 1))
        step({"x": value}, d5.StepInfo(batch_size=3))
        np.testing.assert_array_equal(found["weight"], weight)
        for each in found.values():
            assert not each.requires_grad
            each.zero_()
        np.testing.assert_array_equal(value, kept)
        assert run.state_dict()["w"].any()
    assert ".clone()" not in executor(lenet()).source + executor(resnet(depth=8)).training_source


def test_training_and_evaluation_are_chosen_a_call() -> None:
    x, scale, bias = normal(6, 3, 4), normal(3), normal(3)
    mean, variance = normal(3), np.abs(normal(3)) + 0.5
    build = NetworkBuilder("bn")
    inputs = [build.input("x", ("N", 3, 4))]
    inputs += [build.constant(n, v) for n, v in zip("sbmv", (scale, bias, mean, variance), strict=True)]
    y = build.op("BatchNormalization", *inputs, epsilon=1e-3, momentum=0.7)
    network = build.network({"y": y})
    assert list(network.buffer_specs) == ["m", "v"]
    run = executor(network)
    before = run.inference({"x": x})["y"].numpy()
    proto = network.to_onnx()
    node = proto.graph.node[0]
    node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
    node.output.extend(["new_mean", "new_variance"])
    for name in ("new_mean", "new_variance"):
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]))
    want, want_mean, want_variance = ReferenceEvaluator(proto).run(None, {"x": x})
    got = run.inference({"x": x}, training=True)["y"].numpy()
    # Two float32 reductions of 24 elements in another order.
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(run.buffers()["m"], want_mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run.buffers()["v"], want_variance, rtol=1e-5, atol=1e-6)
    after = run.inference({"x": x})["y"].numpy()
    shape = (1, 3, 1)
    expected = (x - want_mean.reshape(shape)) / np.sqrt(want_variance.reshape(shape) + 1e-3)
    np.testing.assert_allclose(after, expected * scale.reshape(shape) + bias.reshape(shape), rtol=1e-5, atol=1e-5)
    assert not np.allclose(after, before)
    np.testing.assert_array_equal(network.initial("m"), mean)


def test_the_variance_of_a_constant_is_not_negative() -> None:
    run = executor(resnet(depth=8))
    for value in (0.0, 1e3):
        run.inference({"input": np.full((2, 3, 32, 32), value, np.float32), "label": np.array([0, 1])}, training=True)
    assert all((value >= 0).all() for name, value in run.buffers().items() if "variance" in name)


def test_resnet_trains_its_statistics() -> None:
    run = executor(resnet(depth=8))
    feed = {"input": normal(4, 3, 32, 32), "label": np.arange(4)}
    mean = run.buffers()["conv0.mean"].clone()
    assert torch.isfinite(run.inference_and_backprop(feed)["loss"])
    assert not torch.equal(mean, run.buffers()["conv0.mean"])
    mean = run.buffers()["conv0.mean"].clone()
    run.inference(feed)
    assert torch.equal(mean, run.buffers()["conv0.mean"])
    assert not run.gradients().keys() & run.buffers().keys()


def normalised(dtype: str = "float32", count: int = 1) -> Network:
    build = NetworkBuilder("normalised", dtype=dtype, seed=2)
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    for number in range(count):
        x = build.op("MatMul", x, build.parameter(f"w{number}", (4, 4)))
        names = [build.parameter(f"{name}{number}", (4,), ones) for name in ("scale", "shift", "mean", "variance")]
        x = build.op("BatchNormalization", x, *names, momentum=0.9 if number < 2 else 0.5)
    x = build.op("MatMul", x, build.parameter("w", (4, 2)))
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label)})


@pytest.mark.parametrize("count", [1, 4])
def test_a_pass_that_fails_leaves_the_running_statistics(count: int) -> None:
    (run, other), good = [executor(normalised(count=count)) for _ in range(2)], batch()
    before = run.state_dict()
    wrong = {**good, "label": np.array([0, 1, 99, 0, 1])}
    step = run.train_step(d5.SGD(lr=0.1))

    def stop(name: str, gradient: Any) -> None:
        raise RuntimeError("stop")

    for call in (
        lambda: run.inference_and_backprop(wrong),
        lambda: run.inference(wrong, training=True),
        lambda: step(wrong, d5.StepInfo(batch_size=5)),
    ):
        with pytest.raises(NetworkError, match="input 'label': got the label 99; allowed: 0 to 1"):
            call()
    with pytest.raises(RuntimeError, match="stop"):
        run.inference_and_backprop(good, on_gradient=stop)
    run.inference(good)
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    for each in (run, other):
        each.inference_and_backprop(good)
    for name, value in run.buffers().items():
        assert torch.equal(value, other.buffers()[name])
        assert not np.array_equal(value, before[name])
        assert not value.requires_grad


def test_running_statistics_are_those_of_the_reference() -> None:
    network, good = normalised("float64", 4), batch(dtype="float64")
    ours, reference = executor(network), d5.framework("reference").executor(network)
    for _ in range(3):
        for run in (ours, reference):
            run.inference_and_backprop(good)
    for name, value in ours.buffers().items():
        # Sums of five float64 numbers in another order, three times.
        np.testing.assert_allclose(value, reference.buffers()[name], rtol=1e-12)


def test_what_is_not_differentiated_by_costs_nothing() -> None:
    run, feed = executor(resnet(depth=8)), {"input": normal(4, 3, 32, 32), "label": np.arange(4)}
    run.inference_and_backprop(feed)
    want = run.gradients()["fc.weight"].clone()
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        run.inference_and_backprop(feed, wrt=["fc.weight", "fc.bias"])
        few, saved[:] = sum(saved), []
        run.inference_and_backprop(feed)
        assert few < sum(saved) / 100  # the last layer alone keeps what it read
    torch.testing.assert_close(run.gradients()["fc.weight"], want)
    assert len(run.gradients()) == len(run.network.parameter_specs)
    group = d5.ParameterGroup(lambda name: not name.startswith("fc"), frozen=True)
    step, before = run.train_step(d5.SGD(lr=0.1), groups=(group,)), run.state_dict()
    step(feed, d5.StepInfo(batch_size=4))
    assert run.gradients().keys() == {"fc.weight", "fc.bias"}
    changed = {name for name in run.network.parameter_specs if (run.state_dict()[name] != before[name]).any()}
    assert changed == {"fc.weight", "fc.bias"}


def test_an_executor_keeps_one_copy_of_the_weights() -> None:
    run = executor(resnet18_small())
    assert len(run.source) > 1000
    run.inference_and_backprop({"input": normal(1, 3, 32, 32), "label": np.zeros(1, np.int64)})
    live = {id(value) for value in (*run.leaves().values(), *run.buffers().values())}
    held = [value for value in vars(run)["_known"].values() if value.numel() > 100]
    assert {id(value) for value in held} <= live  # both programs read the same memory
    assert len(run.training_source.splitlines()) >= len(run.source.splitlines())


def test_accumulate_and_loss_scale() -> None:
    run, feed, other = executor(), batch(), batch()
    run.inference_and_backprop(feed)
    first = {name: value.clone() for name, value in run.gradients().items()}
    run.inference_and_backprop(other)
    second = {name: value.clone() for name, value in run.gradients().items()}
    run.inference_and_backprop(feed, accumulate=True)
    for name, value in run.gradients().items():
        torch.testing.assert_close(value, first[name] + second[name])
    run.inference_and_backprop(feed, loss_scale=4.0)  # a power of two: exact
    for name, value in run.gradients().items():
        assert torch.equal(value, 4 * first[name])
    run.inference_and_backprop(feed, loss_scale=1.0)
    for name, value in run.gradients().items():
        assert torch.equal(value, first[name])


def test_gradients_that_were_given_away_stay_as_they_are() -> None:
    run, feed = executor(), batch()
    run.inference_and_backprop(feed)
    first = run.gradients()
    kept = {name: value.clone() for name, value in first.items()}
    run.inference_and_backprop(feed, wrt=["fc1.weight"], accumulate=True)
    second = run.gradients()
    assert torch.equal(second["fc1.weight"], 2 * kept["fc1.weight"])
    told: dict[str, Any] = {}
    run.inference_and_backprop(feed, accumulate=True, on_gradient=told.__setitem__)
    assert torch.equal(told["fc1.weight"], 3 * kept["fc1.weight"])
    third = {name: value.clone() for name, value in told.items()}
    run.inference_and_backprop(feed, accumulate=True)
    for name, value in first.items():
        assert torch.equal(value, kept[name])
        assert torch.equal(told[name], third[name])
    assert torch.equal(second["fc1.weight"], 2 * kept["fc1.weight"])
    # Nobody was given these: torch goes on in the same memory.
    places = [leaf.grad.data_ptr() for leaf in run.leaves().values()]
    run.inference_and_backprop(feed, accumulate=True)
    assert [leaf.grad.data_ptr() for leaf in run.leaves().values()] == places


def test_wrt_inputs_and_subsets() -> None:
    run, feed = executor(mlp(**SMALL, dtype="float64")), batch(dtype="float64")
    run.inference_and_backprop(feed, wrt=["input", "fc2.weight"])
    gradients = {name: value.clone() for name, value in run.gradients().items()}
    assert list(gradients) == ["input", "fc2.weight"]
    step = 1e-6
    shifted = {**feed, "input": feed["input"].copy()}
    shifted["input"][2, 1] += step
    slope = (run.inference(shifted)["loss"] - run.inference(feed)["loss"]).item() / step
    # A forward difference of step 1e-6 in float64 is right to about the step.
    assert gradients["input"][2, 1].item() == pytest.approx(slope, abs=1e-6)
    run.inference_and_backprop(feed, wrt=["input", "fc1.weight"], accumulate=True)
    assert set(run.gradients()) == {"input", "fc1.weight", "fc2.weight"}
    torch.testing.assert_close(run.gradients()["input"], 2 * gradients["input"])
    torch.testing.assert_close(run.gradients()["fc2.weight"], gradients["fc2.weight"])
    native = torch.from_numpy(feed["input"])
    run.inference_and_backprop({**feed, "input": native}, wrt=["input"])
    assert not native.requires_grad
    assert native.grad is None
    for wrt, error, message in (
        (["label"], Unsupported, r"no gradient by 'label', which is int64\[N\]"),
        (["fc9"], UnknownName, "unknown parameter or input 'fc9'"),
        ([], UsageError, "nothing to differentiate by"),
    ):
        with pytest.raises(error, match=message):
            run.inference_and_backprop(feed, wrt=wrt)


def test_the_callers_graph_is_left_alone() -> None:
    source = torch.from_numpy(normal(5, 4)).requires_grad_()
    run = executor()
    run.inference_and_backprop({"input": source * 2, "label": np.arange(5) % 2})
    assert source.grad is None


def test_a_parameter_that_the_loss_does_not_depend_on_has_gradient_zero() -> None:
    build = NetworkBuilder("idle")
    x = build.input("x", ("N", 3))
    used = build.op("MatMul", x, build.parameter("used", (3, 1)))
    idle = build.op("MatMul", x, build.parameter("idle", (3, 2)))
    shape = build.constant("shape", np.array([], np.int64))
    network = build.network({"loss": build.op("Reshape", used, shape), "other": idle})
    run, told = executor(network), {}
    run.inference_and_backprop({"x": normal(1, 3)}, on_gradient=told.__setitem__)
    assert torch.equal(run.gradients()["idle"], torch.zeros(3, 2))
    assert torch.equal(told["idle"], torch.zeros(3, 2))
    assert not run.gradients()["idle"].requires_grad
    run.inference_and_backprop({"x": normal(1, 3)}, wrt=["idle"])
    assert torch.equal(run.gradients()["idle"], torch.zeros(3, 2))


def test_on_gradient_tells_each_once_and_the_sum() -> None:
    run, feed = executor(), batch()
    told: list[tuple[str, Any]] = []
    run.inference_and_backprop(feed, on_gradient=lambda name, grad: told.append((name, grad.clone())))
    assert sorted(name for name, _ in told) == sorted(run.gradients())
    assert told[0][0].startswith("fc2")  # the last layer's are known first
    once = dict(told)
    told.clear()
    run.inference_and_backprop(feed, accumulate=True, on_gradient=lambda name, grad: told.append((name, grad.clone())))
    for name, value in told:
        assert torch.equal(value, run.gradients()[name])
        assert torch.equal(value, 2 * once[name])
    told.clear()
    run.inference_and_backprop(feed)
    assert not told


def test_gradients_are_never_stale() -> None:
    run = executor()
    with pytest.raises(Unsupported, match="there are no gradients; remedy: call inference_and_backprop first"):
        run.gradients()
    run.inference_and_backprop(batch())

    def fail(name: str, gradient: Any) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        run.inference_and_backprop(batch(), on_gradient=fail)
    with pytest.raises(Unsupported, match="there are no gradients"):
        run.gradients()
    feed = batch()
    run.inference_and_backprop(feed, accumulate=True)  # nothing of the failed call is added to
    got = {name: value.clone() for name, value in run.gradients().items()}
    run.inference_and_backprop(feed)
    for name, value in run.gradients().items():
        assert torch.equal(value, got[name])


def test_wrong_losses() -> None:
    run = executor()
    with pytest.raises(UnknownName, match="unknown loss 'los'; allowed: logits, loss; did you mean 'loss'"):
        run.inference_and_backprop(batch(), "los")
    with pytest.raises(Unsupported, match=r"'logits', float32\[N, 2\], cannot be differentiated; allowed: a scalar"):
        run.inference_and_backprop(batch(), "logits")


# Inputs


def test_inputs_that_do_not_fit() -> None:
    run, good = executor(), batch()
    for feed, message in (
        ({"input": good["input"]}, "missing input 'label'; got: input, expected: input, label"),
        ({}, "missing input 'input', 'label'; got: none"),
        ({**good, "extra": 1}, "unknown input 'extra'; expected: input, label"),
        ({"inptu": good["input"], "label": good["label"]}, "unknown input 'inptu'; .*did you mean 'input'"),
        ({**good, "input": good["input"].astype(np.float64)}, "'input': got dtype float64, expected float32"),
        ({**good, "label": good["label"].astype(np.float32)}, "'label': got dtype float32, expected int64"),
        ({**good, "input": good["input"][:, :3]}, r"'input': got shape \(5, 3\), expected float32\[N, 4\]"),
        ({**good, "input": good["input"][0]}, r"'input': got shape \(4,\), expected"),
        ({**good, "label": np.array(1)}, r"'label': got shape \(\), expected int64\[N\]"),
        (
            {**good, "label": good["label"][:4]},
            r"'label': got N = 4 in shape \(4,\), expected N = 5 as in input 'input'",
        ),
        ({**good, "input": np.array(["a"])}, "'input': got ndarray that torch cannot take"),
        ({**good, "input": object()}, "'input': got object that torch cannot take"),
    ):
        for call in (run.inference, run.inference_and_backprop):
            with pytest.raises(ShapeError, match=message):
                call(feed)
    run.inference(good)


def test_any_layout_of_numpy_memory_is_read_right() -> None:
    run, good = executor(), batch(6)
    want = run.inference(good)["logits"]
    x = good["input"]
    frozen = x.copy()
    frozen.flags.writeable = False
    wide = np.zeros((12, 8), np.float32)
    wide[::2, ::2] = x
    for value in (
        np.asfortranarray(x),
        frozen,
        wide[::2, ::2],
        x[::-1].copy()[::-1],  # negative strides
        x.astype(">f4"),
        torch.from_numpy(x),
        torch.from_numpy(np.ascontiguousarray(x.T)).T,
    ):
        # To the rounding: in what order a product is summed follows from how memory happens to be aligned.
        torch.testing.assert_close(run.inference({**good, "input": value})["logits"], want, rtol=1e-5, atol=1e-6)
    assert not frozen.flags.writeable
    lists = {"input": x, "label": good["label"].tolist()}
    torch.testing.assert_close(run.inference(lists)["logits"], want, rtol=1e-5, atol=1e-6)


def test_many_shapes_are_accepted_and_remembered_within_bounds() -> None:
    run = executor()
    for count in range(1, 300):
        run.inference({"input": np.zeros((count, 4), np.float32), "label": np.zeros(count, np.int64)})
    assert len(run._fitting) <= 256


# Values


def test_parameters_are_live() -> None:
    run, feed = executor(), batch()
    before = run.inference(feed)["logits"].clone()
    run.parameters()["fc2.bias"].add_(1)
    torch.testing.assert_close(run.inference(feed)["logits"], before + 1)
    np.testing.assert_array_equal(run.network.initial("fc2.bias"), 0)


def test_read_and_write() -> None:
    run = executor(resnet(depth=8))
    names = ["conv0.mean", "fc.bias", "conv0.scale"]
    out = np.empty(16 + 10 + 16, np.float32)
    run.read(names, out)
    np.testing.assert_array_equal(out[:16], 0)
    np.testing.assert_array_equal(out[26:], 1)
    packed = np.arange(42, dtype=np.float32)
    packed.flags.writeable = False
    run.write(names, packed)
    run.read(names, out)
    np.testing.assert_array_equal(out, packed)
    np.testing.assert_array_equal(run.buffers()["conv0.mean"], packed[:16])
    for call in (run.read, run.write):
        with pytest.raises(UnknownName, match=r"unknown parameter or buffer 'fc\.bia'; .*did you mean 'fc\.bias'"):
            call(["fc.bia"], out)
        with pytest.raises(ShapeError, match=r"got float32\[42\], expected float32\[10\]"):
            call(["fc.bias"], out)
        with pytest.raises(ShapeError, match=r"got float64\[10\], expected float32\[10\]"):
            call(["fc.bias"], np.zeros(10))
        with pytest.raises(UsageError, match="allowed: a C-contiguous NumPy array"):
            call(["fc.bias"], [0.0] * 10)
        with pytest.raises(UsageError, match="allowed: a C-contiguous NumPy array"):
            call(["fc.bias"], np.zeros(20, np.float32)[::2])


def test_state_dict_and_export_round_trip() -> None:
    run = executor(resnet(depth=8, seed=1))
    feed = {"input": normal(4, 3, 32, 32), "label": np.arange(4)}
    run.inference(feed, training=True)
    state = run.state_dict()
    assert state.keys() == {*run.parameters(), *run.buffers()}
    other = executor(resnet(depth=8, seed=2))
    other.load_state_dict(state)
    assert torch.equal(other.inference(feed)["logits"], run.inference(feed)["logits"])
    state["fc.bias"][:] = 7
    assert not (run.parameters()["fc.bias"] == 7).any()
    assert not (other.parameters()["fc.bias"] == 7).any()
    exported = run.export()
    assert exported.structure_hash() == run.network.structure_hash()
    again = executor(exported)
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name], value)
    # Float32 convolutions of 8 layers by another library.
    np.testing.assert_allclose(runtime(exported, feed)[0], run.inference(feed)["logits"], rtol=1e-4, atol=1e-4)


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    run = executor()
    before = run.state_dict()
    good = {name: value + 1 for name, value in before.items()}
    for bad, error, message in (
        ({**good, "extra": good["fc1.bias"]}, NetworkError, r"missing \[\], unknown \['extra'\]"),
        ({name: good[name] for name in list(good)[1:]}, NetworkError, r"missing \['fc1.weight'\]"),
        ({**good, "fc2.bias": np.zeros(3, np.float32)}, ShapeError, r"'fc2.bias': got shape \(3,\), expected"),
        ({**good, "fc2.bias": np.zeros(2)}, ShapeError, "'fc2.bias': got dtype float64"),
    ):
        with pytest.raises(error, match=message):
            run.load_state_dict(bad)
        for name, value in run.state_dict().items():
            np.testing.assert_array_equal(value, before[name])


def test_export_gives_what_evaluation_uses() -> None:
    run = executor()
    step = run.train_step(d5.AcceleGrad(lr=0.1))
    for number in range(3):
        step(batch(), d5.StepInfo(step=number, batch_size=5))
    live = run.state_dict()
    with step.averaged():
        averaged = run.state_dict()
    assert any((live[name] != averaged[name]).any() for name in live)
    for evaluation, values in ((True, averaged), (False, live)):
        exported = run.export(evaluation=evaluation)
        for name, value in values.items():
            np.testing.assert_array_equal(exported.initial(name), value)
    np.testing.assert_array_equal(run.state_dict()["fc1.weight"], live["fc1.weight"])


def test_settings_are_read_back() -> None:
    threads = torch.get_num_threads()
    try:
        for number in (1, 2):
            TORCH.set_threads(number)
            assert executor().settings()["threads"] == number == torch.get_num_threads()
    finally:
        torch.set_num_threads(threads)
    settings = executor(mlp(**SMALL, dtype="float64")).settings()
    assert (settings["dtype"], settings["device"], settings["tf32"]) == ("float64", "cpu", False)
    assert settings["version"] == torch.__version__ == TORCH.version()
    for bad in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="threads; allowed: a whole number of at least 1"):
            TORCH.set_threads(bad)  # type: ignore[arg-type]


def test_a_device_that_is_not_there_is_refused() -> None:
    index = torch.cuda.device_count()
    with pytest.raises(Unsupported, match=f"no device cuda:{index} for pytorch here; allowed: cpu"):
        executor(device=f"cuda:{index}")
    with pytest.raises(UsageError, match="unknown device 'tpu'"):
        executor(device="tpu")


# Optimizers

BY_HAND: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, nesterov=True, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.99), eps=1e-7, fused=True),
}
NATIVE: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.8, "nesterov": True},
    "adam": {"lr": 0.05, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-7},
}


@pytest.mark.parametrize("name", list(BY_HAND))
def test_native_optimizers_are_torchs_bit_for_bit(name: str) -> None:
    network, feeds = mlp(**SMALL, seed=4), [batch(8) for _ in range(20)]
    run = executor(network)
    optimizer: Any = TORCH.optimizer(name)(**NATIVE[name])
    optimizer.bind(run)
    w = [torch.from_numpy(network.initial(key)).clone().requires_grad_() for key in network.parameter_specs]
    theirs = BY_HAND[name](w)
    for number, feed in enumerate(feeds):
        loss = optimizer.step(feed, d5.StepInfo(step=number))["loss"]
        theirs.zero_grad()
        hidden = torch.tanh(F.linear(torch.from_numpy(feed["input"]), w[0], w[1]))
        by_hand = F.cross_entropy(F.linear(hidden, w[2], w[3]), torch.from_numpy(feed["label"]))
        by_hand.backward()
        theirs.step()
        assert loss.item() == by_hand.item()
    for ours, other in zip(run.parameters().values(), w, strict=True):
        assert torch.equal(ours, other.detach())


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", d5.Adam(lr=0.05), d5.AcceleGrad(lr=0.05)])
def test_a_resumed_run_is_the_same_bit_for_bit(kind: Any) -> None:
    feeds = [batch(8) for _ in range(12)]

    def start() -> tuple[Any, Any]:
        run = executor(mlp(**SMALL, seed=4))
        optimizer: Any = TORCH.optimizer(kind)(**NATIVE[kind]) if isinstance(kind, str) else None
        if optimizer is None:
            return run, run.train_step(kind)
        optimizer.bind(run)
        return run, optimizer

    def go(optimizer: Any, first: int, last: int) -> None:
        call = getattr(optimizer, "step", optimizer)
        for number in range(first, last):
            call(feeds[number], d5.StepInfo(step=number, batch_size=8))

    whole, optimizer = start()
    go(optimizer, 0, 12)
    half, optimizer = start()
    go(optimizer, 0, 6)
    states = half.state_dict(), optimizer.state_dict()
    plain = [value for state in states for key, value in state.items() if key != "hyper"]
    assert all(isinstance(value, (np.ndarray, np.generic)) for value in plain)
    resumed, optimizer = start()
    resumed.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    go(optimizer, 6, 12)
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(resumed.state_dict()[name], value)


def test_native_optimizer_errors() -> None:
    optimizer: Any = TORCH.optimizer("adam")()
    for call in (lambda: optimizer.step({}, None), optimizer.state_dict, lambda: optimizer.set_hyper("lr", 1.0)):
        with pytest.raises(UsageError, match=r"not bound to an executor; remedy: call bind\(executor\) first"):
            call()
    with pytest.raises(UsageError, match="native optimizer of pytorch cannot drive a ReferenceExecutor"):
        optimizer.bind(d5.framework("reference").executor(mlp(**SMALL)))
    with pytest.raises(UsageError, match=r"torch refuses the optimizer .*'lr': -1.*Invalid learning rate"):
        TORCH.optimizer("sgd")(lr=-1.0).bind(executor())
    optimizer.bind(executor())
    with pytest.raises(
        UsageError, match="no hyperparameter 'learning_rate' of this optimizer; allowed: lr, beta1, beta2, epsilon"
    ):
        optimizer.set_hyper("learning_rate", 0.1)
    with pytest.raises(ShapeError, match=r"unknown entry 'exp_avg/fc9'; allowed: of fc1.weight"):
        optimizer.load_state_dict({"exp_avg/fc9": np.zeros(1)})
    with pytest.raises(ShapeError, match=r"'exp_avg/fc1.bias' has shape \(9,\); allowed: \(3,\) or \(\)"):
        optimizer.load_state_dict({"exp_avg/fc1.bias": np.zeros(9, np.float32)})


def test_set_hyper_acts_at_once() -> None:
    run = executor()
    optimizer: Any = TORCH.optimizer("sgd")(lr=0.1)
    optimizer.bind(run)
    optimizer.set_hyper("lr", 0.0)
    before = run.state_dict()
    optimizer.step(batch(), d5.StepInfo())
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    assert optimizer.describe() == {"native": "pytorch", "optimizer": "GradientDescentOptimizer", "lr": 0.1}


def test_a_native_optimizer_minimises_the_loss_it_is_told() -> None:
    build = NetworkBuilder("renamed")
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    logits = build.op("MatMul", x, build.parameter("w", (4, 2)))
    network = build.network({"logits": logits, "total": build.op("SoftmaxCrossEntropyLoss", logits, label)})
    optimizer: Any = TORCH.optimizer("adam")(loss="total")
    optimizer.bind(executor(network))
    optimizer.step(batch(), d5.StepInfo())
    data = ArrayDataset(batch())
    with pytest.raises(UsageError, match="the trainer's loss is 'total' but its optimizer's is 'loss'"):
        d5.Trainer(executor(network), TORCH.optimizer("adam")(), d5.OrderedSampler(data, 5), loss="total")


# Compiled


def compiled(network: Network) -> Any:
    return d5.framework("pytorch:compiled").executor(network)


def test_the_compiled_mode_is_a_mode_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = d5.framework("pytorch:compiled")
    assert framework.name == "pytorch:compiled"
    run = framework.executor(mlp(**SMALL))
    assert isinstance(run, GraphExecutor)
    assert run.capabilities == {"float64"}
    assert executor().compilations == 0
    with pytest.raises(
        UnknownName, match=r"unknown mode of the framework 'pytorch' 'complied'.*did you mean 'compiled'"
    ):
        d5.framework("pytorch:complied")
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent == cache_folder()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        Unsupported, match=r"needs a C.. compiler, and 'no-such-compiler' is not there; remedy: install"
    ):
        compiled(mlp(**SMALL))


def traced(made: Any) -> Any:
    """torch's tracer and its rules, but what it traced runs as it is: nothing is compiled."""
    made._compiler._inductor = lambda graph, inputs: graph.forward
    return made


def test_any_number_of_sets_of_leaves_is_compiled() -> None:
    network = mlp(**SMALL, seed=3)
    run, plain, feed = traced(compiled(network)), executor(network), batch()
    names = [*network.parameter_specs, "input"]
    chosen = [names[first:last] for first in range(5) for last in range(first + 1, 6)]
    assert len(chosen) > 8  # torch compiles a function eight times
    for wrt in (*chosen, *chosen[:3]):
        for each in (run, plain):
            each.inference_and_backprop(feed, wrt=wrt)
        assert run.gradients().keys() == set(wrt)
        for name, value in run.gradients().items():
            torch.testing.assert_close(value, plain.gradients()[name])
    assert run.compilations == len(chosen)  # each once
    run.inference(feed)


def test_a_compiled_function_that_met_too_many_kinds_of_inputs_begins_anew() -> None:
    build = NetworkBuilder("backwards")
    arguments = [
        build.constant(name, np.array([number])) for name, number in (("a", -1), ("b", -9), ("c", 0), ("d", -1))
    ]
    run = traced(compiled(build.network({"y": build.op("Slice", build.input("x", ("N", 3)), *arguments)})))
    for count in range(2, 13):  # torch makes a function of each size here
        x = normal(count, 3)
        np.testing.assert_array_equal(run.inference({"x": x})["y"], x[-1:-9:-1])
    assert run.compilations > 8
    operator = traced(d5.framework("pytorch:compiled").operator_executor(ONNXOperator("Relu")))
    for order in itertools.permutations(range(4)):
        value = torch.randn(2, 3, 4, 5).permute(order).contiguous().permute(*np.argsort(order).tolist())
        assert torch.equal(operator.inference(value)[0], value.relu())


def test_compiled_statistics_are_left_by_a_pass_that_fails() -> None:
    network, good = normalised(count=3), batch()
    run, plain = traced(compiled(network)), executor(network)
    before = run.state_dict()
    with pytest.raises(NetworkError, match="got the label 99"):
        run.inference_and_backprop({**good, "label": np.array([0, 1, 99, 0, 1])})
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    for each in (run, plain):
        each.inference_and_backprop(good)
    for name, value in run.buffers().items():
        torch.testing.assert_close(value, plain.buffers()[name])
        assert not value.requires_grad


@pytest.mark.parametrize("ignored", [None, -1])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_labels_are_looked_at_before_what_is_compiled(dtype: str, ignored: int | None) -> None:
    labels = Labels(
        position=0, name="label", classes=3, unsigned=np.dtype(f"u{np.dtype(dtype).itemsize}"), ignored=ignored
    )
    check, kind = _class_check(labels, dtype), getattr(torch, dtype)
    for right in ([2], [0, 1, 2, 2], [[0, 1], [2, 0]], []):
        check(torch.tensor(right, dtype=kind))
    wrongs: list[Any] = [[3], [0, 1, 99], [[0, 1], [5, 0]]]
    if dtype != "uint8":
        wrongs += [[-2], [1, 0, -2]]
        for held in ([-1], [0, -1, 2]):
            if ignored is None:
                wrongs.append(held)
            else:
                check(torch.tensor(held, dtype=kind))
    for wrong in wrongs:
        with pytest.raises(NetworkError, match=r"input 'label': got the label (3|99|5|-1|-2); allowed: 0 to 2"):
            check(torch.tensor(wrong, dtype=kind))


@pytest.mark.slow
class Enough(Exception):
    """Nothing needs to be compiled any more."""


def test_compiled_steps_wait_for_what_is_changed_in_place_before_them() -> None:
    def gradients(x: Any, index: Any, gate: Any, images: Any, weight: Any) -> Any:
        # Max pooling's gradient, ReLU's and a convolution's.
        added = torch.zeros(256, 4).scatter_add(1, index, x).view(8, 32, 2, 2)
        how = [32], (1, 1), (1, 1), (1, 1), False, (0, 0), 1, [True, True, True]
        return torch.ops.aten.convolution_backward(torch.where(gate, 0.0, added), images, weight, *how)

    behind: list[tuple[Any, Any]] = []

    def look(steps: list[Any]) -> Any:
        for step in (each for fused in steps for each in fused.get_nodes()):
            # The names from before the change, which the step must not wait for, and those that it waits for.
            behind.append((set(step.mutation_renames), {read.name for read in step.read_writes.reads}))
        raise Enough

    run = d5.framework("pytorch:compiled").operator_executor(ONNXOperator("Relu"))._compiler.of_operator(gradients)
    index, gate = torch.zeros(256, 1, dtype=torch.int64), torch.ones(8, 32, 2, 2) > 0
    last = [
        torch.ones(shape).contiguous(memory_format=torch.channels_last) for shape in ((8, 32, 2, 2), (32, 32, 3, 3))
    ]
    given = torch.ones(256, 1), index, gate, *last
    with torch._inductor.config.patch(_post_fusion_custom_pass=look), pytest.raises(Unsupported, match="Enough"):
        run(*given)
    assert any(before for before, _ in behind)
    assert not [names for before, names in behind if before & names]


SUBSAMPLED = """
import deep5 as d5, numpy as np, torch
build = d5.networks.NetworkBuilder("n", seed=1)
x = build.input("x", ("N", 4, 16, 16))
weight = build.parameter("w", (8, 4, 1, 1), lambda draw, shape: draw.standard_normal(shape))
y = build.op("Conv", x, weight, strides=[2, 2])
network = build.network({"loss": build.op("ReduceMean", build.op("Mul", y, y), keepdims=0)})
run, given = d5.framework("pytorch").executor(network), np.random.default_rng(0).standard_normal((5, 4, 16, 16))
x = torch.tensor(given, dtype=torch.float32)
found = []
for form in (torch.contiguous_format, *[torch.channels_last] * 30):
    run.inference_and_backprop({"x": x.contiguous(memory_format=form)})
    found.append(run.gradients()["w"].clone())
assert all(torch.allclose(each, found[0], rtol=1e-5) for each in found)
"""


def test_a_subsampling_convolution_of_few_channels_takes_channels_that_come_last() -> None:
    # On its own: what was written past the end of an array ended the process, here or later.
    done = subprocess.run([sys.executable, "-c", SUBSAMPLED], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_batches_of_any_size_run_what_was_compiled_once() -> None:
    network = mlp(**SMALL, seed=3)
    run, plain = compiled(network), executor(network)
    assert run.compilations == 0  # nothing is compiled before it is called
    rule = d5.Adam(lr=0.05)
    step, other = run.train_step(rule), plain.train_step(rule)
    for number, count in enumerate((8, 5, 8, 3, 2, 9)):
        rule.lr = 0.05 / (number + 1)
        feed, info = batch(count), d5.StepInfo(step=number, batch_size=count)
        # Float32, sums in another order; six steps.
        assert step(feed, info)["loss"].item() == pytest.approx(other(feed, info)["loss"].item(), rel=1e-4)
        assert run.compilations == 1
    native = torch.from_numpy(normal(7, 4))
    run.inference({**batch(7), "input": native})
    assert not hasattr(native, "_dynamo_weak_dynamic_indices")  # the caller's tensor carries no mark
    assert run.compilations == 2  # evaluation keeps nothing for a gradient
    for count in (4, 6):
        feed = batch(count)
        torch.testing.assert_close(run.inference(feed)["logits"], plain.inference(feed)["logits"], rtol=1e-3, atol=1e-4)
    assert run.compilations == 2
    run.inference(batch(1))
    assert run.compilations == 3  # torch has batches of one apart
    for _ in range(2):
        run.inference_and_backprop(batch(5), wrt=["fc2.bias"])
        assert run.gradients().keys() == {"fc2.bias"}
    assert run.compilations == 4


@pytest.mark.slow
def test_a_compiled_recurrent_layer_is_its_cells() -> None:
    network = lstm(features=3, hidden=4, length=6, classes=2)  # of fewer steps than four the plain one takes cells, too
    run, plain = compiled(network), executor(network)
    assert "f_long_short" in plain.source
    assert "f_long_short" not in run.source
    feed = {"input": normal(5, 6, 3), "label": np.arange(5) % 2}
    for each in (run, plain):
        each.inference_and_backprop(feed)
    for name, value in run.gradients().items():
        # Float32, six cells, sums in another order.
        torch.testing.assert_close(value, plain.gradients()[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_compiled_network_keeps_the_contract() -> None:
    check_executor("pytorch:compiled")


@pytest.mark.slow
def test_compiled_statistics_and_masks() -> None:
    build = NetworkBuilder("both", dtype="float64", seed=2)
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    x = build.op("MatMul", x, build.parameter("w", (4, 3)))
    names = [build.parameter(name, (3,), ones) for name in ("scale", "shift", "mean", "variance")]
    x = build.op("Dropout", build.op("BatchNormalization", x, *names), build.scalar(0.5, "float32"))
    network = build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label)})
    runs = [compiled(network), executor(network)]
    for number in range(3):
        feed, info = batch(6 + number, "float64"), d5.StepInfo(step=number, seed=9)
        for run in runs:
            run.inference_and_backprop(feed, info=info)
        for name, value in runs[0].gradients().items():
            torch.testing.assert_close(value, runs[1].gradients()[name])
        for name, value in runs[0].buffers().items():
            torch.testing.assert_close(value, runs[1].buffers()[name])
    assert runs[0].compilations == 1
    assert not torch.equal(runs[0].buffers()["mean"], torch.ones(3, dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(OPERATORS.keys() - {"Constant"}))
def test_every_operator_is_one_graph(op: str) -> None:
    """What torch.compile asks of Python code; that it then compiles right is its own business, and tried above."""
    values, options = next((values, options) for name, values, options in CASES if name == op)
    network = single(op, named(values), **options)
    run = executor(network)
    whole = torch.compile(run._evaluation.call, backend="eager", fullgraph=True)
    feed = [torch.from_numpy(np.asarray(value)) for value in values]
    for got, want in zip(whole(*feed), run.inference(named(values)).values(), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.slow
def test_what_cannot_be_compiled_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = compiled(mlp(**SMALL, seed=11))
    monkeypatch.setattr(run._compiler, "_inductor", lambda graph, inputs: 1 / 0)
    with pytest.raises(Unsupported, match=r"torch cannot compile this network: .*ZeroDivisionError.*remedy: run it on"):
        run.inference(batch())
