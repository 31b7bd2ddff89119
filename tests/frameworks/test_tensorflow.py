"""TensorFlow: the executor's interface, whole steps, Keras's optimizers, threads and start-up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.core.errors import NetworkError, RuleError, ShapeError, UnknownName, Unsupported, UsageError
from deep5.core.executors import GraphExecutor, ParameterGroup, StepOptimizer, TrainStep
from deep5.core.tensors import aligned_empty
from deep5.networks import Network, NetworkBuilder, lenet, mlp, resnet
from deep5.networks.check import check_executor
from deep5.networks.masks import dropout_mask
from poison import poisoned

# By the back-end, so that TensorFlow's start-up reports are kept off the screen.
TF: Any = d5.framework("tensorflow")
XLA: Any = d5.framework("tensorflow:xla")

import tensorflow as tf  # noqa: E402

from deep5.frameworks.tensorflow.framework import TensorFlow, from_model  # noqa: E402
from deep5.frameworks.tensorflow.memory import shared  # noqa: E402
from deep5.frameworks.tensorflow.placement import without_kernel  # noqa: E402
from deep5.frameworks.tensorflow.quiet import without_reports  # noqa: E402
from deep5.frameworks.tensorflow.traced import Traced  # noqa: E402

RNG = np.random.default_rng(7)
SMALL: dict[str, Any] = {"features": 4, "hidden": 3, "classes": 2}


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def batch(count: int = 5, dtype: str = "float32") -> dict[str, np.ndarray]:
    return {"input": RNG.standard_normal((count, 4)).astype(dtype), "label": np.arange(count) % 2}


def executor(network: Network | None = None, **options: Any) -> Any:
    return TF.executor(network or mlp(**SMALL), **options)


def info(step: int = 0, size: int = 5) -> d5.StepInfo:
    return d5.StepInfo(step=step, batch_size=size)


def arrays(values: Any) -> dict[str, np.ndarray]:
    return {name: np.array(d5.to_numpy(value)) for name, value in values.items()}


def test_weights_lie_transposed_and_are_shown_in_onnx_order() -> None:
    network = lenet(seed=3)
    run = executor(network)
    assert tuple(run.live["conv2.weight"].variable.shape) == (5, 5, 6, 16)
    view, plain = run.parameters()["conv2.weight"], run.parameters()["fc1.weight"]
    assert isinstance(plain, tf.Variable)
    assert (tuple(view.shape), view.dtype) == ((16, 6, 5, 5), tf.float32)
    initial = network.initial("conv2.weight")
    for value in (
        view,
        view.numpy(),
        view.read_value(),
        tf.convert_to_tensor(view),
        view + tf.zeros(()),
        d5.to_numpy(view),
    ):
        np.testing.assert_array_equal(value, initial)
    assert "shape=(16, 6, 5, 5)" in repr(view)
    feed = {"input": normal(2, 1, 28, 28), "label": np.array([1, 2])}
    before = run.inference(feed)["logits"].numpy()
    view.assign(initial * 2)
    view.assign_add(tf.constant(initial * 2))
    view.assign_sub(initial * 2)
    np.testing.assert_array_equal(run.state_dict()["conv2.weight"], initial * 2)
    doubled = d5.framework("reference").executor(network.with_values({"conv2.weight": initial * 2}))
    # float32 sums of some hundred products, twice.
    np.testing.assert_allclose(run.inference(feed)["logits"], doubled.inference(feed)["logits"], rtol=1e-4, atol=1e-5)
    assert not np.allclose(before, doubled.inference(feed)["logits"])
    packed = np.empty(initial.size + 16, np.float32)
    run.read(["conv2.weight", "conv2.bias"], packed)
    np.testing.assert_array_equal(packed[: initial.size].reshape(initial.shape), initial * 2)
    packed[:] = np.arange(packed.size)
    run.write(["conv2.weight", "conv2.bias"], packed)
    np.testing.assert_array_equal(run.state_dict()["conv2.weight"].reshape(-1), packed[: initial.size])
    run.inference_and_backprop(feed)
    assert tuple(run.gradients()["conv2.weight"].shape) == initial.shape


# Conformance


def test_conformance() -> None:
    check_executor("tensorflow")


@pytest.mark.slow
def test_conformance_under_xla() -> None:
    check_executor("tensorflow:xla")


def test_interfaces_are_met() -> None:
    run = executor()
    assert isinstance(run, GraphExecutor)
    assert isinstance(from_model(mlp(**SMALL)), GraphExecutor)
    assert isinstance(run.train_step(d5.SGD()), TrainStep)
    assert run.capabilities == {"float64", "whole_step"}
    for make in TF.optimizers().values():
        assert isinstance(make(), StepOptimizer)
    with pytest.raises(UnknownName, match="unknown native optimizer of tensorflow 'adm'; allowed: adadelta, adagrad"):
        TF.optimizer("adm")
    assert (TF.name, XLA.name, TF.version()) == ("tensorflow", "tensorflow:xla", tf.__version__)
    with pytest.raises(UnknownName, match="unknown mode of the framework 'tensorflow' 'xlaa'; allowed: xla"):
        d5.framework("tensorflow:xlaa")


# Shapes and traces


def test_nothing_retraces_when_the_batch_or_the_rate_changes() -> None:
    run, rule = executor(mlp(**SMALL, dropout=0.5)), d5.Adam(lr=0.1)
    step = run.train_step(rule)
    for number, size in enumerate((5, 5, 3, 1, 7)):
        rule.lr = 0.1 / (number + 1)
        step(batch(size), info(number, size))
        run.inference(batch(size))
        run.inference(batch(size), training=True)
        run.inference_and_backprop(batch(size), loss_scale=2.0**number)
        outputs = step.backprop(batch(size), info(number, size))
        step.apply(run.gradients(), info(number, size))
        assert tuple(outputs["logits"].shape) == (size, 2)
    assert step.traces == 1
    assert {function.traces for function in run._functions.values()} == {1}
    assert run.compilations == step.compilations == 0


def test_xla_compiles_once_a_batch_size_and_traces_once() -> None:
    run = XLA.executor(mlp(**SMALL))
    step = run.train_step(d5.SGD(lr=0.1))
    for number, size in enumerate((5, 5, 3, 5, 3)):
        step(batch(size), info(number, size))
    assert (step.traces, step.compilations) == (1, 2)
    run.inference(batch(4))
    assert run.compilations == 1
    assert run.settings()["xla"] is True


def test_a_step_is_the_same_under_xla() -> None:
    network, feeds = resnet(depth=8, dtype="float64"), []
    feeds = [{"input": RNG.standard_normal((3, 3, 32, 32)), "label": np.arange(3)} for _ in range(2)]
    ends = []
    for framework in (TF, XLA):
        run = framework.executor(network)
        step = run.train_step(d5.Momentum(lr=0.01))
        losses = [float(step(feed, info(number, 3))["loss"]) for number, feed in enumerate(feeds)]
        ends.append((losses, run.state_dict()))
    # Two float64 steps through some dozen layers.
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-10)
    for name, value in ends[0][1].items():
        np.testing.assert_allclose(ends[1][1][name], value, rtol=1e-8, atol=1e-10)


# Batch normalisation and dropout


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 4), (2, 3, 4, 5), (2, 3, 2, 3, 2), (1, 3, 1, 1)])
def test_batch_normalisation_updates_its_statistics_as_onnx_has_it(shape: tuple[int, ...], dtype: str) -> None:
    x, scale, bias, mean = (RNG.standard_normal(s).astype(dtype) for s in (shape, (3,), (3,), (3,)))
    variance = np.abs(RNG.standard_normal(3)).astype(dtype) + 0.5
    build = NetworkBuilder("bn", dtype=dtype)
    inputs = [build.input("x", ("N", *shape[1:]))]
    inputs += [build.constant(n, v) for n, v in zip("sbmv", (scale, bias, mean, variance), strict=True)]
    network = build.network({"y": build.op("BatchNormalization", *inputs, epsilon=1e-3, momentum=0.7)})
    proto = network.to_onnx()
    node = proto.graph.node[0]
    node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
    node.output.extend(["new_mean", "new_variance"])
    for name in ("new_mean", "new_variance"):
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, [3]))
    want = ReferenceEvaluator(proto).run(None, {"x": x})
    for framework in (TF, XLA):
        run = framework.executor(network)
        before = run.inference({"x": x})["y"].numpy()
        got = run.inference({"x": x}, training=True)["y"].numpy(), *(run.buffers()[name].numpy() for name in "mv")
        for value, wanted in zip(got, want, strict=True):
            # Reductions of some dozen elements in another order.
            close = 1e-5 if dtype == "float32" else 1e-12
            np.testing.assert_allclose(value, wanted, rtol=close, atol=close)
        after = run.inference({"x": x})["y"].numpy()
        wide = (1, 3, *[1] * (len(shape) - 2))
        expected = (x - want[1].reshape(wide)) / np.sqrt(want[2].reshape(wide) + 1e-3)
        np.testing.assert_allclose(after, expected * scale.reshape(wide) + bias.reshape(wide), rtol=1e-4, atol=1e-4)
        assert not np.allclose(after, before)
    np.testing.assert_array_equal(network.initial("m"), mean)


def test_evaluation_leaves_statistics_alone_and_every_form_of_training_moves_them() -> None:
    run = executor(resnet(depth=8))
    feed = {"input": normal(4, 3, 32, 32), "label": np.arange(4)}
    step = run.train_step(d5.SGD(lr=0.0))
    seen = [run.buffers()["conv0.mean"].numpy()]
    for call in (
        lambda: run.inference(feed, training=True),
        lambda: run.inference_and_backprop(feed),
        lambda: step(feed, info(0, 4)),
        lambda: step.backprop(feed, info(0, 4)),
    ):
        call()
        run.inference(feed)
        seen.append(run.buffers()["conv0.mean"].numpy())
        assert not np.array_equal(seen[-1], seen[-2])
    batch_mean = (seen[1] - 0.9 * seen[0]) / 0.1
    for number, value in enumerate(seen):  # the same batch each time: a geometric series
        np.testing.assert_allclose(value, (1 - 0.9**number) * batch_mean, rtol=1e-3, atol=1e-6)


def test_the_variance_of_a_constant_is_not_negative() -> None:
    run = executor(resnet(depth=8))
    for value in (0.0, 1e3):
        run.inference({"input": np.full((2, 3, 32, 32), value, np.float32), "label": np.array([0, 1])}, training=True)
    assert all((value.numpy() >= 0).all() for name, value in run.buffers().items() if "variance" in name)


def dropping(dtype: str = "float64") -> Network:
    """Dropout of an image, which lives with channels last, and of a vector."""
    build = NetworkBuilder("dropping", dtype=dtype, seed=1)
    x, label = build.input("input", ("N", 2, 6, 6)), build.input("label", ("N",), "int64")
    y = build.op("Conv", x, build.parameter("w", (4, 2, 3, 3)), pads=[1, 1, 1, 1])
    image = build.op("Dropout", build.op("Tanh", y), build.scalar(0.4))
    y = build.op("Flatten", build.op("AveragePool", image, kernel_shape=[2, 2], strides=[2, 2]))
    y = build.op("Dropout", y, build.scalar(0.25))
    y = build.op("Gemm", y, build.parameter("v", (3, 36)), transB=1)
    return build.network({"image": image, "loss": build.op("SoftmaxCrossEntropyLoss", y, label)})


def test_dropout_is_the_product_with_its_mask() -> None:
    network = dropping()
    feed = {"input": RNG.standard_normal((3, 2, 6, 6)), "label": np.arange(3)}
    run, reference = executor(network), d5.framework("reference").executor(network)
    plain = run.inference(feed)["image"].numpy()
    for number in (0, 3):
        told = d5.StepInfo(step=number, seed=5, batch_size=3)
        node = next(node for node in network.nodes if node.op_type == "Dropout")
        mask = dropout_mask((3, 4, 6, 6), ratio=0.4, seed=5, step=number, node=str(node.name), dtype="float64")
        got = run.inference(feed, training=True, info=told)["image"].numpy()
        np.testing.assert_array_equal(got, plain * mask)
        for one in (run, reference):
            one.inference_and_backprop(feed, info=told)
        for name, value in reference.gradients().items():
            # float64 sums of some hundred products.
            np.testing.assert_allclose(run.gradients()[name].numpy(), value, rtol=1e-11, atol=1e-14)
    np.testing.assert_array_equal(run.inference(feed)["image"].numpy(), plain)
    step, other = (one.train_step(d5.SGD(lr=0.1)) for one in (run, reference))
    for number in range(3):
        told = d5.StepInfo(step=number, seed=9, batch_size=3)
        assert float(step(feed, told)["loss"]) == pytest.approx(float(other(feed, told)["loss"]), rel=1e-10)
    assert step.traces == 1


# Gradients


def test_gradients_are_dense_and_zero_where_the_loss_does_not_depend() -> None:
    build = NetworkBuilder("rows")
    rows = build.op("Gather", build.parameter("table", (5, 3)), build.input("x", ("N",), "int64"), axis=0)
    idle = build.op("ReduceSum", build.parameter("idle", (2, 3)), keepdims=0)
    loss = build.op("ReduceSum", build.op("Mul", rows, rows), keepdims=0)
    run, told = executor(build.network({"loss": loss, "other": idle})), {}
    run.inference_and_backprop({"x": np.array([1, 1, -1])}, on_gradient=told.__setitem__)
    gradients = run.gradients()
    assert all(isinstance(value, tf.Tensor) for value in (*gradients.values(), *told.values()))
    table = run.state_dict()["table"]
    want = np.zeros((5, 3), np.float32)
    want[1], want[4] = 4 * table[1], 2 * table[4]
    np.testing.assert_allclose(gradients["table"], want, rtol=1e-6)  # one float32 product and sum
    np.testing.assert_array_equal(gradients["idle"], np.zeros((2, 3)))
    np.testing.assert_array_equal(told["idle"], np.zeros((2, 3)))
    run.inference_and_backprop({"x": np.array([1])}, wrt=["idle"])
    np.testing.assert_array_equal(run.gradients()["idle"], np.zeros((2, 3)))


def test_wrt_inputs_and_subsets() -> None:
    run, feed = executor(mlp(**SMALL, dtype="float64")), batch(dtype="float64")
    run.inference_and_backprop(feed, wrt=["input", "fc2.weight"])
    gradients = arrays(run.gradients())
    assert list(gradients) == ["input", "fc2.weight"]
    step, shifted = 1e-6, {**feed, "input": feed["input"].copy()}
    shifted["input"][2, 1] += step
    slope = float(run.inference(shifted)["loss"] - run.inference(feed)["loss"]) / step
    assert gradients["input"][2, 1] == pytest.approx(slope, abs=1e-6)  # a forward difference is right to the step
    run.inference_and_backprop(feed, wrt=["input", "fc1.weight"], accumulate=True)
    assert set(run.gradients()) == {"input", "fc1.weight", "fc2.weight"}
    np.testing.assert_allclose(run.gradients()["input"], 2 * gradients["input"], rtol=1e-14)
    np.testing.assert_array_equal(run.gradients()["fc2.weight"], gradients["fc2.weight"])
    for wrt, error, message in (
        (["label"], Unsupported, r"no gradient by 'label', which is int64\[N\]"),
        (["fc9"], UnknownName, "unknown parameter or input 'fc9'"),
        ([], UsageError, "nothing to differentiate by"),
    ):
        with pytest.raises(error, match=message):
            run.inference_and_backprop(feed, wrt=wrt)


def test_gradients_by_an_input_add_up_over_batches_of_one_size_only() -> None:
    run, rows = executor(), batch(1)
    run.inference_and_backprop(rows, wrt=["input", "fc1.weight"])
    first = arrays(run.gradients())
    # One row would be spread over five without a word.
    with pytest.raises(
        ShapeError, match=r"accumulate=True: the gradient by 'input': got shape \(5, 4\), earlier \(1, 4\)"
    ):
        run.inference_and_backprop(batch(5), wrt=["input", "fc1.weight"], accumulate=True)
    with pytest.raises(Unsupported, match="there are no gradients: the last call failed"):
        run.gradients()
    run.inference_and_backprop(rows, wrt=["input", "fc1.weight"], accumulate=True)
    run.inference_and_backprop(rows, wrt=["input"], accumulate=True)
    np.testing.assert_allclose(run.gradients()["input"], 2 * first["input"], rtol=1e-6)  # one more rounding
    np.testing.assert_array_equal(run.gradients()["fc1.weight"], first["fc1.weight"])
    # By parameters, batches of any size add up, and what was found by inputs stays.
    run.inference_and_backprop(batch(5), accumulate=True)
    assert set(run.gradients()) == {"input", *run.network.parameter_specs}
    assert tuple(run.gradients()["input"].shape) == (1, 4)


def test_nothing_is_left_to_add_to_after_a_whole_step() -> None:
    run, rows = executor(), batch()
    step = run.train_step(d5.SGD(lr=0.0))
    run.inference_and_backprop(rows)
    once = arrays(run.gradients())
    step(rows, info())
    run.inference_and_backprop(rows, accumulate=True)
    for name, value in arrays(run.gradients()).items():
        np.testing.assert_array_equal(value, once[name])


def test_what_is_no_option_of_a_backward_pass() -> None:
    run, rows = executor(), batch()
    for options, message in (
        ({"loss": ["loss"]}, r"got \['loss'\] as the loss; allowed: a name, logits, loss"),
        ({"wrt": 5}, "wrt: nothing to differentiate by, got 5"),
        ({"wrt": [["input"]]}, r"wrt: got \['input'\] in it; allowed: names"),
        ({"loss_scale": float("nan")}, r"loss_scale: got nan \(float\); allowed: a finite number"),
        ({"loss_scale": "2"}, r"loss_scale: got '2' \(str\); allowed: a finite number"),
        ({"loss_scale": 1e39}, r"loss_scale: got 1e\+39 \(float\); allowed: a finite number, at most 3.4e\+38"),
    ):
        with pytest.raises(UsageError, match=message):
            run.inference_and_backprop(rows, **options)
    run.inference_and_backprop(rows, loss_scale=np.float32(2))


def test_gradients_are_never_stale() -> None:
    run, feed = executor(), batch()
    with pytest.raises(
        Unsupported, match="no gradients: nothing has run backward yet; remedy: call inference_and_back"
    ):
        run.gradients()
    run.inference_and_backprop(feed)
    want = arrays(run.gradients())

    def fail(name: str, gradient: Any) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        run.inference_and_backprop(feed, on_gradient=fail)
    with pytest.raises(Unsupported, match="there are no gradients: the last call failed"):
        run.gradients()
    run.inference_and_backprop(feed, accumulate=True)  # nothing of the failed call is added to
    for name, value in run.gradients().items():
        np.testing.assert_array_equal(value, want[name])
    run.train_step(d5.SGD())(feed, info())
    with pytest.raises(Unsupported, match="there are no gradients: a whole compiled step ran last"):
        run.gradients()


def test_wrong_losses() -> None:
    run = executor()
    for call in (lambda loss: run.inference_and_backprop(batch(), loss), lambda loss: run.train_step(d5.SGD(), loss)):
        with pytest.raises(UnknownName, match="unknown loss 'los'; allowed: logits, loss; did you mean 'loss'"):
            call("los")
        with pytest.raises(
            Unsupported, match=r"'logits', float32\[N, 2\], cannot be differentiated; allowed: a scalar"
        ):
            call("logits")


# Inputs


def test_inputs_that_do_not_fit() -> None:
    run, good = executor(), batch()
    for feed, message in (
        ({"input": good["input"]}, "missing input 'label'; got: input, expected: input, label"),
        ({**good, "input": good["input"].astype(np.float64)}, "'input': got dtype float64, expected float32"),
        ({**good, "label": tf.constant([0.0] * 5)}, "'label': got dtype float32, expected int64"),
        ({**good, "input": good["input"][:, :3]}, r"'input': got shape \(5, 3\), expected float32\[N, 4\]"),
        ({**good, "label": good["label"][:4]}, r"got N = 4 in shape \(4,\), expected N = 5 as in input 'input'"),
        ({**good, "input": np.array(["a"])}, "'input': got ndarray that tensorflow cannot take"),
        ({**good, "input": object()}, "'input': got object that tensorflow cannot take"),
    ):
        for call in (run.inference, run.inference_and_backprop, lambda feed: run.train_step(d5.SGD())(feed, info())):
            with pytest.raises(ShapeError, match=message):
                call(feed)
    run.inference(good)


def test_an_empty_batch_is_for_evaluation_alone() -> None:
    run, none = executor(), {"input": np.zeros((0, 4), np.float32), "label": np.zeros(0, np.int64)}
    assert tuple(run.inference(none)["logits"].shape) == (0, 2)
    for call in (
        lambda: run.inference(none, training=True),
        lambda: run.inference_and_backprop(none),
        lambda: run.train_step(d5.SGD())(none, info()),
    ):
        with pytest.raises(ShapeError, match="input 'input': got N = 0, nothing to train on; allowed: at least 1"):
            call()


def test_any_layout_of_memory_is_read_right() -> None:
    run, good = executor(), batch(6)
    want = run.inference(good)["logits"].numpy()
    x = good["input"]
    frozen = x.copy()
    frozen.flags.writeable = False
    wide = np.zeros((12, 8), np.float32)
    wide[::2, ::2] = x
    aligned = d5.core.tensors.aligned_empty(x.shape, x.dtype)
    aligned[...] = x
    off = np.zeros(x.size + 1, np.float32)[1:].reshape(x.shape)
    off[...] = x
    values = [np.asfortranarray(x), frozen, wide[::2, ::2], x[::-1].copy()[::-1], x.astype(">f4"), aligned, off]
    for value in (*values, tf.constant(x), tf.Variable(x)):
        np.testing.assert_array_equal(run.inference({**good, "input": value})["logits"], want)
    np.testing.assert_array_equal(
        run.inference({**good, "input": np.zeros((0, 4), np.float32), "label": np.zeros(0, np.int64)})["logits"],
        want[:0],
    )
    # Shared where it can be, and the caller's array is not changed by anything that runs.
    assert np.shares_memory(np.from_dlpack(shared(aligned)), aligned)
    run.train_step(d5.Adam(lr=1.0))({**good, "input": aligned}, info(0, 6))
    np.testing.assert_array_equal(aligned, x)


# Whole steps


def half_steps(run: Any, step: Any, feed: Any, told: d5.StepInfo) -> None:
    step.backprop(feed, told)
    step.apply(arrays(run.gradients()), told)


@pytest.mark.parametrize(
    "rule", [d5.Adam(lr=0.05), d5.AcceleGrad(lr=0.05), d5.LARS(lr=0.5)], ids=lambda r: type(r).__name__
)
def test_two_halves_are_a_whole(rule: Any) -> None:
    network, ends = lenet(classes=3, dtype="float64"), []
    feeds = [{"input": RNG.standard_normal((2, 1, 28, 28)), "label": np.array([0, 2])} for _ in range(3)]
    group = ParameterGroup(lambda name: name.endswith("bias"), lr=0.01)
    for whole in (True, False):
        run = executor(network)
        step = run.train_step(
            rule, groups=(group,), modifier=lambda name, param, grad: grad + 0.01 * param if "conv" in name else grad
        )
        for number, feed in enumerate(feeds):
            if whole:
                step(feed, info(number, 2))
            else:
                half_steps(run, step, feed, info(number, 2))
        ends.append({**run.state_dict(), **step.state_dict()})
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        # The compiler orders float64 roundings as it likes.
        np.testing.assert_allclose(ends[1][name], value, rtol=1e-10, atol=1e-13)


def test_a_modifier_sees_onnx_order_and_is_checked() -> None:
    run, seen = executor(lenet(classes=3)), {}

    def modify(name: str, param: Any, grad: Any) -> Any:
        seen[name] = tuple(param.shape), tuple(grad.shape)
        return tf.zeros_like(grad) if name == "conv2.weight" else grad

    step, before = run.train_step(d5.SGD(lr=0.1), modifier=modify), run.state_dict()
    feed = {"input": normal(2, 1, 28, 28), "label": np.array([0, 2])}
    step(feed, info(0, 2))
    assert seen == {name: (spec.shape, spec.shape) for name, spec in run.network.parameter_specs.items()}
    unchanged = {name for name, value in run.state_dict().items() if np.array_equal(value, before[name])}
    assert unchanged == {"conv2.weight"}
    for bad, message in (
        (lambda name, param, grad: grad[0], "the modified gradient of 'conv1.weight': got shape"),
        (lambda name, param, grad: tf.cast(grad, tf.float64), "'conv1.weight': got dtype float64, expected float32"),
    ):
        with pytest.raises(ShapeError, match=message):
            run.train_step(d5.SGD(lr=0.1), modifier=bad)(feed, info(0, 2))


def test_frozen_parameters_stay() -> None:
    run = executor()
    frozen = ParameterGroup(lambda name: name.startswith("fc1"), frozen=True)
    step, before = run.train_step(d5.Adam(lr=0.1), groups=(frozen,)), run.state_dict()
    step(batch(), info())
    step.backprop(batch(), info())
    assert run.gradients().keys() == {"fc2.weight", "fc2.bias"}
    assert step.state_dict().keys() == {f"{key}/fc2.{name}" for key in "mv" for name in ("weight", "bias")}
    changed = {name for name, value in run.state_dict().items() if not np.array_equal(value, before[name])}
    assert changed == {"fc2.weight", "fc2.bias"}
    with pytest.raises(RuleError, match="nothing to train by Adam: got 4 parameters, all of them frozen"):
        run.train_step(d5.Adam(), groups=(ParameterGroup(lambda name: True, frozen=True),))


def test_gradients_from_outside_are_checked() -> None:
    run = executor()
    step, zero = run.train_step(d5.SGD(lr=0.1)), {name: np.zeros_like(v) for name, v in executor().state_dict().items()}
    before = run.state_dict()
    for bad, message in (
        ({"fc1.bias": zero["fc1.bias"]}, "no gradient of 'fc1.weight'; got: fc1.bias; allowed: one a parameter"),
        ({**zero, "fc1.bias": np.zeros(4, np.float32)}, r"the gradient of 'fc1.bias': got shape \(4,\)"),
        ({**zero, "fc1.bias": np.zeros(3)}, "the gradient of 'fc1.bias': got dtype float64"),
    ):
        with pytest.raises(ShapeError, match=message):
            step.apply(bad, info())
    step.apply(zero, info())
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_averaged_gives_back_what_was_there() -> None:
    run = executor()
    step = run.train_step(d5.AcceleGrad(lr=0.1))
    for number in range(3):
        step(batch(), info(number))
    live = run.state_dict()
    with step.averaged():
        averaged = run.state_dict()
    assert any(not np.array_equal(live[name], averaged[name]) for name in live)
    with pytest.raises(RuntimeError, match="stop"), step.averaged():
        raise RuntimeError("stop")
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, live[name])
    for evaluation, values in ((True, averaged), (False, live)):
        exported = run.export(evaluation=evaluation)
        for name, value in values.items():
            np.testing.assert_array_equal(exported.initial(name), value)
    step(batch(), info(3))  # the step goes on from the live values
    assert step.traces == 1


class HalfAverage(d5.UpdateRule):
    """Evaluation between the parameter and an average: twice is not once."""

    hyper = ("lr",)

    def __init__(self, lr: float = 0.1) -> None:
        self.lr = lr

    def init_state(self, param: Any) -> dict[str, Any]:
        return {"ema": param}

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.lr * grad, {"ema": 0.9 * state["ema"] + 0.1 * param}

    def eval_param(self, param: Any, state: Any) -> Any:
        return 0.5 * param + 0.5 * state["ema"]


def test_averaged_may_be_entered_inside_itself_and_takes_no_step() -> None:
    run = executor()
    step = run.train_step(HalfAverage())
    for number in range(3):
        step(batch(), info(number))
    live, zero = run.state_dict(), {name: np.zeros_like(value) for name, value in run.state_dict().items()}
    calls: list[Callable[[], Any]] = [
        lambda: step(batch(), info(3)),
        lambda: step.backprop(batch(), info(3)),
        lambda: step.apply(zero, info(3)),
        lambda: step.regroup((), step.pipeline),
    ]
    with step.averaged():
        inside, exported = run.state_dict(), run.export()
        for name, value in inside.items():
            np.testing.assert_array_equal(exported.initial(name), value)
            np.testing.assert_array_equal(run.state_dict()[name], value)
        for call in calls:
            with pytest.raises(UsageError, match=r"a training step inside averaged\(\); remedy: leave the block first"):
                call()
        for name, value in inside.items():
            np.testing.assert_array_equal(run.state_dict()[name], value)
            assert not np.array_equal(value, live[name])
    for name, value in live.items():
        np.testing.assert_array_equal(run.state_dict()[name], value)
    step(batch(), info(3))


@pytest.mark.parametrize("wrong", [99, 3])  # refused by the engine, whether it could be another sample's entry or not
@pytest.mark.parametrize("loss", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_a_step_that_fails_leaves_running_statistics(loss: str, wrong: int) -> None:
    build = NetworkBuilder("normalised", dtype="float32", seed=1)
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    x = build.op("Gemm", x, build.parameter("w", (4, 3)))
    values = {"scale": np.ones(3), "bias": np.zeros(3), "mean": np.zeros(3), "variance": np.ones(3)}
    x = build.op("BatchNormalization", x, *(build.parameter(n, (3,), lambda *_, v=v: v) for n, v in values.items()))
    x = x if loss == "SoftmaxCrossEntropyLoss" else build.op("LogSoftmax", x, axis=1)
    run = executor(build.network({"logits": x, "loss": build.op(loss, x, label)}))
    optimizer = d5.RuleOptimizer(d5.Momentum())
    optimizer.bind(run)
    native = TF.optimizer("momentum")()
    native.bind(run)
    feed = batch(6)
    calls: list[Callable[[], Any]] = [
        lambda: optimizer.step(feed, info(0, 6)),
        lambda: native.step(feed, info(0, 6)),
        lambda: run.inference_and_backprop(feed),
        lambda: run.inference(feed, training=True),
    ]
    for call in calls:
        call()
        before, state = run.state_dict(), optimizer.train_step.state_dict()
        good, feed["label"] = feed["label"], np.array([0, 1, wrong, 0, 1, 0])
        for _ in range(5):
            with pytest.raises(NetworkError, match="cannot run the network on these inputs"):
                call()
        feed["label"] = good
        for now, then in ((run.state_dict(), before), (optimizer.train_step.state_dict(), state)):
            for name, value in then.items():
                np.testing.assert_array_equal(now[name], value, err_msg=name)
    call()  # of labels that are classes they move
    assert not np.array_equal(run.state_dict()["mean"], before["mean"])


def lying(array: np.ndarray) -> np.ndarray:
    """As NumPy often puts it by chance: where TensorFlow takes the memory as it is."""
    found = aligned_empty(array.shape, array.dtype)
    found[...] = array
    return found


def passing() -> Network:
    """Outputs that hold an input's elements, and one that does not."""
    build = NetworkBuilder("passing", dtype="float32", seed=1)
    x, label = build.input("input", ("N", 1, 2, 2)), build.input("label", ("N",), "int64")

    def ints(name: str, *values: int) -> Any:
        return build.constant(name, np.array(values))

    flat = build.op("Flatten", x)
    logits = build.op("MatMul", flat, build.parameter("w", (4, 3)))
    found = {
        "same": build.op("Identity", x),
        "flat": flat,
        "reshaped": build.op("Reshape", x, ints("shape", -1, 2, 2)),
        "squeezed": build.op("Identity", build.op("Squeeze", x, ints("first", 1))),
        "unsqueezed": build.op("Unsqueeze", flat, ints("front", 0)),
        "dropped": build.op("Dropout", flat),
        "transposed": build.op("Transpose", x, perm=[0, 2, 1, 3]),
        "all": build.op("Slice", x, ints("begin", 0), ints("end", 1 << 40), ints("axis", 0)),
        "some": build.op("Slice", x, ints("second", 4), ints("end2", 1 << 40), ints("axis2", 0)),
        "sum": build.op("ReduceSum", x, ints("one", 1)),
        "padded": build.op("Pad", x, ints("pads", *[0] * 8)),
        "negated twice": build.op("Neg", build.op("Neg", x)),
        "times one": build.op("Mul", x, build.constant("unit", np.float32(1))),
        "labels": build.op("Identity", label),
        "logits": logits,
        "loss": build.op("SoftmaxCrossEntropyLoss", logits, label),
    }
    return build.network(found)


