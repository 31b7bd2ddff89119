"""Schemes other than all-reduce: each follows its paper's equations, in float64; wrong ones are caught."""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.communicator import SingleRank
from deep5.core.errors import CommunicationError, Deep5Error, ShapeError, Unsupported, UsageError
from deep5.distributed.communicators.threads import run_in_threads
from deep5.distributed.schemes.all_reduce import AllReduce
from deep5.distributed.schemes.averaging import ParameterAveraging
from deep5.distributed.schemes.elastic_averaging import ElasticAveraging
from deep5.distributed.schemes.gossip import Gossip, partner
from deep5.distributed.schemes.graphs import metropolis_weights, neighbours_of
from deep5.distributed.schemes.hierarchical import Hierarchical
from deep5.distributed.schemes.local_sgd import LocalSGD
from deep5.distributed.schemes.neighbourhood import Neighbourhood
from deep5.training.loss_scale import KEYS
from deep5.training.optimizer import RuleOptimizer
from pipeline_cases import batch, executor, info, network
from scheme_cases import (
    LR,
    SIZES,
    ByHand,
    Easgd,
    Rank,
    apart,
    check_states,
    d_psgd,
    flat,
    gossip,
    hierarchical,
    local_sgd,
    part,
    put,
    rows_of,
    told,
    trained,
)

# The difference is the order in which a few numbers are added: some 1e-16 per step of numbers around 1.
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}

AVERAGING: dict[str, Callable[[], Any]] = {
    "local": lambda: LocalSGD(3),
    "elastic": lambda: ElasticAveraging(2),
    "neighbourhood": Neighbourhood,
    "gossip": Gossip,
}
ALL = {**AVERAGING, "hierarchical": lambda: Hierarchical(2, every=3), "two levels": lambda: Hierarchical(2)}
ADAM = "adam"


def sgd() -> Any:
    return d5.SGD(LR)


def adam() -> Any:
    return d5.Adam(0.05)


def check_equation(scheme: Any, algorithm: Any, size: int, framework: str = "reference") -> list[Rank]:
    """A scheme with SGD does what a hand-written algorithm does, from initially different parameters."""
    start = apart(size)
    ranks = trained(scheme, sgd, size, framework, start=start)
    np.testing.assert_allclose(rows_of(ranks), ByHand(size).run(algorithm, start=start), **CLOSE)
    return ranks


def check_consensus(scheme: Any, size: int) -> None:
    """Ranks that learn nothing converge to the mean of their parameters."""
    start = apart(size)
    ranks = trained(scheme, lambda: d5.SGD(0.0), size, sizes=(8,) * 60, start=start)
    # A ring of four shrinks differences by 2 / 3 per step: to 1e-10 in 60.
    np.testing.assert_allclose(rows_of(ranks), np.tile(start.mean(axis=0), (size, 1)), rtol=0, atol=1e-8)


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_local_sgd_is_its_equation(framework: str, size: int) -> None:
    ranks = check_equation(LocalSGD(3), local_sgd(3), size, framework)
    for rank in ranks:
        np.testing.assert_allclose(rank.judged, rows_of(ranks).mean(axis=0), **CLOSE)


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_elastic_averaging_is_its_equation(framework: str, size: int) -> None:
    by_hand = ByHand(size)
    algorithm = Easgd(by_hand.start, 2, 0.2, 0.7)
    for rank in check_equation(ElasticAveraging(2, alpha=0.2, beta=0.7), algorithm, size, framework):
        np.testing.assert_allclose(rank.judged, algorithm.centre, **CLOSE)


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize(
    ("size", "graph"),
    [
        (1, "ring"),
        (2, "ring"),
        (3, "star"),
        (4, "ring"),
        (4, "complete"),
        (4, "hypercube"),
        (4, [[1], [2, 0], [3, 1], [2]]),
    ],
)
def test_neighbourhood_is_its_equation(framework: str, size: int, graph: Any) -> None:
    check_equation(Neighbourhood(graph), d_psgd(graph, size), size, framework)


