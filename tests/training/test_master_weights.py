"""Networks of float16 and bfloat16 train, with float32 master weights or in their own type, as plain torch does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import deep5 as d5
from deep5.core.errors import NetworkWarning, RuleError, ShapeError, Unsupported, UsageError
from deep5.core.tensors import numpy_dtype
from deep5.networks import ones, zeros
from deep5.networks.edit.builder import NetworkBuilder, glorot_uniform
from deep5.training.checkpoint_file import read_checkpoint, write_checkpoint
from deep5.training.optimizer import RuleOptimizer

FRAMEWORKS = ("reference", "pytorch", "tensorflow", "jax")
EVERYWHERE = (*FRAMEWORKS, pytest.param("tensorflow:xla", marks=pytest.mark.slow))
SHORT = ("float16", "bfloat16")
STEPS = 10


def layer(dtype: str, seed: int = 1) -> d5.Network:
    """y = x · w in a short type, and the mean of the squares of y in float32."""
    kind = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}[dtype]
    start = np.random.default_rng(seed).standard_normal((5, 4)).astype(numpy_dtype(dtype))
    weight = helper.make_tensor("w", kind, start.shape, start.tobytes(), raw=True)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Cast", ["y"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "wide"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "short",
        [helper.make_tensor_value_info("x", kind, ["N", 5])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.checker.check_model(model)
    return d5.Network.from_onnx(model)


def batch(dtype: str, step: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng([7, step]).standard_normal((3, 5)).astype(numpy_dtype(dtype))}


def info(step: int) -> d5.StepInfo:
    return d5.StepInfo(step=step, batch_size=3)


def bound(framework: str, dtype: str, rule: Any = None, **options: Any) -> tuple[Any, RuleOptimizer]:
    executor = d5.framework(framework).executor(layer(dtype))
    optimizer = RuleOptimizer(d5.Adam(lr=0.01) if rule is None else rule, **options)
    optimizer.bind(executor)
    return executor, optimizer


def number(array: Any) -> np.ndarray:
    return np.asarray(d5.to_numpy(array)).astype(np.float64)


def in_torch(dtype: str, make: Any, *, master: bool) -> tuple[np.ndarray, np.ndarray]:
    """The weight after `STEPS` steps of torch's own optimizer, and its master weight, which deep5 did not compute."""
    torch = pytest.importorskip("torch")
    short = getattr(torch, dtype)
    start = torch.from_numpy(number(layer(dtype).initial("w")).astype(np.float32))
    updated = start.clone().requires_grad_() if master else start.to(short).requires_grad_()
    optimizer = make(torch.optim, [updated])
    for step in range(STEPS):
        x = torch.from_numpy(number(batch(dtype, step)["x"]).astype(np.float32))
        weight = updated.detach().to(short).requires_grad_()
        y = (x @ weight.float()).to(short)
        y.float().square().mean().backward()
        updated.grad = weight.grad.to(updated.dtype)
        optimizer.step()
    last = updated.detach()
    return last.to(short).float().double().numpy(), last.double().numpy()


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("framework", EVERYWHERE)
def test_master_weights_are_the_default_and_follow_torch(framework: str, dtype: str) -> None:
    executor, optimizer = bound(framework, dtype)
    for step in range(STEPS):
        optimizer.step(batch(dtype, step), info(step))
    live, master = in_torch(dtype, lambda optim, given: optim.Adam(given, lr=0.01), master=True)
    state = optimizer.state_dict()
    assert state["master_weight/w"].dtype == np.float32
    # A gradient is rounded to the short type, whose last bit depends on the order of sums.
    np.testing.assert_allclose(state["master_weight/w"], master, atol=0.01 * STEPS * float(epsilon(dtype)))
    np.testing.assert_allclose(number(executor.parameters()["w"]), live, rtol=2 * epsilon(dtype), atol=1e-3)
    # The parameter is the master weight, rounded once.
    rounded = state["master_weight/w"].astype(numpy_dtype(dtype))
    assert np.asarray(d5.to_numpy(executor.parameters()["w"])).tobytes() == rounded.tobytes()
    assert optimizer.describe()["update_dtype"] == executor.settings()["update_dtype"] == "float32"
    assert executor.settings()["dtype"] == dtype