@pytest.mark.parametrize("framework", [TF, pytest.param(XLA, marks=pytest.mark.slow)], ids=["graph", "xla"])
def test_outputs_do_not_lie_in_the_caller_s_memory(framework: Any) -> None:
    run = framework.executor(passing())
    optimizer = d5.RuleOptimizer(d5.SGD())
    optimizer.bind(run)
    calls: list[Callable[[Any], Any]] = [
        lambda feed: optimizer.step(feed, info(0, 8)),
        run.inference_and_backprop,
        lambda feed: run.inference(feed, training=True),
        run.inference,
    ]
    for call in calls:
        feed = {"input": lying(normal(8, 1, 2, 2)), "label": lying(np.arange(8) % 3)}
        outputs = call(feed)
        before = arrays(outputs)
        for value in feed.values():
            value[...] = 7
        for name, value in arrays(outputs).items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_only_what_may_lie_in_the_caller_s_memory_is_copied() -> None:
    def copied(run: Any) -> int:
        return sum(operation.type == "DeepCopy" for operation in run.graph.get_operations())

    assert copied(executor(passing())) == 13  # all but a product, the logits and the loss
    for network in (mlp(**SMALL), lenet()):
        assert copied(executor(network)) == 0


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", d5.Adam(lr=0.05), d5.AcceleGrad(lr=0.05)], ids=str)
def test_a_resumed_run_is_the_same_bit_for_bit(kind: Any) -> None:
    feeds = [{"input": normal(4, 1, 28, 28), "label": np.arange(4)} for _ in range(6)]

    def start() -> tuple[Any, Any, Any]:
        run = executor(lenet(seed=4))
        if not isinstance(kind, str):
            step = run.train_step(kind)
            return run, step, step
        optimizer: Any = TF.optimizer(kind)(**NATIVE[kind])
        optimizer.bind(run)
        return run, optimizer, optimizer.step

    def go(call: Any, first: int, last: int) -> None:
        for number in range(first, last):
            call(feeds[number], info(number, 4))

    whole, _, call = start()
    go(call, 0, 6)
    half, optimizer, call = start()
    go(call, 0, 3)
    states = half.state_dict(), optimizer.state_dict()
    plain = [value for state in states for key, value in state.items() if key != "hyper"]
    assert all(isinstance(value, (np.ndarray, np.generic)) for value in plain)
    resumed, optimizer, call = start()
    resumed.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    go(call, 3, 6)
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(resumed.state_dict()[name], value)
    if "velocity/conv2.weight" in states[1] or "m/conv2.weight" in states[1]:
        key = "m/conv2.weight" if "m/conv2.weight" in states[1] else "velocity/conv2.weight"
        assert states[1][key].shape == (16, 6, 5, 5)
    with pytest.raises(ShapeError, match="missing or unknown entries"):
        optimizer.load_state_dict({**states[1], "nothing": np.zeros(1)})


