"""Batch normalization over the batch of all ranks: the mark on its nodes, and the operators that communicate."""

from __future__ import annotations

import onnx_ir as ir

from deep5.networks.network import Network
from deep5.networks.onnx.attributes import attribute

__all__ = ["RANKS", "is_over_ranks", "is_training", "over_ranks"]

RANKS = "deep5.ranks"
"""The domain of operators that normalize over a batch whose parts are on several ranks; they communicate at run time.

`BatchMoments` returns mean, variance and the number of elements per channel, over all ranks, for this rank's x;
`GradientSums` returns the sums over all ranks of its inputs. `RankStatistics` of `deep5.distributed` computes both.
"""
_MARK = "deep5.over_ranks"


def is_training(node: ir.Node) -> bool:
    """Whether a node is a batch normalization that computes its own statistics."""
    return node.op_type == "BatchNormalization" and not node.domain and attribute(node, "training_mode", 0) == 1


def is_over_ranks(node: ir.Node) -> bool:
    """Whether a batch normalization in training uses the statistics of the batch of all ranks."""
    return _MARK in node.metadata_props


def over_ranks(network: Network) -> Network:
    """The network with every batch normalization in training computed over the batch of all ranks.

    Args:
        network: The network in training; it is not changed.

    Returns:
        A network for `gradient_network` and `expand_training`, which expand such nodes into operators of the domain
        `RANKS`.
    """
    model = network.model.clone()
    for node in model.graph:
        if is_training(node):
            node.metadata_props[_MARK] = ""
    return Network(model)
