"""Synthesized vowels: their formants and pitch, the sequences, and the same bits from the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.training.datasets import vowels
from deep5.training.datasets.vowels import spoken_vowels


@pytest.fixture(scope="module")
def data() -> Any:
    return spoken_vowels(train=40, test=12, most=5)


def test_a_batch_is_what_the_network_takes(data: Any) -> None:
    batch = data.train.batch(np.arange(40))
    network = d5.networks.deep_speech(most=5)
    assert batch.keys() == network.inputs.keys()
    for name, array in batch.items():
        assert array.dtype == network.inputs[name].dtype
        assert len(array.shape) == len(network.inputs[name].shape)
    lengths, labels = batch["label_length"], batch["labels"]
    assert set(lengths.tolist()) == {3, 4, 5}
    there = np.arange(5) < lengths[:, None]
    assert set(labels[there].tolist()) == set(range(1, 11))
    assert not labels[~there].any()
    assert batch["input"].shape[1] % 32 == 0
    for row, frames in zip(batch["input"], batch["input_length"], strict=True):
        assert row[:frames].any(axis=1).all()
        assert not row[frames:].any()
    assert data.description["classes"] == ["<blank>", *["IY", "IH", "EH", "AE", "AA", "AO", "UH", "UW", "AH", "ER"]]


def test_the_training_part_is_standardized(data: Any) -> None:
    frames = np.concatenate([data.train.batch(np.array([n]))["input"][0, : data.train.lengths[n]] for n in range(40)])
    # float32 values of size one, some thousands of them.
    np.testing.assert_allclose(frames.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(frames.std(axis=0), 1, atol=1e-4)


def test_each_sequence_is_a_function_of_seed_part_and_number(data: Any) -> None:
    again = spoken_vowels(train=40, test=12, most=5)
    assert again.train.content_hash() == data.train.content_hash()
    assert again.test.content_hash() == data.test.content_hash() != data.train.content_hash()
    more = spoken_vowels(train=41, test=3, most=5)
    assert (more.train.batch(np.arange(40))["labels"] == data.train.batch(np.arange(40))["labels"]).all()
    assert (more.train.lengths[:40] == data.train.lengths).all()
    assert more.split_hash != data.split_hash
    other = spoken_vowels(train=40, test=12, most=5, data_seed=1)
    assert other.train.content_hash() != data.train.content_hash()


@pytest.mark.parametrize("vowel", [("IY", 270, 2290), ("AA", 730, 1090), ("ER", 490, 1350)])
def test_a_vowel_has_its_formants_and_its_pitch(vowel: tuple[str, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    name, first, second = vowel
    pitch, *formants = vowels._VOWELS[name][0]
    assert formants[:2] == [first, second]
    # A low pitch for 20 seconds, whose harmonics sample the filter's response closely.
    monkeypatch.setattr(vowels, "_VOWEL_S", (20.0, 20.0))
    wave = vowels._vowel(d5.generator(0, "test"), 20.0, np.array(formants, float))
    frequencies = np.fft.rfftfreq(len(wave), 1 / 8000)
    # Without the slope of the source, 12 dB per octave.
    spectrum = np.abs(np.fft.rfft(wave)) ** 2 * frequencies**4
    smooth = np.convolve(spectrum, np.ones(800) / 800, mode="same")  # 40 Hz
    for formant in formants[:2]:
        near = abs(frequencies - formant) < 150
        # Half of a bandwidth: the other resonances shift a maximum by less.
        assert abs(frequencies[near][smooth[near].argmax()] - formant) < 40
    assert np.mean(wave**2) == pytest.approx(1, rel=1e-12)
    monkeypatch.setattr(vowels, "_VOWEL_S", (0.2, 0.2))
    short = vowels._vowel(d5.generator(0, "test"), pitch, np.array(formants, float))
    correlation = np.correlate(short, short, mode="full")[len(short) - 1 :]
    least = 40
    period = least + int(correlation[least:100].argmax())
    # The pitch varies by 5 % either way, and a period is an integer here.
    assert 8000 / period == pytest.approx(pitch, rel=0.08)


def test_the_resonance_is_the_one_of_the_equations() -> None:
    wave = np.random.default_rng(0).standard_normal(60)
    c = -np.exp(-2 * np.pi * 90 / 8000)
    b = 2 * np.exp(-np.pi * 90 / 8000) * np.cos(2 * np.pi * 1500 / 8000)
    expected = [0.0, 0.0]
    for value in wave:
        expected.append((1 - b - c) * value + b * expected[-1] + c * expected[-2])
    # The same recursion in another order of operations, float64.
    np.testing.assert_allclose(vowels._resonance(wave, 1500.0, 90.0), expected[2:], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 0}, r"spoken_vowels with train=0; allowed: an integer of at least 1"),
        ({"test": True}, r"test=True"),
        ({"fewest": 0}, r"fewest=0"),
        ({"fewest": 4, "most": 3}, r"fewest=4 and most=3; allowed: fewest <= most"),
        ({"bands": "40"}, r"bands='40'"),
        ({"bands": 1000}, r"a band has no frequency; remedy: fewer bands"),
        ({"multiple": 0}, r"multiple=0"),
        ({"data_seed": 0.5}, r"data_seed=0.5; allowed: an integer"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        spoken_vowels(**{"train": 2, "test": 1, **options})


def test_random_vowels_are_far_from_the_goal_of_the_recipe() -> None:
    """The baselines of the docstring of `speech_vowels`: vowels of the right number, drawn at random; and none."""
    from deep5.metrics.error_rate import count_errors

    batch = spoken_vowels(train=1, test=300).test.batch(np.arange(300))
    rng = np.random.default_rng(0)
    true = [row[:length].tolist() for row, length in zip(batch["labels"], batch["label_length"], strict=True)]
    drawn = [rng.integers(1, 11, len(row)).tolist() for row in true]
    rate = count_errors(true, drawn).error_rate
    assert rate is not None
    assert 75 < rate < 90  # a binomial share of some 1600 labels varies by 1 %
    assert count_errors(true, [[] for _ in true]).error_rate == 100