def test_neighbourhood_on_the_complete_graph_is_the_mean_and_the_own_update() -> None:
    check_equation(Neighbourhood("complete"), lambda step, rows, updates: rows.mean(axis=0) + updates, 4)


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_gossip_is_its_equation(framework: str, size: int) -> None:
    check_equation(Gossip(), gossip(), size, framework)


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize("groups", [[[0, 1]], [[0, 1], [2]], [[0, 1], [2, 3]]])
def test_hierarchical_is_its_equation(framework: str, groups: list[list[int]]) -> None:
    """Batches of two samples leave the second group without any; ranks of a group start with equal parameters."""
    size = sum(map(len, groups))
    start = apart(size)
    for group in groups:
        start[group] = start[group[0]]
    ranks = trained(Hierarchical(2, every=3), sgd, size, framework, start=start)
    # One group never needs a mean of parameters.
    every = 3 if len(groups) > 1 else 10**6
    np.testing.assert_allclose(rows_of(ranks), ByHand(size).run(hierarchical(groups, every), start=start), **CLOSE)


@pytest.mark.parametrize("every", [1, 3])
def test_groups_are_those_of_one_host(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts whose ranks alternate: the name is requested once per rank, in the rank's own thread."""

    def host() -> str:
        # The first rank runs in the calling thread.
        name = threading.current_thread().name
        return f"host-{int(name.removeprefix('rank-')) % 2 if name.startswith('rank-') else 0}"

    monkeypatch.setattr(platform, "node", host)
    groups, start = [[0, 2], [1, 3]], apart(4)
    start[2:] = start[:2]
    if every == 1:
        start[1:] = start[0]
    ranks = trained(Hierarchical(every=every), sgd, 4, start=start)
    assert [rank.scheme.groups for rank in ranks] == [2] * 4
    whole = [[0, 1, 2, 3]] if every == 1 else groups
    np.testing.assert_allclose(rows_of(ranks), ByHand(4).run(hierarchical(whole, every), start=start), **CLOSE)


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_equations_hold_where_the_step_is_compiled(framework: str) -> None:
    start, sizes = apart(2), (4, 4, 4, 1, 4)  # few shapes: the step is compiled for each
    by_hand = ByHand(2)
    for scheme, algorithm in (
        (LocalSGD(3), local_sgd(3)),
        (ElasticAveraging(2, alpha=0.2, beta=0.7), Easgd(by_hand.start, 2, 0.2, 0.7)),
        (Neighbourhood(), d_psgd("ring", 2)),
    ):
        ranks = trained(scheme, sgd, 2, framework, sizes=sizes, start=start)
        np.testing.assert_allclose(rows_of(ranks), by_hand.run(algorithm, sizes, start), **CLOSE)


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_averaging_after_every_step_of_sgd_is_synchronous(framework: str, size: int) -> None:
    sizes = (12,) * 6  # parts of equal size: every rank counts the same
    whole = trained(AllReduce(), sgd, size, framework, sizes=sizes)
    for rank in trained(LocalSGD(1), sgd, size, framework, sizes=sizes):
        np.testing.assert_allclose(rank.values, whole[0].values, **CLOSE)


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize(("size", "group_size"), [(2, 1), (3, 2), (4, 2), (4, 3), (4, 4), (3, None)])
def test_two_levels_are_synchronous(framework: str, size: int, group_size: int | None) -> None:
    whole = trained(AllReduce(), adam, size, framework)
    ranks = trained(Hierarchical(group_size, verify_every=2), adam, size, framework)
    for rank in ranks:
        np.testing.assert_allclose(rank.values, whole[0].values, **CLOSE)
        np.testing.assert_array_equal(rank.values, ranks[0].values)
        assert rank.scheme.consistent


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("kind", ["neighbourhood", "gossip", "local"])
def test_ranks_that_learn_nothing_come_to_their_mean(kind: str, size: int) -> None:
    check_consensus(AVERAGING[kind](), size)


def test_springs_come_to_the_mean_of_ranks_and_centre() -> None:
    """With β = P α, the sum P x̄ + c is constant: springs pull equally at both ends."""
    size, start = 3, apart(3)
    ranks = trained(ElasticAveraging(1), lambda: d5.SGD(0.0), size, sizes=(8,) * 80, start=start)
    rest = (start.sum(axis=0) + ByHand(size).start) / (size + 1)
    for rank in ranks:
        # The slowest difference shrinks by 1 − α = 0.7 per step: to 1e-12 in 80.
        np.testing.assert_allclose(rank.values, rest, rtol=0, atol=1e-9)
        np.testing.assert_allclose(rank.judged, rest, rtol=0, atol=1e-9)


class GradientsOnly(Neighbourhood):
    """Averages gradients with the neighbors, and never the parameters."""

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        outputs = self.backprop(inputs, info)
        gradients = self.gradients()
        found = {}
        for name, gradient in gradients.items():
            own = np.array(d5.to_numpy(gradient))
            theirs = np.empty((len(self._neighbours), *own.shape), own.dtype)
            self.communicator.exchange(own, theirs, self._neighbours)
            found[name] = (own + theirs.sum(axis=0)) / (1 + len(self._neighbours))
        self.apply(found, info)
        return outputs


class CountsTwice(Neighbourhood):
    """Counts both neighbors on a ring of two as two ranks."""

    def _prepare(self) -> None:
        super()._prepare()
        self._weights = np.array([2 / 3])


class AfterTheUpdate(ParameterAveraging):
    """Sends the parameters after the update instead of those before it."""

    def _after(self, info: d5.StepInfo) -> None:
        self.average_parameters()


@pytest.mark.parametrize(("wrong", "size"), [(GradientsOnly(), 4), (CountsTwice(), 2), (AfterTheUpdate(), 2)])
def test_wrong_neighbourhoods_are_caught(wrong: Any, size: int) -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_equation(wrong, d_psgd("ring", size), size)
    if isinstance(wrong, GradientsOnly):
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            check_consensus(wrong, size)


def test_who_averages_gradients_only_drifts() -> None:
    """From equal parameters: the spread keeps growing, while it stays bounded for ranks that average parameters."""

    def spread(scheme: Any) -> float:
        rows = rows_of(trained(scheme, lambda: d5.SGD(0.2), 4, sizes=(4,) * 80))
        return float(np.abs(rows - rows.mean(axis=0)).max())

    # Measured: 3.8 times; it grows as the root of the number of steps.
    assert spread(GradientsOnly()) > 2 * spread(Neighbourhood())


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize("kind", ALL)
def test_goes_on_from_its_state_with_the_same_bits(framework: str, kind: str) -> None:
    whole = trained(ALL[kind](), adam, 3, framework)
    again = trained(ALL[kind](), adam, 3, framework, saved_after=5)
    for one, other in zip(whole, again, strict=True):
        np.testing.assert_array_equal(other.values, one.values)
        np.testing.assert_array_equal(other.judged, one.judged)
        check_states(other.scheme.state_dict(), one.scheme.state_dict())
        check_states(other.scheme.state_views(), one.scheme.state_dict())


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "elastic"])
def test_one_rank_does_what_its_optimizer_does(framework: str, kind: str) -> None:
    run = executor(framework, network("float64"))
    optimizer = RuleOptimizer(adam())
    optimizer.bind(run)
    for step, count in enumerate(SIZES):
        optimizer.step(batch(step, count, "float64"), told(step, count, count))
    for communicator in (SingleRank(), None):  # of a launcher, and of one thread
        if communicator is None:
            alone = trained(ALL[kind](), adam, 1, framework)[0].run
        else:
            alone = executor(framework, network("float64"))
            own = ALL[kind]().wrap(adam(), communicator)
            own.bind(alone)
            for step, count in enumerate(SIZES):
                own.step(batch(step, count, "float64"), told(step, count, count))
        np.testing.assert_array_equal(flat(alone), flat(run))


