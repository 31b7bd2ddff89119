"""Executors of frameworks that differentiate: inputs, outputs, parameters, running statistics and masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from backends import COMPUTING, Backend, parametrized
from deep5.core.errors import NetworkError, ShapeError, UnknownName, Unsupported, UsageError
from deep5.core.seeds import generator
from deep5.core.tensors import aligned_empty
from deep5.networks import Network, NetworkBuilder, lenet, mlp, ones, resnet
from deep5.networks.masks import dropout_mask
from executor_cases import SMALL, arrays, batch, executor, info, normal, normalised, passing, reference, shifting

every = parametrized(*COMPUTING)


# Inputs and outputs


@every
def test_inputs_that_do_not_fit(backend: Backend) -> None:
    run, good = executor(backend), batch()
    step = run.train_step(d5.SGD())
    for feed, message in (
        ({"input": good["input"]}, "missing input 'label'; got: input, expected: input, label"),
        ({}, "missing input 'input', 'label'; got: none"),
        ({**good, "extra": 1}, "unknown input 'extra'; expected: input, label"),
        ({"inptu": good["input"], "label": good["label"]}, "unknown input 'inptu'; .*did you mean 'input'"),
        ({**good, "input": good["input"].astype(np.float64)}, "'input': got dtype float64, expected float32"),
        ({**good, "label": good["label"].astype(np.float32)}, "'label': got dtype float32, expected int64"),
        ({**good, "label": backend.native(np.zeros(5, "f4"))}, "'label': got dtype float32, expected int64"),
        ({**good, "input": good["input"][:, :3]}, r"'input': got shape \(5, 3\), expected float32\[N, 4\]"),
        ({**good, "input": good["input"][0]}, r"'input': got shape \(4,\), expected"),
        ({**good, "label": np.array(1)}, r"'label': got shape \(\), expected int64\[N\]"),
        (
            {**good, "label": good["label"][:4]},
            r"'label': got N = 4 in shape \(4,\), expected N = 5 as in input 'input'",
        ),
        ({**good, "input": np.array(["a"])}, r"'input': got (ndarray that \w+ cannot take|dtype)"),
        ({**good, "input": object()}, r"'input': (got object that \w+ cannot take|.*object)"),
    ):
        for call in (run.inference, run.inference_and_backprop, lambda feed: step(feed, info())):
            with pytest.raises(ShapeError, match=message):
                call(feed)
    run.inference(good)


@every
def test_an_empty_batch_is_for_evaluation_only(backend: Backend) -> None:
    run, none = executor(backend), {"input": np.zeros((0, 4), np.float32), "label": np.zeros(0, np.int64)}
    assert tuple(run.inference(none)["logits"].shape) == (0, 2)
    for call in (
        lambda: run.inference(none, training=True),
        lambda: run.inference_and_backprop(none),
        lambda: run.train_step(d5.SGD())(none, info()),
    ):
        with pytest.raises(ShapeError, match="input 'input': got N = 0, nothing to train on; allowed: at least 1"):
            call()


@every
def test_any_layout_of_memory_is_read_right(backend: Backend) -> None:
    run, good = executor(backend), batch(6)
    want = d5.to_numpy(run.inference(good)["logits"])
    x = good["input"]
    frozen, wide = x.copy(), np.zeros((12, 8), np.float32)
    frozen.flags.writeable = False
    wide[::2, ::2] = x
    aligned, off = aligned_empty(x.shape, x.dtype), np.zeros(x.size + 1, np.float32)[1:].reshape(x.shape)
    aligned[...] = off[...] = x
    values: list[Any] = [np.asfortranarray(x), frozen, wide[::2, ::2], x[::-1].copy()[::-1], x.astype(">f4")]
    for value in (*values, aligned, off, backend.native(x)):
        found = d5.to_numpy(run.inference({**good, "input": value})["logits"])
        # Up to rounding: the order of a product's sum may depend on the alignment of memory.
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    assert not frozen.flags.writeable
    # Even if memory is shared, no run changes the caller's array.
    run.train_step(d5.Adam(lr=1.0))({**good, "input": aligned}, info(0, 6))
    np.testing.assert_array_equal(aligned, x)


@every
def test_inputs_may_be_overwritten_when_a_call_returns(backend: Backend) -> None:
    """JAX reads aligned memory in place and later: the executor must copy what it needs."""
    network = mlp(features=400, hidden=900, classes=3)
    run = executor(backend, network)
    start: dict[str, np.ndarray] = {"input": normal(600, 400), "label": np.arange(600) % 3}
    feed = {name: aligned_empty(value.shape, value.dtype) for name, value in start.items()}
    for value in feed.values():
        value[...] = 1
    wanted = [arrays(run.inference(each))["logits"] for each in (start, feed)]
    assert not np.array_equal(*wanted)
    for _ in range(3):
        for name, value in feed.items():
            value[...] = start[name]
        got = run.inference(feed)["logits"]
        for value in feed.values():
            value[...] = 1
        np.testing.assert_allclose(d5.to_numpy(got), wanted[0], rtol=1e-4, atol=1e-4)


@parametrized(*COMPUTING, "tensorflow:xla", slow=("tensorflow:xla",))
def test_outputs_do_not_lie_in_the_callers_memory_nor_in_parameters(backend: Backend) -> None:
    run = executor(backend, passing())
    optimizer = d5.RuleOptimizer(d5.SGD())
    optimizer.bind(run)
    calls: list[Callable[[Any], Any]] = [
        lambda feed: optimizer.step(feed, info(0, 8)),
        run.inference_and_backprop,
        lambda feed: run.inference(feed, training=True),
        run.inference,
    ]
    for call in calls:
        # As NumPy often aligns them by chance: where a framework uses the memory in place.
        feed = {"input": aligned_empty((8, 1, 2, 2), "float32"), "label": aligned_empty((8,), "int64")}
        feed["input"][...], feed["label"][...] = normal(8, 1, 2, 2), np.arange(8) % 3
        kept = arrays(feed)
        outputs = call(feed)
        before = arrays(outputs)
        np.testing.assert_array_equal(before["same"], kept["input"])
        run.write(["w"], np.full(12, 9, np.float32))
        for value in feed.values():
            value[...] = 7
        for name, value in arrays(outputs).items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)


# Parameters and buffers


@every
def test_read_and_write(backend: Backend) -> None:
    """In ONNX's order of axes, whatever the order in storage."""
    run, network = executor(backend, resnet(depth=8)), resnet(depth=8)
    names = ["conv0.mean", "fc.bias", "conv0.scale", "conv0.weight"]
    sizes = [16, 10, 16, network.parameter_specs["conv0.weight"].size]
    out = np.empty(sum(sizes), np.float32)
    run.read(names, out)
    np.testing.assert_array_equal(out[:16], 0)
    np.testing.assert_array_equal(out[26:42], 1)
    np.testing.assert_array_equal(out[42:].reshape(16, 3, 3, 3), network.initial("conv0.weight"))
    packed = np.arange(out.size, dtype=np.float32)
    packed.flags.writeable = False
    run.write(names, packed)
    run.read(names, out)
    np.testing.assert_array_equal(out, packed)
    np.testing.assert_array_equal(d5.to_numpy(run.buffers()["conv0.mean"]), packed[:16])
    np.testing.assert_array_equal(run.state_dict()["conv0.weight"].reshape(-1), packed[42:])
    for call in (run.read, run.write):
        with pytest.raises(UnknownName, match=r"unknown parameter or buffer 'fc\.bia'; .*did you mean 'fc\.bias'"):
            call(["fc.bia"], out)
        with pytest.raises(ShapeError, match=r"got float32\[\d+\], expected float32\[10\]"):
            call(["fc.bias"], out)
        with pytest.raises(ShapeError, match=r"got float64\[10\], expected float32\[10\]"):
            call(["fc.bias"], np.zeros(10))
        for wrong in ([0.0] * 10, np.zeros(20, np.float32)[::2]):
            with pytest.raises(UsageError, match="allowed: a C-contiguous NumPy array"):
                call(["fc.bias"], wrong)


