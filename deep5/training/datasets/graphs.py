"""Graphs whose nodes are classified: a stochastic block model by a stated rule, and Zachary's karate club."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from deep5.core.errors import UsageError
from deep5.core.seeds import generator
from deep5.training.dataset import ArrayDataset, Splits

__all__ = ["block_model", "karate_club"]

# A node that the loss and the accuracy leave out.
_IGNORED = -1

# Zachary, An information flow model for conflict and fission in small groups, Journal of Anthropological Research 33,
# 1977, figure 1: pairs of members, counted from 1, who met outside of the club.
_FRIENDS = {
    1: (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 18, 20, 22, 32),
    2: (3, 4, 8, 14, 18, 20, 22, 31),
    3: (4, 8, 9, 10, 14, 28, 29, 33),
    4: (8, 13, 14),
    5: (7, 11),
    6: (7, 11, 17),
    7: (17,),
    9: (31, 33, 34),
    10: (34,),
    14: (34,),
    15: (33, 34),
    16: (33, 34),
    19: (33, 34),
    20: (34,),
    21: (33, 34),
    23: (33, 34),
    24: (26, 28, 30, 33, 34),
    25: (26, 28, 32),
    26: (32,),
    27: (30, 34),
    28: (34,),
    29: (32, 34),
    30: (33, 34),
    31: (33, 34),
    32: (33, 34),
    33: (34,),
}
# The members that joined the instructor's club; the others stayed with the club's president.
_INSTRUCTORS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 17, 18, 20, 22)


def karate_club() -> Splits:
    """The 34 members of a karate club with their 78 friendships, and which of two clubs each joined after a conflict.

    The graph is one sample. Its features are one-hot: they identify a member and say nothing about it. The training
    sample has the classes of the instructor (member 1) and the president (member 34); the test sample has those of the
    32 others.

    Returns:
        One sample each for training and test: `input` float32 (34, 34), `adjacency` float32 (34, 34), 1 for a
        friendship, symmetric, and `label` int64 (34,): 0 for the instructor's club, 1 for the president's, and -1 for
        the nodes of the other part.

    References:
        Zachary, An information flow model for conflict and fission in small groups, Journal of Anthropological Research
        33(4), 1977. The facts of the publication, written down here as data.

    >>> import deep5 as d5
    >>> data = d5.datasets.karate_club()
    >>> sample = data.train.batch([0])
    >>> int(sample["adjacency"].sum()) // 2, sample["label"][0, [0, 1, 33]].tolist()
    (78, [0, -1, 1])
    """
    size = 34
    adjacency = np.zeros((size, size), np.float32)
    for member, friends in _FRIENDS.items():
        for friend in friends:
            adjacency[member - 1, friend - 1] = adjacency[friend - 1, member - 1] = 1
    labels = np.ones(size, np.int64)
    labels[np.array(_INSTRUCTORS) - 1] = 0
    training = np.isin(np.arange(size), (0, size - 1))
    return _splits(
        np.eye(size, dtype=np.float32),
        adjacency,
        labels,
        training,
        {
            "source": "Zachary, Journal of Anthropological Research 33(4), 1977",
            "split": "members 1 and 34 to the training set, the others to the test set",
            "class_names": ["instructor", "president"],
        },
    )


def block_model(
    *,
    nodes: int = 400,
    blocks: int = 4,
    inside: float = 0.08,
    across: float = 0.01,
    features: int = 16,
    signal: float = 1.0,
    known: int = 5,
    data_seed: int = 0,
) -> Splits:
    """A graph drawn by a stochastic block model, with noisy features; few nodes of each block have a label.

    Node i belongs to block i mod `blocks`. An edge exists with probability `inside` between two nodes of one block, and
    with probability `across` otherwise. The features of a node are normal noise with standard deviation 1 plus
    `signal` times a direction of length 1 that all nodes of its block share. The graph is one sample: the training
    sample has the labels of the first `known` nodes of each block, the test sample those of all others.

    Args:
        nodes: Number of nodes.
        blocks: Number of blocks, the classes.
        inside: Probability of an edge within a block, in [0, 1].
        across: Probability of an edge between blocks, in [0, 1].
        features: Features of a node.
        signal: Distance of a block's mean feature vector from zero, at least 0.
        known: Number of nodes of each block with a label in training.
        data_seed: The seed of edges, directions and noise.

    Returns:
        One sample each for training and test: `input` float32 (nodes, features), `adjacency` float32 (nodes, nodes), 1
        for an edge, symmetric, and `label` int64 (nodes,), -1 for the nodes of the other part.

    Raises:
        UsageError: An argument is out of its range, or a block has no more nodes than `known`.

    References:
        Holland, Laskey and Leinhardt, Stochastic blockmodels: first steps, Social Networks 5(2), 1983.

    >>> import deep5 as d5
    >>> data = d5.datasets.block_model(nodes=60, blocks=3, known=2)
    >>> {name: str(spec) for name, spec in data.train.specs.items()}
    {'input': 'float32[60, 16]', 'adjacency': 'float32[60, 60]', 'label': 'int64[60]'}
    >>> [int((part.batch([0])["label"] >= 0).sum()) for part in (data.train, data.test)]
    [6, 54]
    """
    sizes = {"nodes": nodes, "blocks": blocks, "features": features, "known": known}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"block_model with {name} = {size!r:.60}; allowed: an integer of at least 1")
    for name, number, most in (("inside", inside, 1.0), ("across", across, 1.0), ("signal", signal, np.inf)):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0.0 <= number <= most:
            span = "from 0 to 1" if most == 1.0 else "of at least 0"
            raise UsageError(f"block_model with {name} = {number!r:.60}; allowed: a number {span}")
    if nodes // blocks <= known:
        raise UsageError(
            f"block_model of {nodes} nodes in {blocks} blocks, of which {known} of each are known; allowed: at most "
            f"{max(nodes // blocks - 1, 0)}; remedy: more nodes, or fewer blocks or known nodes"
        )
    labels = np.arange(nodes, dtype=np.int64) % blocks
    chance = np.where(labels[:, None] == labels, inside, across)
    drawn = np.triu(generator(data_seed, "edges").random((nodes, nodes)) < chance, 1)
    adjacency = (drawn | drawn.T).astype(np.float32)
    directions = generator(data_seed, "directions").standard_normal((blocks, features))
    directions /= np.sqrt(np.square(directions).sum(axis=1, keepdims=True))
    noise = generator(data_seed, "noise").standard_normal((nodes, features))
    rule = (
        f"{nodes} nodes in {blocks} blocks, edges with probability {inside:g} inside and {across:g} across, {features} "
        f"features = noise + {signal:g} * direction of the block, seed {data_seed}"
    )
    return _splits(
        (noise + signal * directions[labels]).astype(np.float32),
        adjacency,
        labels,
        np.arange(nodes) < known * blocks,
        {"source": "synthetic", "rule": rule, "split": f"the first {known} nodes of each block to the training set"},
    )


def _splits(
    features: np.ndarray, adjacency: np.ndarray, labels: np.ndarray, training: np.ndarray, described: dict[str, Any]
) -> Splits:
    """The whole graph as the one sample of both parts, each with the labels of its nodes."""

    def part(chosen: np.ndarray) -> ArrayDataset:
        own = np.where(chosen, labels, _IGNORED)
        return ArrayDataset({"input": features[None], "adjacency": adjacency[None], "label": own[None]})

    counts = {"nodes": len(labels), "edges": int(np.count_nonzero(np.triu(adjacency)))}
    labeled = {"train": int(training.sum()), "test": int((~training).sum())}
    return Splits(
        train=part(training),
        test=part(~training),
        split_hash=hashlib.sha256(training.tobytes()).hexdigest(),
        description={**described, "samples": {"train": 1, "test": 1}, "graph": counts, "labeled_nodes": labeled},
    )