@pytest.mark.parametrize("kind", AVERAGING)
def test_a_rank_without_samples_learns_nothing_and_takes_part(kind: str) -> None:
    """With one sample per step, the second rank has none: it moves only by the exchange."""
    start = np.tile(ByHand(2).start, (2, 1))

    def work(communicator: Any) -> tuple[Any, np.ndarray, np.ndarray]:
        run = executor("pytorch", network("float64"))
        own = AVERAGING[kind]().wrap(RuleOptimizer(adam()), communicator)
        own.bind(run)
        inputs, samples = part(batch(0, 1, "float64"), communicator.rank, 2)
        expected = np.array(d5.to_numpy(run.inference(inputs)["logits"]))
        outputs = own.step(inputs, told(0, samples, 1))
        return own, np.array(d5.to_numpy(outputs["logits"])) - expected, flat(run)

    (first, _, moved), (second, difference, values) = run_in_threads(2, work)
    assert not difference.any()
    states = second.optimizer.state_dict()
    assert not any(np.any(value) for value in states.values() if isinstance(value, np.ndarray))
    assert any(np.any(value) for value in first.optimizer.state_dict().values() if isinstance(value, np.ndarray))
    if kind == "gossip":
        np.testing.assert_array_equal(values, moved)
    else:
        np.testing.assert_array_equal(values, start[1])


