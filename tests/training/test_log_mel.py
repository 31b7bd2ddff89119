"""Log-mel features, compared with a computation frame by frame and bin by bin."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
import pytest

from deep5.core.errors import UsageError
from deep5.training.log_mel import log_mel, mel_filters


def mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


def hertz(mel: float) -> float:
    return 700 * (10 ** (mel / 2595) - 1)


def by_definition(wave: np.ndarray, rate: int, bands: int, window: int, hop: int) -> np.ndarray:
    """Sums over samples and bins, without an FFT or a matrix."""
    corners = [hertz(number * mel(rate / 2) / (bands + 1)) for number in range(bands + 2)]
    rows = []
    for begin in range(0, len(wave) - window + 1, hop):
        power = []
        for bin_ in range(window // 2 + 1):
            terms = (
                wave[begin + t] * math.sin(math.pi * t / window) ** 2 * cmath.exp(-2j * math.pi * bin_ * t / window)
                for t in range(window)
            )
            power.append(abs(sum(terms)) ** 2)
        row = []
        for low, center, high in zip(corners, corners[1:], corners[2:], strict=False):
            energy = 0.0
            for bin_, value in enumerate(power):
                at = bin_ * rate / window
                if low < at <= center:
                    energy += value * (at - low) / (center - low)
                elif center < at < high:
                    energy += value * (high - at) / (high - center)
            row.append(math.log(energy))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize(("window", "hop"), [(48, 20), (33, 33)])
def test_the_features_are_those_of_the_definition(window: int, hop: int) -> None:
    wave = np.random.default_rng(0).standard_normal(150)
    found = log_mel(wave, 1000, bands=6, window_s=window / 1000, hop_s=hop / 1000)
    assert found.dtype == np.float32
    # Rounded to float32; the values are below 10.
    np.testing.assert_allclose(found, by_definition(wave, 1000, 6, window, hop), atol=1e-6)


def test_silence_is_finite_and_a_tone_is_in_its_band() -> None:
    assert np.unique(log_mel(np.zeros(400), 8000)).tolist() == [np.float32(np.log(1e-10))]
    for frequency in (300, 1000, 3000):
        row = log_mel(np.sin(2 * np.pi * frequency * np.arange(400) / 8000), 8000, bands=20)[0]
        # Band i has its center at point i + 1 of the 21 equal parts.
        assert abs(int(row.argmax()) + 1 - mel(frequency) / mel(4000) * 21) < 1


def test_the_frames_are_whole_ones() -> None:
    for samples, frames in ((200, 1), (279, 1), (280, 2), (8000, 98)):
        assert log_mel(np.ones(samples), 8000).shape == (frames, 40)


@pytest.mark.parametrize(
    ("wave", "options", "message"),
    [
        (np.ones(199), {}, r"float64 samples of shape \(199,\); allowed: .* at least 200"),
        (np.ones((1, 400)), {}, r"shape \(1, 400\); allowed: floating point, shape \(samples,\)"),
        (np.ones(400, np.int16), {}, r"int16 samples"),
        (np.ones(400), {"rate": 0}, r"rate=0; allowed: an integer of at least 1"),
        (np.ones(400), {"rate": 8000.0}, r"rate=8000.0; allowed: an integer"),
        (np.ones(400), {"hop_s": 0.0}, r"hop_s=0.0 at 8000 Hz; allowed: .* one from a frame to the next"),
        (np.ones(400), {"window_s": 0.0001}, r"window_s=0.0001"),
        (np.ones(400), {"bands": 0}, r"bands=0; allowed: an integer of at least 1"),
        (np.ones(400), {"bands": 100}, r"100 bands of a window of 200 samples; a band has no frequency; remedy"),
    ],
)
def test_bad_arguments_are_refused(wave: np.ndarray, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        log_mel(wave, **{"rate": 8000, **options})


def test_between_their_corners_the_filters_add_up_to_one() -> None:
    filters = mel_filters(40, 400, 16000)
    frequencies = np.arange(201) * 40.0
    inside = (frequencies >= hertz(mel(8000) / 41)) & (frequencies <= hertz(mel(8000) * 40 / 41))
    # A filter falls where the next one rises: the two lines add up to one, but for rounding.
    np.testing.assert_allclose(filters.sum(axis=0)[inside], 1, rtol=1e-12)
