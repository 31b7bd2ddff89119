"""The opponents on PyTorch: modules, loss and fused Adam as PyTorch's users write them.

Each function takes what `by_deep5` takes, and does the same steps on the same batches; from the same weights it
computes the same numbers, as the tests check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import deep5 as d5
from deep5.recipes.overhead.by_deep5 import batches

__all__ = ["inference", "training_step"]

Work = Callable[[], object]


def _mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(784, 500), nn.Tanh(), nn.Linear(500, 10))


def _lenet() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, 10),
    )


def _resnet18() -> Any:
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):  # type: ignore[misc]  # torch is not followed
        def __init__(self, into: int, out: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
            self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
            self.shortcut = nn.Sequential()
            if stride != 1 or into != out:
                self.shortcut = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

        def forward(self, x: Any) -> Any:
            y = functional.relu(self.bn1(self.conv1(x)))
            return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))

    class ResNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
            blocks, into = [], 64
            for stage, out in enumerate((64, 128, 256, 512)):
                for index in range(2):
                    blocks.append(Block(into, out, 2 if stage and index == 0 else 1))
                    into = out
            self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(512, 10)

        def forward(self, x: Any) -> Any:
            x = self.blocks(functional.relu(self.bn1(self.conv1(x))))
            return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))

    return ResNet()


def _transformer() -> Any:
    import torch
    from torch import nn

    class Encoder(nn.Module):  # type: ignore[misc]  # torch is not followed
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(1000, 128), nn.Parameter(torch.randn(1, 32, 128) * 0.02)
            layer = nn.TransformerEncoderLayer(
                128, 4, 512, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(128), enable_nested_tensor=False)
            self.head = nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(self.words(x) + self.places).mean(1))

    return Encoder()


_MODULES = {"mlp": _mlp, "lenet": _lenet, "resnet18": _resnet18, "transformer": _transformer}


def _prepared(
    network: Callable[..., Any], network_kwargs: Mapping[str, Any] | None, batch_size: int, threads: int, seed: int
) -> tuple[Any, list[tuple[Any, Any]]]:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    specification = network(**(network_kwargs or {}), seed=seed)
    feeds = [
        (torch.from_numpy(batch["input"]), torch.from_numpy(batch["label"]))
        for batch in batches(specification, batch_size, seed)
    ]
    return _MODULES[network.__name__](), feeds


def training_step(
    *,
    steps: int,
    seed: int,
    threads: int,
    network: Callable[..., d5.Network],
    batch_size: int,
    network_kwargs: Mapping[str, Any] | None = None,
) -> Work:
    """Whole training steps with `torch.optim.Adam(fused=True)`; a call returns the last loss and logits."""
    import torch
    from torch.nn import functional

    model, feeds = _prepared(network, network_kwargs, batch_size, threads, seed)
    update = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    model.train()

    def work() -> tuple[Any, Any]:
        for index in range(steps):
            images, labels = feeds[index % len(feeds)]
            update.zero_grad()
            logits = model(images)
            loss = functional.cross_entropy(logits, labels)
            loss.backward()
            update.step()
        return loss, logits

    return work


def inference(
    *,
    steps: int,
    seed: int,
    threads: int,
    network: Callable[..., d5.Network],
    batch_size: int,
    network_kwargs: Mapping[str, Any] | None = None,
) -> Work:
    """Loss and logits in evaluation mode, under `torch.inference_mode`; a call returns the last."""
    import torch
    from torch.nn import functional

    model, feeds = _prepared(network, network_kwargs, batch_size, threads, seed)
    model.eval()

    def work() -> tuple[Any, Any]:
        with torch.inference_mode():
            for index in range(steps):
                images, labels = feeds[index % len(feeds)]
                logits = model(images)
                loss = functional.cross_entropy(logits, labels)
        return loss, logits

    return work
