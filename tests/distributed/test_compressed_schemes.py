"""What a compression keeps between steps under a scheme: in which units, from which steps, from which samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.distributed.check_scheme import check_scheme
from deep5.distributed.communicators.threads import run_in_threads
from deep5.distributed.schemes.all_reduce import AllReduce
from deep5.distributed.schemes.hierarchical import Hierarchical
from deep5.distributed.schemes.parameter_server import ParameterServer
from deep5.networks.judge import ConformanceError
from deep5.training.optimizer import RuleOptimizer
from pipeline_cases import batch, executor, network
from scheme_cases import flat, part, told

KEEPING = [
    d5.TopKSparsification(0.05),
    d5.RandomKSparsification(0.1),
    d5.OneBit(bucket=16),
    d5.DeepGradientCompression(0.1, clip=0.5),
]
SCHEMES = {
    "all-reduce": AllReduce,
    "server": lambda **given: ParameterServer(1, **given),
    "groups": lambda **given: Hierarchical(1, **given),
}
STEPS = 12


def weights(
    scheme: Any,
    size: int,
    loss_scale: Any = None,
    *,
    changes: Mapping[int, float] | None = None,
    poisoned: tuple[int, ...] = (),
    without: tuple[int, ...] = (),
    framework: str = "reference",
    accumulate: int = 1,
) -> np.ndarray:
    """The final parameters of ranks that are equal.

    Args:
        scheme: Not yet wrapped around an optimizer.
        size: Number of ranks.
        loss_scale: Loss scale of the optimizer, SGD.
        changes: New loss scales by the step before which they are set.
        poisoned: Steps in which the last rank has a NaN input.
        without: Steps that no rank takes.
        framework: Framework of the executors.
        accumulate: Micro-batches per step.
    """

    def work(communicator: Any) -> np.ndarray:
        run = executor(framework, network("float64"))
        own = scheme.wrap(RuleOptimizer(d5.SGD(0.1), loss_scale=loss_scale), communicator, seed=5)
        own.bind(run)
        for step in range(STEPS):
            if step in (changes or {}):
                own.set_hyper("loss_scale", changes[step])
            if step in without:
                continue
            whole = batch(step, 8, "float64")
            if step in poisoned:
                whole["input"][-1] = np.nan
            if accumulate > 1:
                cut = np.array_split(np.arange(8), accumulate)
                parts = [
                    part({name: value[places] for name, value in whole.items()}, communicator.rank, size)
                    for places in cut
                ]
                given = [inputs if samples else None for inputs, samples in parts]
                own.accumulated_step(given, told(step, sum(samples for _, samples in parts), 8))
                continue
            inputs, samples = part(whole, communicator.rank, size)
            own.step(inputs, told(step, samples, 8))
        return flat(run)

    first, *others = run_in_threads(size, work)
    for other in others:
        np.testing.assert_array_equal(other, first)
    return first


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("compression", KEEPING, ids=repr)
def test_a_loss_scale_that_changes_leaves_what_is_kept_in_its_unit(scheme: str, compression: Any) -> None:
    plain = weights(SCHEMES[scheme](compression=compression), 2)
    changing = weights(SCHEMES[scheme](compression=compression), 2, 1024.0, changes={5: 1.0, 8: 65536.0})
    # Powers of two: every product with them is exact.
    np.testing.assert_array_equal(changing, plain)


@pytest.mark.parametrize("feedback", [False, True])
def test_half_precision_gets_the_scaled_gradients(feedback: bool) -> None:
    def work(communicator: Any) -> tuple[float, float]:
        scheme = AllReduce(compression=d5.HalfPrecision("float16", feedback=feedback))
        own = scheme.wrap(RuleOptimizer(d5.SGD(0.1), loss_scale=65536.0), communicator)
        own.bind(executor("reference", network("float64")))
        # Without the scale this is zero in float16, the smallest number of which is 6e-8.
        buffer = np.full(4, 1e-9 * 65536.0)
        own.sum(buffer, "a", told(0, 4, 8))
        return float(buffer[0] / 65536.0), float(buffer[-1])

    for unscaled, last in run_in_threads(2, work):
        # With feedback nothing is lost: it is sent once it has grown enough.
        assert last == 0.0 if feedback else unscaled == pytest.approx(2e-9, rel=1e-3)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "compression", [d5.TopKSparsification(0.05), d5.DeepGradientCompression(0.1), d5.OneBit(bucket=16)], ids=repr
)
def test_a_step_that_is_left_out_takes_nothing_of_what_is_kept(scheme: str, compression: Any, accumulate: int) -> None:
    made = SCHEMES[scheme](compression=compression)
    skipping = weights(made, 3, "dynamic", poisoned=(0, 4, 5), accumulate=accumulate)
    assert np.isfinite(skipping).all()
    np.testing.assert_array_equal(skipping, weights(made, 3, "dynamic", without=(0, 4, 5), accumulate=accumulate))


@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow", "jax"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("compression", [*KEEPING[::3], d5.QSGD(3)], ids=repr)
def test_other_schemes_do_what_all_reduce_does(compression: Any, size: int, framework: str) -> None:
    """Including the root's own samples: a momentum within the compression is that of all ranks' gradients."""
    found = [weights(scheme(compression=compression), size, framework=framework) for scheme in SCHEMES.values()]
    # Messages are added in the order of the ranks; other kernels, which round differently, make the updates.
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("compression", [*KEEPING, d5.QSGD(3), d5.SparseAllReduce(0.1)], ids=repr)
def test_between_groups_of_several_the_first_ones_do_what_as_many_ranks_do(compression: Any) -> None:
    # Four samples per group, in the same order: sums of two parts instead of one.
    found = weights(Hierarchical(2, compression=compression), 4), weights(AllReduce(compression=compression), 2)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("compression", [d5.TopKSparsification(0.1), d5.HalfPrecision()], ids=repr)
def test_what_goes_between_groups_is_compressed_and_nothing_else(compression: Any) -> None:
    def work(communicator: Any) -> tuple[int, int]:
        run = executor("reference", network("float64"))
        own = Hierarchical(2, compression=compression).wrap(d5.SGD(0.1), communicator)
        own.bind(run)
        before = communicator.sent_bytes
        whole = batch(0, 8, "float64")
        inputs, samples = part(whole, communicator.rank, 4)
        own.step(inputs, told(0, samples, 8))
        return communicator.sent_bytes - before, flat(run).size

    for rank, (sent, count) in enumerate(run_in_threads(4, work)):
        message = compression.message_bytes(count, np.float64)
        assert sent == (count * 8 if rank % 2 else message + count * 8), rank


def test_where_nothing_goes_between_groups_there_is_nothing_to_compress() -> None:
    with pytest.raises(d5.UsageError, match=r"got a compression with every=3; allowed: with every=1"):
        Hierarchical(2, every=3, compression=d5.OneBit())

    def work(communicator: Any) -> None:
        Hierarchical(4, compression=d5.OneBit()).wrap(d5.SGD(0.1), communicator)

    with pytest.raises(d5.UsageError, match="there is one group; allowed: several; remedy: group_size=1"):
        run_in_threads(2, work)


COMPRESSIONS = [*KEEPING, d5.HalfPrecision(), d5.QSGD(4), d5.TernGrad()]


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_conformance_suite_takes_compressions(scheme: str, compression: Any) -> None:
    """It does not compare them with SGD on all samples, of which they are an approximation."""
    check_scheme(SCHEMES[scheme](compression=compression), ranks=(2, 3))


class _RankOneDrifts(AllReduce):
    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        outputs = super().step(inputs, info)
        if self.communicator.rank == 1 and info.step == 2:
            held = {name: np.array(value) for name, value in self.executor.state_dict().items()}
            next(iter(held.values())).flat[0] *= 1 + 1e-6
            self.executor.load_state_dict(held)
        return outputs


def test_ranks_that_differ_are_found_despite_a_compression() -> None:
    with pytest.raises(ConformanceError, match="rank 1 differs from rank 0 after step 2 in the 'parameters'"):
        check_scheme(_RankOneDrifts(compression=d5.HalfPrecision()), ranks=(2,))
