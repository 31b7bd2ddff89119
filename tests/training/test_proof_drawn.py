"""The proof over drawn trainings: the reference equals itself, and a small error in one back-end is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
