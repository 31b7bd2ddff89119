"""Rules that depend on shapes: products of matrices, sums over axes, slices; Muon, Adafactor and Shampoo."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import RuleError
from deep5.core.tensors import array_namespace
from deep5.training.chunked import run_phase
from deep5.training.eager import EagerRule
from deep5.training.rules.shampoo import inverse_root
from tests.support.optimizer_table import one_thread  # noqa: F401 - a fixture

SHAPES: dict[str, tuple[int, ...]] = {"a": (5, 4), "w": (3, 7), "b": (7,), "one": (1,), "d": (), "k": (3, 2, 2, 2)}
FRAMEWORKS = ("reference", "pytorch", "jax", "tensorflow", "onnxruntime", "openvino")
RULES: dict[str, Callable[[], d5.UpdateRule]] = {
    "muon": functools.partial(d5.Muon, lr=0.1, weight_decay=0.1),
    "muon, plain momentum": functools.partial(d5.Muon, lr=0.1, nesterov=False, match_rms=True),
    "adafactor": functools.partial(d5.Adafactor, lr=0.1),
    "shampoo": functools.partial(d5.Shampoo, lr=0.1),
    "shampoo, diagonal": functools.partial(d5.Shampoo, lr=0.1, largest=4),
}


class Everything(d5.UpdateRule):
    """Every function of shapes, with states of other shapes than the parameter's."""

    hyper = ("lr",)

    def __init__(self, lr: float = 0.05) -> None:
        self.lr = lr

    def init_state(self, param: Any) -> dict[str, Any]:
        xp = array_namespace(param)
        if param.ndim != 2:
            return {"count": xp.zeros((), dtype=param.dtype)}
        rows, columns = param.shape
        return {
            "gram": xp.eye(rows, dtype=param.dtype),
            "row": xp.zeros((rows,), dtype=param.dtype),
            "norm": xp.zeros((), dtype=param.dtype),
            "flat": xp.reshape(param, (-1,)),
            "pair": xp.zeros((2, rows, columns), dtype=param.dtype),
        }

    def update_rule(self, grad: Any, param: Any, state: Any) -> tuple[Any, Any]:
        xp = array_namespace(param)
        if param.ndim != 2:
            return param - self.lr * grad, {"count": state["count"] + 1}
        gram = 0.9 * state["gram"] + 0.1 * grad @ grad.T
        row = xp.max(xp.abs(grad), axis=1) + xp.min(grad, axis=1) + xp.mean(param, axis=1) + xp.sum(param, axis=1)
        norm = xp.linalg.matrix_norm(grad) + xp.linalg.trace(gram) + xp.max(param) + 0.1 * xp.linalg.vector_norm(row)
        flat = xp.reshape(xp.permute_dims(grad, (1, 0)), (-1,)) + state["flat"]
        pair = xp.stack([grad, xp.tril(param) + xp.triu(param, k=1)], axis=0)
        pair = 0.5 * pair + 0.5 * state["pair"]
        step = gram @ param / norm + xp.expand_dims(row, axis=1) * param[:, :1] + pair[0, ...] + pair[1, ...]
        step = step + xp.broadcast_to(row[:, None], param.shape) * xp.squeeze(param[0:1, :], axis=0)
        step = step + xp.linalg.outer(row, xp.std(param, axis=0)) + xp.matmul(row, param) + state["norm"]
        step = step + xp.reshape(xp.concat([flat[1:], flat[:1]], axis=0), param.shape) + xp.prod(grad, axis=-2)
        step = step + xp.tensordot(pair, xp.moveaxis(pair, 0, 1), axes=((0, 1), (1, 0)))[0, :] * 0.01
        step = step + xp.linalg.diagonal(gram)[0] + xp.linalg.vecdot(row, row) / (1 + norm)
        return param - 0.01 * self.lr * step, {"gram": gram, "row": row, "norm": norm, "flat": flat, "pair": pair}


RULES["everything"] = Everything


def draw(seed: int, shapes: Any = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.standard_normal(shape)) for name, shape in (shapes or SHAPES).items()}


