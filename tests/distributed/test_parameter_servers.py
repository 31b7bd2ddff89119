"""Centralized schemes: one rank makes the updates from the gradients of all, in turn or as they arrive."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.communicator import SingleRank
from deep5.core.errors import CommunicationError, Unsupported, UsageError
from deep5.core.executors import ParameterGroup
from deep5.distributed.communicators.threads import run_in_threads
from deep5.distributed.compression.half_precision import HalfPrecision
from deep5.distributed.compression.top_k import TopKSparsification
from deep5.distributed.resuming import restore_ranks
from deep5.distributed.schemes.asynchronous import AsynchronousParameterServer
from deep5.distributed.schemes.asynchronous_base import AsynchronousScheme
from deep5.distributed.schemes.parameter_server import ParameterServer
from deep5.distributed.schemes.server import Server
from deep5.distributed.schemes.server_memory import HEAD, Block
from deep5.distributed.schemes.stale_synchronous import StaleSynchronous
from deep5.distributed.sharding import ShardedSampler
from deep5.distributed.votes import Votes
from deep5.training.checkpointer import Checkpointer
from deep5.training.optimizer import RuleOptimizer
from rank_trainers import BATCH, CLASSES, FEATURES, SAMPLES, network, samples, trained
from ranks import as_processes, under_mpi

# Sums of a few dozen numbers in another order, in float64.
CLOSE = 1e-9


def one_rank(optimizer: Any, **options: Any) -> tuple[Any, Any]:
    return trained(SingleRank(), ParameterServer(), optimizer, **options)


def assert_close(found: Any, expected: Any, tolerance: float = CLOSE) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def frozen_and_decayed() -> RuleOptimizer:
    groups = [
        ParameterGroup(lambda name: name == "fc1.bias", frozen=True),
        ParameterGroup(lambda name: name.endswith("bias"), weight_decay=0.0, lr=0.02),
    ]
    return RuleOptimizer(d5.Adam(lr=0.01), groups=groups, clip_norm=0.5, weight_decay=0.1)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: d5.Momentum(lr=0.1),
    "adam": lambda: d5.Adam(lr=0.01),
    # Takes the gradient at another point than the parameter, and evaluates at a third.
    "accelegrad": lambda: d5.AcceleGrad(lr=0.5),
    "frozen": frozen_and_decayed,
    "modified": lambda: RuleOptimizer(
        d5.Momentum(lr=0.1), modifier=lambda name, param, grad: 0.5 * grad + 0.01 * param
    ),
    "scaled": lambda: RuleOptimizer(d5.Momentum(lr=0.1), loss_scale=64.0),
    "dynamic": lambda: RuleOptimizer(d5.Momentum(lr=0.1), loss_scale="dynamic"),
}


@pytest.mark.parametrize(("size", "root"), [(2, 0), (3, 1), (4, 3)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_synchronous_server_does_what_one_rank_does(name: str, size: int, root: int) -> None:
    alone, expected = one_rank(OPTIMIZERS[name]())
    ranks = run_in_threads(size, lambda own: trained(own, ParameterServer(root), OPTIMIZERS[name]()))
    for trainer, found in ranks:
        assert_close(found, expected)
        assert trainer.scores["loss"] == pytest.approx(alone.scores["loss"], rel=CLOSE)
    assert all((ranks[0][1][name] == found[name]).all() for _, found in ranks for name in found)  # bit-identical


@pytest.mark.parametrize(("framework", "accumulate"), [("pytorch", 1), ("pytorch", 2), ("tensorflow", 1), ("jax", 2)])
def test_on_other_frameworks_and_with_several_batches_a_step(framework: str, accumulate: int) -> None:
    _, expected = one_rank(d5.Adam(lr=0.01), framework=framework, accumulate=accumulate)
    for _, found in run_in_threads(
        2, lambda own: trained(own, ParameterServer(1), d5.Adam(lr=0.01), framework=framework, accumulate=accumulate)
    ):
        assert_close(found, expected)


def test_a_framework_s_own_optimizer_makes_the_synchronous_update() -> None:
    from deep5.frameworks.pytorch.optimizers import AdamOptimizer

    _, expected = one_rank(AdamOptimizer(lr=0.01), framework="pytorch")
    _, rule = one_rank(d5.Adam(lr=0.01), framework="pytorch")
    assert_close(expected, rule)

    def run(own: Any) -> Any:
        return trained(own, ParameterServer(2), AdamOptimizer(lr=0.01), framework="pytorch")

    for _, found in run_in_threads(3, run):
        assert_close(found, expected)


def test_only_the_root_has_the_optimizer_s_state() -> None:
    states = run_in_threads(3, lambda own: trained(own, ParameterServer(1), d5.Adam())[0].state_dict()["optimizer"])
    assert [len(state) for state in states] == [1, 1 + 2 * 4, 1]  # two arrays per parameter, and the hyperparameters


def test_the_synchronous_server_counts_its_bytes() -> None:
    steps = 2 * -(-SAMPLES // BATCH)
    held = sum(spec.size for spec in network().parameter_specs.values()) * 8
    block = Block(network().parameter_specs).memory.nbytes
    assert block == 8 * HEAD + held

    def counted(own: Any) -> Any:
        made = ParameterServer(verify_every=0).wrap(d5.Momentum(lr=0.1), own)
        made.bind(d5.framework("reference").executor(network()))
        # The first step begins with the root's parameters, as it does after a resume.
        made.step({"input": np.ones((2, FEATURES)), "label": np.zeros(2, np.int64)}, d5.StepInfo(0, 0, 2))
        before = own.sent_bytes, own.messages
        for step in range(1, steps + 1):
            made.step({"input": np.ones((2, FEATURES)), "label": np.zeros(2, np.int64)}, d5.StepInfo(step, 0, 2))
        return own.sent_bytes - before[0], own.messages - before[1]

    assert run_in_threads(3, counted) == [(steps * block, steps), (steps * held, steps), (steps * held, steps)]


def test_compressed_gradients_go_to_the_root() -> None:
    everything = lambda own: trained(own, ParameterServer(1, compression=TopKSparsification(1.0)), d5.Adam(lr=0.01))  # noqa: E731
    _, expected = one_rank(d5.Adam(lr=0.01))
    for _, found in run_in_threads(3, everything):
        assert_close(found, expected)
    halved = lambda own: trained(own, ParameterServer(compression=HalfPrecision("float16")), d5.Momentum(lr=0.1))  # noqa: E731
    found = run_in_threads(2, halved)
    _, expected = one_rank(d5.Momentum(lr=0.1))
    assert_close(found[0][1], expected, 1e-2)  # eleven bits per gradient, twelve steps
    with pytest.raises(AssertionError):
        assert_close(found[0][1], expected)  # and it was rounded


@pytest.mark.parametrize("size", [2, 3])
def test_the_synchronous_server_resumes(size: int) -> None:
    _, expected = one_rank(d5.AcceleGrad(lr=0.5), epochs=3)
    make = lambda: d5.AcceleGrad(lr=0.5)  # noqa: E731
    states = run_in_threads(2, lambda own: trained(own, ParameterServer(), make(), epochs=1)[0].state_dict())

    def again(own: Any) -> Any:
        return trained(own, ParameterServer(), make(), epochs=2, state=states[own.rank % 2])[1]

    for found in run_in_threads(size, again):
        assert_close(found, expected)


# The asynchronous schemes


@pytest.mark.parametrize("framework", ["reference", "jax"])
def test_several_batches_a_gradient(framework: str) -> None:
    """Of two ranks, the worker with two batches per step does what one rank does."""

    def run(own: Any, scheme: Any) -> Any:
        executor = d5.framework(framework).executor(network())
        sampler: Any = d5.ShuffleSampler(samples(45), BATCH, seed=5)
        sampler = OnlyOn(sampler, own.rank, 1) if own.size > 1 else sampler
        made = scheme.wrap(d5.Momentum(lr=0.1), own)
        trainer = d5.Trainer(executor, made, sampler, communicator=own, seed=2, accumulate=2)
        trainer.train(2)
        with trainer.optimizer.averaged():
            return executor.state_dict()

    expected = run(SingleRank(), ParameterServer())
    assert_close(run(SingleRank(), AsynchronousParameterServer()), expected)
    for found in run_in_threads(2, lambda own: run(own, AsynchronousParameterServer())):
        assert_close(found, expected)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_go_on_from_checkpoint_files(size: int, tmp_path: Any) -> None:
    def first(own: Any) -> Any:
        keeper = Checkpointer(tmp_path, every_steps=1)
        keeper.rank = own.rank
        keeper.about = lambda: {"ranks": own.size}
        votes = Votes(own, keeper, lockstep=False)
        trainer, judged = trained(own, AsynchronousParameterServer(), d5.Adam(lr=0.01), events=[votes])
        return trainer.state_dict()["optimizer"], judged

    saved = run_in_threads(2, first)

    def again(own: Any) -> Any:
        told: list[str] = []
        trainer, _ = trained(own, AsynchronousParameterServer(), d5.Adam(lr=0.01), epochs=0)
        trainer.optimizer.timeout_s = 60.0
        about, _ = restore_ranks(trainer, tmp_path, own, tell=told.append) or ({}, None)
        assert about["ranks"] == 2
        with trainer.optimizer.averaged():
            judged = {name: np.array(value) for name, value in trainer.executor.state_dict().items()}
        state = trainer.optimizer.state_dict()
        trainer.train(1)
        assert trainer.epoch == 3
        return state, judged

    found = run_in_threads(size, again)
    for name, value in saved[0][1].items():
        assert all((judged[name] == value).all() for _, judged in found), name
    for name, value in saved[0][0].items():
        if name != "hyper" and not name.startswith("server/"):
            assert np.array_equal(found[0][0][name], value), name
    if size > 1:
        assert found[0][0]["server/updates"] == saved[0][0]["server/updates"] == 22


class OnlyOn:
    """A sampler whose samples all belong to one rank."""

    def __init__(self, sampler: Any, rank: int, worker: int) -> None:
        self.sampler, self.mine = sampler, rank == worker

    def global_batch_size(self, epoch: int, batch: int) -> int:
        return BATCH

    def batches(self, epoch: int, start: int = 0) -> Any:
        for ids, inputs in self.sampler.batches(epoch, start):
            yield (ids, inputs) if self.mine else (ids[:0], {name: value[:1] for name, value in inputs.items()})


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("name", ["momentum", "adam", "accelegrad", "frozen", "scaled"])
@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_one_worker_trains_as_if_alone(name: str, worker: int, framework: str) -> None:
    def run(own: Any, scheme: Any, count: int) -> Any:
        executor = d5.framework(framework).executor(network("float32"))
        sampler = d5.ShuffleSampler(samples(45, "float32"), BATCH, seed=5)
        sampler = OnlyOn(sampler, own.rank, worker) if count > 1 else sampler
        trainer = d5.Trainer(executor, scheme.wrap(OPTIMIZERS[name](), own), sampler, communicator=own, seed=2)
        trainer.train(3)
        with trainer.optimizer.averaged():
            return executor.state_dict(), trainer.optimizer

    expected, _ = run(SingleRank(), AsynchronousParameterServer(), 1)
    plain, _ = run(SingleRank(), ParameterServer(), 1)
    for (found, scheme), rank in zip(
        run_in_threads(2, lambda own: run(own, AsynchronousParameterServer(), 2)), range(2), strict=True
    ):
        for key, value in expected.items():
            assert np.array_equal(found[key], value), key
            assert np.array_equal(plain[key], value)
        assert scheme.staleness == (Counter({0: 15}) if rank == worker else Counter())


class Turns:
    """Passes the ranks' messages on in a given order."""

    def __init__(self, order: list[int]) -> None:
        self.order, self.place, self.condition = order, 0, threading.Condition()

    @contextlib.contextmanager
    def of(self, rank: int) -> Any:
        with self.condition:
            assert self.condition.wait_for(lambda: self.order[self.place] == rank, 20.0)
        yield
        with self.condition:
            self.place += 1
            self.condition.notify_all()


