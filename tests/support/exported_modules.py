"""Small PyTorch modules, as users write them, to be exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

__all__ = ["MODULES", "Case"]


class Case(NamedTuple):
    """How to make a module, and its inputs: a shape of normal numbers, or a shape and a bound of integers."""

    make: Callable[[], nn.Module]
    inputs: tuple[Any, ...]


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first, last = (nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8)), (nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))
        self.layers = nn.Sequential(*first, *last)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.deep, self.wide = nn.Conv2d(4, 4, 3, stride=2, groups=4), nn.Conv2d(4, 6, 1)
        self.group, self.head = nn.GroupNorm(2, 6), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        x = functional.avg_pool2d(functional.silu(self.group(self.wide(self.deep(x)))), 2)
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Without a bias, which the normalization after it removes: its gradient would be only roundings.
        self.down = nn.Conv1d(3, 4, 4, stride=2, padding=1, bias=False)
        self.up = nn.ConvTranspose1d(4, 3, 4, stride=2, padding=1)
        self.norm, self.slope = nn.InstanceNorm1d(4, affine=True), nn.PReLU(4)

    def forward(self, x: Any) -> Any:
        return x + self.up(self.slope(self.norm(self.down(x))))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.recurrent = kind(4, 3, num_layers=2, batch_first=True, bidirectional=True)  # type: ignore[call-arg]
        self.head = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        states, _ = self.recurrent(x)
        return self.head(states[:, -1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x: Any) -> Any:
        mask = torch.triu(torch.full((5, 5), float("-inf")), diagonal=1)
        return self.layer(x, src_mask=mask)


class Attention(nn.Module):
    """Hand-written heads, with a mask that depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.projection, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Any, keep: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = self.projection(x).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) / (width // 2) ** 0.5
        scores = scores.masked_fill((keep == 0)[:, None, None, :], -1e9)
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 6), nn.Parameter(torch.randn(7, 6))
        self.head = nn.Linear(6, 4)

    def forward(self, tokens: Any, chosen: Any) -> Any:
        x = self.words(tokens) + self.places[: tokens.shape[1]]
        picked = torch.gather(x, 1, chosen[..., None].expand(-1, -1, 6))
        return self.head(torch.cat([picked, x.mean(1, keepdim=True)], dim=1))


class Slices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(3))

    def forward(self, x: Any) -> Any:
        y = x @ self.weight
        left, right = y[..., ::2], y[..., 3:]
        rolled = torch.roll(left, 1, dims=-1) * self.scale
        chosen = right[:, torch.tensor([2, 0, 0])]
        return torch.stack([rolled[:, :3], chosen, functional.pad(right[:, 1:3], (0, 0, 1, 0))], dim=1)


class Interpolation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 3, 1), nn.Conv2d(3, 2, 1)

    def forward(self, x: Any) -> Any:
        y = functional.interpolate(self.first(x), scale_factor=2.0, mode="nearest")
        y = functional.interpolate(y, size=(7, 9), mode="bilinear", align_corners=False)
        return self.last(functional.interpolate(y, size=(5, 5), mode="bilinear", align_corners=True))


class Functions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x: Any) -> Any:
        y = torch.einsum("ni,oi->no", x, self.a)
        z = torch.where(y > 0, torch.exp(-y.abs()), torch.sigmoid(y)) + torch.log1p(y * y)
        w = functional.softplus(x) * torch.sqrt(self.b) + torch.clamp(x, -0.5, 0.5) ** 3 - torch.rsqrt(self.b)
        norm = torch.linalg.vector_norm(w, dim=1, keepdim=True)
        return torch.cat([z / (1 + norm), functional.log_softmax(w, dim=1), functional.elu(torch.cumsum(w, 1))], dim=1)


class Buffers(nn.Module):
    """Tensors that are not parameters: buffers, saved and not, and an attribute; and a parameter of one number."""

    places: torch.Tensor
    once: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = nn.Linear(4, 4), nn.Parameter(torch.tensor(1.5))
        self.register_buffer("places", torch.linspace(-1, 1, 12).reshape(3, 4))
        self.register_buffer("once", torch.linspace(0, 1, 4), persistent=False)
        self.shift = torch.linspace(1, 2, 12).reshape(3, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(x + self.places) * self.gain * self.once + self.shift


MODULES = {
    "perceptron": Case(Perceptron, ((5, 6),)),
    "convolutions": Case(Convolutions, ((3, 2, 12, 12),)),
    "transposed": Case(Transposed, ((2, 3, 8),)),
    "lstm": Case(lambda: Recurrent(nn.LSTM), ((3, 5, 4),)),
    "gru": Case(lambda: Recurrent(nn.GRU), ((3, 5, 4),)),
    "encoder": Case(Encoder, ((2, 5, 8),)),
    "attention": Case(Attention, ((2, 5, 8), ((2, 5), 3))),
    "embedding": Case(Embedding, (((3, 5), 11), ((3, 4), 5))),
    "slices": Case(Slices, ((3, 5, 4),)),
    "interpolation": Case(Interpolation, ((2, 2, 3, 4),)),
    "functions": Case(Functions, ((5, 4),)),
    "buffers": Case(Buffers, ((2, 3, 4),)),
}