def info(step: int) -> d5.StepInfo:
    return d5.StepInfo(step=step, batch_size=4)


def kernel_run(rule: d5.UpdateRule, steps: int = 6, dtype: str = "float64", shapes: Any = None) -> dict[str, Any]:
    live = {name: value.astype(dtype) for name, value in draw(0, shapes).items()}
    kernel = d5.bind_rule(rule, {name: d5.TensorSpec(shape=v.shape, dtype=dtype) for name, v in live.items()})
    kernel.attach(live)
    for step in range(steps):
        kernel.update({name: v.astype(dtype) for name, v in draw(step + 1, shapes).items()}, info(step))
    return {**{f"param/{name}": value for name, value in live.items()}, **kernel.state_dict()}


@pytest.mark.parametrize("library", ["numpy", "array_api_strict"])
@pytest.mark.parametrize("name", RULES)
def test_the_kernel_does_what_the_rule_does(name: str, library: str) -> None:
    xp = pytest.importorskip(library)
    eager = EagerRule(RULES[name](), {key: xp.asarray(value) for key, value in draw(0).items()})
    for step in range(6):
        eager.update({key: xp.asarray(value) for key, value in draw(step + 1).items()}, info(step))
    found = kernel_run(RULES[name]())
    want = {f"param/{key}": value for key, value in eager.parameters.items()}
    want |= {f"{state}/{key}": value for key, states in eager.states.items() for state, value in states.items()}
    assert found.keys() == want.keys()
    for key, value in want.items():
        # The same operations in float64; a sum in another order is off by some 1e-16.
        np.testing.assert_allclose(found[key], np.asarray(value), rtol=1e-11, atol=1e-13, err_msg=key)


@pytest.mark.parametrize("name", RULES)
def test_the_conformance_suite_accepts_it(name: str) -> None:
    d5.check_optimizer(RULES[name](), steps=6)


def trained(framework: str, rule: d5.UpdateRule, steps: int, *, images: bool = False, **options: Any) -> Any:
    """An executor after some steps, and its optimizer. Some back-ends keep weights of images in another order."""
    pytest.importorskip({"pytorch": "torch", "reference": "numpy"}.get(framework, framework))
    network = d5.networks.lenet() if images else d5.networks.mlp(features=6, hidden=5, classes=3)
    executor = d5.framework(framework).executor(network, seed=3)
    executor.load_state_dict(d5.framework("reference").executor(network, seed=3).state_dict())
    optimizer = d5.RuleOptimizer(rule, **options)
    optimizer.bind(executor)
    for step in range(steps):
        optimizer.step(batch(step, network), info(step))
    return executor, optimizer


def batch(step: int, network: d5.Network) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    spec = network.inputs["input"]
    return {
        "input": rng.standard_normal((4, *spec.shape[1:])).astype(spec.dtype),
        "label": rng.integers(0, 3, 4),
    }


@functools.cache
def by_reference(name: str, images: bool) -> tuple[dict[str, np.ndarray], set[str]]:
    executor, optimizer = trained("reference", RULES[name](), 3, images=images, clip_norm=1.0)
    return {key: np.array(value) for key, value in executor.state_dict().items()}, set(optimizer.state_dict())