@every
def test_state_dict_and_export_round_trip(backend: Backend) -> None:
    run = executor(backend, resnet(depth=8, seed=1))
    feed = {"input": normal(4, 3, 32, 32), "label": np.arange(4)}
    run.inference(feed, training=True)
    state = run.state_dict()
    assert state.keys() == {*run.parameters(), *run.buffers()}
    other = executor(backend, resnet(depth=8, seed=2))
    other.load_state_dict(state)
    want = arrays(run.inference(feed))["logits"]
    np.testing.assert_array_equal(arrays(other.inference(feed))["logits"], want)
    state["fc.bias"][:] = 7
    for each in (run, other):
        assert not (each.state_dict()["fc.bias"] == 7).any()
    exported = run.export()
    assert exported.structure_hash() == run.network.structure_hash()
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(exported.initial(name), value)
    # Float32 convolutions of 8 layers by another library.
    np.testing.assert_allclose(reference(exported).inference(feed)["logits"], want, rtol=1e-4, atol=1e-4)


@every
def test_a_state_that_does_not_fit_changes_nothing(backend: Backend) -> None:
    run = executor(backend)
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


@every
def test_images_give_the_same_in_any_order_of_axes(backend: Backend) -> None:
    """Kept, transposed, and combined with an input in another order; then some steps."""
    build = NetworkBuilder("images", dtype="float64")
    x, mask = build.input("input", ("N", 3, 6, 6)), build.input("mask", ("N", 4, 6, 6))
    label, bias = build.input("label", ("N",), "int64"), build.parameter("conv.bias", (4,), ones)
    y = build.op("Conv", x, build.parameter("conv.weight", (4, 3, 3, 3)), bias, pads=[1] * 4)
    y = build.op("Mul", build.op("Tanh", y), mask)
    y = build.op("Add", y, build.parameter("offset", (4, 1, 1), ones))
    y = build.op("Concat", y, build.op("Identity", y), x, axis=1)
    y = build.op("Pad", y, build.op("Constant", value_ints=[0, 1, 0, 0, 0, 0, 0, 2]))
    y = build.op(
        "Slice", y, *(build.constant(n, np.array(v)) for n, v in zip("sea", ([1, 0], [9, 7], [1, 3]), strict=True))
    )
    z = build.op("ReduceMean", y, build.constant("axes", np.array([1])))
    y = build.op("MaxPool", build.op("Add", y, z), kernel_shape=[2, 2], strides=[2, 2])
    # The same weights as a convolution's and as an operand: stored in ONNX's order.
    other = build.parameter("both.weight", (2, 8, 1, 1))
    y = build.op("Flatten", build.op("Conv", y, build.op("Sigmoid", other)), axis=1)
    y = build.op("Gemm", y, build.parameter("fc.weight", (5, 18)), build.parameter("fc.bias", (5,), ones), transB=1)
    y = build.op("Add", y, build.op("ReduceSum", other, keepdims=0))
    network = build.network({"logits": y, "loss": build.op("SoftmaxCrossEntropyLoss", y, label)})
    feed = {"input": normal(4, 3, 6, 6, dtype="f8"), "mask": normal(4, 4, 6, 6, dtype="f8"), "label": np.arange(4)}
    run, same = executor(backend, network), reference(network)
    for name, value in same.inference(feed).items():
        np.testing.assert_allclose(d5.to_numpy(run.inference(feed)[name]), value, rtol=1e-12, atol=1e-12)
    for each in (run, same):
        each.inference_and_backprop(feed, wrt=[*network.parameter_specs, "input", "mask"])
    for name, value in arrays(same.gradients()).items():
        got = arrays(run.gradients())[name]
        assert got.shape == value.shape
        np.testing.assert_allclose(got, value, rtol=1e-10, atol=1e-12, err_msg=name)
    for name, value in arrays(run.parameters()).items():
        np.testing.assert_array_equal(value, network.initial(name))
    steps = [each.train_step(d5.Momentum(lr=0.05)) for each in (run, same)]
    for index in range(3):
        for step in steps:
            step(feed, info(index, 4))
    ends = [step.state_dict() for step in steps]
    assert ends[0].keys() == ends[1].keys()
    for key, want in ends[1].items():
        np.testing.assert_allclose(ends[0][key], want, rtol=1e-9, atol=1e-12, err_msg=key)