def test_nothing_leaves_tensorflow_in_a_step() -> None:
    """No call back into Python, no evaluation by something else, no NumPy between input and output."""
    network = resnet(depth=8)
    feeds = [{"input": tf.constant(normal(2, 3, 32, 32)), "label": tf.constant([0, 1], tf.int64)} for _ in range(2)]

    run = executor(network)
    with poisoned("tensorflow"):
        step = run.train_step(d5.Adam(lr=0.01))
        losses = [step(feed, info(number, 2))["loss"] for number, feed in enumerate(feeds)]
        run.inference_and_backprop(feeds[0])
        gradients = run.gradients()
    types = {node.type for node in step.graph.get_operations()}
    assert not {name for name in types if "PyFunc" in name or name.startswith("Eager")}
    assert all(np.isfinite(value.numpy()).all() for value in (*losses, *gradients.values()))


# Keras's optimizers

NATIVE: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.8, "nesterov": True},
    "adam": {"lr": 0.05, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-7},
}


@pytest.mark.parametrize("name", list(NATIVE))
def test_native_optimizers_are_keras_own(name: str) -> None:
    import keras

    network, feeds = mlp(**SMALL, seed=4), [batch(8) for _ in range(5)]
    run = executor(network)
    optimizer: Any = TF.optimizer(name)(**NATIVE[name])
    optimizer.bind(run)
    w = [tf.Variable(network.initial(key)) for key in network.parameter_specs]
    by_hand: dict[str, Callable[[], Any]] = {
        "sgd": lambda: keras.optimizers.SGD(0.05),
        "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.8, nesterov=True),
        "adam": lambda: keras.optimizers.Adam(0.05, beta_1=0.8, beta_2=0.99, epsilon=1e-7),
    }
    theirs = by_hand[name]()
    for number, feed in enumerate(feeds):
        if number == 3:
            optimizer.set_hyper("lr", 0.01)
            theirs.learning_rate = 0.01
        loss = optimizer.step(feed, info(number, 8))["loss"]
        with tf.GradientTape() as tape:
            hidden = tf.tanh(tf.matmul(feed["input"], w[0], transpose_b=True) + w[1])
            logits = tf.matmul(hidden, w[2], transpose_b=True) + w[3]
            other = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(feed["label"], logits))
        theirs.apply_gradients(zip(tape.gradient(other, w), w, strict=True))
        assert float(loss) == pytest.approx(float(other), rel=1e-5)
    for value, wanted in zip(run.state_dict().values(), w, strict=True):
        # Five float32 steps; a graph and eager calls round in another order.
        np.testing.assert_allclose(value, wanted.numpy(), rtol=1e-4, atol=1e-5)
    assert optimizer._step.traces == 1
    assert optimizer.state_dict()["iteration"] == 5