@pytest.mark.parametrize("framework", FRAMEWORKS[1:])
@pytest.mark.parametrize(
    ("name", "images"), [*((name, False) for name in RULES), ("everything", True), ("muon", True), ("shampoo", True)]
)
def test_every_back_end_takes_the_same_steps(name: str, images: bool, framework: str) -> None:
    executor, optimizer = trained(framework, RULES[name](), 3, images=images, clip_norm=1.0)
    want, keys = by_reference(name, images)
    for key, value in executor.state_dict().items():
        # Three steps in float32 from gradients that are off by 1e-6, amplified by orthogonalization and by division by
        # small second moments; a wrong order of axes is off by as much as the step, more than 0.1.
        assert np.linalg.norm(value - want[key]) <= 1e-2 * (np.linalg.norm(want[key]) + 1e-2), key
    assert set(optimizer.state_dict()) == keys


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", ["muon", "adafactor", "shampoo", "everything"])
def test_a_resumed_run_ends_with_the_same_bits(name: str, framework: str) -> None:
    whole, optimizer = trained(framework, RULES[name](), 3, clip_norm=1.0)
    state, parameters = optimizer.state_dict(), {key: np.array(v) for key, v in whole.state_dict().items()}
    other, resumed = trained(framework, RULES[name](), 0, clip_norm=1.0)
    other.load_state_dict(parameters)
    resumed.load_state_dict(state)
    for step in (3, 4):
        for one in (optimizer, resumed):
            one.step(batch(step, whole.network), info(step))
    for key, value in whole.state_dict().items():
        np.testing.assert_array_equal(np.array(value), np.array(other.state_dict()[key]), err_msg=key)
    for key, value in optimizer.state_dict().items():
        if key != "hyper":
            np.testing.assert_array_equal(value, resumed.state_dict()[key], err_msg=key)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_groups_pipeline_and_schedules_apply(framework: str) -> None:
    bias = d5.ParameterGroup(lambda name: name.endswith("bias"), frozen=True)
    slow = d5.ParameterGroup(lambda name: name.startswith("fc1"), lr=0.0)
    _, optimizer = trained(framework, d5.Muon(lr=0.1), 0, groups=[bias, slow], weight_decay=None)
    executor = optimizer._executor
    assert executor is not None
    before = {key: np.array(value) for key, value in executor.state_dict().items()}
    optimizer.step(batch(0, executor.network), info(0))
    after = {key: np.array(value) for key, value in executor.state_dict().items()}
    for key, value in before.items():
        moved = not np.array_equal(value, after[key])
        assert moved == (not key.endswith("bias") and not key.startswith("fc1")), key
    optimizer.set_parameter("lr", 0.0)
    optimizer.step(batch(1, executor.network), info(1))
    for key, value in after.items():
        np.testing.assert_array_equal(np.array(executor.state_dict()[key]), value)


# Against what deep5 did not write.


def against(rule: d5.UpdateRule, native: Callable[[dict[str, Any]], Any], shapes: Any, steps: int = 20) -> float:
    """The largest relative distance after some steps in float64 from another implementation."""
    found = kernel_run(rule, steps, shapes=shapes)
    other = native(draw(0, shapes))
    for step in range(steps):
        other.step(draw(step + 1, shapes))
    start = draw(0, shapes)
    return max(
        float(np.linalg.norm(found[f"param/{name}"] - value) / np.linalg.norm(value - start[name]))
        for name, value in other.parameters().items()
    )


class TorchRun:
    def __init__(self, make: Callable[[list[Any]], Any], start: dict[str, Any]) -> None:
        torch = pytest.importorskip("torch")
        self.own = {name: torch.tensor(value) for name, value in start.items()}
        self.optimizer, self.torch = make(list(self.own.values())), torch

    def step(self, gradients: dict[str, Any]) -> None:
        for name, value in self.own.items():
            value.grad = self.torch.tensor(gradients[name])
        self.optimizer.step()

    def parameters(self) -> dict[str, Any]:
        return {name: value.numpy() for name, value in self.own.items()}


class OptaxRun:
    def __init__(self, transformation: Any, start: dict[str, Any]) -> None:
        jax = pytest.importorskip("jax")
        self.jax, self.transformation = jax, transformation
        with jax.enable_x64(True):
            self.own = {name: jax.numpy.asarray(value) for name, value in start.items()}
            self.state = transformation.init(self.own)

    def step(self, gradients: dict[str, Any]) -> None:
        with self.jax.enable_x64(True):
            given = {name: self.jax.numpy.asarray(value) for name, value in gradients.items()}
            updates, self.state = self.transformation.update(given, self.state, self.own)
            self.own = {name: value + updates[name] for name, value in self.own.items()}

    def parameters(self) -> dict[str, Any]:
        return {name: np.asarray(value) for name, value in self.own.items()}


MATRICES = {"tall": (9, 4), "wide": (4, 9), "square": (5, 5), "row": (1, 6)}