@pytest.mark.parametrize("optimizer", ["LBFGS", "adam", "lbfgs"])
def test_optimizers_that_own_their_step_learn(optimizer: str) -> None:
    """deep5's own L-BFGS, and PyTorch's Adam and L-BFGS: the loss of all samples falls, on three ranks."""

    def made() -> Any:
        return d5.LBFGS(0.5) if optimizer == "LBFGS" else d5.framework("pytorch").optimizer(optimizer)(0.05)

    run = executor("pytorch", network("float64"))
    every = batch(0, 48, "float64")
    before = float(run.inference(every)["loss"])

    def work(communicator: Any) -> tuple[float, Any]:
        own_run = executor("pytorch", network("float64"))
        own = LocalSGD(2).wrap(made(), communicator)
        own.bind(own_run)
        inputs, samples = part(every, communicator.rank, communicator.size)
        for step in range(10):
            own.step(inputs, told(step, samples, 48))
        with own.averaged():
            return float(own_run.inference(every)["loss"]), own.state_dict()

    found = run_in_threads(3, work)
    assert len({loss for loss, _ in found}) == 1
    assert found[0][0] < 0.95 * before


@pytest.mark.parametrize("optimizer", ["LBFGS", "adam"])
def test_optimizers_that_own_their_step_go_on_with_the_same_bits(optimizer: str) -> None:
    def made() -> Any:
        return d5.LBFGS(0.5) if optimizer == "LBFGS" else d5.framework("pytorch").optimizer(optimizer)(0.05)

    whole = trained(LocalSGD(2), made, 2, "pytorch", sizes=(8,) * 7)
    again = trained(LocalSGD(2), made, 2, "pytorch", sizes=(8,) * 7, saved_after=3)
    np.testing.assert_array_equal(rows_of(again), rows_of(whole))


@pytest.mark.parametrize("framework", ["reference", "pytorch", "tensorflow"])
def test_averages_the_state_as_well(framework: str) -> None:
    """AcceleGrad keeps a point in its state; averaged after every step, all of it is equal on all ranks."""
    scheme = LocalSGD(1, average_state=True)
    for optimizer in (lambda: d5.AcceleGrad(0.3), lambda: RuleOptimizer(adam(), loss_scale="dynamic")):
        ranks = trained(scheme, optimizer, 3, framework)
        for rank in ranks[1:]:
            np.testing.assert_array_equal(rank.values, ranks[0].values)
            # A dynamic loss scale counts a rank's own steps.
            one, other = (
                {name: value for name, value in each.scheme.state_dict().items() if name not in KEYS}
                for each in (rank, ranks[0])
            )
            check_states(one, other)
    own = trained(LocalSGD(1), lambda: d5.AcceleGrad(0.3), 3, framework)
    states = [rank.scheme.state_dict() for rank in own]
    assert any(np.any(states[0][name] != states[1][name]) for name in states[0] if name != "hyper")


