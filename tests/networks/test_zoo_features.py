"""Networks of features that are no images or sequences compute what their papers say, in NumPy and in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.networks import Network, autoencoder, dlrm, gcn

DRAW = np.random.default_rng(0)
# float64, some hundred operations on numbers of about one.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def by_onnx(network: Network, feed: dict[str, Any]) -> dict[str, np.ndarray]:
    """The outputs by ONNX's own reference in float64; ONNX Runtime in float32 agrees."""
    proto = network.to_onnx()
    onnx.checker.check_model(proto, full_check=True)
    names = list(network.outputs)
    return dict(zip(names, ReferenceEvaluator(proto).run(names, feed), strict=True))


def runtimes_agree(single: Network, double: Network, feed: dict[str, Any]) -> None:
    """ONNX Runtime in float32 gives what ONNX's reference gives in float64, from the same initial weights."""
    names = list(single.outputs)
    session = onnxruntime.InferenceSession(single.to_onnx().SerializeToString())
    cast = {name: value.astype(np.float32) if value.dtype == np.float64 else value for name, value in feed.items()}
    expected = by_onnx(double, feed)
    for name, found in zip(names, session.run(names, cast), strict=True):
        # float32, some ten operations in a row on numbers of about one.
        np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-5)


def dense(network: Network, x: np.ndarray, name: str) -> np.ndarray:
    return x @ network.initial(f"{name}.weight").T + network.initial(f"{name}.bias")


# The recommendation model

SMALL: dict[str, Any] = {"numeric": 3, "tables": (6, 4), "width": 2, "bottom": (5,), "top": (4,), "seed": 1}


def click_batch(size: int = 7) -> dict[str, Any]:
    return {
        "numeric": DRAW.standard_normal((size, 3)),
        "categories": np.stack([DRAW.integers(0, 6, size), DRAW.integers(0, 4, size)], axis=1),
        "label": DRAW.integers(0, 2, size),
    }


def test_dlrm_is_the_papers() -> None:
    network, feed = dlrm(**SMALL, dtype="float64"), click_batch()
    x = np.maximum(dense(network, np.maximum(dense(network, feed["numeric"], "bottom0"), 0), "bottom1"), 0)
    user, item = (network.initial(f"embedding{index}")[feed["categories"][:, index]] for index in (0, 1))
    pairs = [(user * x).sum(axis=1), (item * x).sum(axis=1), (item * user).sum(axis=1)]
    z = np.concatenate([x, np.stack(pairs, axis=1)], axis=1)
    odds = dense(network, np.maximum(dense(network, z, "top0"), 0), "top1")[:, 0]
    found = by_onnx(network, feed)
    np.testing.assert_allclose(found["logits"], odds, **CLOSE)
    chance = 1 / (1 + np.exp(-odds))
    loss = -np.mean(np.where(feed["label"] == 1, np.log(chance), np.log(1 - chance)))
    np.testing.assert_allclose(found["loss"], loss, **CLOSE)


def test_dlrm_in_both_types() -> None:
    runtimes_agree(dlrm(**SMALL), dlrm(**SMALL, dtype="float64"), click_batch())


def test_dlrm_is_certain_without_overflow() -> None:
    executor = d5.framework("reference").executor(dlrm(**SMALL))
    executor.load_state_dict(executor.state_dict() | {"top1.bias": np.array([1e4], np.float32)})
    feed = click_batch(2) | {"label": np.array([1, 0])}
    feed["numeric"] = feed["numeric"].astype(np.float32)
    # The mean of 0 and about 10 000.
    assert float(d5.to_numpy(executor.inference(feed)["loss"])) == pytest.approx(5000, rel=1e-2)


def test_initial_embeddings_of_dlrm() -> None:
    network = dlrm(tables=(2500, 16))
    for index, bound in ((0, 0.02), (1, 0.25)):
        table = network.initial(f"embedding{index}")
        # Uniform: the largest of at least 256 draws is within 5 % of the bound, except with a probability of 2e-6.
        assert 0.95 * bound < np.abs(table).max() <= bound
    assert network.structure_hash() == dlrm(tables=(2500, 16), seed=1).structure_hash()
    assert network.weights_hash() != dlrm(tables=(2500, 16), seed=1).weights_hash()


