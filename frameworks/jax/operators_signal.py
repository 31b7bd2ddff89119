"""Fourier transforms and related operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from deep5.core.errors import ShapeError
from deep5.frameworks.jax.table import attribute, call, given, operator

if TYPE_CHECKING:
    from deep5.frameworks.jax.emitter import Emitter

__all__: list[str] = []

Array = Any


def _complex(x: Array) -> Array:
    """Complex numbers from real and imaginary parts along the last axis; real numbers from real parts only."""
    kind = jnp.promote_types(x.dtype, "float32")
    x = x.astype(kind)
    return lax.complex(x[..., 0], x[..., 1]) if x.shape[-1] == 2 else x[..., 0]


def _pairs(y: Array, dtype: Any) -> Array:
    return jnp.stack([jnp.real(y), jnp.imag(y)], axis=-1).astype(dtype)


def _transformed(x: Array, length: Any, axes: Any, inverse: bool, onesided: bool) -> Array:
    """ONNX's DFT: (…, 1) or (…, 2) to (…, 2); the inverse of a onesided spectrum, to (…, 1)."""
    axis = (-2 if axes is None else axes[0]) % x.ndim
    n, z = None if length is None else int(length[0]), _complex(x)
    if inverse and onesided:
        return jnp.fft.irfft(z, n, axis=axis)[..., None].astype(x.dtype)
    if inverse:
        return _pairs(jnp.fft.ifft(z, n, axis=axis), x.dtype)
    if jnp.iscomplexobj(z):
        if onesided:
            raise ShapeError("onesided=1 of complex numbers; allowed: real ones, whose last axis has size 1")
        return _pairs(jnp.fft.fft(z, n, axis=axis), x.dtype)
    y = jnp.fft.rfft(z, n, axis=axis)
    if not onesided:
        # The other half of a real signal's spectrum is the conjugate of this half.
        behind = lax.slice_in_dim(y, 1, ((z.shape[axis] if n is None else n) + 1) // 2, axis=axis)
        y = jnp.concatenate([y, jnp.conj(jnp.flip(behind, axis))], axis=axis)
    return _pairs(y, x.dtype)


@operator("DFT", host=(1, 2))
def _dft(emitter: Emitter, node: ir.Node) -> None:
    x, length, axes = (
        emitter.plain(node.inputs[0]),
        emitter.setting(given(node, 1)),
        emitter.setting(given(node, 2)),
    )
    how = f"{bool(attribute(node, 'inverse', 0))}, {bool(attribute(node, 'onesided', 0))}"
    emitter.assign(node.outputs[0], f"{emitter.bind(_transformed)}({x}, {length}, {axes}, {how})")


def _frames(x: Array, step: tuple[int, ...], window: Array | None, length: Any, onesided: bool) -> Array:
    """ONNX's STFT: (N, L), (N, L, 1) or (N, L, 2) to (N, frames, bins, 2)."""
    x = x if x.ndim == 3 else x[..., None]
    wide = int(length[0]) if length is not None else x.shape[1] if window is None else window.shape[0]
    count = (x.shape[1] - wide) // step[0] + 1
    places = np.arange(max(count, 0))[:, None] * step[0] + np.arange(wide)
    rows = jnp.take(x, places, axis=1)
    rows = rows if window is None else rows * window[:, None].astype(x.dtype)
    return _transformed(rows, None, None, False, onesided)


@operator("STFT", host=(1, 3))
def _stft(emitter: Emitter, node: ir.Node) -> None:
    inputs = [emitter.plain(node.inputs[0]), emitter.setting(node.inputs[1]), emitter.plain(given(node, 2))]
    inputs += [emitter.setting(given(node, 3)), str(bool(attribute(node, "onesided", 1)))]
    emitter.assign(node.outputs[0], f"{emitter.bind(_frames)}({', '.join(inputs)})")


def _mel_weights(bins: Any, length: Any, rate: Any, low: Any, high: Any, dtype: Any) -> Array:
    """Triangles over the bins of a spectrum, evenly spaced in mel: 2595 log10(1 + f / 700).

    Args:
        bins: Number of triangles.
        length: Length of the Fourier transform.
        rate: Sample rate, in hertz.
        low: The lowest frequency, in hertz.
        high: The highest frequency, in hertz.
        dtype: The dtype of the result, whose shape is (length / 2 + 1, bins).
    """
    ends = 2595 * np.log10(1 + np.array([low[0], high[0]]) / 700)
    points = ends[0] + np.arange(bins[0] + 2) * ((ends[1] - ends[0]) / (bins[0] + 2))
    corners = ((length[0] + 1) * (700 * (10 ** (points / 2595) - 1)) // rate[0]).astype(np.int64)
    first, peak, last = corners[:-2], corners[1:-1], corners[2:]
    place = np.arange(length[0] // 2 + 1)[:, None]
    rising = (place - first) / np.maximum(peak - first, 1)
    falling = (last - place) / np.maximum(last - peak, 1)
    weights = np.where((place >= first) & (place < peak), rising, 0)
    weights = np.where((place >= peak) & (place < last), falling, weights)
    return np.where(place == peak, 1, weights).astype(dtype)


@operator("MelWeightMatrix", host=(0, 1, 2, 3, 4))
def _mel_weight_matrix(emitter: Emitter, node: ir.Node) -> None:
    dtype = emitter.bind(node.outputs[0].dtype.numpy())  # type: ignore[union-attr]  # types were inferred
    call(emitter, node, _mel_weights, dtype, settings=(0, 1, 2, 3, 4))
