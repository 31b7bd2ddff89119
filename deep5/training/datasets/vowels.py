"""Sequences of synthesized vowels as log-mel features, with the vowels as labels."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from deep5.core.errors import UsageError, brief
from deep5.core.seeds import generator
from deep5.training.dataset import Splits
from deep5.training.log_mel import log_mel
from deep5.training.sequences import SequenceDataset

__all__ = ["spoken_vowels"]

# Peterson and Barney 1952, table II: vowel in ARPAbet, then for men, women and children the mean pitch and the first
# three formants in Hz.
_VOWELS = {
    "IY": ((136, 270, 2290, 3010), (235, 310, 2790, 3310), (272, 370, 3200, 3730)),
    "IH": ((135, 390, 1990, 2550), (232, 430, 2480, 3070), (269, 530, 2730, 3600)),
    "EH": ((130, 530, 1840, 2480), (223, 610, 2330, 2990), (260, 690, 2610, 3570)),
    "AE": ((127, 660, 1720, 2410), (210, 860, 2050, 2850), (251, 1010, 2320, 3320)),
    "AA": ((124, 730, 1090, 2440), (212, 850, 1220, 2810), (256, 1030, 1370, 3170)),
    "AO": ((129, 570, 840, 2410), (216, 590, 920, 2710), (263, 680, 1060, 3180)),
    "UH": ((137, 440, 1020, 2240), (232, 470, 1160, 2680), (276, 560, 1410, 3310)),
    "UW": ((141, 300, 870, 2240), (231, 370, 950, 2670), (274, 430, 1170, 3260)),
    "AH": ((130, 640, 1190, 2390), (221, 760, 1400, 2780), (261, 850, 1590, 3360)),
    "ER": ((133, 490, 1350, 1690), (218, 500, 1640, 1960), (261, 560, 1820, 2160)),
}
_BLANK = "<blank>"
_RATE = 8000
_BANDWIDTHS = (60.0, 90.0, 150.0)
# The source's spectrum falls by 12 dB per octave above this resonance at 0 Hz.
_SOURCE_BANDWIDTH = 100.0
_VARIATION = 0.03
_VOWEL_S, _GAP_S, _RAMP_S = (0.08, 0.2), (0.02, 0.08), 0.01
_NOISE_DB = (10.0, 30.0)
_RULE = (
    "a speaker is a man, a woman or a child, and scales all formants by one factor and the pitch by another; vowels "
    "are drawn uniformly; each formant of each vowel varies, too (factors normal, mean 1, standard deviation 0.03); "
    "pitch moves linearly within a vowel by up to 10 %; vowels take 80 to 200 ms, gaps before, between and after them "
    "20 to 80 ms, uniform; white noise 10 to 30 dB below the vowels, uniform in dB"
)


def spoken_vowels(
    *,
    train: int = 2000,
    test: int = 300,
    fewest: int = 3,
    most: int = 8,
    bands: int = 40,
    multiple: int = 32,
    data_seed: int = 0,
) -> Splits:
    """Sequences of synthesized vowels with gaps, pitch and noise, as log-mel features, and the vowels as labels.

    The rule: a source-filter model. The source is a train of unit impulses at the pitch, through a resonance of 100 Hz
    bandwidth at 0 Hz, which falls by 12 dB per octave. The filter is a cascade of three second-order resonances at the
    formants, y_t = A x_t + B y_{t-1} + C y_{t-2} with C = -exp(-2 pi b / r), B = 2 exp(-pi b / r) cos(2 pi f / r) and
    A = 1 - B - C at the frequency f, the bandwidth b (60, 90, 150 Hz) and r = 8000 samples per second. Each vowel has
    a mean square of one and linear ramps of 10 ms. A speaker is a man, a woman or a child, with factors for all
    formants and for the pitch; each formant of each vowel has a further factor, each normal with mean 1 and standard
    deviation 0.03. The number of vowels is uniform from `fewest` to `most`, and so is each vowel. The pitch begins and
    ends within 5 % of the vowel's. Vowels take 80 to 200 ms, gaps before, between and after them 20 to 80 ms, uniform.
    White noise is 10 to 30 dB below the vowels, uniform in dB.

    The features are those of `deep5.training.log_mel`, 100 frames per second, standardized band by band with the mean
    and the standard deviation of the training part.

    Args:
        train: Number of training sequences.
        test: Number of test sequences.
        fewest: The smallest number of vowels of a sequence.
        most: The largest.
        bands: Number of mel bands.
        multiple: A batch has a multiple of so many frames: fewer shapes to compile for.
        data_seed: The seed of the sequences; each is a function of it, its part and its number.

    Returns:
        Samples `input` float32 (frames, bands), padded by zeros to the longest of a batch, `input_length` int64 (), its
        frames, `labels` int64 (most,), vowels 1 to 10, then padding 0, and `label_length` int64 (), its vowels; as
        `deep_speech` takes them. The vowels' names are in the description.

    Raises:
        UsageError: An argument is out of its range.

    References:
        Peterson and Barney, Control methods used in a study of the vowels, Journal of the Acoustical Society of
        America 24(2), 1952, table II (mean pitch and formants of ten American vowels); Klatt, Software for a
        cascade/parallel formant synthesizer, Journal of the Acoustical Society of America 67(3), 1980, equations 1 and
        2 (the resonance).

    >>> import numpy as np
    >>> import deep5 as d5
    >>> data = d5.datasets.spoken_vowels(train=8, test=4)
    >>> {name: str(spec) for name, spec in data.train.specs.items()}
    {'input': 'float32[length, 40]', 'labels': 'int64[8]', 'label_length': 'int64[]', 'input_length': 'int64[]'}
    >>> sample = data.train.batch(np.array([0]))
    >>> [data.description["classes"][vowel] for vowel in sample["labels"][0][: sample["label_length"][0]]]
    ['AH', 'ER', 'AH', 'UW']
    """
    what = "spoken_vowels"
    counts = {"train": train, "test": test, "fewest": fewest, "most": most, "bands": bands, "multiple": multiple}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{what} with {name}={brief(value)}; allowed: an integer of at least 1")
    if fewest > most:
        raise UsageError(f"{what} with fewest={fewest} and most={most}; allowed: fewest <= most")
    if isinstance(data_seed, bool) or not isinstance(data_seed, int):
        raise UsageError(f"{what} with data_seed={brief(data_seed)}; allowed: an integer")
    made: dict[str, tuple[list[np.ndarray], np.ndarray, np.ndarray]] = {}
    for part, count in (("train", train), ("test", test)):
        features, labels, lengths = [], np.zeros((count, most), np.int64), np.zeros(count, np.int64)
        for number in range(count):
            rng = generator(data_seed, "vowels", part, number)
            vowels = rng.integers(len(_VOWELS), size=int(rng.integers(fewest, most + 1)))
            labels[number, : len(vowels)], lengths[number] = vowels + 1, len(vowels)
            features.append(log_mel(_spoken(rng, vowels.tolist()), _RATE, bands=bands))
        made[part] = (features, labels, lengths)
    every = np.concatenate(made["train"][0]).astype(np.float64)
    mean, deviation = every.mean(axis=0), every.std(axis=0)
    parts = {
        part: SequenceDataset(
            {"input": [((each - mean) / deviation).astype(np.float32) for each in features]},
            {"labels": labels, "label_length": lengths},
            multiple=multiple,
            length="input_length",
        )
        for part, (features, labels, lengths) in made.items()
    }
    rule = f"{fewest} to {most} vowels; {_RULE}; {train} + {test} sequences, seed {data_seed}"
    description: dict[str, Any] = {
        "source": "synthesized with the formants of Peterson and Barney 1952, table II",
        "rule": rule,
        "samples": {"train": train, "test": test},
        "classes": [_BLANK, *_VOWELS],
        "sample_rate": _RATE,
        "split": "by part: training and test sequences are drawn from different streams",
        "preparation": f"natural logarithm of the energy in {bands} mel bands (HTK's scale), frames of 25 ms every "
        "10 ms, standardized by the training part",
    }
    return Splits(
        train=parts["train"],
        test=parts["test"],
        split_hash=hashlib.sha256(rule.encode()).hexdigest(),
        description=description,
    )


def _spoken(rng: np.random.Generator, vowels: list[int]) -> np.ndarray:
    """The sequence of vowels by one speaker, float64 at 8 kHz."""
    speaker = int(rng.integers(3))
    voice, tract = _factors(rng, 2)
    parts = [_silence(rng)]
    for vowel in vowels:
        pitch, *formants = [values[speaker] for values in _VOWELS.values()][vowel]
        varied = np.array(formants) * tract * _factors(rng, 3)
        parts += [_vowel(rng, pitch * voice, varied), _silence(rng)]
    wave = np.concatenate(parts)
    level = 10 ** (-rng.uniform(*_NOISE_DB) / 20)
    noisy: np.ndarray = wave + level * rng.standard_normal(len(wave))
    return noisy


def _factors(rng: np.random.Generator, count: int) -> np.ndarray:
    factors: np.ndarray = 1 + _VARIATION * rng.standard_normal(count)
    return factors


def _silence(rng: np.random.Generator) -> np.ndarray:
    return np.zeros(round(rng.uniform(*_GAP_S) * _RATE))


def _vowel(rng: np.random.Generator, pitch: float, formants: np.ndarray) -> np.ndarray:
    """One vowel with a mean square of one."""
    count = round(rng.uniform(*_VOWEL_S) * _RATE)
    first, last = rng.uniform(0.95, 1.05, 2) * pitch
    # Periods of the pitch since the begin; an impulse where an integer is passed.
    periods = np.cumsum(np.linspace(first, last, count) / _RATE)
    wave = np.diff(np.floor(periods), prepend=0.0)
    for frequency, bandwidth in zip((0.0, *formants), (_SOURCE_BANDWIDTH, *_BANDWIDTHS), strict=True):
        wave = _resonance(wave, frequency, bandwidth)
    ramp = np.minimum(1, (np.arange(count) + 0.5) / (_RAMP_S * _RATE))
    wave = wave * ramp * ramp[::-1]
    loud: np.ndarray = wave / np.sqrt(np.mean(wave**2))
    return loud


def _resonance(wave: np.ndarray, frequency: float, bandwidth: float) -> np.ndarray:
    """Klatt, equations 1 and 2."""
    from scipy.signal import lfilter

    c = -np.exp(-2 * np.pi * bandwidth / _RATE)
    b = 2 * np.exp(-np.pi * bandwidth / _RATE) * np.cos(2 * np.pi * frequency / _RATE)
    filtered: np.ndarray = lfilter([1 - b - c], [1, -b, -c], wave)
    return filtered