def test_momentum_is_averaged_as_its_paper_says() -> None:
    """Hand-written: velocity and parameters, each rank its own, and both averaged after every second step."""
    size, sizes = 3, (9,) * 6
    by_hand, velocity = ByHand(size, lr=1.0), np.zeros(0)

    def step(number: int, rows: np.ndarray, updates: np.ndarray) -> np.ndarray:
        nonlocal velocity
        velocity = 0.9 * (velocity if velocity.size else 0.0) - updates
        after = rows - 0.1 * velocity
        if number % 2:
            velocity = np.tile(velocity.mean(axis=0), (size, 1))
            after = np.tile(after.mean(axis=0), (size, 1))
        return after

    ranks = trained(LocalSGD(2, average_state=True), lambda: d5.Momentum(0.1), size, sizes=sizes)
    np.testing.assert_allclose(rows_of(ranks), by_hand.run(step, sizes), **CLOSE)


def test_states_that_differ_in_their_entries_are_not_averaged() -> None:
    """PyTorch creates its state at the first step, which a rank without samples has not taken."""
    with pytest.raises(CommunicationError, match="the entries of the optimizer's state of rank 1 differ from those of"):
        trained(
            LocalSGD(1, average_state=True),
            lambda: d5.framework("pytorch").optimizer("adam")(0.05),
            2,
            "pytorch",
            sizes=(1,),
        )