@pytest.mark.parametrize(("nesterov", "match_rms"), [(True, False), (False, True)])
def test_muon_is_torch_s_and_optax_s(nesterov: bool, match_rms: bool) -> None:
    torch = pytest.importorskip("torch")
    rule = functools.partial(d5.Muon, lr=0.02, weight_decay=0.1, nesterov=nesterov, match_rms=match_rms)

    def torch_run(start: dict[str, Any]) -> TorchRun:
        options = {"adjust_lr_fn": "match_rms_adamw" if match_rms else "original", "nesterov": nesterov}
        return TorchRun(lambda own: torch.optim.Muon(own, lr=0.02, weight_decay=0.1, **options), start)

    # torch's iteration is in bfloat16, whose 8 bits it amplifies; a wrong coefficient or scale is off by more than 0.1.
    assert against(rule(), torch_run, MATRICES) < 0.05
    if nesterov:
        return  # Optax corrects the two terms of Nesterov's momentum for bias separately, unlike the author and torch
    optax = pytest.importorskip("optax")
    native = optax.contrib.muon(learning_rate=0.02, weight_decay=0.1, nesterov=False, eps=1e-30, consistent_rms=0.2)
    # Optax's moment is (1 - beta) times ours and corrected for bias, which the norm removes; rounding remains.
    assert against(rule(), lambda start: OptaxRun(native, start), MATRICES) < 1e-6


def test_adafactor_is_torch_s() -> None:
    torch = pytest.importorskip("torch")
    shapes = {"matrix": (9, 4), "vector": (6,), "kernel": (3, 2, 4, 5)}
    run = functools.partial(TorchRun, lambda own: torch.optim.Adafactor(own, lr=0.02, eps=(1e-15, 1e-3)))
    # torch clamps by its first epsilon where the paper adds one; both are negligible here.
    assert against(d5.Adafactor(lr=0.02), run, shapes) < 1e-9
    assert against(d5.Adafactor(lr=0.021), run, shapes) > 1e-3


def test_adafactor_s_update_is_optax_s() -> None:
    optax = pytest.importorskip("optax")
    chain = optax.chain(
        optax.scale_by_factored_rms(
            min_dim_size_to_factor=1, decay_rate_fn=lambda step, rate: 1 - (step + 1.0) ** -rate
        ),
        optax.clip_by_block_rms(1.0),
        optax.scale(-0.01),
        optax.scale_by_param_block_rms(1e-3),
    )
    steps = 20  # 1 / sqrt(t) is above the rate
    assert (
        against(d5.Adafactor(lr=0.01), lambda start: OptaxRun(chain, start), {"matrix": (9, 4), "v": (6,)}, steps)
        < 1e-9
    )


class PaperShampoo:
    """Algorithms 1 and 2 of Gupta et al. 2018, with the eigenvalues of LAPACK."""

    def __init__(self, start: dict[str, Any], lr: float = 0.1, epsilon: float = 1e-4) -> None:
        self.own, self.lr = dict(start), lr
        self.h = {name: [epsilon * np.eye(size) for size in value.shape] for name, value in start.items()}

    def step(self, gradients: dict[str, Any]) -> None:
        for name, gradient in gradients.items():
            moved, rank = gradient, gradient.ndim
            for axis in range(rank):
                others = [other for other in range(rank) if other != axis]
                h = self.h[name][axis] = self.h[name][axis] + np.tensordot(gradient, gradient, axes=(others, others))
                values, vectors = np.linalg.eigh(h)
                root = vectors * values ** (-1 / (2 * rank)) @ vectors.T
                moved = np.moveaxis(np.tensordot(root, moved, axes=(1, axis)), 0, axis)
            self.own[name] = self.own[name] - self.lr * moved

    def parameters(self) -> dict[str, Any]:
        return self.own


def test_shampoo_is_the_paper_s() -> None:
    shapes = {"matrix": (9, 4), "vector": (6,), "kernel": (3, 2, 4)}
    # The condition numbers, up to 1e5, amplify rounding.
    assert against(d5.Shampoo(lr=0.1), PaperShampoo, shapes) < 1e-9
    assert against(d5.Shampoo(lr=0.1, iterations=8), PaperShampoo, shapes) > 1e-4


