"""What ranks that train together decide together: to stop, which checkpoints to keep, and what a best one contains."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.communicator import SingleRank
from deep5.core.events import Event, StopTraining
from deep5.distributed.communicators.threads import run_in_threads
from deep5.distributed.packed import Packed
from deep5.distributed.resuming import restore_ranks
from deep5.distributed.slow_rank import SlowRank
from deep5.distributed.votes import Votes
from deep5.networks.edit.builder import NetworkBuilder
from deep5.recipe.recipe import Recipe
from deep5.run.execute import execute_as_rank
from deep5.training.checkpoint_file import read_checkpoint, write_checkpoint
from deep5.training.checkpointer import BEST, Checkpointer, checkpoints
from rank_trainers import BATCH, SAMPLES, samples, trained

STEPS = -(-SAMPLES // BATCH)


def saving(folder: Path, own: Any, **options: Any) -> Checkpointer:
    """A rank's checkpointer, as a run creates it."""
    keeper = Checkpointer(folder, **options)
    keeper.rank, keeper.about = own.rank, lambda: {"ranks": own.size}
    return keeper


@pytest.mark.parametrize("scheme", [d5.AllReduce, lambda: d5.LocalSGD(3), d5.AsynchronousParameterServer])
@pytest.mark.parametrize(
    "event", [lambda: d5.StopAtAccuracy(1.0), lambda: d5.EarlyStopping("loss", patience=1, min_delta=100.0)]
)
def test_an_evaluation_ends_all_ranks_before_the_next_step(scheme: Any, event: Any) -> None:
    def work(own: Any) -> tuple[int, str]:
        votes = Votes(own, None, lockstep=scheme().lockstep)
        trainer, _ = trained(own, scheme(), d5.SGD(0.1), epochs=9, events=[event(), votes], deferred=votes.deferred)
        return trainer.step, trainer.reason

    alone, _ = trained(SingleRank(), d5.AllReduce(), d5.SGD(0.1), epochs=9, events=[event()])
    assert alone.status == "stopped"
    for steps, reason in run_in_threads(3, work):
        assert steps == alone.step
        assert reason.partition("after")[2][:3] == alone.reason.partition("after")[2][:3]


class StopsOneRank(Event):
    """Stops the second rank, before an epoch or within one."""

    def __init__(self, rank: int, where: str, told: str) -> None:
        self._rank, self._where, self._told = rank, where, told

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        self._stop("epoch", epoch == 1)

    def before_step(self, trainer: Any, info: d5.StepInfo) -> None:
        self._stop("step", info.step == STEPS + 1)

    def _stop(self, where: str, now: bool) -> None:
        if self._rank == 1 and where == self._where and now:
            raise StopTraining(*([self._told] if self._told else []))


@pytest.mark.parametrize("told", ["enough", ""])
@pytest.mark.parametrize("where", ["epoch", "step"])
def test_one_rank_ends_all_with_its_reason_or_without_one(where: str, told: str) -> None:
    def work(own: Any) -> tuple[int, str]:
        votes = Votes(own, None, lockstep=True)
        events = [StopsOneRank(own.rank, where, told), votes]
        trainer, _ = trained(own, d5.AllReduce(), d5.SGD(0.1), epochs=4, events=events, deferred=votes.deferred)
        assert trainer.status == "stopped"
        return trainer.step, trainer.reason

    first, *others = run_in_threads(3, work)
    assert all(other == first for other in others)
    assert first[0] == STEPS if where == "epoch" else STEPS < first[0] < 4 * STEPS
    assert first[1] == (told or "an event of a rank ended it without a reason")


