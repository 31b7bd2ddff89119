"""Attention written out in nodes: one call of torch where that is the same function, else node by node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.networks.edit.builder import NetworkBuilder, ones
from deep5.networks.network import Network

torch = pytest.importorskip("torch")

HEADS, QUERIES, KEYS, SIZE = 2, 5, 5, 4
LOWEST = float(np.finfo(np.float32).min)
CAUSAL = np.tril(np.ones((QUERIES, KEYS), bool))
BANDED = CAUSAL & ~np.tril(np.ones((QUERIES, KEYS), bool), -2)
EMPTY_ROW = CAUSAL.copy()
EMPTY_ROW[2] = False

Between = Callable[[NetworkBuilder, Any], Any]


def attention(between: Between, *, apart: bool = False, keys: int = KEYS, dtype: str = "float64") -> Network:
    """softmax(between(q k^T)) v of three inputs; `apart`: with a factor of 1 that keeps the nodes apart."""
    build = NetworkBuilder("attention", dtype=dtype, seed=3)
    q = build.input("q", ("N", HEADS, QUERIES, SIZE), dtype)
    k = build.input("k", ("N", HEADS, keys, SIZE), dtype)
    v = build.op("Mul", build.input("v", ("N", HEADS, keys, SIZE), dtype), build.parameter("w", (SIZE,), ones))
    scores = between(build, build.op("MatMul", q, build.op("Transpose", k, perm=[0, 1, 3, 2])))
    weights = build.op("Softmax", scores, axis=-1)
    if apart:
        weights = build.op("Mul", weights, build.scalar(1.0))
    y = build.op("MatMul", weights, v)
    return build.network({"y": y, "loss": build.op("ReduceMean", build.op("Mul", y, y), keepdims=0)})


def added(mask: np.ndarray) -> Between:
    return lambda build, s: build.op("Add", s, build.op("Constant", value=ir.tensor(mask.astype("float64"))))


def selected(seen: np.ndarray, fill: float = -1e9) -> Between:
    return lambda build, s: build.op("Where", build.constant("seen", seen), s, build.scalar(fill))


def hidden(masked: np.ndarray, fill: float = -1e9) -> Between:
    return lambda build, s: build.op("Where", build.constant("masked", masked), build.scalar(fill), s)


def fed_condition(build: NetworkBuilder, scores: Any) -> Any:
    seen = build.op("Cast", build.input("tokens", ("N", 1, 1, KEYS), "int64"), to=9)
    return build.op("Where", seen, scores, build.scalar(-1e9))


def fed_addition(build: NetworkBuilder, scores: Any) -> Any:
    """As BERT masks its padding."""
    tokens = build.op("Cast", build.input("tokens", ("N", 1, 1, KEYS), "int64"), to=11)
    lack = build.op("Sub", build.scalar(1.0), tokens)
    return build.op("Add", build.op("Mul", lack, build.scalar(LOWEST)), scores)


def fed_numbers(build: NetworkBuilder, scores: Any) -> Any:
    return build.op("Add", scores, build.input("mask", ("N", 1, 1, KEYS), "float64"))


def trained(build: NetworkBuilder, scores: Any) -> Any:
    return build.op("Add", scores, build.parameter("bias", (HEADS, QUERIES, KEYS)))


def infinite(seen: np.ndarray) -> np.ndarray:
    return np.where(seen, 0.0, -np.inf)


def scaled(factor: float, op_type: str = "Mul") -> Between:
    return lambda build, s: build.op(op_type, s, build.scalar(factor))


def divided_and_masked(build: NetworkBuilder, scores: Any) -> Any:
    return added(infinite(BANDED))(build, build.op("Div", scores, build.scalar(2.0)))


def masked_and_divided(build: NetworkBuilder, scores: Any) -> Any:
    return build.op("Div", added(np.where(CAUSAL, 0.0, -3.0))(build, scores), build.scalar(2.0))


FUSED = {
    "scaled": scaled(0.3),
    "divided": scaled(2.0, "Div"),
    "causal, added": added(infinite(CAUSAL)),
    "causal, selected": selected(CAUSAL),
    "causal, hidden": hidden(~CAUSAL, LOWEST),
    "banded, added": added(infinite(BANDED)),
    "banded, selected": selected(BANDED),
    "divided and masked": divided_and_masked,
    "finite numbers": added(np.linspace(-4, 4, KEYS)),
    "large numbers": added(np.where(CAUSAL, 0.0, -1e9)),
    "one row for all queries": selected(np.array([[[True, True, False, True, False]]])),
    "a fed condition": fed_condition,
    "a fed mask of integers": fed_addition,
    "fed numbers": fed_numbers,
}
APART = {
    "a negative factor": scaled(-0.3),
    "factor after the mask": masked_and_divided,
    "a query without keys, added": added(infinite(EMPTY_ROW)),
    "a query without keys, selected": selected(EMPTY_ROW),
    "a fill that weights might see": selected(CAUSAL, -30.0),
    "a row of large numbers": added(np.where(EMPTY_ROW, 0.0, -1e9)),
    "trained": trained,
}


def feed_of(network: Network, batch: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    feed: dict[str, np.ndarray] = {}
    for name, spec in network.inputs.items():
        shape = (batch, *(int(size) for size in spec.shape[1:]))
        if name == "tokens":
            feed[name] = rng.integers(0, 2, shape)
            feed[name][1] = 0  # all padding
        else:
            feed[name] = rng.standard_normal(shape).astype(spec.dtype)
    if "mask" in feed:
        feed["mask"][0, ..., 1] = -np.inf
    return feed


def source_of(network: Network) -> str:
    source: str = d5.framework("pytorch").executor(network).source
    return source


@pytest.mark.parametrize("name", [*FUSED, *APART])
def test_the_function_is_that_of_the_nodes(name: str) -> None:
    network = attention({**FUSED, **APART}[name])
    assert ("softmax" not in source_of(network)) == (name in FUSED)
    assert "softmax" in source_of(attention({**FUSED, **APART}[name], apart=True))
    feed = feed_of(network)
    with np.errstate(invalid="ignore"):  # a query without keys
        want = ReferenceEvaluator(network.to_onnx()).run(None, feed)
    run = d5.framework("pytorch").executor(network)
    got = run.inference_and_backprop(feed, wrt=["q", "k", "v"])
    for value, right in zip(got.values(), want, strict=True):
        # Sums of at most ten float64 products and an exponential, in another order.
        np.testing.assert_allclose(value.numpy(), right, rtol=1e-12, atol=1e-14)
    reference = d5.framework("reference").executor(network)
    reference.inference_and_backprop(feed, wrt=["q", "k", "v"])
    for key, value in reference.gradients().items():
        np.testing.assert_allclose(run.gradients()[key].numpy(), value, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", FUSED)
def test_the_networks_are_equivalent_on_torch(name: str) -> None:
    d5.check_equivalence(
        attention(FUSED[name]),
        attention(FUSED[name], apart=True),
        framework="pytorch",
        feeds=[feed_of(attention(FUSED[name]), batch) for batch in (2, 5)],
        loss="loss",
    )


def test_a_query_whose_fed_mask_is_infinite_is_not_a_number() -> None:
    network = attention(fed_numbers)
    feed = feed_of(network)
    feed["mask"][1] = -np.inf
    y = d5.framework("pytorch").executor(network).inference(feed)["y"].numpy()
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


def test_causality_needs_as_many_keys_as_queries() -> None:
    seen = np.tril(np.ones((QUERIES, KEYS + 2), bool))
    network = attention(selected(seen), keys=KEYS + 2)
    source = source_of(network)
    assert "softmax" not in source
    assert "is_causal" not in source
    assert "is_causal=True" in source_of(attention(selected(CAUSAL)))


def test_dropped_weights_are_computed_node_by_node() -> None:
    network = d5.networks.gpt(vocabulary=11, length=6, width=8, heads=2, layers=1, dropout=0.3, dtype="float64")
    rng = np.random.default_rng(1)
    feed = {"input": rng.integers(0, 11, (2, 6)), "label": rng.integers(0, 11, (2, 6))}
    ours, reference = (d5.framework(name).executor(network) for name in ("pytorch", "reference"))
    for run in (ours, reference):
        run.inference_and_backprop(feed, info=d5.StepInfo(step=2, seed=4))
    for name, value in ours.gradients().items():
        # The same random numbers, so the same gradients, up to the rounding of sums of some dozen float64 products.
        np.testing.assert_allclose(value.numpy(), reference.gradients()[name], rtol=1e-9, atol=1e-12)
    assert "is_causal=True" in ours.source  # evaluation drops nothing
