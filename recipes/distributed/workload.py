"""What the recipes of level 3 share: LeNet on the digits, 64 samples a step for all ranks, and what is measured."""

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
    """The parts that must not change.

    Args:
        scheme: Name of the scheme.
        compression: Name of the compression, whose the arguments are then; None: they are the scheme's.
        arguments: By name.
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
