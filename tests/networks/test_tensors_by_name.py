"""`fetch` and `feed` of any tensor by name, and gradients by computed values, on every back-end."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import deep5 as d5
from backends import COMPUTING, ENGINES, Backend, parametrized
from deep5.core.errors import ShapeError, UnknownName, Unsupported, UsageError
from deep5.networks.edit.builder import NetworkBuilder, glorot_uniform

ALL = (*COMPUTING, "tensorflow:xla", *ENGINES)
BETWEEN = ("Tanh_1_output", "Gemm_1_output", "Flatten_1_output")


def network(dtype: str = "float32") -> d5.Network:
    """A convolution, whose weight back-ends store in their own order; a value that two nodes read; and statistics."""
    build = NetworkBuilder("named", dtype=dtype, seed=3)
    x, label = build.input("x", ("N", 2, 6, 6)), build.input("label", ("N",), "int64")
    h = build.op("Conv", x, build.parameter("conv.weight", (3, 2, 3, 3), glorot_uniform))
    h = build.op("Flatten", build.op("Tanh", h))
    a = build.op("Gemm", h, build.parameter("fc.weight", (3, 48), glorot_uniform), transB=1)
    logits = build.op("Mul", a, build.op("Sigmoid", a))
    loss = build.op("SoftmaxCrossEntropyLoss", logits, label, reduction="mean")
    return build.network({"logits": logits, "loss": loss})


def batch(size: int = 5, dtype: str = "float32", seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {"x": draw.standard_normal((size, 2, 6, 6)).astype(dtype), "label": draw.integers(0, 3, size)}


def host(values: Any) -> dict[str, np.ndarray]:
    return {name: np.array(d5.to_numpy(value)) for name, value in values.items()}


def sigmoid(a: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-a)))


def after_gemm(a: np.ndarray, label: np.ndarray) -> float:
    """The loss as a function of the Gemm's output, in float64."""
    logits = a * sigmoid(a)
    peak = logits.max(1, keepdims=True)
    scaled = logits - peak - np.log(np.exp(logits - peak).sum(1, keepdims=True))
    return float(-scaled[np.arange(len(label)), label].mean())


@parametrized(*ALL, daily=True)
def test_fetch_gives_any_tensor(backend: Backend) -> None:
    executor = backend.framework.executor(network())
    inputs = batch()
    names = ["Gemm_1_output", "fc.weight", "Tanh_1_output", "x", "logits"]
    first = host(executor.fetch(names, inputs))
    assert list(first) == names
    outputs = host(executor.inference(inputs))
    last = host(executor.fetch(names))  # of the last inference
    for name in names:
        np.testing.assert_array_equal(last[name], first[name])
    np.testing.assert_allclose(last["logits"], outputs["logits"], rtol=1e-5, atol=1e-6)
    a = first["Tanh_1_output"].reshape(5, 48) @ executor.network.initial("fc.weight").T
    np.testing.assert_allclose(first["Gemm_1_output"], a, rtol=1e-4, atol=1e-5)
    # Parameters are live: as `parameters` returns them.
    live = executor.fetch(["fc.weight"])["fc.weight"]
    assert type(live) is type(executor.parameters()["fc.weight"])
    if backend.name in ("reference", "onnxruntime", "openvino", "pytorch"):
        assert np.shares_memory(d5.to_numpy(live), d5.to_numpy(executor.parameters()["fc.weight"]))
    # Other sizes, and the parameters as they are now.
    step = executor.train_step(d5.SGD(lr=0.5))
    step(inputs, d5.StepInfo(step=0, batch_size=5))
    small = batch(2, seed=1)
    got = host(executor.fetch(["logits"], small))["logits"]
    np.testing.assert_allclose(got, host(executor.inference(small))["logits"], rtol=1e-5, atol=1e-6)
    assert np.abs(host(executor.fetch(["logits"], inputs))["logits"] - outputs["logits"]).max() > 1e-4


