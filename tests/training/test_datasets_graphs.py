"""Graphs have the stated edges, features and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deep5.core.errors import UsageError
from deep5.training.dataset import Splits
from deep5.training.datasets.graphs import block_model, karate_club


def samples(data: Splits) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    train, test = (part.batch(np.array([0])) for part in (data.train, data.test))  # type: ignore[union-attr]
    return {name: array[0] for name, array in train.items()}, {name: array[0] for name, array in test.items()}


@pytest.mark.parametrize("make", [karate_club, block_model])
def test_each_node_has_its_label_in_one_part(make: Any) -> None:
    data = make()
    train, test = samples(data)
    assert len(data.train) == len(data.test) == 1
    assert ((train["label"] >= 0) ^ (test["label"] >= 0)).all()
    assert set(np.concatenate([train["label"], test["label"]])) == {-1, *range(train["label"].max() + 1)}
    for name in ("input", "adjacency"):
        np.testing.assert_array_equal(train[name], test[name])
    adjacency = train["adjacency"]
    assert (adjacency == adjacency.T).all()
    assert set(np.unique(adjacency)) == {0, 1}
    assert not adjacency.diagonal().any()
    described = data.description
    assert described["graph"] == {"nodes": len(adjacency), "edges": int(adjacency.sum()) // 2}
    assert described["labeled_nodes"]["train"] == (train["label"] >= 0).sum()
    assert described["labeled_nodes"]["test"] == (test["label"] >= 0).sum()


def test_the_karate_club_has_the_published_friendships() -> None:
    """As networkx has them, which read another transcription."""
    networkx = pytest.importorskip("networkx", reason="networkx comes with torch")
    train, test = samples(karate_club())
    graph = networkx.karate_club_graph()
    expected = networkx.to_numpy_array(graph, nodelist=range(34), weight=None)
    np.testing.assert_array_equal(train["adjacency"], expected)
    assert train["adjacency"].sum() == 2 * 78
    # "Mr. Hi" is the instructor, "Officer" the president.
    clubs = np.array([int(graph.nodes[node]["club"] != "Mr. Hi") for node in range(34)])
    np.testing.assert_array_equal(np.maximum(train["label"], test["label"]), clubs)
    assert np.flatnonzero(train["label"] >= 0).tolist() == [0, 33]
    np.testing.assert_array_equal(train["input"], np.eye(34))


def test_edges_have_the_stated_probabilities() -> None:
    train, test = samples(block_model(nodes=600, blocks=3, inside=0.2, across=0.05))
    labels = np.maximum(train["label"], test["label"])
    assert labels.tolist() == [node % 3 for node in range(600)]
    rows, columns = np.triu_indices(600, 1)
    drawn, same = train["adjacency"][rows, columns], labels[rows] == labels[columns]
    for chosen, chance in ((same, 0.2), (~same, 0.05)):
        # Five standard errors of a share.
        assert abs(drawn[chosen].mean() - chance) < 5 * np.sqrt(chance * (1 - chance) / chosen.sum())


def test_features_are_noise_around_the_blocks_direction() -> None:
    train, test = samples(block_model(nodes=4000, blocks=2, inside=0.0, across=0.0, features=8, signal=3.0))
    labels = np.maximum(train["label"], test["label"])
    for block in (0, 1):
        own = train["input"][labels == block]
        # Of a mean of 2 000 draws the standard error is 0.022; the length of eight of them is below six of these.
        assert abs(np.linalg.norm(own.mean(axis=0)) - 3.0) < 6 * 0.022
        # Five standard errors of a standard deviation of 16 000 draws.
        assert abs((own - own.mean(axis=0)).std() - 1.0) < 5 / np.sqrt(2 * own.size)
    assert not train["adjacency"].any()


def test_the_block_model_is_a_function_of_its_seed() -> None:
    one, again, other = block_model(), block_model(), block_model(data_seed=1)
    assert one.train.content_hash() == again.train.content_hash() != other.train.content_hash()
    assert (samples(one)[0]["label"] >= 0).sum() == 4 * 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0}, "block_model with nodes = 0; allowed: an integer of at least 1"),
        ({"blocks": True}, "block_model with blocks = True; allowed: an integer"),
        ({"features": 1.5}, r"block_model with features = 1\.5; allowed: an integer"),
        ({"inside": 1.5}, r"block_model with inside = 1\.5; allowed: a number from 0 to 1"),
        ({"across": -0.1}, r"block_model with across = -0\.1; allowed: a number from 0 to 1"),
        ({"across": float("nan")}, "block_model with across = nan; allowed: a number from 0 to 1"),
        ({"signal": -1}, "block_model with signal = -1; allowed: a number of at least 0"),
        ({"signal": "1"}, "block_model with signal = '1'; allowed: a number of at least 0"),
        ({"nodes": 20, "known": 5}, "20 nodes in 4 blocks, of which 5 of each are known; allowed: at most 4; remedy"),
    ],
)
def test_bad_arguments_of_the_block_model(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        block_model(**arguments)