def test_native_optimizer_errors() -> None:
    optimizer: Any = TF.optimizer("adam")()
    for call in (lambda: optimizer.step({}, None), optimizer.state_dict, lambda: optimizer.set_hyper("lr", 1.0)):
        with pytest.raises(UsageError, match=r"not bound to an executor; remedy: call bind\(executor\) first"):
            call()
    with pytest.raises(UsageError, match="native optimizer of tensorflow cannot drive a ReferenceExecutor"):
        optimizer.bind(d5.framework("reference").executor(mlp(**SMALL)))
    with pytest.raises(UsageError, match=r"keras refuses the optimizer .*'momentum': 2"):
        TF.optimizer("momentum")(momentum=2.0).bind(executor())
    run = executor()
    optimizer.bind(run)
    with pytest.raises(UsageError, match="no hyperparameter 'beta1' that may change; allowed: lr"):
        optimizer.set_hyper("beta1", 0.1)
    state = optimizer.state_dict()
    key = "momentum/fc1.bias"
    with pytest.raises(ShapeError, match=r"'momentum/fc1.bias': got float32\(9,\), expected float32\(3,\)"):
        optimizer.load_state_dict({**state, key: np.zeros(9, np.float32)})
    assert optimizer.describe()["native"] == "tensorflow"
    frozen = run.state_dict()
    optimizer.set_hyper("lr", 0.0)
    optimizer.step(batch(), info())
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, frozen[name])


