"""The proof over drawn trainings: the reference equals itself, and a small error in one back-end is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.training.trajectory import Proof, prove_same_trajectory
from proof_cases import Altered, drawn, longer_steps, scaled_gradient, unaltered

DAILY, LONG = 25, 1000
# Parts of the long tests, each of some minutes.
PARTS = [range(max(first, DAILY), first + 125) for first in range(0, LONG, 125)]


def proof_of(seed: int, change: Callable[[Any], None]) -> Proof | None:
    """The proof of the reference and its altered twin; None for a training that diverges, which proves nothing."""
    training, reference = drawn(seed), d5.framework("reference")
    frameworks: Any = [reference, Altered(reference, change)]
    with np.errstate(all="ignore"):
        proof = prove_same_trajectory(
            training.network, training.rule, training.batches, frameworks, smooth=training.smooth
        )
    curves = [proof.losses["reference", dtype] for dtype in ("float64", "float32")]
    return proof if all(np.isfinite(curve).all() and curve.max() < 1e3 * curve[0] for curve in curves) else None


def unequal(seeds: Sequence[int]) -> list[str]:
    found = []
    for seed in seeds:
        proof = proof_of(seed, unaltered)
        if proof is not None and not proof.passed:
            found.append(f"{drawn(seed).said}: {proof.failures()}")
    return found


def missed(seeds: Sequence[int], change: Callable[[int], Callable[[Any], None]]) -> tuple[int, list[str]]:
    """The number of proofs, and the trainings in which an error is not found."""
    count, found = 0, []
    for seed in seeds:
        proof = proof_of(seed, change(seed))
        count += proof is not None
        if proof is not None and proof.passed:
            found.append(drawn(seed).said)
    return count, found


@pytest.mark.daily
def test_the_reference_equals_itself() -> None:
    assert not unequal(range(DAILY))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", PARTS, ids=str)
def test_the_reference_equals_itself_in_a_thousand_trainings(seeds: range) -> None:
    assert not unequal(seeds)


ERRORS: dict[str, Callable[[int], Callable[[Any], None]]] = {
    "step size": lambda seed: longer_steps,
    "gradient": scaled_gradient,
}


@pytest.mark.daily
@pytest.mark.parametrize("error", ERRORS)
def test_a_small_error_is_found(error: str) -> None:
    count, found = missed(range(DAILY), ERRORS[error])
    assert count > DAILY // 2
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize("seeds", PARTS, ids=str)
@pytest.mark.parametrize("error", ERRORS)
def test_a_small_error_is_found_in_99_of_100(error: str, seeds: range) -> None:
    count, found = missed(seeds, ERRORS[error])
    assert count > len(seeds) // 2
    assert len(found) <= 0.01 * count, "\n".join(found)


def _slow(rate: float, steps: int, made: Callable[[float], Any], change: Callable[[Any], None]) -> Any:
    """The proof of a training with a small step size."""

    def batches(network: d5.Network) -> Iterator[Any]:
        draw = np.random.default_rng(0)
        for step in range(steps):
            images, labels = draw.standard_normal((8, 6)), draw.integers(0, 3, 8)
            kind = network.inputs["input"].dtype
            yield d5.StepInfo(step=step, batch_size=8), {"input": images.astype(kind), "label": labels}

    reference = d5.framework("reference")
    return prove_same_trajectory(
        lambda dtype: d5.networks.mlp(features=6, hidden=5, classes=3, activation="tanh", dtype=dtype),
        lambda: made(rate),
        batches,
        [reference, Altered(reference, change)],  # type: ignore[list-item]
    )


@pytest.mark.parametrize("steps", [10, 50])
def test_a_longer_step_is_found_even_if_no_loss_shows_it(steps: int) -> None:
    """The update is compared with the rule as the recipe made it, not with the one that the back-end holds."""
    assert not _slow(1e-8, steps, d5.SGD, longer_steps).passed
    assert _slow(1e-8, steps, d5.SGD, unaltered).passed


def test_a_proof_says_that_it_cannot_find_a_longer_step() -> None:
    """The updates of a pipeline are not compared with the rule; losses that stay as they were show nothing."""

    def clipped(rate: float) -> Any:
        return d5.RuleOptimizer(d5.SGD(rate), clip_norm=1e9)

    unseen = "a step size that is 1 % larger: cannot be decided, because it changes no loss by more than"
    for change in (unaltered, longer_steps):
        proof = _slow(1e-12, 10, clipped, change)
        assert proof.passed
        assert [text.startswith(unseen) for text in proof.undecided] == [True]
    proof = _slow(0.01, 10, clipped, longer_steps)
    assert not proof.passed
    assert not proof.undecided
