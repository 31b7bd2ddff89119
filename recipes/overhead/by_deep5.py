"""The candidates of the recipes that time networks: steps and inference through an executor, on prepared batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import deep5 as d5
from deep5.networks.network import Network
from deep5.seeds import generator

__all__ = ["batches", "inference", "training_step"]

Work = Callable[[], object]

# Batches that are used in turn: a step must not find its input in the first-level cache.
_BATCHES = 8


def batches(network: Network, batch_size: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Batches of noise that fit a network's inputs, the same for whoever asks.

    Args:
        network: Its inputs say shapes and dtypes; whole numbers are drawn below the number of classes, or of words.
        batch_size: The symbolic extent.
        seed: Of the noise.
    """
    found = []
    for index in range(_BATCHES):
        draw, batch = generator(seed, "overhead", "batch", index), {}
        for name, spec in network.inputs.items():
            shape = tuple(batch_size if isinstance(extent, str) else extent for extent in spec.shape)
            if spec.dtype.startswith("int"):
                batch[name] = draw.integers(0, 10, shape, dtype=spec.dtype)
            else:
                batch[name] = draw.standard_normal(shape).astype(spec.dtype)
        found.append(batch)
    return found


def _executor(framework: str, threads: int, network: Any, network_kwargs: Mapping[str, Any], seed: int) -> Any:
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
        steps: Steps a call.
        seed: Of weights and batches.
        threads: Of the framework.
        framework: Name of the back-end.
        network: Makes the network.
        batch_size: Samples a batch.
        network_kwargs: Arguments of `network`.
    """
    executor = _executor(framework, threads, network, network_kwargs or {}, seed)
    step = executor.train_step(d5.Adam(lr=0.001))
    feeds = batches(executor.network, batch_size, seed)
    infos = [d5.StepInfo(step=index, batch_size=batch_size) for index in range(steps)]

    def work() -> None:
        for info in infos:
            step(feeds[info.step % _BATCHES], info)
        executor.synchronize()

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
    """Inference, arguments as `training_step`."""
    executor = _executor(framework, threads, network, network_kwargs or {}, seed)
    feeds = batches(executor.network, batch_size, seed)

    def work() -> None:
        for index in range(steps):
            executor.inference(feeds[index % _BATCHES])
        executor.synchronize()

    return work
