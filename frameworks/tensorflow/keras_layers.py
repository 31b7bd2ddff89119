"""Batch normalization and dropout of Keras while a model is traced: as marks for an export, or by given masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from deep5.networks.layer_calls import GivenMasks, LayerCalls, Trace
from deep5.networks.onnx.marked_layers import NORMALIZED, RESULT, SOURCE, MarkedLayer, mark
from deep5.networks.run_modes import Mask

__all__ = ["MARK", "KerasCalls", "given_masks"]

MARK = "deep5: "
"""The message of a `CheckNumerics` that marks a value begins with this."""

_BATCH_AXES = 2


class KerasCalls(LayerCalls):
    """See `LayerCalls`; the calls become marks.

    Attributes:
        marked: The calls that became marks in this trace, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.marked: list[MarkedLayer] = []

    @contextmanager
    def traced(self, trace: Trace) -> Iterator[None]:
        """The context of a trace."""

        def normalize(call: Callable[..., Any], layer: Any, inputs: Any, training: Any, mask: Any) -> Any:
            by_batch = bool(training) and bool(layer.trainable)
            if self.normalizes(id(layer), layer.name, by_batch=by_batch, plain=_is_plain(layer, inputs, mask)):
                return self._normalized(layer, inputs)
            return call(layer, inputs, training=training, mask=mask)

        def drop(call: Callable[..., Any], inputs: Any, rate: Any, noise_shape: Any, seed: Any) -> Any:
            if self.trace == "evaluation" or not _drops(rate):
                return call(inputs, rate, noise_shape, seed)
            self.drops = True
            return self._dropped(inputs, rate, noise_shape) if self.trace == "training" else inputs

        self.begin(trace)
        self.marked = []
        with _replaced(normalize, drop):
            yield

    def _normalized(self, layer: Any, inputs: Any) -> Any:
        rank = inputs.shape.rank
        axis = layer.axis % rank
        first = [0, axis, *(other for other in range(1, rank) if other != axis)]
        number, channels = len(self.marked), inputs.shape[axis]
        numbers = {"epsilon": float(layer.epsilon), "momentum": float(layer.momentum)}
        dtype = inputs.dtype.name
        self.marked.append(
            MarkedLayer(op_type="BatchNormalization", name=layer.name, dtype=dtype, numbers=numbers, channels=channels)
        )
        moved = axis != 1
        result = _marked(tf.transpose(inputs, first) if moved else inputs, number, SOURCE)
        vectors = (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance)
        for role, vector in zip(NORMALIZED, vectors, strict=True):
            if vector is not None:
                found = _marked(tf.convert_to_tensor(vector), number, role)
                result += tf.reshape(found, [channels, *[1] * (rank - _BATCH_AXES)])
        result = _marked(result, number, RESULT)
        return tf.transpose(result, [first.index(each) for each in range(rank)]) if moved else result

    def _dropped(self, inputs: Any, rate: float, noise_shape: Any) -> Any:
        number = len(self.marked)
        self.marked.append(
            MarkedLayer(
                op_type="Dropout",
                name="Dropout",
                dtype=inputs.dtype.name,
                numbers={"ratio": float(rate)},
                shared=_shared(inputs, noise_shape),
            )
        )
        return _marked(_marked(inputs, number, SOURCE), number, RESULT)


@contextmanager
def given_masks(name: str, masks: Sequence[tuple[Mask, Any]]) -> Iterator[None]:
    """Let Keras drop by masks, the next one at each call; around a whole trace of the model.

    It replaces functions of Keras for all threads.

    Args:
        name: Name of the model that is traced, for messages.
        masks: What each is for, and its factors: 0, or 1 / (1 - ratio).

    Raises:
        Unsupported: The calls have other ratios or shapes, or there are more or fewer.
    """
    given = GivenMasks(name, masks)

    def drop(call: Callable[..., Any], inputs: Any, rate: Any, noise_shape: Any, seed: Any) -> Any:
        if not _drops(rate):
            return call(inputs, rate, noise_shape, seed)
        shared = _shared(inputs, noise_shape)
        factors = given.factors(rate, [1 if axis in shared else size for axis, size in enumerate(inputs.shape)])
        return inputs if factors is None else inputs * tf.cast(factors, inputs.dtype)

    with _replaced(drop=drop):
        yield
    given.check()


def _marked(value: Any, number: int, role: str) -> Any:
    return tf.raw_ops.CheckNumerics(tensor=value, message=MARK + mark(number, role))


def _drops(rate: Any) -> bool:
    # At a rate of 1 Keras returns zeros, and draws nothing.
    return bool(0.0 < rate < 1.0)


def _shared(inputs: Any, noise_shape: Any) -> tuple[int, ...]:
    """The axes along which all elements are dropped or none."""
    extents = [None] * inputs.shape.rank if noise_shape is None else list(noise_shape)
    return tuple(axis for axis, extent in enumerate(extents) if isinstance(extent, int) and extent == 1)


def _is_plain(layer: Any, inputs: Any, mask: Any) -> bool:
    """Whether a batch normalization is that of ONNX: over all elements, in the type of its vectors."""
    import keras

    own = keras.layers.BatchNormalization
    vectors = [each for each in (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance) if each is not None]
    rank = inputs.shape.rank
    return bool(
        mask is None
        and not getattr(layer, "renorm", False)
        and type(layer)._moments is own._moments
        and rank is not None
        and rank >= _BATCH_AXES
        and layer.axis % rank != 0
        and inputs.dtype.name in ("float32", "float64")
        and {tf.as_dtype(each.dtype) for each in vectors} == {inputs.dtype}
        and tf.as_dtype(layer.compute_dtype) == inputs.dtype
    )


@contextmanager
def _replaced(normalize: Callable[..., Any] | None = None, drop: Callable[..., Any] | None = None) -> Iterator[None]:
    """With functions in place of the call of batch normalizations, and of dropout; they get the replaced function."""
    import keras
    from keras.src.backend import random  # the layers call this, and not keras.random

    layer = keras.layers.BatchNormalization
    call, dropout = layer.call, random.dropout

    def replaced_call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        assert normalize is not None  # noqa: S101 - see below
        return normalize(call, self, inputs, training, mask)

    def replaced_dropout(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
        assert drop is not None  # noqa: S101 - see below
        return drop(dropout, inputs, rate, noise_shape, seed)

    try:
        if normalize is not None:
            layer.call = replaced_call
        if drop is not None:
            random.dropout = replaced_dropout
        yield
    finally:
        layer.call, random.dropout = call, dropout