class Lost(Event):
    """The second rank is slow, and fails."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def before_step(self, trainer: Any, info: d5.StepInfo) -> None:
        if self._rank == 1:
            time.sleep(0.01)
            if info.step == 11:
                raise RuntimeError("lost")


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("scheme", [lambda: d5.LocalSGD(1000), d5.AllReduce])
def test_a_lost_rank_leaves_a_step_that_all_have(scheme: Any, keep: int, tmp_path: Path) -> None:
    def first(own: Any) -> None:
        votes = Votes(own, saving(tmp_path, own, every_steps=4, keep=keep), lockstep=True)
        trained(own, scheme(), d5.Momentum(0.1), count=1000, evaluate=False, events=[Lost(own.rank), votes])

    with pytest.raises(RuntimeError, match="lost"):
        run_in_threads(2, first)

    def again(own: Any) -> int:
        trainer, _ = trained(own, scheme(), d5.Momentum(0.1), epochs=0)
        restore_ranks(trainer, tmp_path, own, tell=lambda told: None)
        return trainer.step

    assert run_in_threads(2, again) == [8, 8]
    for rank in range(2):
        assert len(checkpoints(tmp_path, rank)) <= keep + 1


@pytest.mark.parametrize(
    "scheme",
    [
        d5.AllReduce,
        lambda: d5.LocalSGD(7),
        lambda: d5.ElasticAveraging(4),
        d5.Gossip,
        d5.Neighbourhood,
        lambda: d5.Hierarchical(2, every=5),
        d5.ParameterServer,
        d5.AsynchronousParameterServer,
    ],
)
def test_the_best_checkpoint_is_the_network_that_was_judged(scheme: Any, tmp_path: Path) -> None:
    def first(own: Any) -> float | None:
        keeper = saving(tmp_path, own, every_steps=1000, best="loss")
        votes = Votes(own, keeper, lockstep=scheme().lockstep)
        trained(own, scheme(), d5.Momentum(0.3, 0.9), count=88, epochs=3, events=[votes])
        return keeper.state_dict()["best_score"]

    best = run_in_threads(3, first)
    assert best[1:] == best[:-1]
    state, _ = read_checkpoint(tmp_path / BEST)
    alone, _ = trained(SingleRank(), d5.AllReduce(), d5.SGD(0.1), epochs=0)
    alone.executor.load_state_dict(state["executor"])
    # The order in which some numbers are added.
    assert alone.evaluate(d5.OrderedSampler(samples(88), 10))["loss"] == pytest.approx(best[0], rel=1e-12)


@pytest.mark.parametrize(("before", "behind"), [(3, 4), (5, 6), (4, 2)])
def test_a_group_goes_on_as_one_whatever_the_number_of_ranks(before: int, behind: int, tmp_path: Path) -> None:
    optimizer = d5.Momentum(0.1, 0.9)

    def first(own: Any) -> None:
        votes = Votes(own, saving(tmp_path, own, every_steps=1), lockstep=True)
        trained(own, d5.Hierarchical(2, every=50), optimizer, events=[votes])

    run_in_threads(before, first)

    def again(own: Any) -> np.ndarray:
        trainer, _ = trained(own, d5.Hierarchical(2, every=1000), optimizer, epochs=0)
        restore_ranks(trainer, tmp_path, own, tell=lambda told: None)
        trainer.train(2)
        return np.concatenate([np.ravel(value) for value in trainer.executor.state_dict().values()])

    found = run_in_threads(behind, again)
    for rank in range(behind):
        np.testing.assert_array_equal(found[rank], found[rank // 2 * 2])
    # Groups differ: each learns from its own samples.
    assert behind == 2 or (found[0] != found[2]).any()


def test_a_group_whose_ranks_differ_is_found_out() -> None:
    def work(own: Any) -> None:
        trainer, _ = trained(own, d5.Hierarchical(2, every=1000, verify_every=3), d5.SGD(0.1), epochs=0)
        if own.rank == 3:
            (packed,) = Packed.of(trainer.executor)
            packed.write(packed.read() + 0.5)
        trainer.train(1)

    with pytest.raises(
        d5.Deep5Error, match=r"the parameters after step 3 of rank 3 differ from those of rank 2; allowed"
    ):
        run_in_threads(4, work)


@pytest.mark.parametrize("torn", ["", "rank-2", "rank-1", "another run"])
@pytest.mark.parametrize("behind", [1, 2, 4])
def test_other_ranks_go_on_from_the_last_step_of_which_all_parts_are_there(
    torn: str, behind: int, tmp_path: Path
) -> None:
    def first(own: Any) -> None:
        votes = Votes(own, saving(tmp_path, own, every_steps=4), lockstep=True)
        trained(own, d5.LocalSGD(3), d5.Momentum(0.1), evaluate=False, events=[votes])

    run_in_threads(3, first)
    last = checkpoints(tmp_path)[0]
    if torn == "another run":
        part = last.with_name(last.stem + ".rank-2.safetensors")
        state, about = read_checkpoint(part)
        write_checkpoint(part, state, {**about, "ranks": 5})
    elif torn:
        last.with_name(last.stem + f".{torn}.safetensors").unlink()
    assert last.name == "step-0000000012.safetensors"

    def again(own: Any) -> tuple[int, list[str]]:
        told: list[str] = []
        trainer, _ = trained(own, d5.LocalSGD(3), d5.Momentum(0.1), epochs=0)
        restore_ranks(trainer, tmp_path, own, tell=told.append)
        return trainer.step, told

    found = run_in_threads(behind, again)
    assert [step for step, _ in found] == [8 if torn else 12] * behind
    assert not torn or any("the one before it is tried" in line for line in found[0][1])


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_a_first_checkpoint_that_not_all_ranks_wrote_is_none(behind: int, tmp_path: Path) -> None:
    def first(own: Any) -> None:
        votes = Votes(own, saving(tmp_path, own, every_steps=8), lockstep=True)
        trained(own, d5.AllReduce(), d5.Momentum(0.1), evaluate=False, events=[votes])

    run_in_threads(2, first)
    (only,) = checkpoints(tmp_path)
    part = only.with_name(only.stem + ".rank-1.safetensors")
    content = part.read_bytes()
    part.unlink()

    def again(own: Any) -> Any:
        trainer, _ = trained(own, d5.AllReduce(), d5.Momentum(0.1), epochs=0)
        found = restore_ranks(trainer, tmp_path, own, tell=lambda told: None)
        assert trainer.step == (8 if found else 0)
        return found

    assert run_in_threads(behind, again) == [None] * behind
    # An existing part that cannot be read is an error: the run does not start over.
    part.write_bytes(content[:100])
    with pytest.raises(d5.Deep5Error, match="that every rank can read"):
        run_in_threads(behind, again)


@pytest.mark.parametrize(("before", "behind"), [(2, 1), (1, 2), (2, 3)])
def test_the_best_score_goes_on_with_any_number_of_ranks(before: int, behind: int, tmp_path: Path) -> None:
    def work(own: Any, epochs: int, resumes: bool) -> float | None:
        keeper = saving(tmp_path, own, every_steps=STEPS, best="loss")
        saver = keeper if own.size == 1 else Votes(own, keeper, lockstep=True)
        trainer, _ = trained(own, d5.AllReduce(), d5.SGD(0.1), epochs=0)
        if resumes:
            restore_ranks(trainer, tmp_path, own, tell=lambda told: None)
        trainer.train(epochs, [saver])
        return keeper.state_dict()["best_score"]

    first = run_in_threads(before, lambda own: work(own, 2, False))
    second = run_in_threads(behind, lambda own: work(own, 1, True))
    assert first[0] is not None
    assert second[0] is not None
    # The resumed ranks evaluate again what the others did after the checkpoint, and add the losses in another order.
    assert second[0] <= first[0] * (1 + SAMPLES * 2**-53)


class Counts(Event):
    """Counts the steps reported to it, by the thread that reported them."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def after_batch(self, trainer: Any, info: d5.StepInfo, outputs: Any) -> None:
        self.steps.append(trainer.communicator.rank)


