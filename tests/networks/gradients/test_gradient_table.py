"""Gradient rules against PyTorch's, JAX's and TensorFlow's own gradients, in float64, on views of any layout.

A comparison covers the rules that were called for it, recorded as they are called; an operator's name in a table does
not count as covered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from deep5.frameworks.reference.framework import Reference
from deep5.networks import Network
from deep5.networks.gradients import build as differentiation
from deep5.networks.gradients import gradient_network
from deep5.networks.gradients.backward import Rule
from deep5.networks.gradients.rules import RULES
from gradient_cases import dot_network, run
from gradient_layers import LAYERS
from gradient_table import ELEMENTS, Row

TABLE = {**ELEMENTS, **LAYERS}

# Two float64 programs that add at most about a hundred terms of size 1, each in its own order, and functions that each
# library rounds differently in the last bits: together 1e-14, and a hundred times as much for other processors and
# libraries.
TOLERANCE = 1e-12


def values_of(row: Row) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [value if isinstance(value, np.ndarray) else rng.standard_normal(value) for value in row.given]


def seed_of(size: int) -> np.ndarray:
    """The seed of the backward pass: random, so that a wrong element anywhere shows."""
    return np.random.default_rng(6).standard_normal(size)


Functions = Sequence[tuple[Any, list[np.ndarray]]]


def pytorch_gradients(functions: Functions) -> list[list[np.ndarray]]:
    import torch

    results = []
    for function, values in functions:
        leaves = [torch.tensor(value, requires_grad=True) for value in values]
        y = function(torch, *leaves).reshape(-1)
        (y @ torch.tensor(seed_of(len(y)))).backward()
        results.append([leaf.grad.numpy() for leaf in leaves])
    return results


def jax_gradients(functions: Functions) -> list[list[np.ndarray]]:
    import jax

    def backward(function: Any, leaves: Any) -> Any:
        y, pullback = jax.vjp(lambda *leaves: function(jax, *leaves).reshape(-1), *leaves)
        return pullback(jax.numpy.asarray(seed_of(len(y))))

    def together(leaves: Any) -> Any:
        return [backward(function, own) for (function, _), own in zip(functions, leaves, strict=True)]

    with jax.enable_x64(True):
        # All rows of an operator in one program, not optimized: compiling dominates the time.
        compiled = jax.jit(together, compiler_options={"xla_backend_optimization_level": 0})
        found = compiled([values for _, values in functions])
        return [[np.asarray(gradient) for gradient in row] for row in found]


def tensorflow_gradients(functions: Functions) -> list[list[np.ndarray]]:
    import tensorflow as tf

    results = []
    for function, values in functions:
        leaves = [tf.constant(value) for value in values]
        with tf.GradientTape() as tape:
            for leaf in leaves:
                tape.watch(leaf)
            y = tf.reshape(function(tf, *leaves), [-1])
            loss = tf.reduce_sum(y * seed_of(len(y)))
        results.append([tf.convert_to_tensor(gradient).numpy() for gradient in tape.gradient(loss, leaves)])
    return results


AUTOGRAD: dict[str, Callable[[Functions], list[list[np.ndarray]]]] = {
    "pytorch": pytorch_gradients,
    "jax": jax_gradients,
    "tensorflow": tensorflow_gradients,
}


@functools.cache
def expected(framework: str, op: str) -> dict[int, list[np.ndarray]]:
    """The framework's gradients by row number, computed without deep5."""
    rows = {index: row for index, row in enumerate(TABLE[op]) if getattr(row, framework) is not None}
    found = AUTOGRAD[framework]([(getattr(row, framework), values_of(row)) for row in rows.values()])
    return dict(zip(rows, found, strict=True))


def transposed(value: np.ndarray) -> np.ndarray:
    """The same numbers with the first axis contiguous in memory."""
    return np.array(value, order="F")


def stepped(value: np.ndarray) -> np.ndarray:
    """Every second element of an array that holds NaN in between."""
    wide = np.full([2 * extent for extent in value.shape], np.nan)
    view = wide[(..., *[slice(None, None, 2)] * value.ndim)]
    view[...] = value
    return view


def backwards(value: np.ndarray) -> np.ndarray:
    """The same numbers, stored last one first: all strides negative."""
    return np.flip(np.flip(value).copy())


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "contiguous": np.array,
    "transposed": transposed,
    "stepped": stepped,
    "backwards": backwards,
}


@contextmanager
def noted(monkeypatch: pytest.MonkeyPatch, rules: Mapping[str, Rule]) -> Iterator[list[str]]:
    """Differentiate with these rules; yields the operators whose rules were called, in call order."""
    called: list[str] = []

    class Noted(dict[str, Rule]):
        def __getitem__(self, op: str) -> Rule:
            called.append(op)
            return super().__getitem__(op)

    with monkeypatch.context() as patch:
        patch.setattr(differentiation, "RULES", Noted(rules))
        yield called