def small(step: int, rank: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng((step, rank))
    return {"input": draw.standard_normal((4, FEATURES)), "label": draw.integers(0, CLASSES, 4)}


def in_order(scheme: type[AsynchronousScheme], order: list[int], size: int, **options: Any) -> list[Any]:
    """Steps whose gradients arrive in a given order: each rank's scheme, and the final parameters."""
    turns = Turns(order)

    class Ordered(scheme):  # type: ignore[misc,valid-type]
        def _begin(self, info: d5.StepInfo) -> None:
            # All start from the same parameters.
            super()._begin(info)
            self.communicator.barrier()

        def _push(self, kind: int, info: d5.StepInfo) -> None:
            with turns.of(self.communicator.rank):
                super()._push(kind, info)

    def run(own: Any) -> Any:
        executor = d5.framework("reference").executor(network())
        made = Ordered(**options).wrap(d5.Momentum(lr=0.1), own)
        made.bind(executor)
        for step in range(order.count(own.rank)):
            made.step(small(step, own.rank), d5.StepInfo(step, 0, 4))
        with made.averaged():
            return made, executor.state_dict()

    return run_in_threads(size, run)


def simulated(order: list[int], size: int) -> tuple[dict[str, np.ndarray], list[Counter[int]]]:
    """The same in NumPy: w ← w − lr u, u ← momentum u + g(the parameters that the rank received last)."""
    executor = d5.framework("reference").executor(network())
    names = list(executor.network.parameter_specs)
    now = {name: np.array(executor.state_dict()[name]) for name in names}
    held, velocity = [dict(now) for _ in range(size)], {name: np.zeros_like(now[name]) for name in names}
    versions, counts, steps = [0] * size, [Counter[int]() for _ in range(size)], [0] * size
    for version, rank in enumerate(order):
        executor.load_state_dict({**executor.state_dict(), **held[rank]})
        executor.inference_and_backprop(small(steps[rank], rank))
        gradients = executor.gradients()
        for name in names:
            velocity[name] = 0.9 * velocity[name] + gradients[name]
            now[name] = now[name] - 0.1 * velocity[name]
        counts[rank][version - versions[rank]] += 1
        held[rank], versions[rank] = dict(now), version + 1
        steps[rank] += 1
    return now, counts


ORDERS = [[0, 1, 0, 1, 0, 1], [1, 1, 1, 0, 0, 0], [0, 0, 1, 0, 1, 1], [2, 0, 1, 1, 2, 0, 0, 2, 1, 2]]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("root", [0, 1])
def test_gradients_are_applied_in_the_order_of_their_arrival(order: list[int], root: int) -> None:
    size = max(order) + 1
    expected, counts = simulated(order, size)
    for rank, (scheme, found) in enumerate(in_order(AsynchronousParameterServer, order, size, root=root)):
        assert_close(found, expected)
        assert scheme.staleness == counts[rank]
        if rank == root:
            assert scheme.server.staleness == counts


class DropsEveryThird(Server):
    """Wrong: reports a gradient as applied that was not."""

    def _apply(self, rank: int, gradients: Block, version: int, info: d5.StepInfo) -> int:
        if self.updates % 3 == 2:
            for view in gradients.views.values():
                view[...] = 0
        return super()._apply(rank, gradients, version, info)


class ForgetsTheRoot(Server):
    """Wrong: computes the root's gradients and discards them."""

    def _apply(self, rank: int, gradients: Block, version: int, info: d5.StepInfo) -> int:
        return 0 if rank == self._root else super()._apply(rank, gradients, version, info)


def with_server(kind: type[Server]) -> type[AsynchronousScheme]:
    class Made(AsynchronousParameterServer):
        def _make_server(self, link: Any) -> Server:
            server = super()._make_server(link)
            return kind(link, self.memory, server._step, bound=None, timeout_s=self.timeout_s)

    return Made


@pytest.mark.parametrize("wrong", [DropsEveryThird, ForgetsTheRoot])
def test_a_wrong_server_is_caught_by_the_simulation(wrong: type[Server]) -> None:
    order = ORDERS[0]
    expected, _ = simulated(order, 2)
    right, found = (in_order(with_server(kind), order, 2) for kind in (Server, wrong))
    assert_close(right[0][1], expected)
    with pytest.raises(AssertionError):
        assert_close(found[0][1], expected)
    assert totals([scheme for scheme, _ in right]) == (6, 6)
    if wrong is ForgetsTheRoot:
        assert totals([scheme for scheme, _ in found]) == (6, 3)


def totals(schemes: list[Any], root: int = 0) -> tuple[int, int]:
    """Gradients handed over by the ranks, and updates made by the server."""
    return sum(sum(scheme.staleness.values()) for scheme in schemes), schemes[root].server.updates


@pytest.mark.parametrize(
    "scheme", [AsynchronousParameterServer, lambda: StaleSynchronous(1), lambda: StaleSynchronous(0)]
)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_gradient_is_applied_once(scheme: Any, size: int) -> None:
    # The last batch has one sample: other ranks have none, and still take part.
    ranks = run_in_threads(size, lambda own: trained(own, scheme(), d5.Momentum(lr=0.05), epochs=3))
    found = [trainer.optimizer for trainer, _ in ranks]
    batches = -(-SAMPLES // BATCH)
    assert SAMPLES % BATCH == 1
    for trainer, parameters in ranks:
        assert trainer.step == 3 * batches
        assert trainer.scores == ranks[0][0].scores
        assert all((parameters[name] == value).all() for name, value in ranks[0][1].items())
    if size > 1:
        assert totals(found) == (3 * (size * (batches - 1) + 1),) * 2
        assert [sum(own.staleness.values()) for own in found[1:]] == [3 * (batches - 1)] * (size - 1)
    assert not servers()


def servers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "deep5-server"]


def test_what_is_sent_follows_the_formula() -> None:
    def run(own: Any) -> Any:
        made = AsynchronousParameterServer(1).wrap(d5.Momentum(lr=0.1), own)
        made.bind(d5.framework("reference").executor(network()))
        before = own.sent_bytes, own.messages
        for step in range(7):
            made.step(small(step, own.rank), d5.StepInfo(step, 0, 4))
        made.settle()
        return own.sent_bytes - before[0], own.messages - before[1]

    size, block = 3, Block(network().parameter_specs).memory.nbytes
    # One gradient per step, and one message at the beginning and the end of an epoch; the server answers each.
    said = 7 + 2
    root = (size - 1) * said
    assert run_in_threads(size, run) == [(said * block, said), (root * block, root), (said * block, said)]


def paced(size: int, scheme: Any, steps: list[int], delays_s: list[float], ended: list[int] | None = None) -> list[Any]:
    """Steps of ranks of different speed: the seconds that each took for all of its steps, and its scheme.

    `ended` receives the ranks in the order in which they end their steps.
    """

    def run(own: Any) -> Any:
        made = scheme().wrap(d5.Momentum(lr=0.01), own)
        made.bind(d5.framework("reference").executor(network()))
        own.barrier()
        begin = time.perf_counter()
        for step in range(steps[own.rank]):
            time.sleep(delays_s[own.rank])
            made.step(small(step, own.rank), d5.StepInfo(step, 0, 4))
        taken_s = time.perf_counter() - begin
        if ended is not None:
            ended.append(own.rank)
        made.settle()
        return taken_s, made

    return run_in_threads(size, run)


@pytest.mark.parametrize("slow", [0, 2])
def test_a_slow_rank_holds_up_nobody(slow: int) -> None:
    """The others end their steps before it begins its last one: no rank waits for it."""
    ended: list[int] = []
    delays_s = [0.1 if rank == slow else 0.0 for rank in range(3)]
    found = paced(3, AsynchronousParameterServer, [12] * 3, delays_s, ended)
    assert found[slow][0] > 1.2
    assert ended[-1] == slow


@pytest.mark.parametrize("slow", [0, 2])
def test_a_slow_rank_holds_up_the_others_beyond_the_bound(slow: int) -> None:
    delays_s = [0.1 if rank == slow else 0.0 for rank in range(3)]
    found = paced(3, lambda: StaleSynchronous(3), [12] * 3, delays_s)
    for rank, (taken_s, scheme) in enumerate(found):
        if rank != slow:
            # After its 12th step it waits for the slow rank's ninth.
            assert taken_s > 0.8
            assert scheme.held_s > 0.5
        assert max(scheme.staleness) <= 2 * (2 * 3 + 1)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_nobody_is_further_ahead_than_the_bound(bound: int) -> None:
    clocks: list[list[int]] = []

    class Seen(Server):
        def _apply(self, rank: int, gradients: Block, version: int, info: d5.StepInfo) -> int:
            # When the gradient arrives, its rank has been allowed to continue with this many steps done.
            clocks.append(list(self._clocks))
            assert self._clocks[rank] - min(self._clocks) <= bound, self._clocks
            return super()._apply(rank, gradients, version, info)

    class Watched(StaleSynchronous):
        def _make_server(self, link: Any) -> Server:
            step = super()._make_server(link)._step
            return Seen(link, self.memory, step, bound=self._ahead, timeout_s=self.timeout_s)

    found = paced(3, lambda: Watched(bound), [15] * 3, [0.0, 0.01, 0.002])
    assert len(clocks) == 45
    # A rank that continues at the bound is one step further once that step is done; a bound that no rank reaches would
    # prove nothing.
    assert max(max(now) - min(now) for now in clocks) == bound + 1
    assert totals([scheme for _, scheme in found]) == (45, 45)


@pytest.mark.parametrize("steps", [[3, 20], [20, 3]])
def test_who_has_ended_its_epoch_holds_nobody_back(steps: list[int]) -> None:
    found = paced(2, lambda: StaleSynchronous(1, timeout_s=5.0), steps, [0.0, 0.0])
    assert totals([scheme for _, scheme in found]) == (23, 23)


def test_a_wait_of_many_limits_ends_where_the_others_go_on() -> None:
    # The first rank's epoch ends over five limits before the other's; the server keeps reporting that it is alive.
    found = paced(2, lambda: AsynchronousParameterServer(1, timeout_s=0.5), [1, 30], [0.0, 0.1])
    assert totals([scheme for _, scheme in found], root=1) == (31, 31)


class Broken(Exception):
    pass


@pytest.mark.parametrize("scheme", [AsynchronousParameterServer, lambda **given: StaleSynchronous(1, **given)])
@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("how", ["raises", "sleeps"])
def test_a_lost_rank_ends_the_others(scheme: Any, lost: int, how: str) -> None:
    errors: dict[int, BaseException] = {}
    over = threading.Event()

    def run(own: Any) -> None:
        made = scheme(timeout_s=0.5).wrap(d5.Momentum(lr=0.1), own)
        made.bind(d5.framework("reference").executor(network()))
        try:
            for step in range(10_000):
                if step == 5 and own.rank == lost:
                    if how == "raises":
                        raise Broken("on purpose")
                    assert over.wait(60.0), "the others still wait for this rank"
                    return
                made.step(small(step, own.rank), d5.StepInfo(step, 0, 4))
        except BaseException as error:
            errors[own.rank] = error
            if len(errors) == 2:
                over.set()
            raise

    with pytest.raises(Broken if how == "raises" else CommunicationError):
        run_in_threads(3, run)
    assert {rank for rank in errors if rank != lost} == {0, 1, 2} - {lost}
    assert all(isinstance(error, CommunicationError) for rank, error in errors.items() if rank != lost)
    gc.collect()
    deadline = time.monotonic() + 3.0
    while servers() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not servers()


def test_an_error_of_the_update_reaches_the_root() -> None:
    class Spoiled(Server):
        def _apply(self, rank: int, gradients: Block, version: int, info: d5.StepInfo) -> int:
            if rank == 1:
                raise Broken("on purpose")
            return super()._apply(rank, gradients, version, info)

    def run(own: Any) -> None:
        made = with_server(Spoiled)(timeout_s=1.0).wrap(d5.Momentum(lr=0.1), own)
        made.bind(d5.framework("reference").executor(network()))
        for step in range(1000):
            made.step(small(step, own.rank), d5.StepInfo(step, 0, 4))
            time.sleep(0.002)

    with pytest.raises(CommunicationError, match=r"the parameter server failed: on purpose|another rank is lost"):
        run_in_threads(2, run)


def test_close_ends_the_server() -> None:
    def run(own: Any) -> Any:
        made = AsynchronousParameterServer(timeout_s=3.0).wrap(d5.Momentum(lr=0.1), own)
        made.bind(d5.framework("reference").executor(network()))
        made.step(small(0, own.rank), d5.StepInfo(0, 0, 4))
        own.barrier()
        if own.rank == 0:
            assert len(servers()) == 1
        own.barrier()
        made.close()
        own.barrier()  # rank 0 is the server
        with pytest.raises(CommunicationError, match=r"was closed before|not finished within 3 s"):
            made.step(small(1, own.rank), d5.StepInfo(1, 0, 4))
        return True

    assert run_in_threads(2, run) == [True, True]
    assert not servers()


@pytest.mark.parametrize("evaluate", [True, False])
@pytest.mark.parametrize(("size", "root"), [(1, 0), (2, 0), (3, 0), (2, 1), (3, 1)])
def test_a_resume_goes_on_from_the_server(size: int, root: int, evaluate: bool) -> None:
    def first(own: Any) -> Any:
        trainer, judged = trained(
            own, AsynchronousParameterServer(root), d5.AcceleGrad(lr=0.5), epochs=2, evaluate=evaluate
        )
        trainer.optimizer.set_parameter("lr", 0.25)
        return trainer.state_dict(), judged, trainer.executor.state_dict()

    saved = run_in_threads(2, first)
    state = [entry[0] for entry in saved]
    updates = int(state[root]["optimizer"]["server/updates"])
    assert updates == 2 * (2 * 5 + 1)
    assert [len(entry["optimizer"]) > 1 for entry in state] == [root == 0, root == 1]

    def again(own: Any) -> Any:
        own_state = state[own.rank % 2]
        if size != 2:  # in the form that restore_ranks passes on
            kept = {name: value for name, value in own_state["optimizer"].items() if not name.startswith("scheme/")}
            own_state = {**own_state, "optimizer": kept}
        trainer, judged = trained(
            own, AsynchronousParameterServer(root), d5.AcceleGrad(lr=0.5), epochs=0, state=own_state
        )
        found = trainer.optimizer.state_dict()
        trainer.train(1)
        return found, judged, trainer

    for rank, (found, judged, trainer) in enumerate(run_in_threads(size, again)):
        assert all((judged[name] == value).all() for name, value in saved[0][1].items())
        assert trainer.optimizer.hyper["lr"] == 0.25
        if rank == root:
            for name, value in state[root]["optimizer"].items():
                if not name.startswith(("server/", "hyper")):
                    assert np.array_equal(found[name], value), name
            if size > 1:
                assert trainer.optimizer.server.updates == updates + (6 if size == 1 else 5 * size + 1)


def test_a_schedule_of_the_root_changes_the_rule() -> None:
    def run(own: Any) -> Any:
        executor = d5.framework("reference").executor(network())
        made = AsynchronousParameterServer().wrap(d5.SGD(lr=0.1), own)
        made.bind(executor)
        made.step(small(0, own.rank), d5.StepInfo(0, 0, 4))
        made.settle()
        before = executor.state_dict()
        made.set_parameter("lr", 0.0, lambda name: name.endswith("weight"))
        made.step(small(0, own.rank), d5.StepInfo(1, 1, 4))
        made.settle()
        return {name for name, value in executor.state_dict().items() if (value != before[name]).any()}

    assert run_in_threads(2, run) == [{"fc1.bias", "fc2.bias"}] * 2


def test_what_is_refused() -> None:
    from deep5.frameworks.pytorch.optimizers import AdamOptimizer

    with pytest.raises(Unsupported, match=r"got AdamOptimizer, which makes its updates in a framework's memory"):
        AsynchronousParameterServer().wrap(AdamOptimizer(), SingleRank())
    with pytest.raises(Unsupported, match=r"got loss_scale='dynamic'; allowed: a number"):
        StaleSynchronous().wrap(RuleOptimizer(d5.SGD(), loss_scale="dynamic"), SingleRank())
    with pytest.raises(UsageError, match=r"got bound=-1; allowed: an integer of at least 0"):
        StaleSynchronous(-1)
    with pytest.raises(UsageError, match=r"got root=1\.5; allowed: a rank, from 0"):
        AsynchronousParameterServer(1.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"got bucket_mib=0; allowed: a number above 0"):
        ParameterServer(bucket_mib=0)
    for scheme in (ParameterServer, AsynchronousParameterServer):
        with pytest.raises(UsageError, match=r"got root=2 and 1 ranks; allowed: from 0 to 0"):
            scheme(2).wrap(d5.SGD(), SingleRank())

    def scaled(own: Any) -> None:
        made = AsynchronousParameterServer().wrap(RuleOptimizer(d5.SGD(), loss_scale=2.0), own)
        made.bind(d5.framework("reference").executor(network()))
        with pytest.raises(Unsupported, match=r"the loss scale cannot change"):
            made.set_hyper("loss_scale", 4.0)

    run_in_threads(2, scaled)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("scheme", [ParameterServer, AsynchronousParameterServer, StaleSynchronous])
def test_the_digits_are_learned(scheme: Any, size: int) -> None:
    from deep5.training.datasets.uci_digits import digits

    def run(own: Any) -> float:
        data = digits()
        executor = d5.framework("pytorch").executor(d5.networks.lenet(seed=1))
        # Gradients that are three updates late need a smaller rate than current ones: what diverges here also diverges
        # in one process whose gradients are taken at the parameters of three updates ago.
        rate = 0.02 if scheme is ParameterServer else 0.005
        trainer = d5.Trainer(
            executor,
            scheme().wrap(d5.Momentum(lr=rate, momentum=0.9), own),
            ShardedSampler(
                d5.ShuffleSampler(data.train.cast(executor.network.inputs), 16 * size, seed=1), own.rank, size
            ),
            ShardedSampler(
                d5.OrderedSampler(data.test.cast(executor.network.inputs), 60), own.rank, size, borrow=False
            ),
            communicator=own,
        )
        trainer.train(4)
        return float(trainer.scores["accuracy"])

    accuracies = run_in_threads(size, run)
    assert len(set(accuracies)) == 1
    assert accuracies[0] > 90.0


PROGRAM = """
import numpy as np
import deep5 as d5
from deep5.distributed.resuming import restore_ranks
from deep5.distributed.schemes.asynchronous import AsynchronousParameterServer
from deep5.distributed.schemes.parameter_server import ParameterServer
from deep5.distributed.schemes.stale_synchronous import StaleSynchronous

rank, size = communicator.rank, communicator.size
def batch(step):
    draw = np.random.default_rng((step, rank))
    return {"input": draw.standard_normal((4, 6)), "label": draw.integers(0, 3, 4)}
for scheme in (AsynchronousParameterServer(), StaleSynchronous(1, root=1), ParameterServer(1)):
    executor = d5.framework("reference").executor(d5.networks.mlp(features=6, hidden=300, classes=3, dtype="float64"))
    made = scheme.wrap(d5.Momentum(lr=0.01), communicator)
    made.bind(executor)
    for step in range(60):
        made.step(batch(step), d5.StepInfo(step, step // 20, 4))
    with made.averaged():
        made.verify()
        total = np.array([0 if scheme.lockstep else sum(made.staleness.values())])
        communicator.all_reduce(total)
    if not scheme.lockstep and made.serves:
        assert made.server.updates == total[0] == 60 * size, (made.server.updates, total)
        print("updates", made.server.updates)
communicator.barrier()
print("done", rank, flush=True)
"""
MPI = "from deep5.distributed.communicators.mpi import MPICommunicator\ncommunicator = MPICommunicator.world()\n"
GLOO = """
import sys
from deep5.distributed.communicators.process_group import ProcessGroupCommunicator
rank, size, port = map(int, sys.argv[1:4])
communicator = ProcessGroupCommunicator.connect(rank, size, port=port)
"""


def test_on_ranks_of_mpi() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    ended = under_mpi(MPI + PROGRAM, 3)
    assert ended.status == 0, ended
    assert ended.output.count("updates 180") == 2
    assert ended.output.count("done") == 3


def test_on_ranks_of_gloo() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    ended = as_processes(GLOO + PROGRAM, 2)
    assert [one.status for one in ended] == [0] * 2, ended
    assert sum(one.output.count("updates 120") for one in ended) == 2


def test_a_killed_worker_ends_the_ranks_of_mpi() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    program = (
        MPI
        + PROGRAM.partition("for scheme")[0]
        + """
import time
from mpi4py import MPI
made = AsynchronousParameterServer(timeout_s=1.0).wrap(d5.Momentum(lr=0.01), communicator)
made.bind(d5.framework("reference").executor(d5.networks.mlp(features=6, hidden=300, classes=3, dtype="float64")))
try:
    for step in range(100_000):
        if step == 10 and rank == 2:
            time.sleep(600)
        made.step(batch(step), d5.StepInfo(step, 0, 4))
except d5.core.errors.CommunicationError as error:
    print("rank", rank, error, flush=True)
    time.sleep(0.5)
    MPI.COMM_WORLD.Abort(3)
"""
    )
    ended = under_mpi(program, 3)
    assert ended.status != 0
    assert "rank 0 the parameter server failed: rank 2 has sent nothing for 1 s" in ended.output, ended


@pytest.mark.parametrize("slow", [0, 1])
def test_who_waits_for_a_slow_rank_is_seen_to_wait(slow: int) -> None:
    """Also the root, though it waits for no message."""

    class Waits(d5.Event):
        def __init__(self, rank: int) -> None:
            self._rank = rank

        def before_step(self, trainer: Any, info: d5.StepInfo) -> None:
            time.sleep(0.02 if self._rank == slow else 0.0)

    def run(own: Any) -> float:
        trained(own, StaleSynchronous(0), d5.SGD(0.1), evaluate=False, events=[Waits(own.rank)])
        return float(own.waited_ns / 1e9)

    waited = run_in_threads(2, run)
    # 12 steps of 20 ms, of which the other rank's own work takes little.
    assert waited[1 - slow] > 0.12
    assert waited[slow] < waited[1 - slow] / 2
