"""Batch normalization over the batch of all ranks: they do what one rank does with all of it, in float64."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.communicator import SingleRank
from deep5.core.errors import CommunicationError, Unsupported, UsageError
from deep5.distributed.communicators.threads import run_in_threads
from deep5.distributed.schemes.batch_statistics import RankStatistics
from deep5.distributed.sharding import part_of
from deep5.networks.edit.builder import NetworkBuilder, glorot_uniform, ones, zeros
from ranks import as_processes, under_mpi

# Sums in two to four parts round differently: some 1e-16 per step, of numbers around 1.
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}

# Samples of all ranks in each step: with three or four ranks some of them have none.
SIZES = (8, 7, 3, 2, 8)
# JAX compiles a step again for each shape, on each rank.
FEW = (6, 6)

SCHEMES = {
    "all_reduce": d5.AllReduce,
    "small buckets": lambda **given: d5.AllReduce(bucket_mib=1e-5, verify_every=1, **given),
    "parameter_server": d5.ParameterServer,
    "hierarchical": lambda **given: d5.Hierarchical(2, **given),
}

State = dict[str, np.ndarray]


def network(dtype: str = "float64") -> d5.Network:
    """Batch normalization of images on two branches, and of vectors."""
    build = NetworkBuilder("normalised", dtype=dtype, seed=3)
    x, label = build.input("input", ("N", 2, 4, 4)), build.input("label", ("N",), "int64")

    def normalised(value: Any, name: str, channels: int) -> Any:
        scale = build.parameter(f"{name}.scale", (channels,), ones)
        bias = build.parameter(f"{name}.bias", (channels,), zeros)
        mean = build.parameter(f"{name}.mean", (channels,), zeros)
        variance = build.parameter(f"{name}.variance", (channels,), ones)
        return build.op("BatchNormalization", value, scale, bias, mean, variance, epsilon=1e-5, momentum=0.9)

    x = build.op("Conv", x, build.parameter("conv.weight", (3, 2, 3, 3), glorot_uniform), pads=[1] * 4)
    short = normalised(build.op("Conv", x, build.parameter("short.weight", (3, 3, 1, 1), glorot_uniform)), "bn0", 3)
    x = build.op("Add", build.op("Relu", normalised(x, "bn1", 3)), short)
    x = build.op("MatMul", build.op("Flatten", x, axis=1), build.parameter("fc1.weight", (48, 5), glorot_uniform))
    x = build.op("Tanh", normalised(x, "bn2", 5))
    x = build.op("MatMul", x, build.parameter("fc2.weight", (5, 3), glorot_uniform))
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label, reduction="mean")})


def batch(step: int, size: int, dtype: str = "float64") -> dict[str, np.ndarray]:
    draw = np.random.default_rng(step)
    # Samples differ in place and spread, so that no rank's part has the statistics of the whole.
    places = np.arange(size).reshape(-1, 1, 1, 1)
    images = 0.3 * places + draw.standard_normal((size, 2, 4, 4)) * (1 + places % 3)
    return {"input": images.astype(dtype), "label": draw.integers(0, 3, size)}


def steps(communicator: Any, framework: str, scheme: Any, sizes: tuple[int, ...], dtype: str = "float64") -> Any:
    """The executor after a step for each size."""
    run = d5.framework(framework).executor(network(dtype))
    own = scheme.wrap(d5.Momentum(0.05), communicator)
    own.bind(run)
    for step, count in enumerate(sizes):
        begin, end = part_of(count, communicator.rank, communicator.size)
        whole = batch(step, count, dtype)
        inputs = {name: value[begin:end] if end > begin else value[:1] for name, value in whole.items()}
        own.step(inputs, d5.StepInfo(step=step, batch_size=end - begin, global_batch_size=count))
    return run


def states(size: int, *given: Any) -> list[State]:
    return run_in_threads(size, lambda communicator: steps(communicator, *given).state_dict(), timeout_s=120.0)


def check_one(ranks: list[State], whole: State) -> None:
    """All ranks are bit-identical, running statistics too, and agree with one rank."""
    for rank in ranks:
        for name, value in whole.items():
            np.testing.assert_array_equal(rank[name], ranks[0][name], err_msg=name)
            np.testing.assert_allclose(rank[name], value, err_msg=name, **CLOSE)


CASES = [
    pytest.param(framework, scheme, marks=pytest.mark.slow if framework == "tensorflow" and at else ())
    for framework in ("reference", "pytorch", "tensorflow")
    for at, scheme in enumerate(SCHEMES)
]


@pytest.mark.parametrize(("framework", "scheme"), CASES)
def test_ranks_normalise_as_one(framework: str, scheme: str) -> None:
    (whole,) = states(1, framework, SCHEMES[scheme](), SIZES)
    for size in (2, 3, 4):
        check_one(states(size, framework, SCHEMES[scheme](synchronise_batch_norm=True), SIZES), whole)


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_without_it_ranks_are_another_function(framework: str) -> None:
    (whole,) = states(1, framework, d5.AllReduce(), SIZES)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_one(states(2, framework, d5.AllReduce(), SIZES), whole)


@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow"])
def test_in_float32(framework: str) -> None:
    (whole,) = states(1, framework, d5.AllReduce(), SIZES, "float32")
    for rank in states(2, framework, d5.AllReduce(synchronise_batch_norm=True), SIZES, "float32"):
        for name, value in whole.items():
            # Some hundred sums of float32, 6e-8 each, over five steps of diverging batches.
            np.testing.assert_allclose(rank[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_short_types_come_near_one_rank(framework: str) -> None:
    def work(communicator: Any) -> tuple[State, State]:
        run = d5.framework(framework).executor(network("float16"))
        if communicator.size > 1:
            run.synchronise_batch_norm(RankStatistics(communicator, share=lambda info: 0.5))
        begin, end = part_of(8, communicator.rank, communicator.size)
        run.inference_and_backprop({name: value[begin:end] for name, value in batch(0, 8, "float16").items()})
        return {name: d5.to_numpy(value) for name, value in run.gradients().items()}, run.state_dict()

    ((alone, state),) = run_in_threads(1, work)
    (first, own), (second, other) = run_in_threads(2, work)
    for name, value in state.items():
        np.testing.assert_array_equal(own[name], other[name], err_msg=name)
        np.testing.assert_allclose(own[name], value, rtol=2e-3, atol=2e-3, err_msg=name)
    for name, gradient in alone.items():
        assert first[name].dtype == np.float16
        # Numbers around 1 in half precision are 1e-3 apart; a gradient passes some ten operations.
        mean = (first[name].astype(np.float64) + second[name]) / 2
        np.testing.assert_allclose(mean, gradient, rtol=2e-2, atol=2e-2, err_msg=name)


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize("size", [2, 3])
def test_gradients_add_up_to_those_of_the_whole_batch(framework: str, size: int) -> None:
    whole, count = batch(0, 5), 5
    alone = d5.framework(framework).executor(network())
    alone.inference_and_backprop(whole, wrt=("input", *alone.network.parameter_specs))
    expected = {name: d5.to_numpy(value) for name, value in alone.gradients().items()}

    def work(communicator: Any) -> tuple[float, State]:
        run = d5.framework(framework).executor(network())
        own = d5.AllReduce(synchronise_batch_norm=True).wrap(d5.SGD(0.1), communicator)
        own.bind(run)
        begin, end = part_of(count, communicator.rank, communicator.size)
        info = d5.StepInfo(batch_size=end - begin, global_batch_size=count)
        inputs = {name: value[begin:end] for name, value in whole.items()}
        run.inference_and_backprop(inputs, info=info, wrt=("input", *run.network.parameter_specs))
        return own.share(info), {name: d5.to_numpy(value) for name, value in run.gradients().items()}

    found = run_in_threads(size, work)
    for name, value in expected.items():
        parts = [share * gradients[name] for share, gradients in found]
        got = np.concatenate(parts) if name == "input" else np.sum(parts, axis=0)
        np.testing.assert_allclose(got, value, err_msg=name, **CLOSE)


def test_the_gradient_is_that_of_the_loss_of_all_by_finite_differences() -> None:
    whole, name, step = batch(0, 5), "conv.weight", 1e-6
    direction = np.random.default_rng(1).standard_normal((3, 2, 3, 3))

    def work(communicator: Any) -> tuple[float, float]:
        run = d5.framework("pytorch").executor(network())
        own = d5.AllReduce(synchronise_batch_norm=True).wrap(d5.SGD(0.1), communicator)
        own.bind(run)
        begin, end = part_of(5, communicator.rank, communicator.size)
        info = d5.StepInfo(batch_size=end - begin, global_batch_size=5)
        inputs = {key: value[begin:end] for key, value in whole.items()}
        start = d5.to_numpy(run.parameters()[name]).copy()

        def of_all(value: float) -> float:
            total = np.array([value * own.share(info)])
            communicator.all_reduce(total)
            return float(total[0])

        def loss(at: float) -> float:
            run.write([name], (start + at * direction).reshape(-1))
            return of_all(float(run.inference(inputs, training=True, info=info)["loss"]))

        slope = (loss(step) - loss(-step)) / (2 * step)
        run.write([name], start.reshape(-1))
        run.inference_and_backprop(inputs, info=info)
        return slope, of_all(float(np.vdot(d5.to_numpy(run.gradients()[name]), direction)))

    for slope, product in run_in_threads(2, work):
        # A central difference is off by step² times a third derivative, and by 1e-16 / step of rounding.
        np.testing.assert_allclose(product, slope, rtol=1e-6, atol=1e-8)


def test_moments_are_merged_without_cancellation() -> None:
    values = 1e8 + np.random.default_rng(0).standard_normal((3, 7))

    def work(communicator: Any) -> tuple[np.ndarray, np.ndarray, float]:
        statistics = RankStatistics(communicator, share=lambda info: info.batch_size / 5)
        own = values[:, part_of(7, communicator.rank, 2)[0] : part_of(7, communicator.rank, 2)[1]]
        statistics.begin(d5.StepInfo(batch_size=1, global_batch_size=5))
        return statistics.moments(own.mean(axis=1), own.var(axis=1), own.shape[1])

    for mean, variance, count in run_in_threads(2, work):
        assert count == 7
        np.testing.assert_allclose(mean, values.mean(axis=1), rtol=1e-15)
        # The mean itself is rounded to 1e-8; the difference of two squares around 1e16 would be off by several units.
        np.testing.assert_allclose(variance, values.var(axis=1), rtol=1e-6)


def test_a_rank_without_samples_counts_for_nothing() -> None:
    def work(communicator: Any) -> Any:
        statistics = RankStatistics(communicator, share=lambda info: info.batch_size / info.global_batch_size)
        statistics.begin(d5.StepInfo(batch_size=1 - communicator.rank, global_batch_size=1))
        own = np.array([2.0]) if communicator.rank == 0 else np.array([np.nan])
        return statistics.moments(own, own, 4), statistics.sums(own, own), communicator.sent_bytes

    (moments, sums, sent_bytes), (others, nothing, _) = run_in_threads(2, work)
    assert moments == others == (2.0, 2.0, 4.0)
    np.testing.assert_array_equal(sums, [[2.0], [2.0]])
    np.testing.assert_array_equal(nothing, [[0.0], [0.0]])
    assert sent_bytes == (2 + 1) * 8 + 2 * 8


def test_what_it_sends_is_counted_and_one_rank_sends_nothing() -> None:
    def sent(communicator: Any, **given: Any) -> int:
        steps(communicator, "pytorch", d5.AllReduce(verify_every=0, **given), (8,))
        return int(communicator.sent_bytes)

    plain = run_in_threads(2, sent)
    synchronised = run_in_threads(2, lambda communicator: sent(communicator, synchronise_batch_norm=True))
    # 3 + 3 + 5 channels: mean, variance and count of each layer forward, two sums backward, in float64.
    added = 8 * (2 * 11 + 3) + 8 * 2 * 11
    assert synchronised == [count + added for count in plain]
    assert sent(SingleRank(), synchronise_batch_norm=True) == 0


def test_networks_without_batch_normalisation_are_left_alone() -> None:
    """An engine without support for synchronized normalization runs them, and nothing more is sent."""

    def sent(communicator: Any, synchronise: bool) -> int:
        scheme = d5.AllReduce(synchronise_batch_norm=synchronise, verify_every=0).wrap(d5.SGD(0.1), communicator)
        scheme.bind(d5.framework("onnxruntime").executor(d5.networks.mlp(features=4, hidden=3, classes=2)))
        return int(communicator.sent_bytes)

    with_it, without = (run_in_threads(2, lambda own, on=on: sent(own, on)) for on in (True, False))
    assert with_it == without


@pytest.mark.parametrize(
    ("framework", "told"),
    [
        ("onnxruntime", "whose ranks cannot exchange anything within a pass; allowed: jax, pytorch"),
        ("jax", "jax waits for other ranks in XLA's threads, which ranks that are threads share"),
        ("pytorch:compiled", "pytorch:compiled runs a pass as one compiled function"),
        ("tensorflow:xla", "tensorflow:xla runs a pass as one compiled function"),
    ],
)
def test_a_framework_that_cannot_says_so(framework: str, told: str) -> None:
    def work(communicator: Any) -> None:
        run = d5.framework(framework).executor(network("float32"))
        d5.AllReduce(synchronise_batch_norm=True).wrap(d5.SGD(0.1), communicator).bind(run)

    with pytest.raises(Unsupported, match=told):
        run_in_threads(2, work)


def test_code_of_the_frameworks_own_is_refused() -> None:
    import torch

    from deep5.frameworks.pytorch.native import from_module

    specs = {"x": d5.TensorSpec(shape=("N", 4)), "label": d5.TensorSpec(shape=("N",), dtype="int64")}
    # Python 3.11 cannot parse source in two threads at once.
    runs = [
        from_module(
            torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)),
            torch.nn.functional.cross_entropy,
            inputs=specs,
        )
        for _ in range(2)
    ]

    def work(communicator: Any) -> None:
        scheme = d5.AllReduce(synchronise_batch_norm=True).wrap(d5.SGD(0.1), communicator)
        scheme.bind(runs[communicator.rank])

    with pytest.raises(Unsupported, match="a network that is native code; allowed: networks of ONNX operators"):
        run_in_threads(2, work)


class Decentralized(d5.DistributedOptimizer):
    """A user-defined scheme that does not state that its ranks step together."""

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        return self.backprop(inputs, info)


def test_arguments_are_looked_at() -> None:
    with pytest.raises(UsageError, match="AllReduce: got synchronise_batch_norm=1; allowed: True or False"):
        d5.AllReduce(synchronise_batch_norm=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Decentralized: got synchronise_batch_norm=True; allowed: False, since its"):
        Decentralized(synchronise_batch_norm=True)
    with pytest.raises(UsageError, match=r"Hierarchical: got synchronise_batch_norm with every=2; allowed: with every"):
        d5.Hierarchical(every=2, synchronise_batch_norm=True)
    with pytest.raises(TypeError, match="synchronise_batch_norm"):
        d5.LocalSGD(synchronise_batch_norm=True)  # type: ignore[call-arg]
    assert d5.AllReduce(synchronise_batch_norm=True).describe()["synchronise_batch_norm"] is True


def test_micro_batches_are_refused() -> None:
    def work(communicator: Any) -> None:
        run = d5.framework("reference").executor(network())
        own = d5.AllReduce(synchronise_batch_norm=True).wrap(d5.SGD(0.1), communicator)
        own.bind(run)
        own.accumulated_step([batch(0, 4), batch(1, 4)], d5.StepInfo(batch_size=8, global_batch_size=16))

    with pytest.raises(Unsupported, match="AllReduce: got several micro-batches with synchronise_batch_norm; allowed"):
        run_in_threads(2, work)


@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow"])
def test_a_rank_that_is_lost_within_a_pass_is_told(framework: str) -> None:
    def work(communicator: Any) -> None:
        run = d5.framework(framework).executor(network())
        own = d5.AllReduce(synchronise_batch_norm=True, timeout_s=20.0).wrap(d5.SGD(0.1), communicator)
        own.bind(run)
        if communicator.rank:
            raise RuntimeError("out of memory")
        with pytest.raises(CommunicationError, match="another rank is lost: rank 1 raised RuntimeError: out of memory"):
            own.step(batch(0, 4), d5.StepInfo(batch_size=4, global_batch_size=8))
        raise CommunicationError("as it should")

    with pytest.raises((RuntimeError, CommunicationError), match=r"out of memory|as it should"):
        run_in_threads(2, work)


def test_a_run_of_a_trainer_is_that_of_one_rank() -> None:
    def work(communicator: Any) -> State:
        data = d5.datasets.synthetic(shape=(2, 4, 4), classes=3, train=45, test=12)
        run = d5.framework("pytorch").executor(network())
        whole = d5.ShuffleSampler(data.train, 10, transforms=[d5.Cast("float64")])
        scheme = d5.AllReduce(synchronise_batch_norm=True).wrap(d5.Adam(0.01), communicator)
        sampler = d5.ShardedSampler(whole, communicator.rank, communicator.size)
        d5.Trainer(run, scheme, sampler, communicator=communicator).train(epochs=2)
        return run.state_dict()

    (whole,) = run_in_threads(1, work)
    for size in (2, 3):
        check_one(run_in_threads(size, work), whole)


PROGRAM = """
import sys
sys.path[:0] = {tests!r}
import numpy as np
from deep5.core.communicator import SingleRank
import deep5 as d5
from test_synchronised import FEW, SIZES, steps
{connect}
for framework in {frameworks!r}:
    sizes = FEW if framework == "jax" else SIZES
    whole = steps(SingleRank(), framework, d5.AllReduce(), sizes).state_dict()
    scheme = d5.AllReduce(synchronise_batch_norm=True, bucket_mib=1e-5, timeout_s=100.0)
    own = steps(communicator, framework, scheme, sizes).state_dict()
    for name, value in whole.items():
        np.testing.assert_allclose(own[name], value, rtol=1e-9, atol=1e-9, err_msg=name)
print("equal", communicator.rank)
"""
MPI = """
from deep5.distributed.communicators.mpi import MPICommunicator
communicator = MPICommunicator.world()
"""
GLOO = """
from deep5.distributed.communicators.process_group import ProcessGroupCommunicator
rank, size, port = map(int, sys.argv[1:4])
communicator = ProcessGroupCommunicator.connect(rank, size, port=port)
"""


def program(connect: str, *frameworks: str) -> str:
    return PROGRAM.format(tests=sys.path, connect=connect, frameworks=frameworks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "size"), [("pytorch", 2), ("reference", 2), ("tensorflow", 2), ("jax", 2), ("jax", 3), ("jax", 4)]
)
def test_over_mpi(framework: str, size: int) -> None:
    ended = under_mpi(program(MPI, framework), size, timeout_s=240.0)
    assert ended.status == 0, ended.errors
    assert {f"equal {rank}" for rank in range(size)} <= set(ended.output.split("\n"))


@pytest.mark.slow
def test_over_gloo() -> None:
    for rank, ended in enumerate(as_processes(program(GLOO, "pytorch", "reference"), 2, timeout_s=120.0)):
        assert ended.status == 0, ended.errors
        assert f"equal {rank}" in ended.output
