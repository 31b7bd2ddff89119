"""Every optimizer under every scheme, also those that own their step and evaluate the loss any number of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core import plugins
from deep5.core.communicator import SingleRank
from deep5.core.errors import CommunicationError, Unsupported, UsageError
from deep5.distributed.communicators.threads import run_in_threads
from deep5.distributed.schemes.all_reduce import AllReduce
from deep5.distributed.schemes.gossip import Gossip
from deep5.distributed.schemes.hierarchical import Hierarchical
from deep5.distributed.schemes.local_sgd import LocalSGD
from deep5.distributed.schemes.parameter_server import ParameterServer
from deep5.distributed.schemes.shared_executor import SharedExecutor
from deep5.distributed.sharding import part_of
from deep5.training.optimizer import RuleOptimizer
from engine import classifier, feed
from pipeline_cases import batch, executor, network
from scheme_cases import LR, check_states, flat, told, trained

# Sums over two to four parts round differently from the whole: some 1e-16 per step of numbers around 1, which a line
# search multiplies by no more than some hundreds.
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}

SAMPLES, BATCH, EPOCHS = 26, 8, 2
"""The last batch of an epoch has two samples: with three or four ranks, some of them have none."""
DATA = batch(99, SAMPLES, "float64")
STEPS = [(epoch, begin) for epoch in range(EPOCHS) for begin in range(0, SAMPLES, BATCH)]

SYNCHRONOUS: dict[str, Callable[[], Any]] = {
    "all_reduce": lambda: AllReduce(verify_every=1),
    "hierarchical": lambda: Hierarchical(2, verify_every=1),
    "parameter_server": lambda: ParameterServer(verify_every=1),
}
ASYNCHRONOUS = ("asynchronous", "stale_synchronous")
SCHEMES: dict[str, Callable[[], Any]] = {
    **{name: plugins.load("schemes", name) for name in plugins.registered("schemes")},
    **SYNCHRONOUS,
}


def _modified(name: str, parameter: Any, gradient: Any) -> Any:
    return 0.5 * gradient if name.endswith("bias") else gradient


def _around(**options: Any) -> Callable[[], Any]:
    return lambda: RuleOptimizer(d5.Momentum(0.05), **options)


# Learning rates with which single ranks learn from four samples at a time.
REGISTERED: dict[str, Callable[[], Any]] = {
    **{name: plugins.load("optimizers", name) for name in plugins.registered("optimizers")},
    "accelegrad": lambda: d5.AcceleGrad(0.1),
    "lars": lambda: d5.LARS(0.005),
    "lbfgs": lambda: d5.LBFGS(0.05, evaluations=1),
    "sag": lambda: d5.SAG(0.1),
    "sag, batches": lambda: d5.SAG(0.1, "batch"),
}
AROUND: dict[str, Callable[[], Any]] = {
    "modifier": _around(modifier=_modified),
    "clip_norm": _around(clip_norm=0.3),
    "clip_value": _around(clip_value=0.02),
    "weight_decay": _around(weight_decay=0.01),
    "loss_scale": _around(loss_scale=16.0),
    "dynamic": _around(loss_scale="dynamic"),
    "frozen": _around(groups=[d5.ParameterGroup(lambda name: name == "fc1.bias", frozen=True)]),
    "groups": _around(groups=[d5.ParameterGroup(lambda name: name.endswith("bias"), lr=0.01)]),
}
OWNERS = ("lbfgs", "sag", "sag, batches")
"""Optimizers that own their step."""


def refusal(scheme: str, kind: str, native: bool) -> str | None:
    """Why a scheme does not take an optimizer; None: it does. This is the complete list."""
    if scheme not in ASYNCHRONOUS:
        return None
    if kind in OWNERS:
        return "owns its step, in which all gradients are of one loss; allowed: an update rule"
    if native:
        return "makes its updates in a framework's memory, of that framework's own gradients; allowed: an update rule"
    return "got loss_scale='dynamic'; allowed: a number" if kind == "dynamic" else None


def order(epoch: int, kind: str) -> np.ndarray:
    """SAG by batches uses the same batches in every epoch."""
    return np.arange(SAMPLES) if kind == "sag, batches" else np.random.default_rng(epoch).permutation(SAMPLES)


def fitted(
    scheme: Any,
    made: Callable[[], Any],
    size: int,
    framework: str = "reference",
    kind: str = "",
    own_network: Callable[[], d5.Network] = lambda: network("float64"),
    saved_after: int | None = None,
) -> list[Any]:
    """What each rank ends with: parameters, those of evaluation, the loss of all samples there, and the state."""

    def bound(communicator: Any) -> tuple[Any, Any]:
        run = executor(framework, own_network())
        own = scheme.wrap(made(), communicator, seed=5)
        own.bind(run)
        return run, own

    def work(communicator: Any) -> tuple[np.ndarray, np.ndarray, float, Mapping[str, Any]]:
        run, own = bound(communicator)
        for step, (epoch, begin) in enumerate(STEPS):
            if step == saved_after:
                states = run.state_dict(), own.state_dict()
                run, own = bound(communicator)
                run.load_state_dict(states[0])
                own.load_state_dict(states[1])
            ids = order(epoch, kind)[begin : begin + BATCH]
            first, last = part_of(len(ids), communicator.rank, communicator.size)
            mine = ids[first:last]
            info = d5.StepInfo(step, epoch, len(mine), mine, 0, len(ids))
            inputs = {name: value[mine if len(mine) else ids[:1]] for name, value in DATA.items()}
            outputs = own.step(inputs, info)
            assert len(d5.to_numpy(outputs["logits"])) == max(len(mine), 1)
        getattr(own, "settle", lambda: None)()
        values = flat(run)
        with own.averaged():
            judged, loss = flat(run), float(d5.to_numpy(run.inference(DATA)["loss"]))
        np.testing.assert_array_equal(flat(run), values)
        return values, judged, loss, own.state_dict()

    return run_in_threads(size, work, timeout_s=120.0)


def check_cells(made: Callable[[], Any], kind: str, framework: str, *, native: bool = False) -> None:
    """One optimizer under every scheme, two ranks: refused, or as one rank, or the loss of all samples falls."""
    whole = fitted(AllReduce(), made, 1, framework, kind)[0]
    untrained = executor(framework, network("float64"))
    before, first = float(d5.to_numpy(untrained.inference(DATA)["loss"])), flat(untrained)
    for scheme, make in SCHEMES.items():
        if reason := refusal(scheme, kind, native):
            with pytest.raises(Unsupported, match=reason):
                make().wrap(made(), _SecondOfTwo())
            continue
        ranks = fitted(make(), made, 2, framework, kind)
        for values, judged, loss, _ in ranks:
            if scheme in SYNCHRONOUS:
                np.testing.assert_array_equal(values, ranks[0][0])
                np.testing.assert_allclose(values, whole[0], **CLOSE, err_msg=scheme)
                np.testing.assert_allclose(judged, whole[1], **CLOSE, err_msg=scheme)
            if scheme in ASYNCHRONOUS:
                # The staleness of a gradient depends on timing: a few steps may go uphill.
                assert np.isfinite(loss), scheme
                assert not np.array_equal(values, first), scheme
            else:
                assert loss < before, scheme


class _SecondOfTwo(SingleRank):
    """For the question whether a scheme takes an optimizer, no other rank needs to exist."""

    def __init__(self) -> None:
        super().__init__()
        self.rank, self.size = 1, 2


@pytest.mark.parametrize("kind", REGISTERED)
def test_every_registered_optimizer_goes_with_every_scheme(kind: str) -> None:
    check_cells(REGISTERED[kind], kind, "reference")


@pytest.mark.parametrize("kind", AROUND)
def test_what_is_around_a_rule_goes_with_every_scheme(kind: str) -> None:
    check_cells(AROUND[kind], kind, "reference")


NATIVE = [
    pytest.param(framework, name, marks=pytest.mark.slow if framework != "pytorch" else ())
    for framework in ("pytorch", "tensorflow")
    for name in sorted(d5.framework(framework).optimizers())
]


@pytest.mark.parametrize(("framework", "name"), NATIVE)
def test_every_native_optimizer_goes_with_every_scheme(framework: str, name: str) -> None:
    rate = {"lbfgs": 0.05}.get(name)
    made = d5.framework(framework).optimizer(name)
    check_cells(made if rate is None else lambda: made(rate), name, framework, native=True)


def test_nothing_registered_is_left_out() -> None:
    assert set(plugins.registered("optimizers")) <= set(REGISTERED)
    assert set(plugins.registered("schemes")) == set(SCHEMES)


@pytest.mark.parametrize("name", plugins.registered("compressors"))
def test_compressions_go_with_update_rules_alone(name: str) -> None:
    compression = plugins.load("compressors", name)
    for scheme in (AllReduce, ParameterServer):
        for kind in OWNERS:
            with pytest.raises(Unsupported, match="owns its step and treats its input as the gradient of the loss"):
                scheme(compression=compression()).wrap(REGISTERED[kind](), _SecondOfTwo())
    # One rank compresses nothing.
    AllReduce(compression=compression()).wrap(d5.LBFGS(), SingleRank())


# Optimizers that own their step


CLOSURES: dict[str, Callable[[], Any]] = {
    "lbfgs": lambda: d5.LBFGS(0.7),
    "lbfgs, several updates": lambda: d5.LBFGS(0.7, history=3, iterations=3),
    "sag": lambda: d5.SAG(0.1),
    "sag, batches": lambda: d5.SAG(0.1, "batch"),
}


def check_state(got: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
    assert got.keys() == whole.keys()
    for name, value in whole.items():
        if isinstance(value, np.ndarray) and "float" in value.dtype.name:
            np.testing.assert_allclose(got[name], value, rtol=1e-7, atol=1e-10, err_msg=name)
        else:
            np.testing.assert_equal(got[name], value)


@pytest.mark.parametrize("framework", ["reference", "pytorch", pytest.param("tensorflow", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", CLOSURES)
def test_ranks_take_the_step_that_one_takes(framework: str, kind: str) -> None:
    """Parameters and state: differences of gradients lose some digits, so the state agrees to fewer of them."""
    whole = fitted(AllReduce(), CLOSURES[kind], 1, framework, kind)[0]
    for size in (2, 3, 4):
        for make in SYNCHRONOUS.values():
            ranks = fitted(make(), CLOSURES[kind], size, framework, kind)
            for values, judged, _, state in ranks:
                np.testing.assert_allclose(values, whole[0], **CLOSE)
                np.testing.assert_array_equal(values, ranks[0][0])
                np.testing.assert_array_equal(values, judged)
                check_states(state, ranks[0][3])
                check_state(state, whole[3])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_torch_searches_a_line_with_all_ranks(size: int) -> None:
    def made() -> Any:
        return d5.framework("pytorch").optimizer("lbfgs")(0.7, iterations=3)

    whole = fitted(AllReduce(), made, 1, "pytorch")[0]
    for make in SYNCHRONOUS.values():
        for values, *_ in fitted(make(), made, size, "pytorch"):
            np.testing.assert_allclose(values, whole[0], **CLOSE)


@pytest.mark.parametrize("kind", CLOSURES)
def test_goes_on_from_its_state_with_the_same_bits(kind: str) -> None:
    whole = fitted(AllReduce(), CLOSURES[kind], 3, kind=kind)
    again = fitted(AllReduce(), CLOSURES[kind], 3, kind=kind, saved_after=5)
    for one, other in zip(whole, again, strict=True):
        np.testing.assert_array_equal(one[0], other[0])


def test_groups_search_by_themselves_and_average() -> None:
    """One group never averages parameters, and is as one rank; ranks of one of two groups are equal until they do."""
    whole = fitted(AllReduce(), CLOSURES["lbfgs"], 1)[0]
    for values, *_ in fitted(Hierarchical(3, every=4), CLOSURES["lbfgs"], 3):
        np.testing.assert_allclose(values, whole[0], **CLOSE)
    for kind in ("lbfgs", "sag"):
        ranks = [values for values, *_ in fitted(Hierarchical(2, every=5), REGISTERED[kind], 4, kind=kind)]
        np.testing.assert_array_equal(ranks[0], ranks[1])
        np.testing.assert_array_equal(ranks[2], ranks[3])
        assert np.any(ranks[0] != ranks[2])  # 8 steps: the last mean was three steps ago


class Plain:
    """A user-defined `StepOptimizer`: gradient descent whose step is halved until the loss falls."""

    def bind(self, executor: Any) -> None:
        self.executor = executor

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        run = self.executor
        outputs = run.inference_and_backprop(inputs)
        loss = float(d5.to_numpy(outputs["loss"]))
        gradients = {name: np.array(d5.to_numpy(value)) for name, value in run.gradients().items()}
        start = {name: np.array(d5.to_numpy(value)) for name, value in run.parameters().items()}
        rate = 8 * LR
        for _ in range(6):
            for name, value in start.items():
                run.write([name], np.ascontiguousarray(value - rate * gradients[name]).reshape(-1))
            if float(d5.to_numpy(run.inference(inputs, training=True)["loss"])) < loss:
                break
            rate /= 2
        return outputs

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        assert not state


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_a_step_of_ones_own_is_that_of_all_ranks(framework: str) -> None:
    whole = trained(AllReduce(), Plain, 1, framework)[0]
    for size in (2, 3):
        for make in SYNCHRONOUS.values():
            for rank in trained(make(), Plain, size, framework):
                np.testing.assert_allclose(rank.values, whole.values, **CLOSE)


def test_a_rank_is_given_the_outputs_of_its_own_samples() -> None:
    def work(communicator: Any) -> None:
        run = executor("reference", network("float64"))
        own = AllReduce().wrap(d5.LBFGS(), communicator)
        own.bind(run)
        mine = {name: value[communicator.rank :: 2] for name, value in batch(0, 8, "float64").items()}
        expected = run.inference(mine)
        outputs = own.step(mine, told(0, 4, 8))
        for name, value in expected.items():
            np.testing.assert_array_equal(outputs[name], value)

    run_in_threads(2, work)


def test_what_cannot_be_shared_is_refused() -> None:
    class Decentralized(d5.DistributedOptimizer):
        consistent = True

        def step(self, inputs: Any, info: d5.StepInfo) -> Any:
            return self.step_together(inputs, info) if info.step else self.backprop(inputs, info)

    def work(communicator: Any) -> None:
        run = executor("reference", network("float64"))
        own = Decentralized().wrap(d5.LBFGS(), communicator)
        own.bind(run)
        with pytest.raises(Unsupported, match=r"LBFGS owns its step; allowed: .* or has step_together"):
            own.step(batch(0, 4, "float64"), told(0, 4, 8))
        with pytest.raises(UsageError, match="step_together is for several ranks, bound to an optimizer that owns"):
            own.step(batch(0, 4, "float64"), told(1, 4, 8))
        with pytest.raises(
            Unsupported, match="LBFGSOptimizer owns its step, within which jax evaluates it out of reach"
        ):
            AllReduce().wrap(d5.framework("jax").optimizer("lbfgs")(), communicator)
        own = AllReduce().wrap(d5.LBFGS(), communicator)
        own.bind(run)
        shared = SharedExecutor(own)
        with pytest.raises(Unsupported, match="gradients by input cannot be added up over ranks"):
            shared.inference_and_backprop(batch(0, 4, "float64"), wrt=["input"])
        with pytest.raises(Unsupported, match="requests a whole training step, into which no gradients of other ranks"):
            shared.train_step(d5.SGD(0.1))
        with pytest.raises(Unsupported, match="there are no gradients; remedy: call inference_and_backprop first"):
            shared.gradients()

    run_in_threads(2, work)


def test_wrong_evaluations_are_caught() -> None:
    class Unweighted(AllReduce):
        def share(self, info: d5.StepInfo) -> float:
            return 1.0 / self.communicator.size

    class OwnLoss(AllReduce):
        def sum_for_all(self, buffer: np.ndarray, info: d5.StepInfo) -> None:
            buffer *= self.communicator.size

    whole = trained(AllReduce(), CLOSURES["lbfgs"], 1)[0]
    got = trained(Unweighted(), CLOSURES["lbfgs"], 2)[0]
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        np.testing.assert_allclose(got.values, whole.values, **CLOSE)
    with pytest.raises(CommunicationError, match="the parameters after step 1 of rank 1 differ from those of rank 0"):
        trained(OwnLoss(verify_every=1), CLOSURES["lbfgs"], 2)


def test_gradients_add_up_over_micro_batches_of_ones_own() -> None:
    """What an optimizer accumulates itself is the sum on all ranks, and `on_gradient` shows it."""

    class Twice(Plain):
        def step(self, inputs: Any, info: d5.StepInfo) -> Any:
            run, seen = self.executor, {}
            run.inference_and_backprop(inputs, info=info, loss_scale=0.5)
            outputs = run.inference_and_backprop(
                inputs, info=info, loss_scale=0.5, accumulate=True, on_gradient=seen.__setitem__
            )
            for name, gradient in seen.items():
                value = d5.to_numpy(run.parameters()[name]) - LR * d5.to_numpy(gradient)
                run.write([name], np.ascontiguousarray(value).reshape(-1))
            return outputs

    whole = trained(AllReduce(), lambda: d5.SGD(LR), 1)[0]
    for rank in trained(AllReduce(), Twice, 3):
        np.testing.assert_allclose(rank.values, whole.values, **CLOSE)


# Micro-batches


class OneBatch(d5.DistributedOptimizer):
    """A scheme that does not mention micro-batches."""

    consistent = True

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        outputs = self.backprop(inputs, info)
        self.apply(self.mean(self.gradients(), info), info)
        return outputs


def halves(step: int) -> list[Any]:
    whole = batch(step, 8, "float64")
    return [{name: value[places] for name, value in whole.items()} for places in (slice(3), slice(3, 8))]


@pytest.mark.parametrize("make", [OneBatch, AllReduce, Gossip, ParameterServer])
def test_one_rank_takes_micro_batches_where_its_optimizer_does(make: Callable[[], Any]) -> None:
    runs = [executor("reference", network("float64")) for _ in range(2)]
    own: Any = make().wrap(d5.Adam(0.05), SingleRank())
    alone = RuleOptimizer(d5.Adam(0.05))
    for run, optimizer in zip(runs, (own, alone), strict=True):
        optimizer.bind(run)
        for step in range(3):
            optimizer.accumulated_step(halves(step), told(step, 8, 8))
    assert own.accumulates
    np.testing.assert_array_equal(flat(runs[0]), flat(runs[1]))


@pytest.mark.parametrize("make", [OneBatch, AllReduce, Gossip, ParameterServer])
@pytest.mark.parametrize("made", [d5.LBFGS, d5.framework("pytorch").optimizer("lbfgs")])
@pytest.mark.parametrize("size", [1, 2])
def test_what_takes_one_batch_a_step_says_so_before_the_first(
    make: Callable[[], Any], made: Callable[[], Any], size: int
) -> None:
    def work(communicator: Any) -> None:
        own = make().wrap(made(), communicator)
        run = executor("pytorch", network("float64"))
        own.bind(run)
        assert not own.accumulates
        with pytest.raises(Unsupported, match="got several micro-batches; allowed: step"):
            own.accumulated_step(halves(0), told(0, 8, 8 * size))

    run_in_threads(size, work)


def test_a_trainer_asks_the_optimizer_for_micro_batches() -> None:
    data = d5.OrderedSampler(d5.ArrayDataset(DATA), BATCH)

    def trainer(optimizer: Any) -> d5.Trainer:
        run = executor("reference", network("float64"))
        return d5.Trainer(run, OneBatch().wrap(optimizer, SingleRank()), data, accumulate=2)

    trainer(d5.Adam()).train(epochs=1)
    with pytest.raises(UsageError, match="got accumulate=2 with OneBatch, which owns its step"):
        trainer(d5.LBFGS())
    for size, optimizer in ((2, d5.LBFGS), (2, d5.SAG)):
        with pytest.raises(UsageError, match="got accumulate=2 with AllReduce"):
            run_in_threads(
                size,
                lambda communicator, made=optimizer: d5.Trainer(
                    executor("reference", network("float64")),
                    AllReduce().wrap(made(), communicator),
                    data,
                    accumulate=2,
                ),
            )


# A rank without samples


def normalised() -> d5.Network:
    return classifier(normalised=True, dtype="float64")


EMPTY: dict[str, tuple[Callable[[], Any], Callable[[str], Any]]] = {
    "all-reduce": (AllReduce, lambda framework: d5.Momentum(0.1)),
    "small buckets": (lambda: AllReduce(bucket_mib=1e-5), lambda framework: d5.Momentum(0.1)),
    "two levels": (lambda: Hierarchical(2), lambda framework: d5.Momentum(0.1)),
    "groups": (lambda: Hierarchical(2, every=2), lambda framework: d5.Momentum(0.1)),
    "server": (ParameterServer, lambda framework: d5.AcceleGrad(0.1)),
    "native": (ParameterServer, lambda framework: d5.framework("pytorch").optimizer("momentum")(0.1)),
    "lbfgs": (AllReduce, lambda framework: d5.LBFGS(0.5)),
    "averaging": (LocalSGD, lambda framework: d5.Momentum(0.1)),
    "asynchronous": (plugins.load("schemes", "asynchronous"), lambda framework: d5.Momentum(0.1)),
    "one's own": (OneBatch, lambda framework: d5.Momentum(0.1)),
}


def statistics(scheme: Any, made: Callable[[], Any], framework: str, accumulate: int) -> list[Any]:
    """The running statistics of two ranks after a step in which both have samples, and after one of a single sample."""

    def work(communicator: Any) -> tuple[Any, Any]:
        run = executor(framework, normalised())
        own = scheme.wrap(made(), communicator)
        own.bind(run)
        seen = []
        for step, count in enumerate((4, 1)):
            whole = feed(normalised(), count, seed=step)
            first, last = part_of(count, communicator.rank, 2)
            mine = {name: value[first:last] if last > first else value[:1] for name, value in whole.items()}
            info = told(step, last - first, count)
            own.step(mine, info) if accumulate == 1 else own.accumulated_step([mine], info)
            seen.append({name: np.array(d5.to_numpy(value)) for name, value in run.buffers().items()})
        getattr(own, "settle", lambda: None)()
        return seen[0], seen[1]

    return run_in_threads(2, work)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize("case", EMPTY)
def test_a_borrowed_sample_is_no_statistic(case: str, framework: str, accumulate: int) -> None:
    scheme, made = EMPTY[case]
    if case == "native" and framework != "pytorch":
        framework = "device"  # PyTorch's executor, wrapped
    if accumulate == 2 and case in ("lbfgs", "one's own"):
        return  # they take one batch per step
    (first, moved), (kept, same) = statistics(scheme(), lambda: made(framework), framework, accumulate)
    for name in ("mean", "variance"):
        assert np.any(moved[name] != first[name])
        assert np.any(kept[name] != first[name])
        np.testing.assert_array_equal(same[name], kept[name])


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_line_is_searched_with_the_statistics_of_all_ranks(size: int, framework: str) -> None:
    """Batch normalization over all ranks at every evaluation; of two samples, the third rank has none."""

    def work(communicator: Any) -> np.ndarray:
        run = executor(framework, normalised())
        own = AllReduce(synchronise_batch_norm=True).wrap(d5.LBFGS(0.5), communicator)
        own.bind(run)
        for step, count in enumerate((6, 5, 2, 6)):
            whole = feed(normalised(), count, seed=step)
            first, last = part_of(count, communicator.rank, communicator.size)
            mine = {name: value[first:last] if last > first else value[:1] for name, value in whole.items()}
            own.step(mine, told(step, last - first, count))
        buffers = [np.array(d5.to_numpy(value)).reshape(-1) for value in run.buffers().values()]
        return np.concatenate([flat(run), *buffers])

    whole = run_in_threads(1, work)[0]
    for values in run_in_threads(size, work):
        np.testing.assert_allclose(values, whole, **CLOSE)


def test_statistics_of_borrowed_samples_are_caught() -> None:
    class Moved(AllReduce):
        def undisturbed(self, info: d5.StepInfo) -> Any:
            return nullcontext()

    _, (kept, same) = statistics(Moved(), lambda: d5.Momentum(0.1), "reference", 1)
    assert np.any(same["mean"] != kept["mean"])


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize("kind", ["adam", "lbfgs"])
def test_what_a_rank_without_samples_is_given_counts_for_nothing(framework: str, kind: str) -> None:
    """Not even NaN."""

    def work(communicator: Any) -> np.ndarray:
        run = executor(framework, network("float64"))
        own = AllReduce(verify_every=1).wrap(REGISTERED[kind](), communicator)
        own.bind(run)
        before = flat(run)
        inputs = batch(0, 1, "float64")
        if communicator.rank:
            inputs["input"][...] = np.nan
        own.step(inputs, told(0, 1 - communicator.rank, 1))
        assert np.any(flat(run) != before)
        return flat(run)

    for values in run_in_threads(2, work):
        assert np.isfinite(values).all()