# Batch normalization and dropout


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@parametrized(*COMPUTING, "tensorflow:xla", daily=True)
def test_batch_normalization_is_onnxs_definition(backend: Backend, dtype: str) -> None:
    """Training uses the batch's mean and population variance, which move the running ones; evaluation uses those."""
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-12, "atol": 1e-13}
    # ONNX's attributes are float32.
    epsilon, momentum = float(np.float32(1e-3)), float(np.float32(0.8))
    everything = dtype == "float64" and backend.name != "tensorflow:xla"  # where tracing takes long
    for extents in ((), (4,), (4, 5), (2, 3, 2)) if everything else ((4, 5),):
        network, x = shifting(*extents, dtype=dtype), normal(4, 3, *extents, dtype=dtype)
        run, one, axes = executor(backend, network), (1,) * len(extents), (0, *range(2, 2 + len(extents)))
        own = {"mean": x.mean(axes, dtype="f8"), "variance": x.var(axes, dtype="f8")}
        running = {"mean": np.zeros(3), "variance": np.ones(3)}

        def scaled(of: dict[str, np.ndarray], x: Any = x, one: Any = one) -> np.ndarray:
            return (x - of["mean"].reshape(3, *one)) / np.sqrt(of["variance"] + epsilon).reshape(3, *one)  # type: ignore[no-any-return]

        # Forward in training, forward and backward, a whole step and half a step: each moves the statistics once.
        step = run.train_step(d5.SGD(lr=0.0))
        for call in (
            lambda run=run, x=x: run.inference({"x": x}, training=True),
            lambda run=run, x=x: run.inference_and_backprop({"x": x}),
            lambda step=step, x=x: step({"x": x}, info(0, 4)),
            lambda step=step, x=x: step.backprop({"x": x}, info(0, 4)),
        ):
            np.testing.assert_allclose(d5.to_numpy(call()["y"]), scaled(own), **close)
            for name, value in own.items():
                running[name] = running[name] * momentum + value * (1 - momentum)
                np.testing.assert_allclose(d5.to_numpy(run.buffers()[name]), running[name], **close)
            np.testing.assert_allclose(d5.to_numpy(run.inference({"x": x})["y"]), scaled(running), **close)
        np.testing.assert_array_equal(network.initial("mean"), 0)


