"""Fourier transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import tensorflow as tf

from deep5.frameworks.tensorflow.table import attribute, operator

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.emitter import Emitter

__all__: list[str] = []


def _check_precision(node: ir.Node) -> str | None:
    kind = node.inputs[0].dtype  # type: ignore[union-attr]  # types were inferred
    known = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    return None if kind in known else f"a transform in {kind.name}"  # type: ignore[union-attr]  # as above


def _complex(x: Any) -> Any:
    """Pairs along the last axis as complex numbers; single values are real."""
    return tf.complex(x[..., 0], x[..., 1] if x.shape[-1] == 2 else tf.zeros_like(x[..., 0]))


def _pairs(z: Any) -> Any:
    return tf.stack([tf.math.real(z), tf.math.imag(z)], -1)


def _fitted(z: Any, length: Any) -> Any:
    """The first elements along the last axis, padded with zeros at the end if there are fewer."""
    z = z[..., :length]
    missing = length - tf.shape(z)[-1]
    return tf.pad(z, [*[(0, 0)] * (z.shape.rank - 1), (0, missing)])


def _transformed(x: Any, length: Any, along: int, inverse: bool, onesided: bool, wide: bool) -> Any:
    """The discrete Fourier transform; x has single values or pairs along its last axis.

    For real numbers, half of the summed terms cancel: on the CPU they are computed in float64 and rounded once.
    """
    along += x.shape.rank if along < 0 else 0
    kind = x.dtype
    z = _complex(tf.cast(x, tf.float64) if wide and x.shape[-1] == 1 else x)
    turn = [*(axis for axis in range(z.shape.rank) if axis != along), along]
    back = [turn.index(axis) for axis in range(z.shape.rank)]
    z = tf.transpose(z, turn)
    length = None if length is None else tf.reshape(tf.cast(length, tf.int32), [])
    if inverse and onesided:
        whole = 2 * (tf.shape(z)[-1] - 1) if length is None else length
        real = tf.signal.irfft(_fitted(z, whole // 2 + 1), [whole])
        return tf.cast(tf.transpose(real, back), kind)[..., tf.newaxis]
    z = z if length is None else _fitted(z, length)
    z = tf.signal.ifft(z) if inverse else tf.signal.fft(z)
    z = z[..., : tf.shape(z)[-1] // 2 + 1] if onesided else z
    return tf.cast(_pairs(tf.transpose(z, back)), kind)


@operator("DFT", _check_precision, host=(2,))
def _dft(emitter: Emitter, node: ir.Node) -> None:
    x, length = (emitter.name(value) for value in (*node.inputs, None)[:2])
    given = len(node.inputs) > 2 and node.inputs[2] is not None
    along = f"{emitter.setting(node, 2)}[0]" if given else attribute(node, "axis", -2)
    wide = emitter.device.startswith("/CPU")
    how = f"{bool(attribute(node, 'inverse', 0))}, {bool(attribute(node, 'onesided', 0))}, {wide}"
    emitter.assign(node, f"{emitter.function(_transformed)}({x}, {length}, {along}, {how})")


def _short_time(x: Any, step: Any, window: Any, length: Any, onesided: bool) -> Any:
    """Transforms of frames (N, frames, length) of signals (N, samples, 1 or 2)."""
    length = tf.size(window) if length is None else tf.reshape(tf.cast(length, tf.int32), [])
    step = tf.reshape(tf.cast(step, tf.int32), [])
    frames = tf.maximum((tf.shape(x)[1] - length) // step + 1, 0)
    places = tf.range(frames)[:, tf.newaxis] * step + tf.range(length)
    z = _complex(tf.gather(x, places, axis=1))
    z = z if window is None else z * tf.cast(window, z.dtype)
    z = tf.signal.fft(z)
    return _pairs(z[..., : length // 2 + 1] if onesided else z)


@operator("STFT", _check_precision)
def _stft(emitter: Emitter, node: ir.Node) -> None:
    inputs = ", ".join(emitter.name(value) for value in (*node.inputs, None, None)[:4])
    emitter.assign(node, f"{emitter.function(_short_time)}({inputs}, {bool(attribute(node, 'onesided', 1))})")