def test_frozen_parameters_stay_as_they_are() -> None:
    """The mean of three equal numbers may be another number: frozen parameters are not exchanged at all."""

    def made() -> Any:
        groups = [d5.ParameterGroup(lambda name: name.startswith("fc1"), frozen=True)]
        return RuleOptimizer(sgd(), groups=groups)

    start = executor("reference", network("float64")).state_dict()
    moved = sum(value.size for name, value in start.items() if name.startswith("fc2")) * 8
    for kind, scheme in ALL.items():
        for rank in trained(scheme(), made, 3, sizes=(9,) * 6):
            for name, value in rank.run.state_dict().items():
                assert np.array_equal(value, start[name]) is name.startswith("fc1"), (kind, name)
            if kind == "neighbourhood":
                assert rank.sent_bytes == 6 * 2 * moved


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_bytes_and_messages_are_those_of_the_formulas(size: int) -> None:
    n, steps = ByHand(size).start.size * 8, 12
    sizes = (12,) * steps
    several = size > 1

    def sent(scheme: Any) -> list[tuple[int, int]]:
        return [(rank.sent_bytes, rank.messages) for rank in trained(scheme, sgd, size, sizes=sizes)]

    assert sent(LocalSGD(3)) == [(several * n * steps // 3, several * steps // 3)] * size
    assert sent(ElasticAveraging(4)) == [(several * n * steps // 4, several * steps // 4)] * size
    for graph in ("ring", "star", "complete"):
        degrees = [len(others) for others in neighbours_of(graph, size)]
        assert sent(Neighbourhood(graph)) == [(degree * n * steps, degree * steps) for degree in degrees]
    pairs = [sum(partner(rank, size, 5, step) is not None for step in range(steps)) for rank in range(size)]
    assert sent(Gossip()) == [(count * n, count) for count in pairs]
    first = [rank % 2 == 0 for rank in range(size)]
    with_others = [rank - rank % 2 + 1 < size for rank in range(size)]
    groups = -(-size // 2)
    two_levels = [(groups > 1) + alike if one else 1 for one, alike in zip(first, with_others, strict=True)]
    if groups == 1:
        two_levels = [int(several)] * size
    assert sent(Hierarchical(2, verify_every=0)) == [(count * n * steps, count * steps) for count in two_levels]
    between = [((groups > 1) + alike if one else 0) for one, alike in zip(first, with_others, strict=True)]
    expected = [
        (
            alike * steps * (n + 8 * (groups > 1)) + more * n * steps // 3 * (groups > 1),
            alike * steps * (1 + (groups > 1)) + more * steps // 3 * (groups > 1),
        )
        for alike, more in zip(with_others, between, strict=True)
    ]
    assert sent(Hierarchical(2, every=3, verify_every=0)) == expected


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_several_micro_batches_are_one_step(framework: str, kind: str) -> None:
    """Each rank's step uses its parts of all micro-batches, which together are a part of the same samples."""
    size, sizes = 2, (8, 8, 8, 3)
    ranks = trained(ALL[kind](), sgd, size, framework, sizes=sizes, accumulate=2)
    by_hand = ByHand(size)

    def updates(step: int, count: int, rows: np.ndarray) -> np.ndarray:
        whole, found = batch(step, count, "float64"), np.zeros_like(rows)
        for rank in range(size):
            total, gradient = 0, 0.0
            for places in np.array_split(np.arange(count), 2):
                inputs, samples = part({name: value[places] for name, value in whole.items()}, rank, size)
                if samples:
                    gradient = gradient + samples * by_hand.gradient(rows[rank], inputs)
                    total += samples
            found[rank] = -LR * gradient / max(total, 1)
            counts[step, rank] = total
        return found

    counts: dict[tuple[int, int], int] = {}
    by_hand.updates = updates  # type: ignore[method-assign]
    synchronous = kind in ("hierarchical", "two levels")

    def together(step: int, rows: np.ndarray, own: np.ndarray) -> np.ndarray:
        weights = np.array([counts[step, rank] for rank in range(size)])
        return rows + weights @ own / weights.sum()

    algorithms = {
        "local": local_sgd(3),
        "elastic": Easgd(by_hand.start, 2, 0.45, 0.9),
        "neighbourhood": d_psgd("ring", size),
        "gossip": gossip(),
    }
    algorithm: Any = together if synchronous else algorithms[kind]
    np.testing.assert_allclose(rows_of(ranks), by_hand.run(algorithm, sizes), **CLOSE)


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "elastic"])
def test_one_rank_takes_several_micro_batches_as_its_optimizer_does(kind: str) -> None:
    run = executor("reference", network("float64"))
    optimizer = RuleOptimizer(adam())
    optimizer.bind(run)
    for step in range(4):
        whole = batch(step, 8, "float64")
        halves = [{name: value[places] for name, value in whole.items()} for places in (slice(4), slice(4, 8))]
        optimizer.accumulated_step(halves, told(step, 8, 8))
    rank = trained(ALL[kind](), adam, 1, sizes=(8,) * 4, accumulate=2)[0]
    np.testing.assert_array_equal(rank.values, flat(run))


def test_matchings_are_drawn_alike_and_reach_everybody() -> None:
    for size in (2, 3, 4, 7):
        met: set[tuple[int, int]] = set()
        left = np.zeros(size)
        for step in range(400):
            others = [partner(rank, size, 11, step) for rank in range(size)]
            assert sum(other is None for other in others) == size % 2
            for rank, other in enumerate(others):
                if other is None:
                    left[rank] += 1
                else:
                    assert others[other] == rank != other
                    met.add((rank, other))
        assert len(met) == size * (size - 1)
        # Of 400 draws with probability 1 / size, five standard deviations at most.
        assert np.abs(left - 400 * (size % 2) / size).max() <= 5 * np.sqrt(400 / size)
    assert [partner(0, 6, 1, step) for step in range(20)] != [partner(0, 6, 2, step) for step in range(20)]


def test_the_centre_is_part_of_the_state_and_checked() -> None:
    scheme = trained(ElasticAveraging(2), sgd, 2)[0].scheme
    state = scheme.state_dict()
    np.testing.assert_array_equal(state["scheme/centre/float64"], trained(ElasticAveraging(2), sgd, 2)[1].judged)
    with pytest.raises(
        ShapeError, match="got centre/float64, centre/float64 of float64\\[3\\]; allowed: centre/float6"
    ):
        scheme.load_state_dict({**state, "scheme/centre/float64": np.zeros(3)})
    with pytest.raises(ShapeError, match="got centre/float64, other, "):
        scheme.load_state_dict({**state, "scheme/other": np.zeros(3)})


def test_begins_anew_from_the_state_of_another_number_of_ranks() -> None:
    """What `restore_ranks` does: states without what the scheme keeps, then the mean of the parameters."""
    state = trained(ElasticAveraging(2), sgd, 2)[0].scheme.state_dict()

    def work(communicator: Any) -> tuple[np.ndarray, np.ndarray]:
        run = executor("reference", network("float64"))
        own = ElasticAveraging(2).wrap(sgd(), communicator)
        own.bind(run)
        put(run, apart(3)[communicator.rank])
        own.load_state_dict({name: value for name, value in state.items() if not name.startswith("scheme/")})
        own.average_parameters()
        with own.averaged():
            return flat(run), own.state_dict()["scheme/centre/float64"]

    for judged, centre in run_in_threads(3, work):
        np.testing.assert_allclose(judged, apart(3).mean(axis=0), **CLOSE)
        np.testing.assert_array_equal(judged, centre)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalSGD(0), "LocalSGD: got every=0; allowed: an integer number of steps, at least 1"),
        (lambda: LocalSGD(2.0), "got every=2.0"),
        (lambda: LocalSGD(2, average_state=1), "got average_state=1; allowed: True or False"),
        (lambda: LocalSGD(timeout_s=0), "got timeout_s=0; allowed: seconds above 0"),
        (lambda: ElasticAveraging(alpha=1.0), "got alpha=1.0; allowed: a number above 0 and below 1"),
        (lambda: ElasticAveraging(beta=1.5), "got beta=1.5; allowed: a number above 0 and at most 1"),
        (lambda: ElasticAveraging(every=True), "ElasticAveraging: got every=True"),
        (lambda: Neighbourhood("line"), "unknown graph 'line'"),
        (lambda: Neighbourhood([[0.5]]), "allowed: complete, hypercube, ring, star, torus, or each rank's neighbors"),
        (lambda: Hierarchical(0), "got group_size=0; allowed: an integer of at least 1, or None"),
        (lambda: Hierarchical(every=0), "Hierarchical: got every=0"),
        (lambda: Hierarchical(verify_every=-1), "got verify_every=-1"),
        (lambda: Neighbourhood([[1], [0]]).wrap(sgd(), SingleRank()), "the neighbors of 2 ranks; allowed: of 1"),
    ],
)
def test_arguments_out_of_their_range_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(Deep5Error, match=message):
        make()


