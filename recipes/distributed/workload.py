"""Common parts of the level 3 recipes: LeNet on the digits, 64 samples per step over all ranks, and the metrics."""

from collections.abc import Mapping
from typing import Any

import deep5 as d5

MUTABLE = {
    "batch_size": 64,
    "framework": "pytorch",
    "device": "cpu",
    "optimizer": "adam",
    "optimizer_kwargs": {"lr": 0.002},
    "events": (),
    "seed": 0,
}

METRICS = [
    (d5.TestAccuracy(), ">= 95 %"),
    (d5.TimeToAccuracy(95), None),
    (d5.TrainingLoss(), None),
    (d5.Throughput(), None),
    (d5.CommunicationVolume(), None),
    (d5.CommunicationShare(), None),
    (d5.LoadImbalance(), None),
]

SIZES: Mapping[str, Any] = {
    "smoke": {"epochs": 2, "dataset_kwargs": {"limit": 320}},
}


def fixed(scheme: str, compression: str | None = None, **arguments: Any) -> dict[str, Any]:
    """The fixed parts of the recipe.

    Args:
        scheme: Name of the scheme.
        compression: Name of the compression, which then takes the arguments; None: the scheme takes them.
        arguments: Arguments by name.
    """
    parts: dict[str, Any] = {
        "model": "lenet",
        "model_kwargs": {"activation": "tanh", "pooling": "average"},
        "dataset": "digits",
        "dataset_kwargs": {"size": 28, "test_share": 0.2, "split_seed": 0},
        "epochs": 20,
        "scheme": scheme,
    }
    if compression is not None:
        return {**parts, "compression": compression, "compression_kwargs": arguments}
    return {**parts, "scheme_kwargs": arguments}
