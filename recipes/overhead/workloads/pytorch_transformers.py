"""Hand-written transformers on PyTorch; see `pytorch_dense` for what a module has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from deep5.recipes.overhead.workloads.weights import linear, renamed, transposed

__all__ = ["Decoder", "VisionTransformer"]

Arrays = Mapping[str, np.ndarray]


class _Block(nn.Module):  # type: ignore[misc]  # torch is not followed
    """A pre-norm block with fused attention."""

    def __init__(self, width: int, heads: int, gelu: str, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.gelu, self.causal = heads, gelu, causal
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.inner, self.outer = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Any) -> Any:
        samples, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (part.view(samples, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(samples, tokens, width))
        return x + self.outer(functional.gelu(self.inner(self.norm2(x)), approximate=self.gelu))


def _norms(given: Arrays, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The scales and biases of layer normalizations, by their new names."""
    parts = (("weight", "scale"), ("bias", "bias"))
    return {f"{new}.{theirs}": given[f"{old}.{ours}"] for new, old in names.items() for theirs, ours in parts}


def _blocks(given: Arrays, count: int) -> dict[str, np.ndarray]:
    """The weights of blocks, and of the normalization after them."""
    made = _norms(given, {"norm": "norm"})
    for index in range(count):
        new, old = f"blocks.{index}", f"block{index}"
        made |= _norms(given, {f"{new}.norm1": f"{old}.attention.norm", f"{new}.norm2": f"{old}.feed_forward.norm"})
        dense = {
            "qkv": "attention.qkv",
            "out": "attention.out",
            "inner": "feed_forward.in",
            "outer": "feed_forward.out",
        }
        made |= transposed(given, {f"{new}.{theirs}": f"{old}.{ours}" for theirs, ours in dense.items()})
    return made


class Decoder(nn.Module):  # type: ignore[misc]
    """`d5.networks.gpt` without dropout; its last layer has the weights of the embedding."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int, **_: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads, "tanh", causal=True) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Any) -> Any:
        x = self.norm(self.blocks(self.words(tokens) + self.places.weight))
        return functional.linear(x, self.words.weight)

    def loss(self, input: Any, label: Any) -> Any:  # noqa: A002 - the network's name
        return functional.cross_entropy(self(input).flatten(0, 1), label.flatten())

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        tables = renamed(given, {"words.weight": "embedding", "places.weight": "position"})
        return {**tables, **_blocks(given, len(self.blocks))}


class VisionTransformer(nn.Module):  # type: ignore[misc]
    """`d5.networks.vit` without dropout."""

    def __init__(
        self, image: int, patch: int, channels: int, width: int, heads: int, layers: int, classes: int, **_: Any
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros((image // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(_Block(width, heads, "none", causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Any) -> Any:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(tokens), -1, -1), tokens], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])

    def loss(self, input: Any, label: Any) -> Any:  # noqa: A002 - the network's name
        return functional.cross_entropy(self(input), label)

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        own = renamed(given, {"first": "class_token", "places": "position"})
        dense = linear(given, {"patches": "patches", "head": "classifier"})
        return {**own, **dense, **_blocks(given, len(self.blocks))}
