"""Executors of frameworks that differentiate: gradients, and every option of a backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from backends import COMPUTING, Backend, parametrized
from deep5.core.errors import NetworkError, ShapeError, UnknownName, Unsupported, UsageError
from deep5.core.executors import GraphExecutor, StepOptimizer, TrainStep
from deep5.networks import lenet, mlp, resnet
from deep5.networks.check import check_executor
from executor_cases import SMALL, arrays, batch, executor, idle, info, normal, normalised

every = parametrized(*COMPUTING)


@parametrized(
    *COMPUTING, "pytorch:compiled", "tensorflow:xla", slow=("tensorflow", "pytorch:compiled", "tensorflow:xla")
)
def test_conformance(backend: Backend) -> None:
    check_executor(backend.name)


@every
def test_interfaces_are_met(backend: Backend) -> None:
    framework, run = backend.framework, executor(backend)
    assert isinstance(run, GraphExecutor)
    assert isinstance(run.train_step(d5.SGD()), TrainStep)
    assert run.capabilities == {"float64", "early_gradients" if backend.name == "pytorch" else "whole_step"}
    assert {"adam", "adagrad", "momentum", "sgd"} <= framework.optimizers().keys()
    for make in framework.optimizers().values():
        assert isinstance(make(), StepOptimizer)
    with pytest.raises(
        UnknownName, match=rf"unknown native optimizer of {backend.name} 'adm'; allowed: adadelta, adagr.* mean 'adam'"
    ):
        framework.optimizer("adm")


@every
def test_wrt_inputs_and_subsets(backend: Backend) -> None:
    run, feed = executor(backend, mlp(**SMALL, dtype="float64")), batch(dtype="float64")
    run.inference_and_backprop(feed, wrt=["input", "fc2.weight"])
    gradients = arrays(run.gradients())
    assert list(gradients) == ["input", "fc2.weight"]
    step, shifted = 1e-6, {**feed, "input": feed["input"].copy()}
    shifted["input"][2, 1] += step
    slope = (float(run.inference(shifted)["loss"]) - float(run.inference(feed)["loss"])) / step
    assert gradients["input"][2, 1] == pytest.approx(slope, abs=1e-6)  # a forward difference is accurate to the step
    run.inference_and_backprop(feed, wrt=["input", "fc1.weight"], accumulate=True)
    assert set(run.gradients()) == {"input", "fc1.weight", "fc2.weight"}
    found = arrays(run.gradients())
    np.testing.assert_allclose(found["input"], 2 * gradients["input"], rtol=1e-14)
    np.testing.assert_array_equal(found["fc2.weight"], gradients["fc2.weight"])
    native = backend.native(feed["input"])
    run.inference_and_backprop({**feed, "input": native}, wrt=["input"])
    np.testing.assert_allclose(arrays(run.gradients())["input"], gradients["input"], rtol=1e-14)
    assert getattr(native, "grad", None) is None


@every
def test_accumulate_and_loss_scale(backend: Backend) -> None:
    run, feed, other = executor(backend), batch(), batch()
    run.inference_and_backprop(feed)
    first = arrays(run.gradients())
    run.inference_and_backprop(other)
    second = arrays(run.gradients())
    run.inference_and_backprop(feed, accumulate=True)
    for name, value in arrays(run.gradients()).items():
        np.testing.assert_allclose(value, first[name] + second[name], rtol=1e-5, atol=1e-7)  # one float32 sum more
    for scale in (4.0, 1.0, np.float32(2)):  # powers of two: exact
        run.inference_and_backprop(feed, loss_scale=scale)
        for name, value in arrays(run.gradients()).items():
            np.testing.assert_allclose(value, float(scale) * first[name], rtol=1e-6)


@every
def test_gradients_that_were_given_away_stay_as_they_are(backend: Backend) -> None:
    run, feed = executor(backend), batch()
    run.inference_and_backprop(feed)
    first = run.gradients()
    kept = arrays(first)
    run.inference_and_backprop(feed, wrt=["fc1.weight"], accumulate=True)
    second = run.gradients()
    reported: dict[str, Any] = {}
    run.inference_and_backprop(feed, accumulate=True, on_gradient=reported.__setitem__)
    third = arrays(reported)
    run.inference_and_backprop(feed, accumulate=True)
    for name, value in kept.items():
        np.testing.assert_array_equal(d5.to_numpy(first[name]), value)
        np.testing.assert_array_equal(d5.to_numpy(reported[name]), third[name])
        times = 3 if name == "fc1.weight" else 2
        # Added to the earlier sum, however it is passed on: some float32 sums.
        np.testing.assert_allclose(third[name], times * value, rtol=1e-6)
        np.testing.assert_allclose(arrays(run.gradients())[name], (times + 1) * value, rtol=1e-6)
    np.testing.assert_allclose(d5.to_numpy(second["fc1.weight"]), 2 * kept["fc1.weight"], rtol=1e-6)


@every
def test_gradients_by_an_input_add_up_over_batches_of_one_size_only(backend: Backend) -> None:
    run, rows = executor(backend), batch(1)
    run.inference_and_backprop(rows, wrt=["input", "fc1.weight"])
    first = arrays(run.gradients())
    # One row would silently broadcast to five.
    reported = r"accumulate=True: the gradient by 'input': got shape \(5, 4\), earlier \(1, 4\)"
    with pytest.raises(ShapeError, match=reported):
        run.inference_and_backprop(batch(5), wrt=["input", "fc1.weight"], accumulate=True)
    with pytest.raises(Unsupported, match="there are no gradients"):
        run.gradients()
    run.inference_and_backprop(rows, wrt=["input", "fc1.weight"], accumulate=True)
    run.inference_and_backprop(rows, wrt=["input"], accumulate=True)
    found = arrays(run.gradients())
    np.testing.assert_allclose(found["input"], 2 * first["input"], rtol=1e-6)  # one more rounding
    np.testing.assert_array_equal(found["fc1.weight"], first["fc1.weight"])
    # By parameters, batches of any size add up, and gradients by inputs stay.
    run.inference_and_backprop(batch(5), accumulate=True)
    assert set(run.gradients()) == {"input", *run.network.parameter_specs}
    assert tuple(run.gradients()["input"].shape) == (1, 4)


@every
def test_on_gradient_reports_each_once_and_the_sum(backend: Backend) -> None:
    run, feed, reported = executor(backend), batch(), []

    def keep(name: str, gradient: Any) -> None:
        reported.append((name, np.array(d5.to_numpy(gradient))))

    run.inference_and_backprop(feed, on_gradient=keep)
    assert sorted(name for name, _ in reported) == sorted(run.gradients())
    assert backend.name == "jax" or reported[0][0].startswith("fc2")  # the last layer's gradients are known first
    once = dict(reported)
    reported.clear()
    run.inference_and_backprop(feed, accumulate=True, on_gradient=keep)
    for name, value in reported:
        np.testing.assert_array_equal(value, arrays(run.gradients())[name])
        np.testing.assert_allclose(value, 2 * once[name], rtol=1e-6)
    reported.clear()
    run.inference_and_backprop(feed)
    assert not reported


@every
def test_gradients_are_dense_and_zero_where_the_loss_does_not_depend(backend: Backend) -> None:
    run, reported = executor(backend, idle()), {}
    run.inference_and_backprop({"x": np.array([1, 1, -1])}, on_gradient=reported.__setitem__)
    kind = type(run.gradients()["table"])
    assert {type(value) for value in (*run.gradients().values(), *reported.values())} == {kind}
    table, want = run.state_dict()["table"], np.zeros((5, 3), np.float32)
    want[1], want[4] = 4 * table[1], 2 * table[4]
    np.testing.assert_allclose(arrays(run.gradients())["table"], want, rtol=1e-6)  # one float32 product and sum
    np.testing.assert_array_equal(arrays(reported)["idle"], np.zeros((2, 3)))
    np.testing.assert_array_equal(arrays(run.gradients())["idle"], np.zeros((2, 3)))
    run.inference_and_backprop({"x": np.array([1])}, wrt=["idle"])
    np.testing.assert_array_equal(arrays(run.gradients())["idle"], np.zeros((2, 3)))


@every
def test_gradients_are_never_stale(backend: Backend) -> None:
    run, feed = executor(backend), batch()
    with pytest.raises(Unsupported, match=r"there are no gradients.*; remedy: call inference_and_backprop first"):
        run.gradients()
    run.inference_and_backprop(feed)
    want = arrays(run.gradients())
    # JAX and TensorFlow compute all gradients before the first is reported.
    wrong = {**feed, "input": feed["input"][:, :3]}
    with pytest.raises(ShapeError, match="'input': got shape"):
        run.inference_and_backprop(wrong)

    def fail(name: str, gradient: Any) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        run.inference_and_backprop(feed, on_gradient=fail)
    if backend.name != "jax":
        with pytest.raises(Unsupported, match="there are no gradients"):
            run.gradients()
        run.inference_and_backprop(feed, accumulate=True)  # nothing of the failed call is added to
        for name, value in arrays(run.gradients()).items():
            np.testing.assert_array_equal(value, want[name])


@every
def test_nothing_is_left_to_add_to_after_a_whole_step(backend: Backend) -> None:
    run, rows = executor(backend), batch()
    step = run.train_step(d5.SGD(lr=0.0))
    run.inference_and_backprop(rows)
    once = arrays(run.gradients())
    step(rows, info())
    if backend.name != "pytorch":  # PyTorch's gradients stay readable
        with pytest.raises(Unsupported, match=r"there are no gradients: .*compiled"):
            run.gradients()
    run.inference_and_backprop(rows, accumulate=True)
    for name, value in arrays(run.gradients()).items():
        np.testing.assert_array_equal(value, once[name])


@every
def test_wrong_requests_are_refused(backend: Backend) -> None:
    run, rows = executor(backend), batch()
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"loss": "los"}, UnknownName, "unknown loss 'los'; allowed: logits, loss; did you mean 'loss'"),
        ({"loss": "logits"}, Unsupported, r"'logits', float32\[N, 2\], cannot be differentiated; allowed: a scalar"),
        ({"loss": ["loss"]}, UsageError, r"got \['loss'\] as the loss; allowed: a name, logits, loss"),
        ({"wrt": []}, UsageError, "nothing to differentiate by"),
        ({"wrt": 5}, UsageError, "wrt: nothing to differentiate by, got 5"),
        ({"wrt": [["input"]]}, UsageError, r"wrt: got \['input'\] in it; allowed: names"),
        ({"wrt": ["label"]}, Unsupported, r"no gradient by 'label', which is int64\[N\]"),
        ({"wrt": ["fc9"]}, UnknownName, "unknown parameter or input 'fc9'"),
        ({"loss_scale": float("nan")}, UsageError, r"loss_scale: got nan \(float\); allowed: a finite number"),
        ({"loss_scale": "2"}, UsageError, r"loss_scale: got '2' \(str\); allowed: a finite number"),
        ({"loss_scale": 1e39}, UsageError, r"loss_scale: got 1e\+39 \(float\); allowed: a finite number, at most 3.4e"),
    ]
    for options, error, message in refused:
        with pytest.raises(error, match=message):
            run.inference_and_backprop(rows, **options)
        with pytest.raises(Unsupported, match="there are no gradients"):
            run.gradients()
    for loss in ("los", "logits"):
        with pytest.raises((UnknownName, Unsupported), match=r"unknown loss|cannot be differentiated"):
            run.train_step(d5.SGD(), loss)


@every
def test_what_fails_leaves_the_running_statistics(backend: Backend) -> None:
    """For labels outside the classes: NaN on JAX, which checks no value; an error elsewhere."""
    (run, other), good = [executor(backend, normalised(count=4)) for _ in range(2)], batch()
    before = run.state_dict()
    wrong = {**good, "label": np.array([0, 1, 99, 0, 1])}
    step = run.train_step(d5.SGD(lr=0.1))
    if backend.name == "jax":
        assert np.isnan(run.inference(wrong)["loss"])
    else:
        for call in (
            lambda: run.inference_and_backprop(wrong),
            lambda: run.inference(wrong, training=True),
            lambda: step(wrong, info()),
        ):
            with pytest.raises(
                NetworkError, match=r"got the label 99; allowed: 0 to 1|cannot run the network on these"
            ):
                call()
    if backend.name == "pytorch":  # the others have moved them before the first gradient is reported

        def stop(name: str, gradient: Any) -> None:
            raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            run.inference_and_backprop(good, on_gradient=stop)
    run.inference(good)
    for name, value in run.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    for each in (run, other):
        each.inference_and_backprop(good)
    for name, value in arrays(run.buffers()).items():
        np.testing.assert_array_equal(value, arrays(other.buffers())[name])
        assert not np.array_equal(value, before[name])


@every
def test_frozen_parameters_and_buffers_have_no_gradients(backend: Backend) -> None:
    run = executor(backend, resnet(depth=8))
    feed = {"input": normal(2, 3, 32, 32), "label": np.arange(2)}
    run.inference_and_backprop(feed)
    assert run.gradients().keys() == set(run.network.parameter_specs)
    assert not run.gradients().keys() & run.buffers().keys()
    convolutions = executor(backend, lenet(classes=3))
    convolutions.inference_and_backprop({"input": normal(2, 1, 28, 28), "label": np.array([0, 2])})
    for name, value in convolutions.gradients().items():
        assert tuple(value.shape) == convolutions.network.parameter_specs[name].shape