def test_diagonal_shampoo_of_a_vector_is_adagrad() -> None:
    found = kernel_run(d5.Shampoo(lr=0.1, epsilon=1e-4, largest=0), shapes={"v": (6,)})
    want = kernel_run(d5.AdaGrad(lr=0.1, epsilon=0.0, initial=1e-4), shapes={"v": (6,)})
    np.testing.assert_allclose(found["param/v"], want["param/v"], rtol=1e-12)


@pytest.mark.parametrize("p", [2, 4, 6, 8])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e8])
def test_the_inverse_root(p: int, condition: float) -> None:
    rng = np.random.default_rng(p)
    vectors = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    matrix = vectors * np.geomspace(1.0, condition, 6) @ vectors.T
    want = vectors * np.geomspace(1.0, condition, 6) ** (-1 / p) @ vectors.T
    # A relative error of 1e-16 in the matrix is one of condition * 1e-16 in the smallest eigenvalue.
    assert np.linalg.norm(inverse_root(matrix, p, 30) - want) <= 1e-11 + 1e-15 * condition


# Gradients at the limits of float32.


def fixed_gradient(framework: str, rule: d5.UpdateRule, shape: tuple[int, ...]) -> tuple[Any, Callable[..., None]]:
    """An executor whose parameter `w` has the input as its gradient, and a function that does a step."""
    pytest.importorskip({"pytorch": "torch", "reference": "numpy"}.get(framework, framework))
    builder = d5.NetworkBuilder("given", dtype="float32")
    given = builder.input("given", shape)
    product = builder.op("Mul", builder.parameter("w", shape, d5.networks.ones), given)
    executor = d5.framework(framework).executor(builder.network({"loss": builder.op("ReduceSum", product, keepdims=0)}))
    optimizer = d5.RuleOptimizer(rule)
    optimizer.bind(executor)
    return executor, lambda step, grad: optimizer.step({"given": grad}, info(step))


def exact_rank_one(scale: float) -> np.ndarray:
    """A matrix of rank 1 in float32, too: small integers times a power of two near `scale`."""
    left, right = np.arange(-3.0, 5.0), np.arange(-4.0, 4.0)
    return np.outer(left, right) * 2.0 ** np.round(np.log2(scale))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("scale", [10.0, 1e15])
def test_shampoo_of_rank_one_in_float32(framework: str, scale: float) -> None:
    """H has the eigenvalues ε and σ² + ε: the step is lr · G / √(σ² + ε), here within 1 %."""
    grad = exact_rank_one(scale)
    executor, step = fixed_gradient(framework, d5.Shampoo(lr=0.1), grad.shape)
    executor.load_state_dict({"w": np.zeros(grad.shape, "float32")})
    for number in range(3):
        step(number, grad.astype("float32"))
    squares = np.linalg.norm(grad) ** 2 * np.arange(1, 4) + 1e-4
    want = -0.1 * grad * np.sum(squares**-0.5)
    np.testing.assert_allclose(executor.state_dict()["w"], want, rtol=0, atol=0.01 * float(np.max(np.abs(want))))


@pytest.mark.parametrize(
    ("steps", "shape", "draw_one"),
    [
        (3, (64, 32), lambda rng, shape: 10 * np.outer(rng.standard_normal(shape[0]), rng.standard_normal(shape[1]))),
        (20, (8, 8), lambda rng, shape: 1e4 * rng.standard_normal(shape)),
        (300, (8, 8), lambda rng, shape: 10 * np.outer(np.arange(1, 9) / 7, np.arange(8) / 3)),
        (20, (3, 2, 4), lambda rng, shape: 1e3 * rng.standard_normal(shape)),
    ],
)
def test_shampoo_in_float32_is_that_of_an_eigendecomposition(steps: int, shape: Any, draw_one: Any) -> None:
    """Within 1 % of the distance covered: the eigenvalues of a rounded H below 1e-7 of its largest are lost."""
    rng, live = np.random.default_rng(0), {"w": np.zeros(shape, "float32")}
    kernel = d5.bind_rule(d5.Shampoo(lr=0.1), {"w": d5.TensorSpec(shape=shape, dtype="float32")})
    kernel.attach(live)
    paper = PaperShampoo({"w": np.zeros(shape)})
    for number in range(steps):
        grad = np.asarray(draw_one(rng, shape), "float32")
        kernel.update({"w": grad}, info(number))
        paper.step({"w": grad.astype("float64")})
    want = paper.parameters()["w"]
    assert np.linalg.norm(live["w"] - want) < 0.01 * np.linalg.norm(want)


