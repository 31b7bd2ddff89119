"""Values combined at repeated indices are combined in order: ONNX Runtime's own kernel loses parallel updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, Unsupported
from deep5.networks import NetworkBuilder

ENGINE: Any = d5.framework("onnxruntime")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = ENGINE.threads
    ENGINE.set_threads(2)
    yield
    ENGINE.set_threads(before)


def scatter(shape: tuple[Any, ...], depth: int, reduction: str, dtype: str = "float32") -> d5.Network:
    build = NetworkBuilder("scatter")
    data, indices = build.input("data", shape, dtype), build.input("indices", ("K", depth), "int64")
    updates = build.input("updates", ("K", *shape[depth:]), dtype)
    return build.network({"y": build.op("ScatterND", data, indices, updates, reduction=reduction)})


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize(
    ("shape", "depth"), [((5,), 1), ((5, 3), 1), ((4, 3, 2), 2), ((2, 3, 2), 3), (("N", 3), 1), (("N", 3), 2)]
)
def test_it_gives_what_the_reference_gives(shape: tuple[Any, ...], depth: int, dtype: str, reduction: str) -> None:
    network, draw = scatter(shape, depth, reduction, dtype), np.random.default_rng(0)
    extents = tuple(4 if extent == "N" else extent for extent in shape)
    for count in (9, 1, 0):
        # Small integers: sums and products are exact in any order.
        given = {
            "data": draw.integers(-3, 4, extents).astype(dtype),
            "indices": np.stack([draw.integers(-n, n, count) for n in extents[:depth]], axis=-1),
            "updates": draw.integers(1, 3, (count, *extents[depth:])).astype(dtype),
        }
        ours, theirs = (d5.framework(n).executor(network).inference(given)["y"] for n in ("onnxruntime", "reference"))
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("outside", [3, -4])
def test_an_index_outside_is_refused(depth: int, outside: int) -> None:
    executor = ENGINE.executor(scatter((3, 3), depth, "add"))
    indices = np.zeros((1, depth), np.int64)
    indices[0, -1] = outside
    given = {"data": np.zeros((3, 3), np.float32), "updates": np.ones((1, *(3, 3)[depth:]), np.float32)}
    with pytest.raises(NetworkError, match="onnxruntime failed"):
        executor.inference({**given, "indices": indices})


def test_what_cannot_be_put_in_order_is_refused_by_name() -> None:
    build = NetworkBuilder("unknown")
    indices = build.input("indices", ("K", "depth"), "int64")
    network = build.network(
        {
            "y": build.op(
                "ScatterND",
                build.input("data", (3, 3)),
                indices,
                build.input("updates", ("K", 3)),
                reduction="add",
            )
        }
    )
    with pytest.raises(Unsupported, match=r"ScatterND_1 \(ScatterND\): .* in parallel, and loses some; allowed: "):
        ENGINE.executor(network)
    bodies = {}
    for name in ("then_branch", "else_branch"):
        inner = ir.node("ScatterND", [ir.Value(name=value) for value in "abc"], {"reduction": "add"})
        bodies[name] = ir.Graph([], inner.outputs, nodes=[inner], name=name)
    choice = ir.node("If", [ir.Value(name="bit")], bodies)
    assert "loses some" in ENGINE.supports(choice).reason


@pytest.mark.slow
def test_no_update_is_lost_with_two_threads(two_threads: None) -> None:
    """The gradient of a table's row is the number of its reads: ONNX Runtime's own ScatterND is wrong in 5 of 1000."""
    build = NetworkBuilder("counted")
    rows = build.op("Gather", build.parameter("table", (50, 64)), build.input("index", ("N",), "int64"))
    network = build.network({"loss": build.op("ReduceSum", rows, keepdims=0)})
    index = np.random.default_rng(0).integers(0, 50, 4096)
    want = np.repeat(np.bincount(index, minlength=50).astype(np.float32)[:, None], 64, axis=1)
    executor = ENGINE.executor(network)
    for _ in range(2000):
        executor.inference_and_backprop({"index": index})
        np.testing.assert_array_equal(executor.gradients()["table"], want)