def network_of(row: Row) -> tuple[Network, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The product of the row's function with the seed, its values by name, and the seed."""
    values = {f"v{i}": value for i, value in enumerate(values_of(row))}
    shapes = {name: value.shape for name, value in values.items()}
    network = dot_network(row.onnx, shapes, declared=shapes)
    flat = network.nodes[-1].inputs[0]
    assert flat is not None
    assert flat.shape is not None
    return network, values, {"seed": seed_of(flat.shape.numpy()[0])}


def own_gradients(
    row: Row, rules: Mapping[str, Rule], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], dict[str, list[np.ndarray]]]:
    """The rules that were called, and deep5's gradients by the layout of their inputs."""
    network, values, seed = network_of(row)
    with noted(monkeypatch, rules) as called:
        gradients = gradient_network(network, wrt=list(values))
    # The first two are the product with the seed, and the node that flattens the operator's result for it.
    assert called[:2] == ["MatMul", "Reshape"]
    executor = Reference().executor(gradients)
    results = {}
    for layout, laid in LAYOUTS.items():
        feeds = {name: laid(value) for name, value in {**values, **seed}.items()}
        found = executor.inference({**feeds, "loss_scale": np.array(1.0)})
        results[layout] = [np.array(found[f"grad:{name}"]) for name in values]
    return called[2:], results


def compare(
    op: str, framework: str, monkeypatch: pytest.MonkeyPatch, rules: Mapping[str, Rule] = RULES
) -> tuple[set[str], int]:
    """Compare the rule of one operator with a framework, over all rows and layouts.

    Returns:
        The operators whose rules were called in rows compared with this framework, and the number of these rows.
    """
    judged: set[str] = set()
    rows = expected(framework, op)
    for index, wanted in rows.items():
        called, results = own_gradients(TABLE[op][index], rules, monkeypatch)
        assert op in called, f"{op}, row {index}: called {called}"
        judged.update(called)
        for layout, gradients in results.items():
            for position, (got, want) in enumerate(zip(gradients, wanted, strict=True)):
                what = f"{op}, row {index}, input {position}, {layout}"
                assert (got.shape, got.dtype) == (want.shape, np.float64) == (want.shape, want.dtype), what
                np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE, err_msg=what)
    return judged, len(rows)


@pytest.mark.parametrize("framework", AUTOGRAD)
def test_every_rule_against_a_framework(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rule of the table is called and its gradients compared, for at least two shapes or settings."""
    judged: set[str] = set()
    for op in sorted(TABLE):
        called, rows = compare(op, framework, monkeypatch)
        assert rows >= 2, op
        judged |= called
    assert judged == set(TABLE)


def slopes(row: Row, step: float, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], float, float, float]:
    """The rules that were called; the loss's slope along a random direction by them and by differences; its size."""
    network, values, seed = network_of(row)
    called, results = own_gradients(row, RULES, monkeypatch)
    rng = np.random.default_rng(7)
    directions = {name: rng.standard_normal(value.shape) for name, value in values.items()}
    losses = [
        float(run(network, {**{name: values[name] + way * step * directions[name] for name in values}, **seed})["loss"])
        for way in (1, -1)
    ]
    parts = [grad * way for grad, way in zip(results["contiguous"], directions.values(), strict=True)]
    size = sum(float(np.abs(part).sum()) for part in parts)
    return called, sum(float(part.sum()) for part in parts), (losses[0] - losses[1]) / (2 * step), size + abs(losses[0])


def test_every_rule_against_central_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first two rows of each operator, which are away from kinks."""
    judged: set[str] = set()
    for op in sorted(TABLE):
        # truncation h^2 = 1e-10 and cancellation eps/h = 1e-11, times a third derivative of some tens; through float32
        # eps is 6e-8, and what is cast here is linear: a large step truncates nothing
        step, tolerance = (0.125, 1e-6) if op == "Cast" else (1e-5, 1e-8)
        for index, row in enumerate(TABLE[op][:2]):
            called, slope, difference, size = slopes(row, step, monkeypatch)
            assert abs(slope - difference) <= tolerance * size, f"{op}, row {index}"
            judged.update(called)
    assert judged == set(TABLE)


def off(rule: Rule, error: float) -> Rule:
    """The rule with all gradients slightly too large."""

    def wrong(b: Any, node: Any, grads: Any) -> Any:
        sent = rule(b, node, grads)
        pairs = zip(sent, node.inputs, strict=True)
        return [None if dx is None or x is None else b.scaled(dx, 1.0 + error, x) for dx, x in pairs]

    return wrong


@pytest.mark.parametrize("framework", AUTOGRAD)
@pytest.mark.parametrize("op", sorted(TABLE))
def test_a_wrong_rule_is_caught(framework: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong by one part in a million, which float32 would hardly show."""
    planted = {**RULES, op: off(RULES[op], 1e-6)}
    with pytest.raises(AssertionError, match=f"{op}, row 0, input 0, contiguous"):
        compare(op, framework, monkeypatch, planted)


def test_a_layout_that_is_misread_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel that ignores strides would compute from a transposed view."""
    monkeypatch.setitem(LAYOUTS, "transposed", lambda value: np.ravel(value, order="F").reshape(value.shape))
    with pytest.raises(AssertionError, match="Tanh, row 0, input 0, transposed"):
        compare("Tanh", "pytorch", monkeypatch)


def test_layouts_are_what_they_say() -> None:
    value = np.arange(24.0).reshape(2, 3, 4)
    strides = {name: laid(value).strides for name, laid in LAYOUTS.items()}
    assert strides == {
        "contiguous": (96, 32, 8),
        "transposed": (8, 16, 48),
        "stepped": (768, 128, 16),
        "backwards": (-96, -32, -8),
    }
    for laid in LAYOUTS.values():
        np.testing.assert_array_equal(laid(value), value)
