"""Shared by gradient tests: one operator as a network, its gradients compared with torch and central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from deep5.frameworks.reference.emit import compile_network
from deep5.frameworks.reference.kernels.memory import Scratch
from deep5.frameworks.reference.operators import supports
from deep5.networks import Network, NetworkBuilder
from deep5.networks.gradients import gradient_network
from deep5.networks.transforms.lowering import lowered

Build = Callable[..., Any]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def dot_network(
    op: Build,
    shapes: dict[str, tuple[int, ...]],
    *,
    declared: dict[str, Any] | None = None,
    initial: dict[str, np.ndarray] | None = None,
    dtype: str = "float64",
) -> Network:
    """`loss = sum(seed * op(parameters))`: with a random seed, a wrong element anywhere shows."""
    build = NetworkBuilder("case", dtype=dtype, seed=3)
    declared, initial = declared or {}, initial or {}

    def draw(name: str) -> Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]:
        return (lambda rng, shape: initial[name]) if name in initial else normal

    values = [
        build.input(name, declared[name]) if name in declared else build.parameter(name, shape, draw(name))
        for name, shape in shapes.items()
    ]
    flat = build.op("Reshape", op(build, *values), build.constant("flat", np.array([-1])))
    return build.network({"loss": build.op("MatMul", flat, build.input("seed", ("S",)))})


def run(network: Network, feeds: dict[str, np.ndarray], moved: dict[str, np.ndarray] | None = None) -> dict[str, Any]:
    """Run a network, expanded if necessary, by the reference's kernels; `moved` replaces initial values."""
    values = {name: network.initial(name) for name in (*network.parameter_specs, *network.buffer_specs)}
    network = lowered(network, supports)
    program = compile_network(network, {**values, **(moved or {})}, Scratch())
    results = program.run(*(feeds[name] for name in network.inputs), None)
    return dict(zip(network.outputs, map(np.asarray, results), strict=True))


def gradients_of(network: Network, feeds: dict[str, np.ndarray], wrt: list[str]) -> tuple[float, dict[str, np.ndarray]]:
    gradients = gradient_network(network, wrt=wrt)
    scale = np.array(1.0, gradients.inputs["loss_scale"].dtype)
    results = run(gradients, {**feeds, "loss_scale": scale})
    return float(results["loss"]), {name: results[f"grad:{name}"] for name in wrt}


def check_case(
    op: Build,
    expected: Callable[..., Any],
    shapes: dict[str, tuple[int, ...]],
    *,
    declared: dict[str, Any] | None = None,
    initial: dict[str, np.ndarray] | None = None,
    smooth: bool = True,
    tolerance: float = 1e-11,
) -> Network:
    """Compare gradients by all values with torch's and, where the operator is smooth, with central differences.

    Args:
        op: Takes the builder and the values, returns the result.
        expected: The same in torch.
        shapes: Shapes of the values, by name.
        declared: Shapes of those that are inputs, with symbolic dimensions; the others are parameters.
        initial: Values that are not random.
        smooth: Whether central differences are meaningful.
        tolerance: Tolerance of the comparison with torch; float64 sums of at most some thousand terms of size 1 stay
            far below the default.
    """
    network = dot_network(op, shapes, declared=declared, initial=initial)
    rng = np.random.default_rng(5)
    fed = {name: (initial or {}).get(name, rng.standard_normal(shapes[name])) for name in declared or {}}
    values = {name: fed[name] if name in fed else network.initial(name) for name in shapes}
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    result = expected(*leaves.values())
    seed = rng.standard_normal(result.numel())
    (result.reshape(-1) @ torch.tensor(seed)).backward()

    before = network.structure_hash(), network.weights_hash(), network.to_onnx().SerializeToString()
    loss, gradients = gradients_of(network, {**fed, "seed": seed}, list(shapes))
    assert (network.structure_hash(), network.weights_hash(), network.to_onnx().SerializeToString()) == before
    for name, leaf in leaves.items():
        assert gradients[name].shape == shapes[name]
        np.testing.assert_allclose(gradients[name], leaf.grad.numpy(), rtol=tolerance, atol=tolerance, err_msg=name)

    if smooth:
        step, direction = 1e-5, {name: rng.standard_normal(shape) for name, shape in shapes.items()}
        losses = []
        for sign in (1, -1):
            near = {name: values[name] + sign * step * direction[name] for name in shapes}
            losses.append(float(run(network, {**near, "seed": seed}, near)["loss"]))
        slope = sum(float((gradients[name] * direction[name]).sum()) for name in shapes)
        scale = sum(float(np.abs(gradients[name] * direction[name]).sum()) for name in shapes) + abs(loss)
        # truncation h^2 = 1e-10 and cancellation eps/h = 1e-11, times a third derivative of some tens
        assert abs((losses[0] - losses[1]) / (2 * step) - slope) <= 1e-8 * scale
    return network