def python(code: str, *arguments: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run in a process of its own; what the environment sets to None is not set there."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={name: value for name, value in {**os.environ, **environment}.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_keras_on_another_framework_is_refused() -> None:
    done = python(
        "import deep5 as d5\n"
        "framework = d5.framework('tensorflow')\n"
        "optimizer = framework.optimizer('adam')()\n"
        "optimizer.bind(framework.executor(d5.networks.mlp(features=2, hidden=2, classes=2)))\n",
        KERAS_BACKEND="numpy",
    )
    said = "UsageError: keras was imported with the backend 'numpy'; allowed: 'tensorflow'; remedy: set KERAS_BACKEND"
    assert said in done.stderr


# Threads, devices, start-up


def test_settings_are_read_back() -> None:
    settings = executor(mlp(**SMALL, dtype="float64")).settings()
    assert settings["threads"] == int(os.environ["TF_NUM_INTRAOP_THREADS"])
    assert (settings["dtype"], settings["device"], settings["tf32"]) == ("float64", "cpu", False)
    assert (settings["framework"], settings["version"]) == ("tensorflow", tf.__version__)
    assert (settings["deterministic"], settings["xla"]) == (True, False)


def test_threads_are_fixed_when_tensorflow_has_started() -> None:
    run = executor()
    have = run.settings()["threads"]
    TF.set_threads(have)  # what it has may be asked for
    with pytest.raises(
        UsageError,
        match=rf"got {have + 1} threads for tensorflow, which has started with {have} and cannot change; "
        rf"allowed: {have} in this process; remedy: .*TF_NUM_INTRAOP_THREADS={have + 1}",
    ):
        TF.set_threads(have + 1)
    for bad in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="threads; allowed: a whole number of at least 1"):
            TF.set_threads(bad)
    assert run.settings()["threads"] == have