def test_a_value_that_a_table_does_not_have() -> None:
    feed = click_batch(2) | {"categories": np.array([[0, 4], [1, 1]])}
    feed["numeric"] = feed["numeric"].astype(np.float32)
    with pytest.raises(d5.Deep5Error, match="4"):
        d5.framework("reference").executor(dlrm(**SMALL)).inference(feed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tables": ()}, r"got tables = \(\); allowed: the number of values of at least one"),
        ({"tables": 5}, "got tables = 5; allowed: a sequence of sizes"),
        ({"tables": (5, 0)}, r"got tables\[1\] = 0; allowed: an integer of at least 1"),
        ({"top": (True,)}, r"got top\[0\] = True; allowed: an integer"),
        ({"bottom": "64"}, r"got bottom\[0\] = '6'; allowed: an integer"),
        ({"width": 0}, "got width = 0; allowed: an integer of at least 1"),
        ({"dtype": "float16"}, "unknown dtype 'float16'"),
    ],
)
def test_bad_arguments_of_dlrm(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dlrm(**arguments)


def test_dlrm_without_hidden_layers() -> None:
    network = dlrm(numeric=2, tables=(3,), width=2, bottom=(), top=())
    assert [name for name in network.parameter_specs if name.endswith("weight")] == ["bottom0.weight", "top0.weight"]


# The graph convolutional network


def graph_batch(size: int = 2, nodes: int = 6) -> dict[str, Any]:
    edges = np.triu(DRAW.random((size, nodes, nodes)) < 0.4, 1)
    label = DRAW.integers(0, 3, (size, nodes))
    label[:, 1] = -1  # a node without a label
    adjacency = (edges | edges.transpose(0, 2, 1)).astype(np.float64)
    return {"input": DRAW.standard_normal((size, nodes, 4)), "adjacency": adjacency, "label": label}


GRAPH: dict[str, Any] = {"nodes": 6, "features": 4, "hidden": 5, "classes": 3, "dropout": 0.0, "seed": 1}


def test_gcn_is_the_papers() -> None:
    """Kipf and Welling, equation 9, with the matrices written out."""
    network, feed = gcn(**GRAPH, dtype="float64"), graph_batch()
    logits = []
    for x, adjacency in zip(feed["input"], feed["adjacency"], strict=True):
        looped = adjacency + np.eye(6)
        root = np.diag(looped.sum(axis=1) ** -0.5)
        normalized = root @ looped @ root
        hidden = np.maximum(normalized @ x @ network.initial("layer0.weight"), 0)
        logits.append(normalized @ hidden @ network.initial("layer1.weight"))
    found = by_onnx(network, feed)
    np.testing.assert_allclose(found["logits"], logits, **CLOSE)
    chance = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    known = feed["label"] >= 0
    losses = -np.log(np.take_along_axis(chance[known], feed["label"][known][:, None], axis=-1))
    np.testing.assert_allclose(found["loss"], losses.mean(), **CLOSE)


def test_gcn_in_both_types() -> None:
    runtimes_agree(gcn(**GRAPH), gcn(**GRAPH, dtype="float64"), graph_batch())


def test_gcn_drops_features_of_both_layers() -> None:
    kinds = [node.op_type for node in gcn(**GRAPH | {"dropout": 0.5}).nodes]
    assert kinds.count("Dropout") == 2
    # Cora: 1433 features, 16 hidden, 7 classes (section 5.2 and table 1).
    assert sum(spec.size for spec in gcn().parameter_specs.values()) == 1433 * 16 + 16 * 7


def test_nodes_without_a_label_have_no_gradient_and_do_not_count() -> None:
    executor = d5.framework("reference").executor(gcn(**GRAPH, dtype="float64"))
    feed = graph_batch(1)
    feed["adjacency"][:] = 0  # so that a node's logits depend on its own features only
    executor.inference_and_backprop(feed, wrt=["input"])
    gradient = d5.to_numpy(executor.gradients()["input"])
    assert (gradient[0, 1] == 0).all()
    assert (np.abs(gradient[0, [0, 2]]).sum(axis=1) > 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0}, "got nodes = 0; allowed: an integer of at least 1"),
        ({"hidden": True}, "got hidden = True; allowed: an integer"),
        ({"dropout": 1.0}, r"got dropout = 1\.0; allowed: a number from 0"),
        ({"dtype": "float16"}, "unknown dtype 'float16'"),
    ],
)
def test_bad_arguments_of_gcn(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gcn(**arguments)


# The autoencoder

CODE: dict[str, Any] = {"image": 3, "channels": 2, "hidden": (7, 5), "bottleneck": 2, "seed": 1}


def test_autoencoder_is_the_layers_in_turn() -> None:
    network = autoencoder(**CODE, dtype="float64")
    x = DRAW.standard_normal((4, 2, 3, 3))
    found, y = by_onnx(network, {"input": x}), x.reshape(4, 18)
    for part in ("encoder", "decoder"):
        for index in range(3):
            y = dense(network, y, f"{part}{index}")
            y = np.maximum(y, 0) if index < 2 else y
        assert y.shape == (4, 2 if part == "encoder" else 18)
    np.testing.assert_allclose(found["reconstruction"], y.reshape(x.shape), **CLOSE)
    np.testing.assert_allclose(found["loss"], np.square(y - x.reshape(4, 18)).mean(), **CLOSE)


def test_autoencoder_in_both_types() -> None:
    runtimes_agree(autoencoder(**CODE), autoencoder(**CODE, dtype="float64"), {"input": DRAW.random((4, 2, 3, 3))})


def test_autoencoder_has_the_sizes_of_the_paper() -> None:
    weights = [spec.shape for name, spec in autoencoder().parameter_specs.items() if name.endswith("weight")]
    encoder = [(1000, 784), (500, 1000), (250, 500), (30, 250)]
    assert weights == [*encoder, *((into, out) for out, into in reversed(encoder))]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden": 64}, "got hidden = 64; allowed: a sequence of sizes"),
        ({"hidden": (64, 0)}, r"got hidden\[1\] = 0; allowed: an integer of at least 1"),
        ({"bottleneck": 0}, "got bottleneck = 0; allowed: an integer"),
        ({"image": "8"}, "got image = '8'; allowed: an integer"),
        ({"dtype": "float16"}, "unknown dtype 'float16'"),
    ],
)
def test_bad_arguments_of_the_autoencoder(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        autoencoder(**arguments)