@parametrized(*ALL, daily=True)
def test_feed_replaces_any_tensor(backend: Backend) -> None:
    executor = backend.framework.executor(network())
    inputs = batch()
    before = host(executor.inference(inputs))
    a = host(executor.fetch(["Gemm_1_output"]))["Gemm_1_output"]
    executor.feed({"Gemm_1_output": 2 * a})
    fed = host(executor.inference(inputs))
    np.testing.assert_allclose(fed["logits"], 2 * a * sigmoid(2 * a), rtol=1e-5, atol=1e-6)
    found = host(executor.fetch(["Sigmoid_1_output", "Gemm_1_output", "Tanh_1_output"]))
    np.testing.assert_allclose(found["Sigmoid_1_output"], sigmoid(2 * a), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["Gemm_1_output"], 2 * a)
    for train in (executor.inference_and_backprop, lambda given: executor.inference(given, training=True)):
        with pytest.raises(UsageError, match=r"training while 'Gemm_1_output' is fed.*remedy: executor\.feed"):
            train(inputs)
    executor.feed({"Gemm_1_output": None})
    np.testing.assert_array_equal(host(executor.inference(inputs))["logits"], before["logits"])
    executor.inference_and_backprop(inputs)
    executor.feed({"fc.weight": np.zeros((3, 48), np.float32)})
    assert np.all(host(executor.inference(inputs))["logits"] == 0)
    assert np.all(host(executor.parameters())["fc.weight"] == 0)
    # An output that is fed is returned as it is.
    executor.feed({"logits": np.ones((5, 3), np.float32)})
    assert np.all(host(executor.inference(inputs))["logits"] == 1)


