"""The candidates of the recipes that time networks: steps and inference on prepared batches, and full training runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.seeds import generator
from deep5.networks.network import Network
from deep5.training.dataset import ArrayDataset
from deep5.training.datasets.uci_digits import digits

__all__ = [
    "BATCHES",
    "HORIZON",
    "JUDGED",
    "RATE",
    "batches",
    "executor",
    "inference",
    "labelled_digits",
    "small_gpt",
    "training_run",
    "training_step",
]

Work = Callable[[], object]

RATE = 0.003
"""The initial learning rate of a training run's cosine schedule."""

HORIZON = 100_000
"""Length of the cosine schedule in steps: more than are timed, so the rate changes at every step."""

JUDGED = 256
"""Samples per evaluation batch."""

BATCHES = 8
"""Number of batches, used cyclically: a step must not find its input in the L1 cache."""


def batches(network: Network, batch_size: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Batches of noise that fit a network's inputs; deterministic in the arguments.

    Args:
        network: Its inputs define shapes and dtypes; integers are drawn below the number of classes, or of words.
        batch_size: The value of the symbolic dimension.
        seed: Seed of the noise.
    """
    found = []
    for index in range(BATCHES):
        draw, batch = generator(seed, "overhead", "batch", index), {}
        for name, spec in network.inputs.items():
            shape = tuple(batch_size if isinstance(extent, str) else extent for extent in spec.shape)
            if spec.dtype.startswith("int"):
                batch[name] = draw.integers(0, 10, shape, dtype=spec.dtype)
            else:
                batch[name] = draw.standard_normal(shape).astype(spec.dtype)
        found.append(batch)
    return found


def small_gpt(*, seed: int = 0) -> Network:
    """The decoder `d5.networks.gpt` in four layers of width 128, over 64 tokens out of 256, without dropout."""
    return d5.networks.gpt(vocabulary=256, length=64, width=128, heads=4, layers=4, dropout=0.0, seed=seed)


def executor(framework: str, threads: int, network: Any, network_kwargs: Mapping[str, Any], seed: int) -> Any:
    """An executor of a network with this number of threads."""
    found = d5.framework(framework)
    found.set_threads(threads)
    return found.executor(network(**network_kwargs, seed=seed))


def training_step(
    *,
    steps: int,
    seed: int,
    threads: int,
    framework: str,
    network: Callable[..., Network],
    batch_size: int,
    network_kwargs: Mapping[str, Any] | None = None,
) -> Work:
    """Whole training steps with deep5's Adam.

    Args:
        steps: Steps per call.
        seed: Seed of weights and batches.
        threads: Threads of the framework.
        framework: Name of the back-end.
        network: Makes the network.
        batch_size: Samples per batch.
        network_kwargs: Arguments of `network`.
    """
    own = executor(framework, threads, network, network_kwargs or {}, seed)
    step = own.train_step(d5.Adam(lr=0.001))
    feeds = batches(own.network, batch_size, seed)
    infos = [d5.StepInfo(step=index, batch_size=batch_size) for index in range(steps)]

    def work() -> None:
        for info in infos:
            step(feeds[info.step % BATCHES], info)
        own.synchronize()

    return work


def inference(
    *,
    steps: int,
    seed: int,
    threads: int,
    framework: str,
    network: Callable[..., Network],
    batch_size: int,
    network_kwargs: Mapping[str, Any] | None = None,
) -> Work:
    """Inference; arguments as in `training_step`."""
    own = executor(framework, threads, network, network_kwargs or {}, seed)
    feeds = batches(own.network, batch_size, seed)

    def work() -> None:
        for index in range(steps):
            own.inference(feeds[index % BATCHES])
        own.synchronize()

    return work


def labelled_digits(steps: int, batch_size: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The training and test digits of a training run: images (N, 1, 28, 28) and labels.

    Args:
        steps: Batches per epoch; the last one is half as large as the others.
        batch_size: Samples per batch.
    """
    splits = digits()
    count = steps * batch_size - batch_size // 2
    return splits.train.batch(np.arange(count) % len(splits.train)), splits.test.batch(np.arange(len(splits.test)))


def training_run(*, steps: int, seed: int, threads: int, framework: str, batch_size: int) -> Work:
    """An epoch of LeNet on the digits in the trainer: shuffled, with a cosine schedule, evaluated at its end.

    Args:
        steps: Batches per epoch.
        seed: Seed of weights and order.
        threads: Threads of the framework.
        framework: Name of the back-end.
        batch_size: Samples per batch.

    Returns:
        A function that trains for one more epoch and returns accuracy in percent and mean loss.
    """
    own = executor(framework, threads, d5.networks.lenet, {}, seed)
    train, test = labelled_digits(steps, batch_size)
    sampler = d5.ShuffleSampler(ArrayDataset(train), batch_size, seed=seed)
    judged = d5.OrderedSampler(ArrayDataset(test), JUDGED)
    trainer = d5.Trainer(own, d5.Adam(), sampler, judged, seed=seed)

    def work() -> tuple[float, float]:
        trainer.train(1, [d5.Scheduled({"lr": d5.Cosine(RATE, steps=HORIZON)})])
        return trainer.scores["accuracy"], trainer.scores["loss"]

    return work