def test_what_does_not_fit_is_refused_when_it_is_wrapped_or_bound() -> None:
    def bound(scheme: Any, optimizer: Any) -> Callable[[Any], None]:
        return lambda communicator: scheme.wrap(optimizer(), communicator).bind(executor("reference", network()))

    def stepped(communicator: Any) -> None:
        own = Decentralized().wrap(d5.LBFGS(), communicator)
        own.bind(executor("reference", network()))
        own.step(batch(0), told(0, 8, 16))

    with pytest.raises(UsageError, match=r"of which beta would be 1\.5; allowed: at most 1; remedy: alpha=0\.333"):
        run_in_threads(3, bound(ElasticAveraging(alpha=0.5), sgd))
    with pytest.raises(UsageError, match="graph 'hypercube': got 3 ranks"):
        run_in_threads(3, bound(Neighbourhood("hypercube"), sgd))
    with pytest.raises(Unsupported, match="average_state=True with LBFGS"):
        run_in_threads(2, bound(LocalSGD(average_state=True), d5.LBFGS))
    with pytest.raises(Unsupported, match=r"LBFGS owns its step; allowed: .* or a scheme that averages parameters"):
        run_in_threads(2, stepped)


def test_an_optimizer_of_one_batch_a_step_takes_no_micro_batches() -> None:
    own = Gossip().wrap(Plain(), SingleRank())
    own.bind(executor("reference", network()))
    with pytest.raises(Unsupported, match="Plain takes one batch a step; got several micro-batches"):
        own.accumulated_step([batch(0), batch(1)], info(0))