def test_a_negative_eigenvalue_of_rounding_does_not_diverge() -> None:
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    values = np.array([1e4, 1.0, 1e-1, 1e-2, 1e-8, -1e-8])
    found = np.linalg.eigvalsh(vectors.T @ inverse_root(vectors * values @ vectors.T, 4, 30) @ vectors)
    np.testing.assert_allclose(sorted(found)[:4], values[:4] ** -0.25, rtol=0.01)
    assert np.all(found[4:] < 4 * 1e-8**-0.25)


@pytest.mark.parametrize("scale", [1e18, 1e30])
def test_muon_does_not_depend_on_the_gradient_s_scale(scale: float) -> None:
    def run(factor: float) -> np.ndarray:
        live = {"w": np.zeros((6, 4), "float32")}
        kernel = d5.bind_rule(d5.Muon(), {"w": d5.TensorSpec(shape=(6, 4), dtype="float32")})
        kernel.attach(live)
        kernel.update({"w": (factor * draw(0, {"w": (6, 4)})["w"]).astype("float32")}, info(0))
        return live["w"]

    np.testing.assert_allclose(run(scale), run(1.0), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["muon", "adafactor", "shampoo"])
@pytest.mark.parametrize("scale", [1.0, 1e15, 1e-20, 0.0])
def test_rules_of_matrices_stay_finite_in_float32(name: str, scale: float) -> None:
    live = {key: np.ones(shape, "float32") for key, shape in SHAPES.items()}
    kernel = d5.bind_rule(RULES[name](), {k: d5.TensorSpec(shape=v.shape, dtype="float32") for k, v in live.items()})
    kernel.attach(live)
    for number in range(3):
        kernel.update({key: (scale * value).astype("float32") for key, value in draw(number).items()}, info(number))
    assert all(np.isfinite(value).all() for value in live.values())


@pytest.mark.parametrize("name", RULES)
def test_an_empty_parameter_stays_empty(name: str) -> None:
    shapes = {"none": (0,), "no columns": (3, 0), "no rows": (0, 2, 2), "w": (3, 2)}
    live = {key: np.ones(shape) for key, shape in shapes.items()}
    kernel = d5.bind_rule(RULES[name](), {k: d5.TensorSpec(shape=s, dtype="float64") for k, s in shapes.items()})
    kernel.attach(live)
    for number in range(2):
        kernel.update(draw(number, shapes), info(number))
    assert {key: value.shape for key, value in live.items()} == shapes
    assert np.all(live["w"] != 1)
    kernel.load_state_dict(kernel.state_dict())


# The contract.


def updating(update: Any, init: Any = None) -> d5.UpdateRule:
    class Own(d5.UpdateRule):
        hyper = ("lr",)
        lr = 0.1

    Own.update_rule = lambda self, g, p, st: update(array_namespace(p), g, p, st)  # type: ignore[assignment,method-assign]
    if init is not None:
        Own.init_state = lambda self, p: init(array_namespace(p), p)  # type: ignore[assignment,method-assign]
    return Own()


