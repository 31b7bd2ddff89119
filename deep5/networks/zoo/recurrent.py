"""A recurrent network that classifies sequences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from deep5.networks.zoo.parts import check_arguments, finished, label_of

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.network import Network

__all__ = ["lstm"]


def lstm(
    *,
    features: int = 28,
    hidden: int = 128,
    length: int = 28,
    classes: int = 10,
    loss: str = "cross_entropy",
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """One LSTM layer over a sequence, its last hidden state classified. The sizes read an image row by row.

    Args:
        features: Numbers a step of the sequence.
        hidden: Size of the state.
        length: Steps of the sequence.
        classes: Number of classes.
        loss: As for `lenet`.
        dtype: Element type of parameters and sequences.
        seed: Of the initial weights: all of them, biases too, uniform within ±1 / sqrt(hidden), as PyTorch draws them.

    Returns:
        Inputs `input` (N, length, features) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, or a size that is no whole number of at least 1.

    References:
        Hochreiter and Schmidhuber, Long short-term memory, Neural Computation 9(8), 1997; with the forget gate of Gers,
        Schmidhuber and Cummins, Neural Computation 12(10), 2000.
    """
    import numpy as np

    from deep5.networks.builder import NetworkBuilder

    check_arguments(dtype, loss, features=features, hidden=hidden, length=length, classes=classes)
    limit = 1.0 / math.sqrt(hidden)

    def uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(-limit, limit, shape)

    build = NetworkBuilder("lstm", dtype=dtype, seed=seed)
    x, label = build.input("input", ("N", length, features)), label_of(build, loss, classes)
    _, last = build.op(
        "LSTM",
        build.op("Transpose", x, perm=[1, 0, 2]),
        build.parameter("lstm.input_weight", (1, 4 * hidden, features), uniform),
        build.parameter("lstm.hidden_weight", (1, 4 * hidden, hidden), uniform),
        build.parameter("lstm.bias", (1, 8 * hidden), uniform),
        outputs=2,
        hidden_size=hidden,
    )
    last = build.op("Squeeze", last, build.constant("lstm.direction", np.array([0])))
    weight, bias = (
        build.parameter("fc.weight", (classes, hidden), uniform),
        build.parameter("fc.bias", (classes,), uniform),
    )
    return finished(build, build.op("Gemm", last, weight, bias, transB=1), label, loss)
