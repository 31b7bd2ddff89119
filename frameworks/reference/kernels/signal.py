"""Fourier transforms of signals, and weights of the mel scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.core.errors import ShapeError
from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["dft", "mel_weights", "stft"]


def dft(x: Array, length: Any = None, axis: Any = None, *, inverse: bool, onesided: bool) -> Array:
    """ONNX DFT: y[k] = sum over n of x[n] exp(-2 pi i k n / N), or its inverse, which divides by N.

    Args:
        x: (*signal, 1) of real numbers, or (*signal, 2) of complex ones.
        length: N; x is truncated or zero-padded. None: the size of the axis.
        axis: The axis of the signal; None: the last one.
        inverse: Whether to compute the inverse.
        onesided: Whether the spectrum of a real signal has only its first N // 2 + 1 values.

    Returns:
        The signal's shape with another size along the axis, and a last axis of size 2; of size 1 for a one-sided
        inverse.

    Raises:
        ShapeError: The axis or length is invalid; or the input is complex for a one-sided transform, or real for its
            inverse.
    """
    _check_parts("DFT", x)
    at = -2 if axis is None else int(np.asarray(axis).reshape(()))
    if not -x.ndim <= at < x.ndim - 1 or at == -1:
        raise ShapeError(f"DFT: got axis {at} of {x.ndim} dimensions; allowed: {-x.ndim} to {x.ndim - 2}, not -1")
    at %= x.ndim
    count = None if length is None else int(np.asarray(length).reshape(()))
    if (count is not None and count < 1) or not x.shape[at]:
        raise ShapeError(f"DFT: got length {count} for axis {at} of shape {x.shape}; allowed: at least 1")
    if onesided and inverse != (x.shape[-1] == 2):
        raise ShapeError(f"DFT: got shape {x.shape} for one side; allowed: complex numbers back, real ones there")
    signal = _as_complex(x)
    if onesided and inverse:
        count = 2 * (x.shape[at] - 1) if count is None else count
        if count < 1:
            raise ShapeError(f"DFT: one number of one side has the length {count}; remedy: dft_length")
        return np.fft.irfft(signal, count, axis=at)[..., None].astype(x.dtype, copy=False)
    transform = np.fft.ifft if inverse else np.fft.rfft if onesided else np.fft.fft
    return _as_pairs(transform(signal, count, axis=at), x.dtype)


def stft(x: Array, step: Any, window: Array | None = None, length: Any = None, *, onesided: bool) -> Array:
    """ONNX STFT: the Fourier transform of each frame of a signal.

    Args:
        x: (batch, samples, 1) of real numbers, or (batch, samples, 2) of complex ones.
        step: Samples between the starts of consecutive frames.
        window: Factors of a frame, (length,); None: ones.
        length: Samples per frame; None: the length of the window, or of the signal.
        onesided: Whether to return only the first length // 2 + 1 values of a frame.

    Returns:
        (batch, frames, numbers, 2).

    Raises:
        ShapeError: The shapes do not match, a frame is longer than the signal, or the input is complex for a one-sided
            transform.
    """
    if x.ndim != 3:
        raise ShapeError(f"STFT: got shape {x.shape}; allowed: (batch, samples, 1 or 2)")
    _check_parts("STFT", x)
    if onesided and x.shape[-1] == 2:
        raise ShapeError("STFT: got complex numbers for onesided; allowed: real ones; remedy: onesided=0")
    stride = int(np.asarray(step).reshape(()))
    extent = x.shape[1] if window is None else len(window)
    size = extent if length is None else int(np.asarray(length).reshape(()))
    if stride < 1 or not 1 <= size <= x.shape[1] or (window is not None and window.shape != (size,)):
        shape = None if window is None else window.shape
        raise ShapeError(f"STFT: got frames of {size} by {stride}, a window {shape}, for {x.shape[1]} samples")
    frames = np.lib.stride_tricks.sliding_window_view(_as_complex(x), size, axis=1)[:, ::stride]
    if window is not None:
        frames = frames * window
    return _as_pairs((np.fft.rfft if onesided else np.fft.fft)(frames, axis=-1), x.dtype)


def mel_weights(bins: Any, length: Any, rate: Any, lowest: Any, highest: Any, *, dtype: Any) -> Array:
    """ONNX MelWeightMatrix: triangles over the bins of a spectrum, evenly spaced on the mel scale.

    Args:
        bins: The number of triangles.
        length: The length of the Fourier transform.
        rate: Samples per second.
        lowest: Start of the first triangle, in hertz.
        highest: Upper end of the mel scale, in hertz.
        dtype: The dtype of the result.

    Returns:
        (length // 2 + 1, bins): each triangle is 1 at its peak.

    Raises:
        ShapeError: A triangle is outside the spectrum.
    """
    count, size = int(np.asarray(bins).reshape(())), int(np.asarray(length).reshape(()))
    low, high = (2595 * np.log10(1 + float(np.asarray(edge).reshape(())) / 700) for edge in (lowest, highest))
    mel = low + np.arange(count + 2) * (high - low) / (count + 2)
    hertz = 700 * (10 ** (mel / 2595) - 1)
    edges = np.floor((size + 1) * hertz / int(np.asarray(rate).reshape(()))).astype(np.int64)
    place = np.arange(size // 2 + 1)[:, None]
    if count and not 0 <= edges.min() <= edges.max() <= size // 2 + 1:
        raise ShapeError(f"MelWeightMatrix: got edges {edges.tolist()}; allowed: 0 to {size // 2}, the spectrum's")
    begin, peak, end = edges[:-2], edges[1:-1], edges[2:]
    rising = (place - begin) / np.maximum(peak - begin, 1)
    falling = (end - place) / np.maximum(end - peak, 1)
    weights = np.where((place >= begin) & (place < peak), rising, 0.0) + np.where(
        (place > peak) & (place < end), falling, 0.0
    )
    return np.where(place == peak, 1.0, weights).astype(dtype)


def _check_parts(operator: str, x: Array) -> None:
    if x.ndim < 2 or x.shape[-1] not in (1, 2):
        raise ShapeError(f"{operator}: got shape {x.shape}; allowed: a last axis of 1, or of 2 for complex numbers")


def _as_complex(x: Array) -> Array:
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _as_pairs(spectrum: Array, dtype: Any) -> Array:
    return np.stack([spectrum.real, spectrum.imag], axis=-1).astype(dtype, copy=False)
