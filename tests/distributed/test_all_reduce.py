"""All-reduce: several ranks, each with a part of the batch, do what one rank does with all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import CommunicationError
from deep5.distributed.communicators.threads import run_in_threads
from deep5.distributed.schemes.all_reduce import AllReduce
from deep5.training.optimizer import RuleOptimizer
from pipeline_cases import batch, executor, network
from scheme_cases import SIZES, Rank, flat, part, rows_of, told, trained

# A mean in two to four parts rounds differently: some 1e-16 per step, of numbers around 1.
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}

COMPILING = ("jax",)
# JAX compiles the step again for each shape, on each rank.
FEW = (4, 4, 3, 4)

SCHEMES = {
    "overlapped": AllReduce,
    # Buckets of a few numbers: every parameter is sent separately while the backward pass continues.
    "small buckets": lambda: AllReduce(bucket_mib=1e-5, verify_every=1),
}


def grouped(rule: Any, **options: Any) -> RuleOptimizer:
    """A frozen parameter, one with its own learning rate, and the rest."""
    groups = [
        d5.ParameterGroup(lambda name: name == "fc1.bias", frozen=True),
        d5.ParameterGroup(lambda name: name == "fc2.bias", lr=0.02),
    ]
    return RuleOptimizer(rule, groups=groups, **options)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: d5.Adam(0.05),
    "adam, all stages": lambda: grouped(d5.Adam(0.05), clip_norm=0.3, weight_decay=0.01, loss_scale=16.0),
    "adam, dynamic": lambda: RuleOptimizer(d5.Adam(0.05), clip_norm=0.3, loss_scale="dynamic"),
    "accelegrad": lambda: d5.AcceleGrad(0.3),
    "accelegrad, all stages": lambda: grouped(d5.AcceleGrad(0.3), clip_norm=0.3, weight_decay=0.01, loss_scale=16.0),
    "lars": lambda: d5.LARS(0.5),
    "lars, groups": lambda: grouped(d5.LARS(0.5)),
    "muon, all stages": lambda: grouped(d5.Muon(0.02), clip_norm=0.3, coupled_weight_decay=0.01, loss_scale=16.0),
    "shampoo, dynamic": lambda: RuleOptimizer(d5.Shampoo(0.05), clip_norm=0.3, loss_scale="dynamic"),
    "momentum, clipped": lambda: RuleOptimizer(d5.Momentum(0.1), clip_value=0.02),
}

CASES = [
    pytest.param(
        framework, kind, marks=pytest.mark.slow if framework in COMPILING and kind != "adam, all stages" else ()
    )
    for framework in ("reference", "pytorch", "tensorflow", "jax")
    for kind in OPTIMIZERS
]


def check_one(ranks: list[Rank], whole: Rank) -> None:
    """All ranks are bit-identical and agree with one rank."""
    for rank in ranks:
        np.testing.assert_array_equal(rank.values, ranks[0].values)
        np.testing.assert_array_equal(rank.judged, ranks[0].judged)
    np.testing.assert_allclose(ranks[0].values, whole.values, **CLOSE)
    np.testing.assert_allclose(ranks[0].judged, whole.judged, **CLOSE)


@pytest.mark.parametrize(("framework", "kind"), CASES)
def test_ranks_do_what_one_does(framework: str, kind: str) -> None:
    sizes, numbers = (FEW, (2,)) if framework in COMPILING else (SIZES, (2, 3, 4))
    whole = trained(AllReduce(), OPTIMIZERS[kind], 1, framework, sizes=sizes)[0]
    for size in numbers:
        check_one(trained(AllReduce(verify_every=1), OPTIMIZERS[kind], size, framework, sizes=sizes), whole)


@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_micro_batches_are_one_step_of_all_ranks(framework: str, scheme: str) -> None:
    kind = "adam, all stages"
    whole = trained(AllReduce(), OPTIMIZERS[kind], 1, framework)[0]
    for size in (1, 2, 3):
        check_one(trained(SCHEMES[scheme](), OPTIMIZERS[kind], size, framework, accumulate=2), whole)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_native_optimizers_do_what_one_rank_does(framework: str, name: str) -> None:
    def made() -> Any:
        return d5.framework(framework).optimizer(name)(0.05)

    sizes, numbers = (FEW, (2,)) if framework in COMPILING else (SIZES, (2, 3, 4))
    whole = trained(AllReduce(), made, 1, framework, sizes=sizes)[0]
    for size in numbers:
        check_one(trained(AllReduce(), made, size, framework, sizes=sizes), whole)


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_goes_on_from_its_state_with_the_same_bits(framework: str) -> None:
    made = OPTIMIZERS["adam, all stages"]
    whole = trained(AllReduce(), made, 3, framework)
    np.testing.assert_array_equal(rows_of(trained(AllReduce(), made, 3, framework, saved_after=4)), rows_of(whole))


@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(framework: str) -> None:
    def work(communicator: Any) -> tuple[np.ndarray, np.ndarray, int, float]:
        run = executor(framework, network())
        own = AllReduce().wrap(OPTIMIZERS["adam, dynamic"](), communicator)
        own.bind(run)
        values = []
        for step in range(3):
            whole = batch(step)
            if step == 1:
                whole["input"][0] = np.inf  # the first rank's part
            inputs, samples = part(whole, communicator.rank, communicator.size)
            own.step(inputs, told(step, samples, 8))
            values.append(flat(run))
        np.testing.assert_array_equal(values[1], values[0])
        return values[1], values[2], own.optimizer.skipped_steps, own.optimizer.loss_scale

    found = run_in_threads(2, work)
    for before, after, skipped, scale in found:
        np.testing.assert_array_equal(after, found[0][1])
        assert np.any(after != before)
        assert (skipped, scale) == (1, 2.0**15)


class Unweighted(AllReduce):
    """Every rank counts the same, however large its part."""

    def share(self, info: d5.StepInfo) -> float:
        return 1.0 / self.communicator.size


class OwnGradient(AllReduce):
    """Does not wait for the others."""

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        outputs = self.backprop(inputs, info)
        self.apply(self.gradients(), info)
        self.verify_in_turn(info)
        return outputs


def test_wrong_means_are_caught() -> None:
    made = OPTIMIZERS["adam"]
    whole = trained(AllReduce(), made, 1)[0]
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_one(trained(Unweighted(), made, 2), whole)
    with pytest.raises(CommunicationError, match="the parameters after step 2 of rank 1 differ from those of rank 0"):
        trained(OwnGradient(verify_every=2), made, 2)
