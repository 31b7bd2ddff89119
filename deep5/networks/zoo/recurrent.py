"""Recurrent networks: one that classifies sequences, one that predicts the next token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deep5.networks.zoo.parts import check_arguments, dropped, finished, label_of, language_model

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.network import Network

__all__ = ["lstm", "lstm_language_model"]


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
    """One LSTM layer over a sequence, with a classifier on its last hidden state. The default sizes read an image row
    by row.

    Args:
        features: Features per step of the sequence.
        hidden: Size of the state.
        length: Steps of the sequence.
        classes: Number of classes.
        loss: As for `lenet`.
        dtype: Element type of parameters and sequences.
        seed: Seed of the initial weights: all, including biases, uniform within ±1 / sqrt(hidden), as in PyTorch.

    Returns:
        Inputs `input` (N, length, features) and `label`; outputs `logits` (N, classes) and the scalar `loss`.

    Raises:
        UsageError: An unknown loss or dtype, or a size that is not an integer of at least 1.

    References:
        Hochreiter and Schmidhuber, Long short-term memory, Neural Computation 9(8), 1997; with the forget gate of Gers,
        Schmidhuber and Cummins, Neural Computation 12(10), 2000.

    >>> import deep5 as d5
    >>> network = d5.networks.lstm(features=8, hidden=16, length=20)
    >>> str(network.inputs["input"]), str(network.outputs["logits"])
    ('float32[N, 20, 8]', 'float32[N, 10]')
    >>> network.parameter_specs["lstm.input_weight"].shape  # ONNX: (directions, gates * hidden, features)
    (1, 64, 8)
    """
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder

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


def lstm_language_model(
    *,
    vocabulary: int = 10000,
    length: int = 35,
    width: int = 650,
    layers: int = 2,
    dropout: float = 0.5,
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """LSTM layers over token ids that predict the next one; its default sizes are the medium model of Zaremba et al.

    Each sequence starts from a zero state. The operator has two biases per layer instead of the paper's one: 5,200 more
    parameters in total.

    Args:
        vocabulary: Number of different tokens.
        length: Tokens per sequence.
        width: Features per token, and size of each layer's state.
        layers: LSTM layers.
        dropout: Dropout probability before each layer and after the last, but not on recurrent connections.
        dtype: Element type of parameters.
        seed: Seed of the initial weights: all uniform within ±0.05, as in the paper; the last layer's bias is zero.

    Returns:
        Inputs `input` (N, length) int64, each in [0, vocabulary), and `label`, the tokens that follow, of the same
        shape; outputs `logits` (N, length, vocabulary) and the scalar `loss`, the mean over all tokens.

    Raises:
        UsageError: An unknown dtype, a size that is not an integer of at least 1, or a dropout outside [0, 1).

    References:
        Zaremba, Sutskever and Vinyals, Recurrent neural network regularization, arXiv:1409.2329, sections 3.2 and 4.1.

    >>> import deep5 as d5
    >>> network = d5.networks.lstm_language_model(vocabulary=50, length=8, width=16, layers=2)
    >>> {name: str(spec) for name, spec in {**network.inputs, **network.outputs}.items()}
    {'input': 'int64[N, 8]', 'label': 'int64[N, 8]', 'logits': 'float32[N, 8, 50]', 'loss': 'float32[]'}
    >>> sum(node.op_type == "LSTM" for node in network.nodes)
    2
    """
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder, zeros

    check_arguments(dtype, "cross_entropy", dropout, vocabulary=vocabulary, length=length, width=width, layers=layers)

    def uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(-0.05, 0.05, shape)

    build = NetworkBuilder("lstm_language_model", dtype=dtype, seed=seed)
    tokens = build.input("input", ("N", length), "int64")
    label = build.input("label", ("N", length), "int64")
    direction = build.constant("lstm.direction", np.array([1]))
    x: Any = build.op("Gather", build.parameter("embedding", (vocabulary, width), uniform), tokens, axis=0)
    x = build.op("Transpose", x, perm=[1, 0, 2])
    for layer in range(layers):
        x = build.op(
            "LSTM",
            dropped(build, x, dropout),
            build.parameter(f"lstm{layer}.input_weight", (1, 4 * width, width), uniform),
            build.parameter(f"lstm{layer}.hidden_weight", (1, 4 * width, width), uniform),
            build.parameter(f"lstm{layer}.bias", (1, 8 * width), uniform),
            hidden_size=width,
        )
        x = build.op("Squeeze", x, direction)
    x = build.op("Transpose", dropped(build, x, dropout), perm=[1, 0, 2])
    x = build.op("MatMul", x, build.parameter("fc.weight", (width, vocabulary), uniform))
    logits = build.op("Add", x, build.parameter("fc.bias", (vocabulary,), zeros))
    return language_model(build, logits, label, vocabulary)