@every
def test_batch_normalization_has_the_gradient_of_its_loss(backend: Backend) -> None:
    network, feed = shifting(4, 5), {"x": normal(4, 3, 4, 5, dtype="f8")}
    run = executor(backend, network)
    run.inference_and_backprop(feed, wrt=["x", "factor", "scale", "bias"])
    gradients, step, start, losses = arrays(run.gradients()), 1e-6, run.state_dict(), []
    direction = {name: generator(3, name).standard_normal(value.shape) for name, value in gradients.items()}
    for sign in (1, -1):
        moved = {name: start[name] + sign * step * direction[name] for name in ("factor", "scale", "bias")}
        run.load_state_dict({**start, **moved})
        shifted = {"x": feed["x"] + sign * step * direction["x"]}
        losses.append(float(run.inference(shifted, training=True)["loss"]))
    slope = sum(float(np.sum(gradients[name] * direction[name])) for name in gradients)
    # The loss is a sum of 240 numbers of the order of one: 1e-14 over the step.
    assert slope == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=1e-6)


@every
def test_running_statistics_are_those_of_the_reference_and_never_negative(backend: Backend) -> None:
    network, good = normalised("float64", 4), batch(dtype="float64")
    run, same = executor(backend, network), reference(network)
    for _ in range(3):
        for each in (run, same):
            each.inference_and_backprop(good)
    for name, value in arrays(run.buffers()).items():
        # Sums of five float64 numbers in another order, three times.
        np.testing.assert_allclose(value, same.buffers()[name], rtol=1e-12)
    constant = executor(backend, resnet(depth=8))
    for value in (0.0, 1e3):
        feed = {"input": np.full((2, 3, 32, 32), value, np.float32), "label": np.array([0, 1])}
        constant.inference(feed, training=True)
    assert all((value >= 0).all() for name, value in arrays(constant.buffers()).items() if "variance" in name)


