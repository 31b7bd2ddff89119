"""Hand-written networks on PyTorch: dense layers, embeddings and graphs.

Each module has the arguments of the network of `deep5.networks` that it matches. `loss` takes a batch by the network's
input names, and `values_of` converts the network's weights to those of the module.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from deep5.recipes.overhead.workloads.weights import linear, renamed

__all__ = ["Autoencoder", "GraphNetwork", "Policy", "Recommender"]

Arrays = Mapping[str, np.ndarray]


def _stacked(sizes: Sequence[int]) -> Any:
    """Linear layers with ReLU in between."""
    layers: list[Any] = []
    for into, out in itertools.pairwise(sizes):
        layers += [nn.ReLU()] if layers else []
        layers.append(nn.Linear(into, out))
    return nn.Sequential(*layers)


def _stack(given: Arrays, name: str) -> dict[str, np.ndarray]:
    """The weights of `_stacked`, whose layers alternate with ReLU."""
    count = sum(key.startswith(name) and key.endswith(".weight") for key in given)
    return linear(given, {f"{name}.{2 * index}": f"{name}{index}" for index in range(count)})


class Autoencoder(nn.Module):  # type: ignore[misc]  # torch is not followed
    """`d5.networks.autoencoder`."""

    def __init__(self, image: int, channels: int, hidden: Sequence[int], bottleneck: int, **_: Any) -> None:
        super().__init__()
        sizes = (channels * image**2, *hidden, bottleneck)
        self.encoder, self.decoder = _stacked(sizes), _stacked(sizes[::-1])

    def forward(self, x: Any) -> Any:
        return self.decoder(self.encoder(x.flatten(1))).view_as(x)

    def loss(self, input: Any) -> Any:  # noqa: A002 - the network's name
        return functional.mse_loss(self(input), input)

    @staticmethod
    def values_of(given: Arrays) -> dict[str, np.ndarray]:
        return {**_stack(given, "encoder"), **_stack(given, "decoder")}


class Recommender(nn.Module):  # type: ignore[misc]
    """`d5.networks.dlrm`."""

    def __init__(
        self,
        numeric: int,
        tables: Sequence[int],
        width: int,
        bottom: Sequence[int],
        top: Sequence[int],
        **_: Any,
    ) -> None:
        super().__init__()
        count = len(tables) + 1
        self.bottom = _stacked((numeric, *bottom, width))
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in tables)
        self.top = _stacked((width + count * (count - 1) // 2, *top, 1))
        rows, columns = torch.tril_indices(count, count, -1)
        self.register_buffer("below", rows * count + columns)

    def forward(self, numeric: Any, categories: Any) -> Any:
        x = functional.relu(self.bottom(numeric))
        embedded = [table(column) for table, column in zip(self.tables, categories.unbind(1), strict=True)]
        vectors = torch.stack([x, *embedded], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products.index_select(1, self.below)], 1)).squeeze(1)

    def loss(self, numeric: Any, categories: Any, label: Any) -> Any:
        logits = self(numeric, categories)
        return functional.binary_cross_entropy_with_logits(logits, label.to(logits.dtype))

    @staticmethod
    def values_of(given: Arrays) -> dict[str, np.ndarray]:
        count = sum(name.startswith("embedding") for name in given)
        tables = renamed(given, {f"tables.{index}.weight": f"embedding{index}" for index in range(count)})
        return {**_stack(given, "bottom"), **tables, **_stack(given, "top")}


class GraphNetwork(nn.Module):  # type: ignore[misc]
    """`d5.networks.gcn`: a dense adjacency matrix, which is normalized in each step, since it belongs to a sample."""

    def __init__(self, features: int, hidden: int, classes: int, dropout: float, **_: Any) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden, bias=False)
        self.second = nn.Linear(hidden, classes, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any, adjacency: Any) -> Any:
        root = (adjacency.sum(2, keepdim=True) + 1).rsqrt()

        def spread(x: Any) -> Any:
            x = root * x
            return root * torch.baddbmm(x, adjacency, x)

        x = functional.relu(spread(self.first(self.dropout(x))))
        return spread(self.second(self.dropout(x)))

    def loss(self, input: Any, adjacency: Any, label: Any) -> Any:  # noqa: A002 - the network's name
        return functional.cross_entropy(self(input, adjacency).flatten(0, 1), label.flatten(), ignore_index=-1)

    @staticmethod
    def values_of(given: Arrays) -> dict[str, np.ndarray]:
        names = {"first.weight": "layer0.weight", "second.weight": "layer1.weight"}
        return {name: value.T for name, value in renamed(given, names).items()}


class Policy(nn.Module):  # type: ignore[misc]
    """`d5.networks.policy_network`."""

    def __init__(self, features: int, hidden: Sequence[int], actions: int, **_: Any) -> None:
        super().__init__()
        layers: list[Any] = []
        for into, out in itertools.pairwise((features, *hidden)):
            layers += [nn.Linear(into, out), nn.Tanh()]
        self.layers = nn.Sequential(*layers, nn.Linear((features, *hidden)[-1], actions))

    def forward(self, x: Any) -> Any:
        return self.layers(x)

    def loss(self, input: Any, action: Any, target: Any) -> Any:  # noqa: A002 - the network's name
        return (functional.cross_entropy(self(input), action, reduction="none") * target).mean()

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        return linear(given, {f"layers.{2 * index}": f"fc{index + 1}" for index in range(len(self.layers) // 2 + 1)})