REFUSED = {
    "another shape": (updating(lambda xp, g, p, st: (p @ p.T, st)), r"returned an array of shape \(2, 2\)"),
    "matrices that do not fit": (updating(lambda xp, g, p, st: (p @ p, st)), r"multiplied matrices of shapes"),
    "an axis": (updating(lambda xp, g, p, st: (p - xp.sum(p, axis=2), st)), "gave the axis 2 of an array of 2 dim"),
    "no broadcast": (updating(lambda xp, g, p, st: (p - xp.sum(p, axis=1), st)), r"xp.subtract of arrays of shapes"),
    "a reshape": (updating(lambda xp, g, p, st: (xp.reshape(p, (4, -1)), st)), r"reshaped an array of shape \(2, 3\)"),
    "an index": (updating(lambda xp, g, p, st: (p - p[5], st)), r"indexed an array of shape \(2, 3\) by 5"),
    "a mask": (updating(lambda xp, g, p, st: (p - p[p > 0], st)), "indexed an array by"),
    "a slice backwards": (updating(lambda xp, g, p, st: (p[::-1, :], st)), "indexed an array by"),
    "a permutation": (updating(lambda xp, g, p, st: (xp.permute_dims(p, (0,)), st)), "permuted the axes"),
    "a decomposition": (updating(lambda xp, g, p, st: (xp.linalg.svd(p)[0], st)), r"used xp.linalg.svd; allowed"),
    "a state that grows": (
        updating(
            lambda xp, g, p, st: (p, {"n": xp.concat([st["n"], st["n"]], axis=0)}), lambda xp, p: {"n": xp.zeros((2,))}
        ),
        r"made the state 'n' an array of shape \(4,\); init_state gave it \(2,\)",
    ),
    "a loop over values": (updating(lambda xp, g, p, st: (p if p[0, 0] > 0 else g, st)), "decided by the value"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    rule, message = REFUSED[name]
    with pytest.raises(RuleError, match=rf"(Own for a parameter of shape \(2, 3\): .*)?{message}"):
        d5.bind_rule(rule, {"w": d5.TensorSpec(shape=(2, 3), dtype="float64")})


def test_traces_of_matrices_are_compared_too() -> None:
    rng = np.random.default_rng(0)
    rule = updating(lambda xp, g, p, st: (p - float(rng.standard_normal()) * xp.sum(p, axis=0), st))
    with pytest.raises(RuleError, match="two traces of Own differ"):
        d5.bind_rule(rule, {"w": d5.TensorSpec(shape=(2, 3), dtype="float64")})


def test_an_attribute_of_a_rule_of_matrices_is_watched() -> None:
    rule, live = d5.Muon(), {"w": np.ones((2, 3)), "b": np.ones(3)}
    kernel = d5.bind_rule(rule, {name: d5.TensorSpec(shape=v.shape, dtype="float64") for name, v in live.items()})
    kernel.attach(live)
    rule.iterations = 3
    with pytest.raises(RuleError, match="'iterations' is 3 instead of 5"):
        kernel.update({"w": np.ones((2, 3)), "b": np.ones(3)}, info(0))


def test_sums_over_the_model_work_beside_matrices() -> None:
    class Clipped(d5.UpdateRule):
        hyper = ("lr",)
        scope = "model"
        lr = 0.1

        def sums(self, grad: Any, param: Any, state: Any) -> Any:
            return {"square": array_namespace(grad).sum(grad * grad)}

        def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
            xp = array_namespace(param)
            step = grad @ (grad.T @ grad) if param.ndim == 2 else grad
            return param - self.lr * step / xp.sqrt(self.square), state

        square: Any

    found, grads = kernel_run(Clipped(), 1), draw(1)
    norm = np.sqrt(sum(np.sum(grad**2) for grad in grads.values()))
    want = draw(0)["a"] - 0.1 * grads["a"] @ grads["a"].T @ grads["a"] / norm
    np.testing.assert_allclose(found["param/a"], want, rtol=1e-12)
    want = draw(0)["b"] - 0.1 * grads["b"] / norm
    np.testing.assert_allclose(found["param/b"], want, rtol=1e-12)


def test_intermediate_results_are_dropped_after_their_last_use() -> None:
    """Otherwise a rule of many products would hold all of them at once."""
    import tracemalloc

    from deep5.training.trace import trace_rule

    size = 256
    traced = trace_rule(d5.Muon(iterations=20), shape=(size, size))
    arrays = {name: np.ones((size, size)) for name in ("param", "grad", "state:momentum")}
    given = dict.fromkeys(traced.given, 0.5)
    tracemalloc.start()
    run_phase({"param": traced.param}, given, arrays, "float64")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * size * size * 8  # about 100 products