def recipe_of(**mutable: Any) -> Recipe:
    return Recipe.make(
        {"model": "lenet", "dataset": "digits", "dataset_kwargs": {"limit": 100}, "epochs": 1},
        {"batch_size": 25, "framework": "reference", "optimizer": "sgd", "seed": 1, **mutable},
        [(d5.TrainingLoss(), None)],
        name="shared",
    )


def test_ranks_that_are_threads_have_events_of_their_own(tmp_path: Path) -> None:
    counts = Counts()
    recipe = recipe_of(events=[counts, SlowRank(rank=1, delay_ms=40)])
    begin = time.monotonic()
    run_in_threads(2, lambda own: execute_as_rank(recipe, own, quiet=True, out=tmp_path))
    took_s = time.monotonic() - begin
    # The caller's events see only the first rank.
    assert set(counts.steps) == {0}
    assert took_s > 0.04 * len(counts.steps)


@pytest.mark.parametrize("scheme", ["all_reduce", "local_sgd"])
def test_ranks_that_are_threads_have_optimizers_of_their_own(scheme: str, tmp_path: Path) -> None:
    found = []
    for optimizer in ("lbfgs", d5.LBFGS()):
        recipe = recipe_of(optimizer=optimizer, scheme=scheme)
        result = run_in_threads(2, lambda own: execute_as_rank(recipe, own, quiet=True, out=tmp_path))[0]  # noqa: B023
        found.append(result.document["provenance"]["trained_weights"])
    assert found[0] == found[1]