def epsilon(dtype: str) -> float:
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("framework", EVERYWHERE)
def test_the_own_arithmetic_follows_torch(framework: str, dtype: str) -> None:
    executor, optimizer = bound(framework, dtype, d5.Momentum(lr=0.125, momentum=0.5), master_weights=False)
    for step in range(STEPS):
        optimizer.step(batch(dtype, step), info(step))
    state = optimizer.state_dict()
    assert not any(key.startswith("master_weight") for key in state)
    assert {value.dtype for key, value in state.items() if "/" in key} == {numpy_dtype(dtype)}
    live, _ = in_torch(dtype, lambda optim, given: optim.SGD(given, lr=0.125, momentum=0.5), master=False)
    np.testing.assert_allclose(number(executor.parameters()["w"]), live, rtol=0.02, atol=8 * epsilon(dtype))
    assert optimizer.describe()["update_dtype"] == executor.settings()["update_dtype"] == dtype
    assert optimizer.describe()["master_weights"] is False


def test_an_epsilon_that_is_0_in_float16_is_reported() -> None:
    said = r"Adam computes in float16, where epsilon=1e-08 is 0.*remedy: epsilon=1e-4, or .*master_weights=True"
    with pytest.warns(NetworkWarning, match=said):
        bound("reference", "float16", d5.Adam(), master_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bound("reference", "float16", d5.Adam(epsilon=1e-4), master_weights=False)
        bound("reference", "bfloat16", d5.Adam(), master_weights=False)
        bound("reference", "float16", d5.Adam())


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("framework", EVERYWHERE)
def test_only_master_weights_keep_small_updates(framework: str, dtype: str) -> None:
    # lr is below half a unit in the last place of the weights: in their own type, no update changes them.
    tiny = 1e-5
    for chosen, moves in ((None, True), (True, True), (False, False)):
        executor, optimizer = bound(framework, dtype, d5.SGD(lr=tiny), master_weights=chosen)
        start = number(executor.parameters()["w"])
        large = np.abs(start) > 0.25
        for step in range(3):
            optimizer.step(batch(dtype, step), info(step))
        np.testing.assert_array_equal(number(executor.parameters()["w"])[large], start[large])
        if moves:
            master = optimizer.state_dict()["master_weight/w"]
            assert np.all(master != start.astype(np.float32))
        for step in range(3, 40):
            optimizer.set_parameter("lr", 300 * tiny)
            optimizer.step(batch(dtype, step), info(step))
        assert np.any(number(executor.parameters()["w"]) != start) or not moves


@pytest.mark.parametrize("options", [{}, {"master_weights": False}, {"loss_scale": "dynamic", "clip_norm": 0.5}])
@pytest.mark.parametrize("rule", ["adam", "accelegrad", "averaged_sgd"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_resumed_run_is_bit_identical(framework: str, rule: str, options: dict[str, Any], tmp_path: Path) -> None:
    rules = {
        "adam": lambda: d5.Adam(lr=0.01, epsilon=1e-3),
        "accelegrad": d5.AcceleGrad,
        "averaged_sgd": d5.AveragedSGD,
    }
    for dtype in SHORT:
        executor, optimizer = bound(framework, dtype, rules[rule](), **options)
        for step in range(3):
            optimizer.step(batch(dtype, step), info(step))
        file = tmp_path / f"{dtype}.safetensors"
        write_checkpoint(file, {"network": executor.state_dict(), "optimizer": optimizer.state_dict()}, {})
        other, resumed = bound(framework, dtype, rules[rule](), **options)
        tree, _ = read_checkpoint(file)
        resumed.load_state_dict(tree["optimizer"])
        other.load_state_dict(tree["network"])
        for step in range(3, 6):
            optimizer.step(batch(dtype, step), info(step))
            resumed.step(batch(dtype, step), info(step))
        assert resumed.state_dict()["hyper"] == optimizer.state_dict()["hyper"]
        for got, want in ((other, executor), (resumed.train_step, optimizer.train_step)):
            found, wanted = got.state_dict(), want.state_dict()
            assert found.keys() == wanted.keys()
            for name, value in wanted.items():
                assert np.asarray(found[name]).tobytes() == np.asarray(value).tobytes(), name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_loss_scale_composes_and_an_overflow_changes_nothing(framework: str) -> None:
    _, optimizer = bound(framework, "float16", loss_scale=256.0)
    _, twin = bound(framework, "float16")
    for step in range(4):
        optimizer.step(batch("float16", step), info(step))
        twin.step(batch("float16", step), info(step))
    # A power of two scales exactly, and no gradient of these is so small that it underflows.
    master = optimizer.state_dict()["master_weight/w"]
    np.testing.assert_allclose(master, twin.state_dict()["master_weight/w"], rtol=1e-4, atol=1e-4)
    executor, optimizer = bound(framework, "float16", loss_scale="dynamic")
    for step in range(4):
        optimizer.step(batch("float16", step), info(step))
    skipped = optimizer.skipped_steps  # the initial scale may be too large for gradients of float16
    before = {**executor.state_dict(), **{k: v for k, v in optimizer.state_dict().items() if "/" in k}}
    bad = batch("float16", 5)
    bad["x"][0, 0] = np.inf
    optimizer.step(bad, info(5))
    assert optimizer.skipped_steps == skipped + 1
    after = {**executor.state_dict(), **{k: v for k, v in optimizer.state_dict().items() if "/" in k}}
    assert all(before[key].tobytes() == after[key].tobytes() for key in before)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_written_parameter_takes_effect(framework: str) -> None:
    executor, optimizer = bound(framework, "float16", d5.SGD(lr=0.0))
    optimizer.step(batch("float16", 0), info(0))
    state = executor.state_dict()
    state["w"][1, 2] = 3.0
    executor.load_state_dict(state)
    optimizer.step(batch("float16", 1), info(1))
    assert number(executor.parameters()["w"])[1, 2] == 3.0
    assert optimizer.state_dict()["master_weight/w"][1, 2] == 3.0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_halves_and_modifiers_work_on_short_gradients(framework: str) -> None:
    def modifier(name: str, param: Any, grad: Any) -> Any:
        return grad * 1.0

    executor = d5.framework(framework).executor(layer("float16"))
    step = executor.train_step(d5.Adam(lr=0.01), modifier=modifier)
    step.backprop(batch("float16", 0), info(0))
    step.apply(executor.gradients(), info(0))
    twin, optimizer = bound(framework, "float16")
    optimizer.step(batch("float16", 0), info(0))
    np.testing.assert_allclose(number(executor.parameters()["w"]), number(twin.parameters()["w"]), atol=1e-3)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
def test_native_optimizers_train_short_networks(framework: str) -> None:
    found = d5.framework(framework)
    executor = found.executor(layer("float16"))
    optimizer = found.optimizer("adam")(lr=0.01, epsilon=1e-3)
    optimizer.bind(executor)
    start = number(executor.parameters()["w"])
    losses = [float(number(optimizer.step(batch("float16", 0), info(step))["loss"])) for step in range(5)]
    assert losses[-1] < losses[0]
    assert np.any(number(executor.parameters()["w"]) != start)


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_whole_networks_train(framework: str, dtype: str) -> None:
    """With dropout, whose masks have the network's type, and batch normalization."""
    build = NetworkBuilder("whole", dtype=dtype, seed=1)
    x, label = build.input("x", ("N", 5)), build.input("label", ("N",), "int64")
    h = build.op("Gemm", x, build.parameter("w", (5, 8), glorot_uniform), build.parameter("b", (8,), zeros))
    named = {"scale": ones, "shift": zeros, "mean": zeros, "variance": ones}
    h = build.op("BatchNormalization", h, *(build.parameter(name, (8,), made) for name, made in named.items()))
    h = build.op("Dropout", build.op("Relu", h), build.constant("ratio", np.float32(0.25)))
    h = build.op("Gemm", h, build.parameter("v", (8, 3), glorot_uniform))
    loss = build.op("SoftmaxCrossEntropyLoss", h, label, reduction="mean")
    executor = d5.framework(framework).executor(build.network({"loss": loss}))
    optimizer = RuleOptimizer(d5.Adam(lr=0.05), loss_scale=64.0)
    optimizer.bind(executor)
    inputs = {**batch(dtype, 0), "label": np.array([0, 1, 2])}
    losses = [float(number(optimizer.step(inputs, info(step))["loss"])) for step in range(20)]
    assert min(losses[-3:]) < 0.5 * losses[0], losses


@pytest.mark.parametrize("framework", ["onnxruntime", "openvino"])
def test_engines_without_the_type_refuse_by_name(framework: str) -> None:
    pytest.importorskip(framework)
    with pytest.raises(Unsupported, match=r"MatMul.*(FLOAT16|float16).*allowed: (FLOAT|float32).*remedy: .*precision"):
        d5.framework(framework).executor(layer("float16"))
    for dtype in SHORT:
        wide = d5.networks.with_precision(layer(dtype), "float32")
        assert {spec.dtype for spec in (*wide.parameter_specs.values(), *wide.inputs.values())} == {"float32"}
        inputs = {name: value.astype(np.float32) for name, value in batch(dtype, 0).items()}
        executor = d5.framework(framework).executor(wide)
        short = d5.framework("reference").executor(layer(dtype))
        got = float(number(executor.inference(inputs)["loss"]))
        np.testing.assert_allclose(
            got, float(number(short.inference(batch(dtype, 0))["loss"])), rtol=4 * epsilon(dtype)
        )
        step = executor.train_step(d5.Adam(lr=0.01))
        assert float(number([step(inputs, info(index)) for index in range(5)][-1]["loss"])) < got


def test_float32_networks_are_unchanged() -> None:
    network = d5.networks.mlp(features=4, hidden=3, classes=2)
    executor = d5.framework("reference").executor(network)
    optimizer = RuleOptimizer(d5.Adam(), master_weights=True)
    optimizer.bind(executor)
    assert not any(key.startswith("master") for key in optimizer.state_dict())
    assert "update_dtype" not in executor.settings()
    assert "update_dtype" not in optimizer.describe()


class Taken(d5.UpdateRule):
    hyper = ("lr",)

    def __init__(self) -> None:
        self.lr = 0.1

    def init_state(self, param: Any) -> dict[str, Any]:
        return {"master_weight": param * 0.0}

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        return param - self.lr * grad, state


def test_bad_input_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"master_weights: got 'float32'.*allowed: True .*; remedy: master_weights=True"
    ):
        RuleOptimizer(d5.Adam(), master_weights="float32")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"LBFGS cannot train parameters of float16; allowed: all float32"):
        d5.LBFGS().bind(d5.framework("reference").executor(layer("float16")))
    for framework in ("reference", "jax"):
        executor = d5.framework(framework).executor(layer("float16"))
        with pytest.raises(RuleError, match=r"Taken has a state 'master_weight'.*remedy: rename the state"):
            executor.train_step(Taken())
        step = executor.train_step(d5.SGD())
        with pytest.raises(ShapeError, match=r"missing or unknown entries: \['master_weight/w'\]"):
            step.load_state_dict({})
        wrong = {"master_weight/w": np.zeros((5, 4), np.float16)}
        with pytest.raises(ShapeError, match=r"'master_weight/w': got float16\(5, 4\), expected float32\(5, 4\)"):
            step.load_state_dict(wrong)