@pytest.mark.slow
def test_threads_are_set_before_it_starts_and_nothing_is_said_but_errors() -> None:
    done = python(
        "import deep5 as d5\n"
        "framework = d5.framework('tensorflow')\n"
        "framework.set_threads(2)\n"
        "settings = framework.executor(d5.networks.mlp(features=2, hidden=2, classes=2)).settings()\n"
        "print(settings['threads'], settings['inter_threads'])\n"
    )
    assert done.stdout.split() == ["2", "1"], done.stderr
    assert all(line.startswith("E") for line in done.stderr.splitlines()), done.stderr


CPU_TIME = """
import os, sys
from pathlib import Path
import numpy as np
import deep5 as d5
framework = d5.framework("tensorflow")
framework.set_threads(int(sys.argv[1]))
executor = framework.executor(d5.networks.mlp(features=784, hidden=800))
step = executor.train_step(d5.SGD(lr=0.01))
feed = {"input": np.ones((256, 784), np.float32), "label": np.zeros(256, np.int64)}
def ran():
    tasks = Path("/proc/self/task").iterdir()
    return {int(task.name): int((task / "schedstat").read_text().split()[0]) for task in tasks}
def work():
    for index in range(20):
        step(feed, d5.StepInfo(batch_size=256))
    executor.synchronize()
work()
before = ran()
work()
each = {task: time - before.get(task, 0) for task, time in ran().items()}
workers = [time for task, time in each.items() if task != os.getpid() and time > 0.2 * sum(each.values())]
print(executor.settings()["threads"], len(workers))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: any number of threads counts as one")
def test_one_thread_is_one_thread() -> None:
    # The environment of the tests asks for one thread; what set_threads asks for must count alone.
    done = python(CPU_TIME, "1", TF_NUM_INTRAOP_THREADS=None, TF_NUM_INTEROP_THREADS=None)
    assert done.stdout.split() == ["1", "1"]
    done = python(CPU_TIME, "2", TF_NUM_INTRAOP_THREADS=None, TF_NUM_INTEROP_THREADS=None)
    assert done.stdout.split()[0] == "2"


def test_errors_at_start_up_are_let_through(capfd: pytest.CaptureFixture[str]) -> None:
    def load() -> None:
        with without_reports():
            os.write(2, b"I0000 00:00:1.2 1 a.cc:1] report\nW0000 00:00:1.2 1 a.cc:1] warning\n")
            os.write(2, b"E0000 00:00:1.2 1 a.cc] error\n")
            os.write(2, b"To enable the following instructions: AVX\nsomething else\n")
            sys.stderr.write("from Python\n")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        load()
    os.write(2, b"after\n")
    said = capfd.readouterr().err.splitlines()
    assert sorted(said) == ["E0000 00:00:1.2 1 a.cc] error", "after", "from Python", "something else"]


def test_a_device_that_is_not_there_is_refused() -> None:
    index = len(tf.config.list_physical_devices("GPU"))
    with pytest.raises(Unsupported, match=f"no device cuda:{index} for tensorflow here; allowed: cpu"):
        executor(device=f"cuda:{index}")
    with pytest.raises(UsageError, match="unknown device 'tpu'"):
        executor(device="tpu")


PLACEMENT = """
import numpy as np
import deep5 as d5
from deep5.core.errors import NetworkError, Unsupported

