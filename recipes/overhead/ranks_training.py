"""Synchronous training of a small residual network on several ranks: in deep5's trainer, and hand-written on PyTorch.

Both use the same network, initial weights, batches and rule. Each function is called on every rank and returns a
function that trains for `steps` steps and returns this rank's losses. A batch is split evenly over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.communicator import Communicator
from deep5.distributed.sharding import ShardedSampler
from deep5.recipes.overhead.all_reduces import gloo_group
from deep5.recipes.overhead.by_deep5 import BATCHES, batches, labelled_digits
from deep5.training.dataset import ArrayDataset

__all__ = ["MOMENTUM", "RATE", "by_distributed_data_parallel", "by_trainer", "lenet_alone", "lenet_as_one_rank"]

Work = Callable[[], object]

RATE = 0.01
"""The learning rate, small enough that two implementations agree over the steps that a test compares."""

MOMENTUM = 0.9
"""The momentum of the rule, plain momentum."""


class _Losses(d5.Event):
    """Keeps the losses of a call as native values, so no step waits for one."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def before_training(self, trainer: Any) -> None:
        self.found = []

    def after_step(
        self, trainer: Any, info: d5.StepInfo, outputs: Mapping[str, Any], begin_ns: int, end_ns: int
    ) -> None:
        self.found.append(outputs["loss"])


def by_trainer(*, steps: int, seed: int, threads: int, depth: int, batch_size: int, communicator: Communicator) -> Work:
    """In the trainer on PyTorch, with the scheme `all_reduce`.

    Args:
        steps: Steps per call.
        seed: Seed of weights and samples.
        threads: Threads of PyTorch on each rank.
        depth: Number of layers of the network.
        batch_size: Samples per step over all ranks.
        communicator: The communicator of all ranks.
    """
    framework = d5.framework("pytorch")
    framework.set_threads(threads)
    network = d5.networks.resnet(depth=depth, seed=seed)
    scheme = d5.AllReduce().wrap(d5.Momentum(lr=RATE, momentum=MOMENTUM), communicator, seed=seed)
    samples: Any = d5.OrderedSampler(ArrayDataset(_samples(network, steps, batch_size, seed)), batch_size)
    if communicator.size > 1:
        samples = ShardedSampler(samples, communicator.rank, communicator.size)
    trainer = d5.Trainer(framework.executor(network), scheme, samples, seed=seed, communicator=communicator)
    losses = _Losses()

    def work() -> list[Any]:
        trainer.train(1, [losses])
        return losses.found

    return work


def by_distributed_data_parallel(
    *, steps: int, seed: int, threads: int, depth: int, batch_size: int, communicator: Communicator
) -> Work:
    """Hand-written: a module, `DistributedDataParallel` on gloo with defaults, `torch.optim.SGD(fused=True)`.

    Arguments as in `by_trainer`.
    """
    import torch
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(threads)
    network = d5.networks.resnet(depth=depth, seed=seed)
    model = _module(depth)
    with torch.no_grad():
        for parameter, name in zip(model.parameters(), network.parameter_specs, strict=True):
            parameter.copy_(torch.from_numpy(network.initial(name)))
    parallel = DistributedDataParallel(model, process_group=gloo_group(communicator.size))
    update = torch.optim.SGD(parallel.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    arrays = _samples(network, steps, batch_size, seed)
    images, labels = (torch.from_numpy(arrays[name]) for name in ("input", "label"))
    part = batch_size // communicator.size
    begins = [step * batch_size + communicator.rank * part for step in range(steps)]

    def work() -> list[Any]:
        losses = []
        parallel.train()
        for begin in begins:
            update.zero_grad()
            loss = functional.cross_entropy(parallel(images[begin : begin + part]), labels[begin : begin + part])
            loss.backward()
            update.step()
            losses.append(loss.detach())
        return losses

    return work


def lenet_as_one_rank(*, steps: int, seed: int, threads: int, batch_size: int) -> Work:
    """LeNet on the digits as `deep5 run --ranks 1` trains it: a communicator of one rank, and the scheme `all_reduce`.

    Args:
        steps: Steps per call.
        seed: Seed of weights and order.
        threads: Threads of PyTorch.
        batch_size: Samples per step.
    """
    from deep5.core.communicator import SingleRank

    communicator = SingleRank()
    scheme = d5.AllReduce().wrap(d5.Adam(), communicator, seed=seed)
    return _lenet(scheme, communicator, steps=steps, seed=seed, threads=threads, batch_size=batch_size)


def lenet_alone(*, steps: int, seed: int, threads: int, batch_size: int) -> Work:
    """The same without ranks: only the rule, without a communicator; arguments as in `lenet_as_one_rank`."""
    return _lenet(d5.Adam(), None, steps=steps, seed=seed, threads=threads, batch_size=batch_size)


def _lenet(
    optimizer: Any, communicator: Communicator | None, *, steps: int, seed: int, threads: int, batch_size: int
) -> Work:
    framework = d5.framework("pytorch")
    framework.set_threads(threads)
    executor = framework.executor(d5.networks.lenet(seed=seed))
    train, _ = labelled_digits(steps, batch_size)
    sampler = d5.ShuffleSampler(ArrayDataset(train), batch_size, seed=seed)
    trainer = d5.Trainer(executor, optimizer, sampler, seed=seed, communicator=communicator)
    losses = _Losses()

    def work() -> list[Any]:
        trainer.train(1, [losses])
        return losses.found

    return work


def _samples(network: d5.Network, steps: int, batch_size: int, seed: int) -> dict[str, np.ndarray]:
    """The samples of `steps` steps: batches of noise, repeated cyclically."""
    found = batches(network, batch_size, seed)
    turns = [found[step % BATCHES] for step in range(steps)]
    return {name: np.concatenate([batch[name] for batch in turns]) for name in network.inputs}


def _module(depth: int) -> Any:
    """The network of `deep5.networks.resnet` as a module, with its parameters in the same order."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):  # type: ignore[misc]  # torch is not followed
        def __init__(self, into: int, out: int, stride: int) -> None:
            super().__init__()
            self.stride, self.missing = stride, out - into
            self.conv1, self.bn1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
            self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
            if self.stride == 2:
                before = self.missing // 2
                x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, self.missing - before))
            return functional.relu(y + x)

    class ResNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv0, self.bn0 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
            blocks, into = [], 16
            for stage, out in enumerate((16, 32, 64)):
                for index in range((depth - 2) // 6):
                    blocks.append(Block(into, out, 2 if stage and index == 0 else 1))
                    into = out
            self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            x = self.blocks(functional.relu(self.bn0(self.conv0(x))))
            return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))

    return ResNet()
