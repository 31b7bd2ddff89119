"""Trainers of ranks that share the batches of a small network."""

from __future__ import annotations

from typing import Any

import numpy as np

import deep5 as d5
from deep5.distributed.sharding import ShardedSampler
from deep5.training.dataset import ArrayDataset

SAMPLES, BATCH, FEATURES, CLASSES = 46, 9, 6, 3


def network(dtype: str = "float64", seed: int = 3) -> Any:
    return d5.networks.mlp(features=FEATURES, hidden=5, classes=CLASSES, dtype=dtype, seed=seed)


def samples(count: int = SAMPLES, dtype: str = "float64") -> ArrayDataset:
    draw = np.random.default_rng(1)
    return ArrayDataset(
        {
            "input": draw.standard_normal((count, FEATURES)).astype(dtype),
            "label": draw.integers(0, CLASSES, count),
        }
    )


def trained(
    communicator: Any,
    scheme: Any,
    optimizer: Any,
    *,
    framework: str = "reference",
    epochs: int = 2,
    batch: int = BATCH,
    count: int = SAMPLES,
    accumulate: int = 1,
    dtype: str = "float64",
    events: Any = (),
    state: Any = None,
    evaluate: bool = True,
    deferred: Any = None,
) -> tuple[Any, Any]:
    """Train a rank's part; returns the trainer, and the parameters with which the run is evaluated.

    `deferred` is the event that a run of several ranks adds to the trainer's listeners.
    """
    executor = d5.framework(framework).executor(network(dtype, seed=3 + communicator.rank))
    data, rank, size = samples(count, dtype), communicator.rank, communicator.size
    learn = ShardedSampler(d5.ShuffleSampler(data, batch, seed=5), rank, size)
    judge = ShardedSampler(d5.OrderedSampler(data, 10), rank, size, borrow=False)
    trainer = d5.Trainer(
        executor,
        scheme.wrap(optimizer, communicator, seed=11),
        learn,
        judge if evaluate else None,
        communicator=communicator,
        accumulate=accumulate,
        seed=2,
    )
    trainer.listeners.deferred = deferred
    if state is not None:
        trainer.load_state_dict(state)
    if epochs:
        trainer.train(epochs, events)
    with trainer.optimizer.averaged():
        found = {name: np.array(value) for name, value in executor.state_dict().items()}
    return trainer, found