@parametrized(*ALL, daily=True)
def test_gradients_by_computed_values(backend: Backend) -> None:
    """Compared with central differences in float64, with a chain rule, and with gradients without them."""
    executor = backend.framework.executor(network())
    inputs = batch()
    names = [*BETWEEN, "fc.weight", "x", "logits", "loss"]
    outputs = host(executor.inference_and_backprop(inputs, wrt=names))
    found = host(executor.gradients())
    assert list(found) == names
    a = host(executor.fetch(["Gemm_1_output"], inputs))["Gemm_1_output"].astype(np.float64)
    np.testing.assert_allclose(outputs["loss"], after_gemm(a, inputs["label"]), rtol=1e-5)
    wanted = np.zeros_like(a)
    for place in np.ndindex(a.shape):
        step = np.zeros_like(a)
        step[place] = 1e-5
        wanted[place] = (after_gemm(a + step, inputs["label"]) - after_gemm(a - step, inputs["label"])) / 2e-5
    np.testing.assert_allclose(found["Gemm_1_output"], wanted, rtol=1e-4, atol=1e-6)
    by_tanh = (wanted @ executor.network.initial("fc.weight")).reshape(5, 3, 4, 4)
    np.testing.assert_allclose(found["Tanh_1_output"], by_tanh, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["Flatten_1_output"], by_tanh.reshape(5, 48), rtol=1e-4, atol=1e-6)
    assert found["loss"] == 1.0
    # A scale, a sum over calls, and what was there before.
    executor.inference_and_backprop(inputs, wrt=["fc.weight"])
    np.testing.assert_allclose(host(executor.gradients())["fc.weight"], found["fc.weight"], rtol=1e-5, atol=1e-7)
    seen: list[str] = []
    executor.inference_and_backprop(
        inputs,
        wrt=("fc.weight", "Gemm_1_output"),
        accumulate=True,
        loss_scale=2.0,
        on_gradient=lambda n, g: seen.append(n),
    )
    twice = host(executor.gradients())
    np.testing.assert_allclose(twice["fc.weight"], 3 * found["fc.weight"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(twice["Gemm_1_output"], 2 * found["Gemm_1_output"], rtol=1e-5, atol=1e-6)
    assert sorted(seen) == ["Gemm_1_output", "fc.weight"]
    # Nothing else has changed: the next passes and steps are those of an executor that was never asked.
    other = backend.framework.executor(network())
    for each in (executor, other):
        each.inference_and_backprop(inputs)
    after, plain = host(executor.gradients()), host(other.gradients())
    assert after.keys() == plain.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(after[name], value)
    steps = [each.train_step(d5.Adam(lr=0.01)) for each in (executor, other)]
    for number in range(2):
        for step_of in steps:
            step_of(inputs, d5.StepInfo(step=number, batch_size=5))
    for name, value in host(other.parameters()).items():
        np.testing.assert_array_equal(host(executor.parameters())[name], value)


def test_gradients_follow_torch() -> None:
    torch = pytest.importorskip("torch")
    executor = d5.framework("reference").executor(network("float64"))
    inputs = batch(dtype="float64")
    executor.inference_and_backprop(inputs, wrt=["Tanh_1_output", "Gemm_1_output"])
    found = host(executor.gradients())
    weights = {name: torch.from_numpy(value) for name, value in executor.network.parameters().items()}
    h = torch.tanh(torch.nn.functional.conv2d(torch.from_numpy(inputs["x"]), weights["conv.weight"])).requires_grad_()
    a = h.flatten(1) @ weights["fc.weight"].T
    loss = torch.nn.functional.cross_entropy(a * torch.sigmoid(a), torch.from_numpy(inputs["label"]))
    by_h, by_a = torch.autograd.grad(loss, [h, a])
    np.testing.assert_allclose(found["Tanh_1_output"], by_h.numpy(), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(found["Gemm_1_output"], by_a.numpy(), rtol=1e-12, atol=1e-15)


def noisy() -> d5.Network:
    """Dropout and batch normalization, which differ in training."""
    build = NetworkBuilder("noisy", seed=1)
    x, label = build.input("x", ("N", 4)), build.input("label", ("N",), "int64")
    h = build.op("Gemm", x, build.parameter("w", (4, 6), glorot_uniform))
    ones, zeros = (lambda *_: np.ones(6, np.float32)), (lambda *_: np.zeros(6, np.float32))
    statistics = [build.parameter("mean", (6,), zeros), build.parameter("var", (6,), ones)]
    h = build.op(
        "BatchNormalization", h, build.parameter("g", (6,), ones), build.parameter("b", (6,), zeros), *statistics
    )
    h = build.op("Dropout", h, build.constant("ratio", np.float32(0.5)))
    h = build.op("Gemm", h, build.parameter("v", (6, 3), glorot_uniform))
    loss = build.op("SoftmaxCrossEntropyLoss", h, label, reduction="mean")
    return build.network({"loss": loss})


@parametrized(*COMPUTING, "onnxruntime", daily=True)
def test_training_has_the_same_masks_and_moves_statistics_once(backend: Backend) -> None:
    made = noisy()
    assert list(made.buffer_specs) == ["mean", "var"]
    executor, other = (backend.framework.executor(made, seed=4) for _ in range(2))
    draw = np.random.default_rng(2)
    inputs = {"x": draw.standard_normal((8, 4)).astype(np.float32), "label": draw.integers(0, 3, 8)}
    info = d5.StepInfo(seed=4, step=3, batch_size=8)
    start = host(executor.buffers())
    dropped = host(executor.fetch(["Dropout_1_output"], inputs, training=True, info=info))["Dropout_1_output"]
    assert 0.2 < (dropped == 0).mean() < 0.8
    assert all(np.array_equal(value, start[name]) for name, value in host(executor.buffers()).items())
    executor.inference_and_backprop(inputs, info=info, wrt=["Dropout_1_output", "w", "v"])
    other.inference_and_backprop(inputs, info=info, wrt=["w", "v"])
    found, plain = host(executor.gradients()), host(other.gradients())
    for name, value in plain.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)
    assert np.all((found["Dropout_1_output"] != 0).any(1))
    for name, value in host(other.buffers()).items():
        np.testing.assert_allclose(host(executor.buffers())[name], value, rtol=1e-5, atol=1e-6)
        assert not np.array_equal(value, start[name])
    executor.feed({"mean": np.full(6, 0.5, np.float32)})
    assert np.all(host(executor.fetch(["mean"]))["mean"] == 0.5)


@parametrized("reference", "pytorch")
def test_sizes_that_only_a_run_determines(backend: Backend) -> None:
    build = NetworkBuilder("picked")
    x = build.input("x", ("N",))
    y = build.op("Mul", x, build.parameter("w", (1,), lambda *_: np.ones(1, np.float32)))
    place = build.op("NonZero", x)
    picked = build.op("GatherND", y, build.op("Transpose", place, perm=[1, 0]))
    loss = build.op("ReduceSum", build.op("Mul", picked, picked), keepdims=0)
    executor = backend.framework.executor(build.network({"loss": loss}))
    for values in ([1.0, 0.0, 3.0], [0.0, 0.0, 2.0], [1.0, 2.0, 3.0]):
        given = {"x": np.array(values, np.float32)}
        executor.inference_and_backprop(given, wrt=["GatherND_1_output"])
        np.testing.assert_allclose(host(executor.gradients())["GatherND_1_output"], [2 * v for v in values if v])


@parametrized("reference", "pytorch")
def test_bad_names_and_values_are_refused(backend: Backend) -> None:
    executor = backend.framework.executor(network())
    inputs = batch()
    with pytest.raises(
        UsageError, match=r"no tensor 'Tahn_1_output'.*allowed: .*did you mean 'Tanh_1_output'\?; remedy"
    ):
        executor.fetch(["Tahn_1_output"], inputs)
    with pytest.raises(
        UsageError, match=r"'logits' depends on a batch, and inference has not run.*executor\.fetch\(names"
    ):
        executor.fetch(["fc.weight", "logits"])
    with pytest.raises(
        UsageError, match=r"fetch: got 'logits'; allowed: a sequence of names; remedy: executor\.fetch\(\["
    ):
        executor.fetch("logits")
    with pytest.raises(ShapeError, match="missing input 'x'"):
        executor.fetch(["Tanh_1_output"], {})
    with pytest.raises(ShapeError, match=r"got int as inputs; expected a dict of arrays: x, label"):
        executor.fetch(["Tanh_1_output"], 3)
    with pytest.raises(UsageError, match=r"feed: 'x' is an input.*remedy: executor\.inference"):
        executor.feed({"x": inputs["x"]})
    with pytest.raises(UsageError, match=r"feed: got \[\]; allowed: a dict of arrays by name"):
        executor.feed([])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"no tensor 'fc\.wait'.*did you mean 'fc\.weight'"):
        executor.feed({"fc.wait": 1.0})
    weight = executor.network.initial("fc.weight")
    for value in (np.zeros(3, np.float32), weight.astype(np.float64)):
        with pytest.raises(ShapeError, match=r"feed: the value for 'fc\.weight': got .*expected float32.*; remedy"):
            executor.feed({"conv.weight": 2 * executor.network.initial("conv.weight"), "fc.weight": value})
    np.testing.assert_array_equal(host(executor.parameters())["conv.weight"], executor.network.initial("conv.weight"))
    with pytest.raises(ShapeError, match=r"'Gemm_1_output': got shape \(5, 4\), expected float32\[N, 3\]"):
        executor.feed({"Gemm_1_output": np.zeros((5, 4), np.float32)})
    with pytest.raises(UnknownName, match=r"unknown parameter or input 'Tahn_1_output'.*did you mean 'Tanh_1_output'"):
        executor.inference_and_backprop(inputs, wrt=["Tahn_1_output"])
    with pytest.raises(ShapeError, match="missing input"):
        executor.inference_and_backprop({"x": inputs["x"]}, wrt=["Tanh_1_output"])


def test_native_code_has_parameters_by_name() -> None:
    torch = pytest.importorskip("torch")
    from deep5.frameworks.pytorch.native import from_module

    inputs = {"x": d5.TensorSpec(shape=("N", 4)), "label": d5.TensorSpec(shape=("N",), dtype="int64")}
    executor = from_module(torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy, inputs=inputs)
    executor.feed({"weight": np.ones((3, 4), np.float32)})
    assert np.all(host(executor.fetch(["weight"]))["weight"] == 1)
    with pytest.raises(Unsupported, match=r"computed values by name: the network is native code.*remedy"):
        executor.fetch(["fc_output"])


LOOPED = "y = Loop (n, , x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) {"
LOOPED += " d = Identity (c) inner = Exp (s) t = Tanh (inner) }>"
SCANNED = "y = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] e) => (float[2] t) {"
SCANNED += " inner = Exp (e) t = Add (inner, s) }> (x, rows)"
NESTED = {
    "If": ("bool c", "y = If (c) <then_branch = t () => (float[2] a) { inner = Exp (x) a = Tanh (inner) }, "
           "else_branch = e () => (float[2] b) { b = Neg (x) }>", "which may not run; .*: make it an output of both"),
    "Loop": ("int64 n", LOOPED, "which runs once for each iteration; .*: make it an output of the body"),
    "Scan": ("float[3, 2] rows", SCANNED, "which runs once for each iteration; .*: make it an output of the body"),
}  # fmt: skip


@pytest.mark.parametrize("operator", NESTED)
@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_a_value_inside_a_nested_graph_is_refused_by_name(operator: str, framework: str) -> None:
    inputs, node, says = NESTED[operator]
    text = f"g (float[2] x, {inputs}) => (float loss) {{ {node} loss = ReduceSum <keepdims = 0> (y) }}"
    network = d5.Network.from_onnx(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}'))
    executor = d5.framework(framework).executor(network)
    where = rf"got 'inner', a value inside '.*' \({operator}\), {says}"
    with pytest.raises(UsageError, match=where):
        executor.fetch(["inner"], {})
    with pytest.raises(UsageError, match=where):
        executor.feed({"inner": np.zeros(2, np.float32)})
    feed = {"x": np.ones(2, np.float32)}
    for name, spec in network.inputs.items():
        feed.setdefault(name, np.ones(spec.shape, spec.dtype))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"wrt: {where}"):
        executor.inference_and_backprop(feed, "loss", wrt=["inner"])


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_a_value_of_a_branch_that_is_known_has_its_name(framework: str) -> None:
    text = """g (float[2] x) => (float loss) <bool c = {1}, float[2] w = {3, 4}, float[2] v = {5, 6}> {
        y = If (c) <then_branch = t () => (float[2] a) { inner = Mul (x, w) a = Tanh (inner) },
                    else_branch = e () => (float[2] b) { other = Mul (x, v) b = Neg (other) }>
        loss = ReduceSum <keepdims = 0> (y) }"""
    network = d5.Network.from_onnx(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}'))
    assert list(network.parameter_specs) == ["w"]
    assert {each.name: each.outcome for each in network.decisions} == {"w": "trained", "v": "unused"}
    reasons = {each.name: each.reason for each in network.decisions}
    assert reasons["v"].endswith(", in a branch of an If that never runs")
    executor = d5.framework(framework).executor(network)
    feed = {"x": np.array([0.5, 1], np.float32)}
    assert host(executor.fetch(["inner"], feed))["inner"].tolist() == [1.5, 4]
    executor.inference_and_backprop(feed, "loss", wrt=["inner"])
    found = host(executor.gradients())["inner"]
    np.testing.assert_allclose(found, 1 - np.tanh([1.5, 4]) ** 2, rtol=1e-4)
    with pytest.raises(UsageError, match="no tensor 'other' in the network"):
        executor.fetch(["other"], feed)
