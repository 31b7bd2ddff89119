"""Fourier transforms, of whole signals and of frames, and the mel weight matrix."""

from __future__ import annotations

import math
from typing import Any

from deep5.networks.kernels.primitives import Array, Primitives
from deep5.networks.kernels.table import Composite

__all__ = ["OPERATORS"]


def _spectrum(xp: Primitives, x: Array, count: Any, place: int, inverse: bool, onesided: bool) -> Array:
    """The transform along an axis; the last axis of x holds real numbers, or real and imaginary parts.

    Args:
        xp: The primitives.
        x: Shape (…, 1) or (…, 2).
        count: The length of the transform; None: the size of the axis.
        place: The axis, not the last.
        inverse: Whether to compute the inverse.
        onesided: Whether the spectrum is half of that of a real signal.
    """
    kind, wide = x.dtype, xp.wide(x)
    real, imaginary = (xp.moveaxis(wide[..., part], place, -1) for part in (0, x.shape[-1] - 1))
    is_real = x.shape[-1] == 1
    if inverse and onesided:
        pairs = xp.complex_of(real, xp.zeros_like(real) if is_real else imaginary)
        count = 2 * (real.shape[-1] - 1) if count is None else count
        return xp.astype(xp.expand_dims(xp.moveaxis(xp.transformed(pairs, count, "irfft"), -1, place), axis=-1), kind)
    count = real.shape[-1] if count is None else count
    if is_real and not inverse:
        real, imaginary = xp.parts_of(xp.transformed(real, count, "rfft"))
        if not onesided:
            # The other half of a real signal's spectrum is the conjugate of this half.
            end = (count + 1) // 2
            real = xp.concat([real, xp.flip(real[..., 1:end], axis=-1)], axis=-1)
            imaginary = xp.concat([imaginary, -xp.flip(imaginary[..., 1:end], axis=-1)], axis=-1)
    else:
        pairs = xp.complex_of(real, xp.zeros_like(real) if is_real else imaginary)
        real, imaginary = xp.parts_of(xp.transformed(pairs, count, "ifft" if inverse else "fft"))
        if onesided:
            real, imaginary = (part[..., : count // 2 + 1] for part in (real, imaginary))
    return xp.astype(xp.stack([xp.moveaxis(part, -1, place) for part in (real, imaginary)], axis=-1), kind)


def _dft(
    xp: Primitives,
    x: Array,
    length: Any = None,
    axes: Any = None,
    *,
    axis: int = -2,
    inverse: int = 0,
    onesided: int = 0,
) -> Array:
    """ONNX's DFT; the axis is an input from opset 20 on."""
    place = (axis if axes is None else int(axes[0])) % x.ndim
    return _spectrum(xp, x, None if length is None else length[0], place, bool(inverse), bool(onesided))


def _stft(
    xp: Primitives, signal: Array, step: Any, window: Array | None = None, length: Any = None, *, onesided: int = 1
) -> Array:
    """ONNX's STFT: signals (N, samples, 1 or 2) as (N, frames, bins, 2)."""
    x = signal if signal.ndim == 3 else signal[..., None]
    wide = length[0] if length is not None else x.shape[1] if window is None else window.shape[0]
    count = (x.shape[1] - wide) // step[0] + 1
    if isinstance(count, int):
        count = max(count, 0)
    else:
        count, wide = xp.clip(xp.asarray(count, dtype=xp.int32), 0), xp.asarray(wide, dtype=xp.int32)
    rows = xp.take(x, xp.table(_frames, count, wide, step[0], like=x), axis=1)
    frames = xp.reshape(rows, (x.shape[0], count, wide, x.shape[2]))
    if window is not None:
        frames = frames * xp.astype(window, x.dtype)[:, None]
    return _spectrum(xp, frames, wide, 2, False, bool(onesided))


def _frames(xp: Any, count: Any, wide: Any, step: Any) -> Any:
    """The places of the elements of all frames, in a row."""
    starts = xp.arange(0, count, dtype=xp.int64) * step
    return xp.reshape(starts[:, None] + xp.arange(0, wide, dtype=xp.int64), (-1,))


def _mel_weight_matrix(
    xp: Primitives,
    bands: Any,
    length: Any,
    rate: Any,
    lower: Any,
    upper: Any,
    *,
    output_datatype: int = 1,
    kind: Any,
    place: Any,
) -> Array:
    """Triangular filters over the bins of a spectrum, of equal width on the mel scale: (length // 2 + 1, bands)."""
    return xp.astype(xp.table(_mel, bands[0], length[0], rate[0], lower[0], upper[0], like=place), kind)


def _mel(xp: Any, bands: Any, length: Any, rate: Any, lower: Any, upper: Any) -> Any:
    places = xp.arange(0, length // 2 + 1, dtype=xp.float64)[:, None]
    points = xp.arange(0, bands + 2, dtype=xp.float64)
    bands, length, rate, lower, upper = (
        xp.asarray(each, dtype=xp.float64) for each in (bands, length, rate, lower, upper)
    )
    low, high = (2595 / math.log(10) * xp.log(1 + each / 700) for each in (lower, upper))
    mel = low + points * ((high - low) / (bands + 2))
    bins = xp.floor((length + 1) * (700 * (xp.exp(mel * (math.log(10) / 2595)) - 1)) / rate)
    first, peak, last = bins[:-2], bins[1:-1], bins[2:]
    none = xp.zeros_like(places * first)
    rising = (places - first) / xp.where(peak > first, peak - first, xp.ones_like(peak))
    falling = (last - places) / xp.where(last > peak, last - peak, xp.ones_like(peak))
    weights = xp.where((places >= first) & (places < peak), rising, none)
    weights = xp.where((places >= peak) & (places < last), falling, weights)
    return xp.where(places == peak, none + 1, weights)


OPERATORS = {
    "DFT": Composite(function=_dft, settings=(1, 2), traced=(1,)),
    "MelWeightMatrix": Composite(function=_mel_weight_matrix, settings=(0, 1, 2, 3, 4), traced=(0, 1, 2, 3, 4)),
    "STFT": Composite(function=_stft, settings=(1, 3), traced=(1, 3)),
}
