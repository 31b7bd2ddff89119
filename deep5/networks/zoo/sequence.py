"""A recurrent encoder and decoder with attention that maps one sequence of tokens to another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deep5.networks.zoo.parts import check_arguments, dropped

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["attention_seq2seq"]

# Replaces the scores of padding; its softmax is zero in either dtype.
_FORBIDDEN = -1e9
_IGNORED = -1


def attention_seq2seq(
    *,
    source_vocabulary: int = 27,
    target_vocabulary: int = 41,
    source_length: int = 12,
    target_length: int = 13,
    width: int = 128,
    dropout: float = 0.0,
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A bidirectional GRU that reads a sequence, and a GRU with attention to it that predicts another, token by token.

    The decoder's state h_t of step t attends to all states s of the encoder with the weights softmax(h_t W s), and
    their weighted mean c_t gives the logits V tanh(U [c_t, h_t]). Attention follows the decoder's layer, so in training
    each layer runs once over whole sequences. The decoder starts from tanh(B b + d), where b is the encoder's last
    state backward, which has read the whole source. Token 0 of the source is padding, which has no weight.

    Args:
        source_vocabulary: Number of different source tokens, with the padding.
        target_vocabulary: Number of different target tokens, with those of start and end.
        source_length: Tokens per source.
        target_length: Tokens per target.
        width: Features per token, and size of the states of the decoder and of each direction of the encoder.
        dropout: Dropout probability of both embeddings and before the last layer.
        dtype: Element type of parameters.
        seed: Seed of the initial weights: embeddings standard normal, all others uniform within ±1 / sqrt(n) of n
            inputs, or of n = width in recurrent layers, as in PyTorch.

    Returns:
        Inputs `source` (N, source_length) and `target` (N, target_length), the token before each label, both int64, and
        `label` (N, target_length) int64, where -1 is ignored; outputs `logits` (N, target_length, target_vocabulary),
        each row a function of the source and of the target's tokens up to this row, and the scalar `loss`, the mean
        over all labels that are not ignored.

    Raises:
        UsageError: An unknown dtype, a size that is not an integer of at least 1, or a dropout outside [0, 1).

    References:
        Luong, Pham and Manning, Effective approaches to attention-based neural machine translation, EMNLP 2015,
        section 3.1 (global attention, the score "general") and equation 5; Bahdanau, Cho and Bengio, Neural machine
        translation by jointly learning to align and translate, ICLR 2015, sections 3.2 and A.2 (encoder and first
        state).

    >>> import deep5 as d5
    >>> network = d5.networks.attention_seq2seq(source_length=8, target_length=9, width=16)
    >>> {name: str(spec) for name, spec in network.inputs.items()}
    {'source': 'int64[N, 8]', 'target': 'int64[N, 9]', 'label': 'int64[N, 9]'}
    >>> {name: str(spec) for name, spec in network.outputs.items()}
    {'logits': 'float32[N, 9, 41]', 'loss': 'float32[]'}
    """
    import numpy as np

    from deep5.networks.edit.builder import NetworkBuilder

    sizes = {
        "source_vocabulary": source_vocabulary,
        "target_vocabulary": target_vocabulary,
        "source_length": source_length,
        "target_length": target_length,
        "width": width,
    }
    check_arguments(dtype, "cross_entropy", dropout, **sizes)
    build = NetworkBuilder("attention_seq2seq", dtype=dtype, seed=seed)
    source = build.input("source", ("N", source_length), "int64")
    target = build.input("target", ("N", target_length), "int64")
    label = build.input("label", ("N", target_length), "int64")
    first = build.constant("first", np.array([0]))

    read = _embedded(build, source, "source", source_vocabulary, width, dropout)
    both, last = _recurrent(build, read, "encoder", width, directions=2, outputs=2)
    # (source_length, 2, N, width) to (N, source_length, 2 width).
    states = build.op(
        "Reshape", build.op("Transpose", both, perm=[2, 0, 1, 3]), _ints(build, "states", 0, 0, 2 * width)
    )
    backward = build.op("Gather", last, build.constant("encoder.backward", np.array(1)), axis=0)
    begin = build.op("Tanh", _dense(build, backward, "decoder.begin", width, width))

    known = _embedded(build, target, "target", target_vocabulary, width, dropout)
    hidden = _recurrent(build, known, "decoder", width, begin=build.op("Unsqueeze", begin, first))
    hidden = build.op(
        "Transpose", build.op("Squeeze", hidden, build.constant("decoder.direction", np.array([1]))), perm=[1, 0, 2]
    )

    keys = build.op("MatMul", states, build.parameter("attention.weight", (2 * width, width), _uniform(2 * width)))
    scores = build.op("MatMul", hidden, build.op("Transpose", keys, perm=[0, 2, 1]))
    padding = build.op("Equal", source, build.constant("padding", np.array(0)))
    padding = build.op("Unsqueeze", padding, build.constant("attention.targets", np.array([1])))
    scores = build.op("Where", padding, build.scalar(_FORBIDDEN), scores)
    context = build.op("MatMul", build.op("Softmax", scores, axis=-1), states)
    joined = build.op("Concat", context, hidden, axis=-1)
    attended = build.op("Tanh", _dense(build, joined, "combined", 3 * width, width))
    logits = _dense(build, dropped(build, attended, dropout), "fc", width, target_vocabulary)

    rows = build.op("Reshape", logits, _ints(build, "loss.rows", -1, target_vocabulary))
    tokens = build.op("Reshape", label, _ints(build, "loss.tokens", -1))
    loss = build.op("SoftmaxCrossEntropyLoss", rows, tokens, reduction="mean", ignore_index=_IGNORED)
    return build.network({"logits": logits, "loss": loss})


def _uniform(inputs: int) -> Any:
    """Uniform within ±1 / sqrt(inputs)."""
    limit = 1.0 / math.sqrt(inputs)

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(-limit, limit, shape)

    return draw


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def _ints(build: NetworkBuilder, name: str, *values: int) -> Any:
    import numpy as np

    return build.constant(name, np.array(values, dtype=np.int64))


def _embedded(build: NetworkBuilder, tokens: Any, name: str, vocabulary: int, width: int, dropout: float) -> Any:
    """One row per token, (length, N, width)."""
    x = build.op("Gather", build.parameter(f"{name}.embedding", (vocabulary, width), _normal), tokens, axis=0)
    return build.op("Transpose", dropped(build, x, dropout), perm=[1, 0, 2])


def _recurrent(
    build: NetworkBuilder, x: Any, name: str, width: int, *, directions: int = 1, outputs: int = 1, begin: Any = None
) -> Any:
    """A GRU with the reset gate after the product, as in PyTorch: all states and, as a second output, the last."""
    init = _uniform(width)
    return build.op(
        "GRU",
        x,
        build.parameter(f"{name}.input_weight", (directions, 3 * width, width), init),
        build.parameter(f"{name}.hidden_weight", (directions, 3 * width, width), init),
        build.parameter(f"{name}.bias", (directions, 6 * width), init),
        *(() if begin is None else (None, begin)),
        outputs=outputs,
        hidden_size=width,
        linear_before_reset=1,
        direction="forward" if directions == 1 else "bidirectional",
    )


def _dense(build: NetworkBuilder, x: Any, name: str, into: int, out: int) -> Any:
    """x W + b."""
    y = build.op("MatMul", x, build.parameter(f"{name}.weight", (into, out), _uniform(into)))
    return build.op("Add", y, build.parameter(f"{name}.bias", (out,), _uniform(into)))
