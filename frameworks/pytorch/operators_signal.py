"""Signal operators: Fourier transforms, full and short-time, and the mel weight matrix."""

from __future__ import annotations

import math
from typing import Any

import torch

from deep5.frameworks.pytorch.table import kernel

__all__: list[str] = []


def _complex(x: Any) -> tuple[Any, bool]:
    """A complex or real signal from real and optional imaginary parts on the last axis; and whether it is real."""
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    if x.shape[-1] == 1:
        return x.squeeze(-1), True
    return torch.view_as_complex(x.contiguous()), False


@kernel("DFT", settings=(1, 2))
def _dft(x: Any, length: Any = None, along: Any = None, *, axis: int = -2, inverse: int = 0, onesided: int = 0) -> Any:
    along = along[0] if isinstance(along, list) else axis if along is None else along
    count = length[0] if isinstance(length, list) else length
    kind, place = x.dtype, along % x.ndim
    signal, real = _complex(x)
    if inverse and onesided:
        return torch.fft.irfft(signal, count, place).unsqueeze(-1).to(kind)
    if onesided and real:
        found = torch.fft.rfft(signal, count, place)
    elif inverse:
        found = torch.fft.ifft(signal, count, place)
    else:
        found = torch.fft.fft(signal, count, place)
        if onesided:
            found = found.narrow(place, 0, found.shape[place] // 2 + 1)
    return torch.view_as_real(found).to(kind)


@kernel("STFT", settings=(1, 3))
def _stft(signal: Any, step: Any, window: Any = None, length: Any = None, *, onesided: int = 1) -> Any:
    step, length = (value[0] if isinstance(value, list) else value for value in (step, length))
    values, real = _complex(signal)
    length = window.shape[0] if length is None else length
    frames = values.unfold(1, length, step)
    if window is not None:
        frames = frames * window
    if onesided and real:
        return torch.view_as_real(torch.fft.rfft(frames)).to(signal.dtype)
    found = torch.fft.fft(frames)
    found = found[..., : length // 2 + 1] if onesided else found
    return torch.view_as_real(found).to(signal.dtype)


@kernel("MelWeightMatrix", settings=(0, 1, 2, 3, 4))
def _mel_weight_matrix(
    bands: Any, length: Any, rate: Any, lower: Any, upper: Any, *, kind: Any, place: Any, output_datatype: int = 1
) -> Any:
    """Triangular filters over the bins of a spectrum, of equal width on the mel scale.

    Returns:
        Shape (length // 2 + 1, bands).
    """
    bands, length, rate, lower, upper = (
        value[0] if isinstance(value, list) else value for value in (bands, length, rate, lower, upper)
    )
    low, high = (2595 * math.log10(1 + frequency / 700) for frequency in (lower, upper))
    edges = [low + at * (high - low) / (bands + 2) for at in range(bands + 2)]
    bins = [int((length + 1) * 700 * (10 ** (edge / 2595) - 1) // rate) for edge in edges]
    matrix = torch.zeros((length // 2 + 1, bands), dtype=torch.float64)
    for band, (first, middle, last) in enumerate(zip(bins, bins[1:], bins[2:], strict=False)):
        if first == middle:
            matrix[middle, band] = 1.0
        for at in range(first, middle + 1 if middle > first else first):
            matrix[at, band] = (at - first) / (middle - first)
        for at in range(middle, last):
            matrix[at, band] = (last - at) / (last - middle)
    return matrix.to(kind).to(place)
