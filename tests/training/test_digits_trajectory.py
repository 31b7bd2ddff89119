"""The digits with momentum, Adam and AcceleGrad: the four parts on all back-ends, and accuracies over five seeds."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.training.datasets.uci_digits import digits
from deep5.training.trajectory import prove_same_trajectory

FRAMEWORKS = ("reference", "pytorch", "tensorflow", "jax", "onnxruntime", "openvino")
# Settings with which each rule learns the digits well within the epochs below.
RULES: dict[str, Callable[[], d5.UpdateRule]] = {
    "momentum": lambda: d5.Momentum(lr=0.1, momentum=0.9),
    "adam": lambda: d5.Adam(lr=0.003),
    "accelegrad": lambda: d5.AcceleGrad(lr=0.5, diameter=1.0),
}
STEPS, SEEDS, EPOCHS = 100, 5, 6


def lenet(**options: Any) -> d5.Network:
    return d5.networks.lenet(activation="tanh", pooling="average", **options)


def lenet_of(dtype: str) -> d5.Network:
    return lenet(dtype=dtype, seed=2)


def batches(network: d5.Network) -> Iterator[tuple[d5.StepInfo, dict[str, Any]]]:
    """The first hundred batches of shuffled digits, with a smaller one at the end of each epoch."""
    sampler, step = d5.ShuffleSampler(digits().train.cast(network.inputs), 60, seed=1), 0
    for epoch in itertools.count():
        for ids, inputs in sampler.batches(epoch):
            if step == STEPS:
                return
            yield d5.StepInfo(step, epoch, len(ids), ids, 7), inputs
            step += 1


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_the_four_parts_on_the_digits(rule: str) -> None:
    proof = prove_same_trajectory(lenet_of, RULES[rule], batches, FRAMEWORKS)
    assert proof.passed, "\n".join(proof.failures())
    # Engines without float64 are excluded from it by name, and from nothing else.
    assert {line.partition(":")[0] for line in proof.left_out} <= {"onnxruntime in float64", "openvino in float64"}
    for part, least in (("a", 4), ("c", 6), ("d", 6)):
        pairs = {frozenset((c.first, c.second)) for c in proof.comparisons if c.part == part}
        assert {frozenset(pair) for pair in itertools.combinations(FRAMEWORKS[:least], 2)} <= pairs
    curve = proof.losses["reference", "float64"]
    assert len(curve) == STEPS
    assert curve[-10:].mean() < 0.9 * curve[0]  # it learns: two constants would agree as well


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_final_accuracies_are_within_a_standard_deviation_over_seeds(rule: str) -> None:
    splits = digits()
    found: dict[str, list[float]] = {}
    for framework in FRAMEWORKS:
        for seed in range(SEEDS):
            executor = d5.framework(framework).executor(lenet(seed=seed), seed=seed)
            train = d5.ShuffleSampler(splits.train, 64, seed=seed)
            trainer = d5.Trainer(executor, RULES[rule](), train, d5.OrderedSampler(splits.test, len(splits.test)))
            trainer.train(EPOCHS)
            found.setdefault(framework, []).append(trainer.scores["accuracy"])
    spread = statistics.stdev(found["reference"])
    # With equal seeds the test would require equality.
    assert spread > 0, found
    assert min(map(min, found.values())) > 80, found
    for first, second in itertools.combinations(FRAMEWORKS, 2):
        difference = abs(float(np.mean(found[first])) - float(np.mean(found[second])))
        assert difference <= spread, (first, second, found)
