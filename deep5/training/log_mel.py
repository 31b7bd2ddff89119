"""Log-mel features of audio: the logarithm of the energy in bands that are equally wide on the mel scale."""

from __future__ import annotations

import numpy as np

from deep5.core.errors import UsageError, brief

__all__ = ["log_mel", "mel_filters"]

# Of the energy in a band, before its logarithm: silence has one.
_FLOOR = 1e-10


def log_mel(
    wave: np.ndarray, rate: int, *, bands: int = 40, window_s: float = 0.025, hop_s: float = 0.01
) -> np.ndarray:
    """The natural logarithm of the energy in each mel band, frame by frame.

    A frame is `window_s` long, multiplied by a periodic Hann window; frames begin every `hop_s`, without padding, so
    that samples after the last whole frame are not read. Its power spectrum |X_k|^2, of a discrete Fourier transform of
    the window's length, is weighted by `mel_filters`. Energies below 1e-10 count as that.

    Args:
        wave: Samples, floating point, shape (samples,), at least one window.
        rate: Samples per second.
        bands: Number of bands, from 0 Hz to half of the rate.
        window_s: Seconds of a frame.
        hop_s: Seconds from the begin of a frame to the next one's.

    Returns:
        float32 of shape (frames, bands).

    Raises:
        UsageError: The samples are fewer than one window or not floating point, or an argument is out of its range.

    References:
        Davis and Mermelstein, Comparison of parametric representations for monosyllabic word recognition in
        continuously spoken sentences, IEEE Transactions on Acoustics, Speech and Signal Processing 28(4), 1980, without
        their cosine transform.

    >>> wave = np.sin(2 * np.pi * 1000 * np.arange(8000) / 8000)
    >>> features = log_mel(wave, 8000, bands=20)
    >>> features.shape, int(features[0].argmax())  # 1000 Hz are 1000 mel, of 2146 that 20 bands divide
    ((98, 20), 9)
    """
    wave = np.asarray(wave)
    if isinstance(rate, bool) or not isinstance(rate, int) or rate < 1:
        raise UsageError(f"log_mel: got rate={brief(rate)}; allowed: an integer of at least 1")
    window, hop = (round(seconds * rate) for seconds in (window_s, hop_s))
    if window < 2 or hop < 1:
        raise UsageError(
            f"log_mel: got window_s={window_s} and hop_s={hop_s} at {rate} Hz; allowed: at least two samples in a "
            "window and one from a frame to the next"
        )
    if wave.ndim != 1 or wave.dtype.kind != "f" or len(wave) < window:
        raise UsageError(
            f"log_mel: got {wave.dtype} samples of shape {wave.shape}; allowed: floating point, shape (samples,), at "
            f"least {window}"
        )
    frames = np.lib.stride_tricks.sliding_window_view(wave, window)[::hop]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    power = np.abs(np.fft.rfft(frames * hann)) ** 2
    energies = power @ mel_filters(bands, window, rate).T
    features: np.ndarray = np.log(np.maximum(energies, _FLOOR)).astype(np.float32)
    return features


def mel_filters(bands: int, window: int, rate: int) -> np.ndarray:
    """Triangular filters with a maximum of one, whose corners are equally spaced on the mel scale.

    The scale is that of HTK, m = 2595 log10(1 + f / 700 Hz). `bands` + 2 points divide it from 0 Hz to half of the
    rate; filter i rises from point i to i + 1 and falls to i + 2, linearly in Hz.

    Args:
        bands: Number of filters.
        window: Samples of the Fourier transform.
        rate: Samples per second.

    Returns:
        float64 of shape (bands, window // 2 + 1).

    Raises:
        UsageError: A filter has no frequency of the transform, or a number is not an integer of at least 1.

    References:
        Young et al., The HTK Book 3.4, Cambridge University 2006, section 5.4 and equation 5.13.

    >>> mel_filters(3, 16, 8000).round(2)[0].tolist()  # from 0 Hz by 427 to 1114 Hz
    [0.0, 0.89, 0.17, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    for name, number in (("bands", bands), ("window", window), ("rate", rate)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UsageError(f"mel_filters: got {name}={brief(number)}; allowed: an integer of at least 1")
    most = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, most, bands + 2) / 2595) - 1)
    frequencies = np.arange(window // 2 + 1) * (rate / window)
    low, center, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising, falling = (frequencies - low) / (center - low), (high - frequencies) / (high - center)
    filters: np.ndarray = np.maximum(0, np.minimum(rising, falling))
    if not filters.any(axis=1).all():
        raise UsageError(
            f"mel_filters: {bands} bands of a window of {window} samples; a band has no frequency; remedy: fewer bands "
            "or a longer window"
        )
    return filters
