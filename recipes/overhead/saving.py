"""The sides of the checkpoint recipe: a checkpoint of a training, and a plain write of as many bytes."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np

import deep5 as d5
from deep5.training.dataset import ArrayDataset

__all__ = ["bytes_by_hand", "checkpoint"]

Work = Callable[[], object]


def _with_folder(make: Callable[[Path], Work]) -> Work:
    """A function with a temporary folder that exists as long as the function."""
    folder = tempfile.mkdtemp(prefix="deep5-overhead-")
    work = make(Path(folder))
    weakref.finalize(work, shutil.rmtree, folder, ignore_errors=True)
    return work


def _trainer(features: int, hidden: int, seed: int) -> d5.Trainer:
    network = d5.networks.mlp(features=features, hidden=hidden, seed=seed)
    executor = d5.framework("pytorch").executor(network)
    nothing = ArrayDataset({"input": np.zeros((1, features), np.float32), "label": np.zeros(1, np.int64)})
    return d5.Trainer(executor, d5.SGD(), d5.OrderedSampler(nothing, 1))


def checkpoint(*, steps: int, seed: int, features: int, hidden: int) -> Work:
    """Checkpoints of a training by plain gradient descent on PyTorch; only the last is kept, with only its parameters.

    Timed: copying the parameters from the executor, and writing them and the rest of the training state until they are
    on disk.

    Args:
        steps: Checkpoints per call.
        seed: Seed of the weights.
        features: Features of the input.
        hidden: Units of the one hidden layer; the parameters are (features + 11) x hidden + 10.
    """
    trainer = _trainer(features, hidden, seed)

    def make(folder: Path) -> Work:
        writer = d5.Checkpointer(folder, every_steps=1, keep=1)

        def work() -> None:
            for _ in range(steps):
                trainer.step += 1
                writer.write(trainer)

        return work

    return _with_folder(make)


def bytes_by_hand(*, steps: int, seed: int, features: int, hidden: int) -> Work:
    """Writes as many bytes as the parameters have from one array to one file, until they are on disk."""
    parameters = (features + 11) * hidden + 10
    values = np.random.default_rng(seed).standard_normal(parameters, dtype=np.float32)

    def make(folder: Path) -> Work:
        def work() -> None:
            for index in range(steps):
                # A new file each time, as for checkpoints: overwriting behaves differently in a file system.
                path = folder / str(index)
                with path.open("wb") as file:
                    file.write(values.data)
                    file.flush()
                    os.fsync(file.fileno())
                path.unlink()

        return work

    return _with_folder(make)