def test_what_cannot_be_copied_for_threads_is_refused(tmp_path: Path) -> None:
    class Holds(Event):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def describe(self) -> dict[str, Any]:
            return {"event": "holds"}

    recipe = recipe_of(events=[Holds()])
    with pytest.raises(d5.Deep5Error, match=r"'events' holds an object that ranks which are threads would share"):
        run_in_threads(2, lambda own: execute_as_rank(recipe, own, quiet=True, out=tmp_path))


def network_of(**attributes: Any) -> d5.Network:
    """A layer on the pixels of the digits, with a loss of these attributes, or weights of classes, or a sum."""
    build = NetworkBuilder("weighed", seed=1)
    x, label = build.input("input", ("N", 1, 28, 28)), build.input("label", ("N",), "int64")
    logits = build.op("Gemm", build.op("Flatten", x), build.parameter("weight", (784, 10)))
    weights = [build.constant("classes", np.ones(10, np.float32))] if attributes.pop("weighs", False) else []
    added = attributes.pop("adds", False)
    loss = build.op("SoftmaxCrossEntropyLoss", logits, label, *weights, **attributes)
    return build.network({"logits": logits, "loss": build.op("ReduceSum", loss, keepdims=0) if added else loss})


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"reduction": "mean"}, None),
        ({}, None),
        ({"ignore_index": -1}, "leaves out labels with ignore_index"),
        ({"reduction": "sum"}, "adds up over samples"),
        ({"weighs": True}, "weighs classes"),
        ({"reduction": "none", "adds": True}, "ReduceSum (node 'ReduceSum_1') adds up over samples"),
    ],
)
def test_a_loss_that_is_no_mean_over_samples_is_told(
    attributes: dict[str, Any], told: str | None, tmp_path: Path
) -> None:
    recipe = replace(recipe_of(), fixed={**recipe_of().fixed, "model": network_of(**attributes)})
    result = run_in_threads(2, lambda own: execute_as_rank(recipe, own, quiet=True, out=tmp_path))[0]
    assert result is not None
    found = [line for line in result.document["warnings"] if "another function than one" in line]
    assert len(found) == (told is not None)
    assert told is None or told in found[0]


class Scaled(d5.DistributedOptimizer):
    """A user-defined scheme whose `__init__` takes no compression."""

    consistent = compresses = True

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        outputs = self.backprop(inputs, info)
        self.apply(self.mean(self.gradients(), info), info)
        return outputs


def test_a_scheme_of_ones_own_is_given_a_compression(tmp_path: Path) -> None:
    recipe = recipe_of(scheme=Scaled, compression="half_precision", scheme_kwargs={"scale": 0.5})
    result = run_in_threads(2, lambda own: execute_as_rank(recipe, own, quiet=True, out=tmp_path))[0]
    assert result is not None
    told = result.document["components"]["optimizer"]
    assert (told["scale"], told["compression"]["compression"]) == (0.5, "HalfPrecision")


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_a_compression_with_a_momentum_goes_with_none(optimizer: str, tmp_path: Path) -> None:
    recipe = recipe_of(optimizer=optimizer, compression="deep_gradient_compression")
    with pytest.raises(d5.Deep5Error, match="allowed: an optimizer without momentum"):
        run_in_threads(2, lambda own: execute_as_rank(recipe, own, quiet=True, out=tmp_path))


def test_what_takes_no_compression_says_how_to_have_none(tmp_path: Path) -> None:
    recipe = recipe_of(scheme="gossip", compression="top_k")
    with pytest.raises(d5.Deep5Error, match=r"Gossip takes no compression; .*; remedy: --set compression=None"):
        run_in_threads(2, lambda own: execute_as_rank(recipe, own, quiet=True, out=tmp_path))
