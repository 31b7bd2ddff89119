"""The PyTorch back-end beyond the interface that all executors share: source, fused calls, autograd, optimizers."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

import deep5 as d5
from backends import BACKENDS
from deep5.core.errors import ShapeError, Unsupported, UsageError
from deep5.frameworks.pytorch.framework import PyTorch
from deep5.networks import Network, NetworkBuilder, lenet, mlp, ones, resnet, resnet18_small, transformer
from executor_cases import SMALL, batch, passing
from executor_cases import executor as shared_executor
from operator_cases import I7, RNG, cases, named, normal, single

TORCH = PyTorch()
executor = functools.partial(shared_executor, BACKENDS["pytorch"])
CASES = cases("pytorch")


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
        # Powers from two libraries: some units in the last place.
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
    ("GridSample", (normal(1, 1, 3, 3), normal(1, 2, 2, 2)), {"mode": "area"}, "mode=area; allowed: bicubic"),
    ("Gemm", (I7[:, None], I7[None]), {}, "integers"),
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


def test_the_source_is_a_straight_line() -> None:
    source = executor(lenet()).source
    assert source.count("def ") == 1
    assert not any(word in source for word in (" for ", " if ", "while", "import", "exec", "eval("))
    assert "del " in source  # activations are freed as soon as nothing needs them


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
        # The same masks, so the same gradients, up to the rounding of sums of some dozen float64 products.
        np.testing.assert_allclose(value.numpy(), reference.gradients()[name], rtol=1e-9, atol=1e-12)
    assert "scaled_dot_product_attention" in ours.source  # evaluation drops nothing
    np.testing.assert_allclose(
        ours.inference(feed)["logits"], reference.inference(feed)["logits"], rtol=1e-9, atol=1e-12
    )


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
    assert outputs["loss"].item() == loss.item()  # the same calls, so bit-identical
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
    # A function object that is part of the graph is freed with the call.
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


def test_only_what_may_be_other_memory_is_copied() -> None:
    run, lenets = executor(passing()), executor(lenet())
    assert 10 <= run.source.count(".clone()") <= len(run.network.outputs) - 2  # not the logits and the loss
    assert ".clone()" not in lenets.source + executor(resnet(depth=8)).training_source


def test_gradients_that_nobody_was_given_are_added_to_in_place() -> None:
    run, feed = executor(), batch()
    run.inference_and_backprop(feed)
    places = [leaf.grad.data_ptr() for leaf in run.leaves().values()]
    run.inference_and_backprop(feed, accumulate=True)
    assert [leaf.grad.data_ptr() for leaf in run.leaves().values()] == places


def test_threads_are_read_back() -> None:
    threads = torch.get_num_threads()
    try:
        for number in (1, 2):
            TORCH.set_threads(number)
            assert executor().settings()["threads"] == number == torch.get_num_threads()
    finally:
        torch.set_num_threads(threads)


def test_what_is_not_differentiated_by_costs_nothing() -> None:
    run, feed = executor(resnet(depth=8)), {"input": normal(4, 3, 32, 32), "label": np.arange(4)}
    run.inference_and_backprop(feed)
    want = run.gradients()["fc.weight"].clone()
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        run.inference_and_backprop(feed, wrt=["fc.weight", "fc.bias"])
        few, saved[:] = sum(saved), []
        run.inference_and_backprop(feed)
        assert few < sum(saved) / 100  # only the last layer keeps its input
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


def test_the_callers_graph_is_left_alone() -> None:
    source = torch.from_numpy(normal(5, 4)).requires_grad_()
    run = executor()
    run.inference_and_backprop({"input": source * 2, "label": np.arange(5) % 2})
    assert source.grad is None


def test_many_shapes_are_accepted_and_remembered_within_bounds() -> None:
    run = executor()
    for count in range(1, 300):
        run.inference({"input": np.zeros((count, 4), np.float32), "label": np.zeros(count, np.int64)})
    assert len(run._fitting) <= 256


def test_parameters_are_live() -> None:
    run, feed = executor(), batch()
    before = run.inference(feed)["logits"].clone()
    run.parameters()["fc2.bias"].add_(1)
    torch.testing.assert_close(run.inference(feed)["logits"], before + 1)
    np.testing.assert_array_equal(run.network.initial("fc2.bias"), 0)


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


def test_what_torchs_optimizers_refuse() -> None:
    optimizer: Any = TORCH.optimizer("adam")()
    with pytest.raises(UsageError, match=r"got lr=-1.0; allowed: a number of at least 0"):
        TORCH.optimizer("sgd")(lr=-1.0).bind(executor())
    with pytest.raises(UsageError, match=r"torch refuses the optimizer .*'momentum': 0.*Nesterov momentum requires"):
        TORCH.optimizer("nesterov")(momentum=0.0).bind(executor())
    optimizer.bind(executor())
    with pytest.raises(
        UsageError, match="no hyperparameter 'learning_rate' of this optimizer; allowed: lr, beta1, beta2, epsilon"
    ):
        optimizer.set_hyper("learning_rate", 0.1)
    with pytest.raises(ShapeError, match=r"unknown entry 'exp_avg/fc9'; allowed: of fc1.weight"):
        optimizer.load_state_dict({"exp_avg/fc9": np.zeros(1)})
    with pytest.raises(ShapeError, match=r"'exp_avg/fc1.bias' has shape \(9,\); allowed: \(3,\) or \(\)"):
        optimizer.load_state_dict({"exp_avg/fc1.bias": np.zeros(9, np.float32)})


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
    # In a separate process: writing past the end of an array ended the process, here or later.
    done = subprocess.run([sys.executable, "-c", SUBSAMPLED], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