class Plain:
    """A `StepOptimizer` and nothing more."""

    def bind(self, executor: Any) -> None:
        self.executor = executor

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        outputs = self.executor.inference_and_backprop(inputs)
        for name, gradient in self.executor.gradients().items():
            value = d5.to_numpy(self.executor.parameters()[name]) - LR * d5.to_numpy(gradient)
            self.executor.write([name], np.ascontiguousarray(value).reshape(-1))
        return outputs

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        assert not state


@pytest.mark.parametrize(
    ("kind", "framework"),
    [*((kind, "reference") for kind in AVERAGING), ("local", "tensorflow"), ("gossip", "pytorch")],
)
def test_a_step_optimizer_of_ones_own_is_enough(kind: str, framework: str) -> None:
    own = trained(AVERAGING[kind](), Plain, 2, framework)
    rule = trained(AVERAGING[kind](), sgd, 2, framework)
    np.testing.assert_allclose(rows_of(own), rows_of(rule), **CLOSE)


class Decentralized(d5.DistributedOptimizer):
    """The example in the base class's docstring."""

    consistent = True

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        outputs = self.backprop(inputs, info)
        self.apply(self.mean(self.gradients(), info), info)
        return outputs


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_a_scheme_of_ones_own_is_a_method(framework: str) -> None:
    whole = trained(AllReduce(), adam, 1, framework)[0]
    for size in (1, 2, 4):
        for rank in trained(Decentralized(), adam, size, framework):
            np.testing.assert_allclose(rank.values, whole.values, **CLOSE)


def test_descriptions_are_json_and_say_what_decides() -> None:
    for scheme in ALL.values():
        told_of = trained(scheme(), adam, 4)[1].scheme.describe()
        assert json.loads(json.dumps(told_of)) == told_of
        assert (told_of["ranks"], told_of["rule"]) == (4, "Adam")
    ring = trained(Neighbourhood(), adam, 4)[0].scheme
    gap = 1 - np.sort(np.abs(np.linalg.eigvalsh(metropolis_weights(neighbours_of("ring", 4)))))[-2]
    assert ring.describe()["spectral_gap"] == pytest.approx(gap)
    assert trained(Neighbourhood([[1], [0]]), adam, 2)[0].scheme.describe()["graph"] == [[1], [0]]
    elastic = trained(ElasticAveraging(), adam, 3)[0].scheme.describe()
    assert (elastic["every"], elastic["alpha"], elastic["beta"]) == (4, pytest.approx(0.3), 0.9)
    levels = trained(Hierarchical(3, every=2), adam, 4)[0].scheme.describe()
    assert (levels["groups"], levels["group_size"], levels["every"]) == (2, 3, 2)
    assert trained(Hierarchical(), adam, 3)[0].scheme.groups == 1  # threads are on one host


def test_flags_say_what_the_schemes_do() -> None:
    assert not any(scheme().consistent for scheme in AVERAGING.values())
    assert all(scheme().lockstep for scheme in ALL.values())
    assert [kind for kind, scheme in ALL.items() if not scheme().alone] == ["elastic"]
    found = {every: trained(Hierarchical(2, every=every), sgd, 4)[0].scheme.consistent for every in (1, 2)}
    assert found == {1: True, 2: False}