framework = d5.framework("tensorflow")
import tensorflow as tf
from deep5.frameworks.tensorflow.traced import Traced

def product(dtype):
    spec = tf.TensorSpec([2, 2], dtype)
    return Traced(lambda x: tf.matmul(x, x), [spec], device="/GPU:0", xla=False), tf.ones([2, 2], dtype)

for soft in (False, True):
    tf.config.set_soft_device_placement(soft)
    for dtype in (tf.int64, tf.float32):
        function, value = product(dtype)
        try:
            print(soft, function(value).device)
        except (NetworkError, Unsupported) as error:
            print(soft, error)
"""


def test_on_the_host_soft_placement_is_left_as_it_was() -> None:
    before = tf.config.get_soft_device_placement()
    try:
        for soft in (True, False):
            tf.config.set_soft_device_placement(soft)
            executor().inference(batch())
            assert tf.config.get_soft_device_placement() is soft
    finally:
        tf.config.set_soft_device_placement(before)


@pytest.mark.slow
@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="test_devices.py does it there")
def test_without_soft_placement_nothing_falls_back_to_the_host() -> None:
    """What the back-end switches off for a graphics processor, seen without one."""
    said = python(PLACEMENT).stdout.splitlines()
    assert said[0] == (
        "False tensorflow has no kernel for /GPU:0 of MatMul of int64; allowed: operators that run there; "
        "remedy: run the network on the host, or on 'tensorflow:xla'"
    )
    assert "cannot run the network on these inputs (Unable to find any devices" in said[1]
    assert all(line.startswith("True /job") and line.endswith("CPU:0") for line in said[2:]), said
    assert len(said) == 4


@pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="this TensorFlow has no kernels for graphics processors")
@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "lenet",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "resnet18_small", "transformer")),
    ],
)
def test_operators_of_the_zoo_have_kernels_for_graphics_processors(name: str) -> None:
    """By the list of kernels in the library, which is the same on every machine."""
    small: dict[str, Any] = {"mlp": {"dropout": 0.1}, "lstm": {"length": 3}, "resnet18_small": {"width": 1}}
    network = getattr(d5.networks, name)(**small.get(name, {}))
    run = executor(network)
    graphs = [run.graph, run._forward(training=True).graph]
    graphs.append(run.traced_gradients("loss", list(network.parameter_specs)).graph)
    shapes = {key: [2 if isinstance(e, str) else e for e in spec.shape] for key, spec in network.inputs.items()}
    given = {key: np.zeros(shape, network.inputs[key].dtype) for key, shape in shapes.items()}
    for rule in (d5.Adam(), d5.AcceleGrad(), d5.core.plugins.load("optimizers", "lars")()):
        step = run.train_step(rule)
        step(given, info(size=2))
        graphs += [value.graph for value in vars(step).values() if isinstance(value, Traced)]
    assert len(graphs) >= 6
    assert not [said for graph in graphs for said in without_kernel(graph)]


def test_an_operator_without_a_kernel_is_found() -> None:
    build = NetworkBuilder("whole")
    x = build.input("x", ("N", 3), "int64")
    y = build.op("MatMul", x, build.constant("w", np.arange(6).reshape(3, 2)))
    run = executor(build.network({"y": y, "z": build.op("Relu", build.op("Cast", y, to=1))}))
    assert without_kernel(run.graph) == ["MatMul of int64"]
    np.testing.assert_array_equal(run.inference({"x": np.ones((2, 3), np.int64)})["y"], [[6, 9], [6, 9]])


def test_the_back_end_is_made_anew_in_either_mode() -> None:
    assert TensorFlow().name == "tensorflow"
    assert TensorFlow("xla").executor(mlp(**SMALL)).settings()["xla"] is True


def test_division_of_whole_numbers_by_zero_is_told_in_our_words() -> None:
    build = NetworkBuilder("division")
    a, b = (build.input(name, ("N",), "int64") for name in "ab")
    run = executor(build.network({"y": build.op("Div", a, b)}))
    with pytest.raises(NetworkError, match="tensorflow cannot run the network on these inputs"):
        run.inference({"a": np.array([1, 2]), "b": np.array([1, 0])})
