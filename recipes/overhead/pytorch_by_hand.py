"""The baselines on PyTorch: idiomatic modules, loss and fused Adam.

Each function takes the arguments of its counterpart in `by_deep5`, and does the same steps on the same batches; from
the same weights it computes the same numbers, as the tests check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import deep5 as d5
from deep5.recipes.overhead.by_deep5 import HORIZON, JUDGED, RATE, batches, labelled_digits
from deep5.recipes.overhead.rules import DECAY, PENALTY, twin_of

__all__ = ["inference", "training_run", "training_step"]

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


def _gpt() -> Any:
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):  # type: ignore[misc]  # torch is not followed
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.qkv, self.out = nn.LayerNorm(128), nn.Linear(128, 384), nn.Linear(128, 128)
            self.norm2, self.inner, self.outer = nn.LayerNorm(128), nn.Linear(128, 512), nn.Linear(512, 128)

        def forward(self, x: Any) -> Any:
            heads = (
                part.view(*part.shape[:2], 4, 32).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(128, 2)
            )
            y = functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.outer(functional.gelu(self.inner(self.norm2(x)), approximate="tanh"))

    class Decoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(256, 128), nn.Embedding(64, 128)
            self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(4))), nn.LayerNorm(128)
            for table in (self.words, self.places):
                nn.init.normal_(table.weight, std=0.02)

        def forward(self, x: Any) -> Any:
            x = self.norm(self.blocks(self.words(x) + self.places.weight))
            return functional.linear(x, self.words.weight)

    return Decoder()


_MODULES = {
    "mlp": _mlp,
    "lenet": _lenet,
    "resnet18_small": _resnet18,
    "small_gpt": _gpt,
    "transformer": _transformer,
}


def _criterion(network: Callable[..., d5.Network]) -> Callable[[Any, Any], Any]:
    """The mean cross entropy; the classes of a decoder's tokens are the last axis."""
    from torch.nn import functional

    def of_tokens(logits: Any, labels: Any) -> Any:
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return of_tokens if _MODULES[network.__name__] is _gpt else functional.cross_entropy


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


def _optimizer(model: Any, rule: str, variant: str) -> Any:
    twin = twin_of("pytorch", rule)
    if variant != "groups":
        return twin.native(list(model.parameters()))
    named = dict(model.named_parameters())
    return twin.native(
        [
            {"params": [value for name, value in named.items() if not name.endswith("bias")], "weight_decay": DECAY},
            {"params": [value for name, value in named.items() if name.endswith("bias")], "weight_decay": 0.0},
        ]
    )


def training_step(
    *,
    steps: int,
    seed: int,
    threads: int,
    network: Callable[..., d5.Network],
    batch_size: int,
    network_kwargs: Mapping[str, Any] | None = None,
    rule: str | None = None,
    variant: str = "plain",
) -> Work:
    """Whole training steps with `torch.optim.Adam(fused=True)`; a call returns the last loss and logits.

    Args:
        steps: Steps per call.
        seed: Seed of weights and batches.
        threads: Threads of PyTorch.
        network: The network of `deep5.networks` to match, at its default sizes.
        batch_size: Samples per batch.
        network_kwargs: Arguments of `network`.
        rule: deep5's name of another optimizer, fused if PyTorch supports it.
        variant: As in `rules.step`: two parameter groups, or gradients plus a multiple of their parameters.
    """
    import torch

    model, feeds = _prepared(network, network_kwargs, batch_size, threads, seed)
    criterion = _criterion(network)
    if rule is None:
        update = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    else:
        update = _optimizer(model, rule, variant)
    modified = list(model.parameters()) if variant == "modifier" else []
    model.train()

    def work() -> tuple[Any, Any]:
        for index in range(steps):
            images, labels = feeds[index % len(feeds)]
            update.zero_grad()
            logits = model(images)
            loss = criterion(logits, labels)
            loss.backward()
            for parameter in modified:
                parameter.grad.add_(parameter.detach(), alpha=PENALTY)
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

    model, feeds = _prepared(network, network_kwargs, batch_size, threads, seed)
    model.eval()
    criterion = _criterion(network)

    def work() -> tuple[Any, Any]:
        with torch.inference_mode():
            for index in range(steps):
                images, labels = feeds[index % len(feeds)]
                logits = model(images)
                loss = criterion(logits, labels)
        return loss, logits

    return work


def training_run(*, steps: int, seed: int, threads: int, batch_size: int) -> Work:
    """An epoch of LeNet on the digits: `torch.randperm`, fused Adam, `CosineAnnealingLR`, an evaluation.

    Batches are gathered by index, without a `DataLoader`'s collation. Arguments and results are those of
    `by_deep5.training_run`.
    """
    import torch
    from torch.nn import functional
    from torch.optim.lr_scheduler import CosineAnnealingLR

    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    model = _lenet()
    update = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    schedule = CosineAnnealingLR(update, T_max=HORIZON)
    images, labels, judged, truth = (
        torch.from_numpy(part[name]) for part in labelled_digits(steps, batch_size) for name in ("input", "label")
    )

    def work() -> tuple[float, float]:
        model.train()
        for indices in torch.randperm(len(images)).split(batch_size):
            update.zero_grad()
            loss = functional.cross_entropy(model(images[indices]), labels[indices])
            loss.backward()
            update.step()
            schedule.step()
        model.eval()
        right = total = 0.0
        with torch.inference_mode():
            for x, y in zip(judged.split(JUDGED), truth.split(JUDGED), strict=True):
                logits = model(x)
                right += (logits.argmax(1) == y).sum().item()
                total += functional.cross_entropy(logits, y).item() * len(y)
        return 100.0 * right / len(truth), total / len(truth)

    return work
