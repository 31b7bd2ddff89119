"""The baseline on ONNX Runtime: the bytes of a model file in a session with default settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import deep5 as d5
from deep5.recipes.overhead.by_deep5 import batches

__all__ = ["inference"]

Work = Callable[[], object]


def inference(
    *,
    steps: int,
    seed: int,
    threads: int,
    network: Callable[..., d5.Network],
    batch_size: int,
    network_kwargs: Mapping[str, Any] | None = None,
) -> Work:
    """Logits and loss of the same network on the same batches, with weights as constants of the model.

    Args:
        steps: Calls of the session.
        seed: Seed of weights and batches.
        threads: Threads of the session.
        network: Makes the network.
        batch_size: Samples per batch.
        network_kwargs: Arguments of `network`.

    Returns:
        A function that returns the last call's outputs, in the network's order.
    """
    import onnxruntime as ort

    made = network(**(network_kwargs or {}), seed=seed)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(made.to_onnx().SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds, outputs = batches(made, batch_size, seed), list(made.outputs)

    def work() -> list[np.ndarray]:
        for index in range(steps):
            found: list[np.ndarray] = session.run(outputs, feeds[index % len(feeds)])
        return found

    return work