def dropping() -> Network:
    """Dropout of an image, which may be stored channels last, and of a vector."""
    build = NetworkBuilder("dropping", dtype="float64", seed=1)
    x, label = build.input("input", ("N", 2, 6, 6)), build.input("label", ("N",), "int64")
    y = build.op("Conv", x, build.parameter("w", (4, 2, 3, 3)), pads=[1, 1, 1, 1])
    image = build.op("Dropout", build.op("Tanh", y), build.scalar(0.4))
    y = build.op("Flatten", build.op("AveragePool", image, kernel_shape=[2, 2], strides=[2, 2]))
    y = build.op("Gemm", build.op("Dropout", y, build.scalar(0.25)), build.parameter("v", (3, 36)), transB=1)
    return build.network({"image": image, "loss": build.op("SoftmaxCrossEntropyLoss", y, label)})


@every
def test_dropout_is_the_product_with_its_mask(backend: Backend) -> None:
    network = dropping()
    feed = {"input": normal(3, 2, 6, 6, dtype="f8"), "label": np.arange(3)}
    run, same = executor(backend, network, seed=3), reference(network, seed=3)
    plain = d5.to_numpy(run.inference(feed)["image"])
    node = str(next(node for node in network.nodes if node.op_type == "Dropout").name)
    # Without a StepInfo the executor's own seed is used.
    for number, seed, known in ((0, 5, True), (3, 5, True), (0, 3, False)):
        stated = d5.StepInfo(step=number, seed=seed, batch_size=3) if known else None
        mask = dropout_mask((3, 4, 6, 6), ratio=0.4, seed=seed, step=number, node=node, dtype="float64")
        assert 0.0 in mask
        np.testing.assert_array_equal(
            d5.to_numpy(run.inference(feed, training=True, info=stated)["image"]), plain * mask
        )
        for each in (run, same):
            each.inference_and_backprop(feed, info=stated, wrt=["input", *network.parameter_specs])
        for name, value in same.gradients().items():
            # float64 sums of some hundred products.
            np.testing.assert_allclose(arrays(run.gradients())[name], value, rtol=1e-11, atol=1e-14)
    np.testing.assert_array_equal(d5.to_numpy(run.inference(feed)["image"]), plain)
    steps = [each.train_step(d5.SGD(lr=0.1)) for each in (run, same)]
    for number in range(3):
        stated = d5.StepInfo(step=number, seed=9, batch_size=3)
        losses = [float(step(feed, stated)["loss"]) for step in steps]
        assert losses[0] == pytest.approx(losses[1], rel=1e-10)


# Settings, threads, devices


@every
def test_settings_are_read_back(backend: Backend) -> None:
    run = executor(backend, mlp(**SMALL, dtype="float64"))
    settings, version = run.settings(), backend.framework.version()
    assert (settings["framework"], settings["version"]) == (backend.name, version)
    assert (settings["dtype"], settings["device"]) == ("float64", "cpu")
    assert (settings["tf32"], settings["deterministic"]) == (False, True)
    assert settings["threads"] >= 1
    for bad in (0, -1, 1.5, True, "2"):
        with pytest.raises(UsageError, match="threads; allowed: an integer from 1 to"):
            backend.framework.set_threads(bad)


@every
def test_a_device_that_is_not_there_is_refused(backend: Backend) -> None:
    with pytest.raises(Unsupported, match=f"no device cuda:77 for {backend.name} here; allowed: cpu"):
        executor(backend, device="cuda:77")
    with pytest.raises(UsageError, match="unknown device 'tpu'"):
        executor(backend, device="tpu")


@parametrized("jax", "pytorch")
def test_a_network_leaves_no_name_of_the_model_in_the_generated_source(backend: Backend) -> None:
    evil = '"); import os; os.abort() #\n'
    proto = mlp(**SMALL).to_onnx()
    for node in proto.graph.node:
        node.name = evil + node.name
        for names in (node.input, node.output):
            names[:] = [evil if name == "fc1.weight" else name for name in names]
    for initializer in proto.graph.initializer:
        initializer.name = evil if initializer.name == "fc1.weight" else initializer.name
    run, plain = executor(backend, Network.from_onnx(proto)), executor(backend)
    for each in (run, plain):
        each.inference_and_backprop(batch())
    assert evil in run.gradients()
    for name in ("abort", "fc1", "logits", "label", "input."):
        assert name not in run.source
    assert len(run.source.splitlines()) == len(plain.source.splitlines())
    assert "fc" not in executor(backend, lenet()).source
