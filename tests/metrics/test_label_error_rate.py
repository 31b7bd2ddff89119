"""The label error rate: by jiwer called directly, over batches and ranks, and in a training."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import jiwer
import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import MissingDependency, ShapeError, UnknownName, UsageError
from deep5.distributed.communicators.threads import run_in_threads
from deep5.training.ctc_decoding import best_path, prefix_beam_search


def drawn(seed: int = 0, samples: int = 24) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Random outputs of six steps and five classes, and labels of up to four."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((samples, 6, 5))
    logs = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    inputs = {"labels": rng.integers(1, 5, (samples, 4)), "label_length": rng.integers(1, 5, samples)}
    return inputs, {"log_probabilities": logs, "output_length": rng.integers(1, 7, samples)}


def value(metric: d5.LabelErrorRate, *batches: Any, communicator: Any = None) -> float | None:
    observer = metric.observer()
    trainer = SimpleNamespace(communicator=communicator, step=1, elapsed_ns=lambda: 0)
    observer.before_evaluation(trainer, epoch=0)
    for inputs, outputs in batches:
        observer.after_evaluation_batch(trainer, None, inputs, outputs)
    observer.after_evaluation(trainer, epoch=0, scores={})
    found = observer.value()
    assert found is None or isinstance(found, float)
    return found


def rows(part: dict[str, np.ndarray], taken: slice) -> dict[str, np.ndarray]:
    return {name: array[taken] for name, array in part.items()}


@pytest.mark.parametrize("beam", [None, 4])
def test_it_is_the_word_error_rate_of_jiwer(beam: int | None) -> None:
    inputs, outputs = drawn()
    given = outputs["log_probabilities"], outputs["output_length"]
    found = best_path(*given) if beam is None else prefix_beam_search(*given, beam=beam)
    true = [row[:count] for row, count in zip(inputs["labels"].tolist(), inputs["label_length"], strict=True)]
    expected = 100 * jiwer.wer(*([" ".join(map(str, row)) for row in part] for part in (true, found)))
    # The same quotient of integers, times 100.
    assert value(d5.LabelErrorRate(beam=beam), (inputs, outputs)) == pytest.approx(expected, rel=1e-14)
    assert 30 < expected < 150


def test_batches_and_ranks_are_added_up() -> None:
    inputs, outputs = drawn()
    whole = value(d5.LabelErrorRate(), (inputs, outputs))
    parts = [(rows(inputs, taken), rows(outputs, taken)) for taken in (slice(0, 5), slice(5, 24))]
    assert value(d5.LabelErrorRate(), *parts) == whole
    of_ranks = run_in_threads(
        2, lambda communicator: value(d5.LabelErrorRate(), parts[communicator.rank], communicator=communicator)
    )
    assert of_ranks == [whole, whole]


def test_without_labels_there_is_no_value() -> None:
    inputs, outputs = drawn()
    inputs["label_length"][:] = 0
    assert value(d5.LabelErrorRate(), (inputs, outputs)) is None


@pytest.mark.parametrize("beam", [0, 2.0, True])
def test_a_bad_beam_is_refused(beam: Any) -> None:
    with pytest.raises(UsageError, match=rf"label_error_rate with beam={beam}; allowed: an integer of at least 1"):
        d5.LabelErrorRate(beam=beam)


@pytest.mark.parametrize("lengths", [np.full(24, 5), np.full(24, -1), np.zeros(3, int)])
def test_bad_lengths_are_refused(lengths: np.ndarray) -> None:
    inputs, outputs = drawn()
    with pytest.raises(ShapeError, match=r"label_error_rate: got labels of shape \(24, 4\) and lengths .* from 0 to"):
        value(d5.LabelErrorRate(), ({**inputs, "label_length": lengths}, outputs))


def test_a_network_without_the_names_is_refused() -> None:
    trainer = SimpleNamespace(executor=SimpleNamespace(network=d5.networks.lenet()))
    with pytest.raises(UnknownName, match="log_probabilities"):
        d5.LabelErrorRate().observer().before_training(trainer)


def test_a_missing_package_is_named_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance", None)
    trainer = SimpleNamespace(executor=SimpleNamespace(network=d5.networks.deep_speech()))
    with pytest.raises(MissingDependency, match=r"deep5\[text\]"):
        d5.LabelErrorRate().observer().before_training(trainer)


def test_in_a_training_it_is_there_after_every_epoch() -> None:
    data = d5.datasets.spoken_vowels(train=8, test=6, most=3, bands=20)
    executor = d5.framework("reference").executor(d5.networks.deep_speech(features=20, most=3, width=4, channels=4))
    trainer = d5.Trainer(executor, d5.SGD(0.01), d5.OrderedSampler(data.train, 4), d5.OrderedSampler(data.test, 4))
    observer = d5.LabelErrorRate(beam=2).observer()
    trainer.train(2, events=[observer])
    assert [sample.epoch for sample in observer.samples()] == [1, 2]
    outputs = executor.inference(data.test.batch(np.arange(6)))
    expected = value(
        d5.LabelErrorRate(beam=2),
        (data.test.batch(np.arange(6)), {name: d5.to_numpy(array) for name, array in outputs.items()}),
    )
    assert observer.value() == expected
