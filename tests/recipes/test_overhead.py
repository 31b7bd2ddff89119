"""Every recipe runs at its smoke size, and every overhead recipe can fail."""

from __future__ import annotations

import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest

from deep5.core.events import StepInfo
from deep5.distributed.communicators.threads import run_in_threads
from deep5.measuring.timing import Rounds, time_rounds
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.keys import CODE, OPERATORS
from deep5.recipe.recipe import Recipe, load_recipe
from deep5.recipe.registered import recipe_names
from deep5.results.result import Result, load
from deep5.run.code import make_candidate
from deep5.run.execute import execute, execute_as_rank
from quick_peaks import quick_peaks

pytestmark = pytest.mark.usefixtures("warm")

RECIPES = recipe_names()
OVERHEAD = [name for name in RECIPES if name.startswith("overhead_")]
ENGINES = ("pytorch", "tensorflow", "jax", "onnxruntime")
OF_NATIVE_RULES = ["overhead_pytorch_rule"]
WITH_EXECUTOR = [
    name
    for name in OVERHEAD
    if name.split("_")[1] in ENGINES and name not in ("overhead_onnxruntime_matmul", *OF_NATIVE_RULES)
]
WITH_TRAINER = [
    name for name in OVERHEAD if name.split("_")[1] not in ENGINES and ("lenet" in name or "trainer" in name)
]
OF_OPERATORS = [name for name in OVERHEAD if name.startswith("overhead_operator_")]
OF_DATA = [name for name in OVERHEAD if name.startswith(("overhead_sampling_", "overhead_checkpoint"))]
OF_RANKS = [name for name in OVERHEAD if name.startswith(("overhead_all_reduce_", "overhead_ranks_"))]
OTHERS = {*WITH_TRAINER, *OF_OPERATORS, *OF_DATA, *OF_RANKS}
OF_RULES = [name for name in OVERHEAD if name.split("_")[1] not in ENGINES and name not in OTHERS] + OF_NATIVE_RULES
# The daily recipes among those whose wait is in the executor; their steps are of one sample.
QUICK = ("lenet_1", "mlp", "pytorch_groups", "tensorflow_modifier", "jax_training_1")
# A goal is missed if deep5 exceeds the allowed time by this share of the opponent's time.
SEEN = 0.25


def busy(microseconds: float) -> None:
    end = perf_counter_ns() + int(microseconds * 1000)
    while perf_counter_ns() < end:
        pass


def shortened(name: str, **sizes: int) -> Recipe:
    """The recipe with its own goal, in fewer rounds: the planted wait is far above what fewer rounds can resolve."""
    recipe = load_recipe(name)
    return replace(recipe, fixed={**recipe.fixed, **sizes}, published=False)


def by_command(recipe: str | Path, out: Path, *words: str) -> Result:
    """The result of a recipe that requires ranks, which the command starts."""
    command = [sys.executable, "-m", "deep5", "run", str(recipe), "--out", str(out), "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode in (0, 1), done.stderr
    (folder,) = out.iterdir()
    return load(folder)


# Left out of the shorter suite: recipes of ResNet-18, which compile for half a minute, except PyTorch's inference; and
# half of those that measure deep5's own overhead, chosen by their names, since many are alike. Others have separate
# tests: test_deepbench, test_study_ranks, test_timing_ranks, test_recipes_training.
LEFT_OUT = [
    name
    for name in RECIPES
    if name.startswith(
        ("deepbench", "distributed_scaling", "imagenet", "layer_batches", "microbatching_r", "overhead_ranks_resnet")
    )
    or name in ("distributed_staleness_study", "distributed_compression_study")
] + [
    name
    for name in OVERHEAD
    if name != "overhead_pytorch_resnet18_inference" and ("resnet18" in name or zlib.crc32(name.encode()) % 2)
]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LEFT_OUT else ()) for name in RECIPES]
)
def test_every_recipe_runs_at_its_smoke_size(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    assert "smoke" in recipe.sizes
    smallest = recipe.at_size("smoke")
    result: Result | None
    if smallest.ranks is not None:
        result = by_command(name, tmp_path, "--size", "smoke")
    elif smallest.kind in (OPERATORS, CODE) or smallest.value("scheme") is None:
        with quick_peaks():
            result = execute(smallest, out=tmp_path)
    else:
        result = run_in_threads(2, lambda ranks: execute_as_rank(smallest, ranks, out=tmp_path))[0]
    assert result is not None
    assert result.status == "success"
    assert result.division == "open"
    assert all(result.samples()[verdict.name] for verdict in result.verdicts)


def test_overhead_recipes_cover_what_was_promised() -> None:
    rules, places = ("adam", "momentum", "sgd", "yogi"), ("small", "large", "lenet_64", "lenet_1")
    wanted = {f"overhead_{rule}_{place}" for rule in rules for place in places}
    wanted |= {"overhead_trainer", "overhead_trainer_logging", "overhead_lenet_native_64", "overhead_lenet_native_1"}
    for engine in ("pytorch", "tensorflow", "jax"):
        networks = ("lenet_1", "lenet_64", "resnet18", "transformer")
        wanted |= {f"overhead_{engine}_{network}_{job}" for network in networks for job in ("step", "inference")}
        trained = ("training_64", "training_1", "rule", "groups", "modifier")
        wanted |= {f"overhead_{engine}_{what}" for what in trained}
    wanted |= {"overhead_pytorch_gpt_step"}
    wanted |= {f"overhead_sampling_{images}" for images in ("cifar10", "mnist", "mnist_1")} | {"overhead_checkpoint"}
    wanted |= {f"overhead_onnxruntime_{network}_step" for network in ("mlp", "lenet_64", "resnet18")}
    networks = ("lenet_1", "lenet_64", "resnet18", "transformer")
    wanted |= {f"overhead_onnxruntime_{network}_inference" for network in networks}
    assert wanted <= set(OVERHEAD)
    routes = ("numpy", "pytorch", "pytorch_gradient", "onnxruntime", "jax", "tensorflow")
    wanted |= {"overhead_operator_python_numpy", *(f"overhead_operator_cpp_{route}" for route in routes)}
    for name in wanted:
        ((metric, goal),) = load_recipe(name).metrics
        assert goal is not None, name
        assert metric.name in ("overhead", "slowdown")


class Wait:
    """A wait planted into deep5's code: no wait until a test sets its length."""

    microseconds = 0.0
    calls = 0

    def __call__(self) -> None:
        self.calls += 1
        busy(self.microseconds)


def sees_the_wait(name: str, wait: Wait, *, steps: int, size: str = "full") -> bool:
    """Whether a recipe measures a wait of a millisecond in every step on deep5's side, and on that side only.

    Times that are longer by what the goal allows plus `SEEN` miss its goal, and equal ones meet it.
    """
    full = load_recipe(name)
    # A smoke size has no goals: its problem with the full size's goals.
    recipe = replace(full.at_size(size), metrics=full.metrics)
    recipe = replace(recipe, fixed={**recipe.fixed, "steps": steps, "rounds": 2}, published=False)
    ((metric, goal),) = recipe.metrics
    assert goal is not None
    sides = [make_candidate(recipe_parts(recipe), key) for key in ("candidate", "baseline", "baseline")]
    wait.microseconds = 1000.0
    before = wait.calls
    sides[1]()
    assert wait.calls == before, "the opponent waits too"
    found = time_rounds(*sides, rounds=2, steps=steps)
    counted = found.warmups + len(found.candidate) + 1
    waits = wait.calls - before
    wait.microseconds = 0.0
    # A step may make several batches or updates; each round and each warm-up has `steps` of them.
    assert waits >= counted * steps, (waits, counted, steps)
    assert min(found.candidate) >= 1000e-6 * steps
    theirs = steps * 1e-3
    allowed = goal.bound * steps * 1e-6 if metric.unit == "us" else (goal.bound - 1) * theirs
    return not met(metric, goal, found, theirs + allowed + SEEN * theirs, theirs) and met(
        metric, goal, found, theirs * (0.9 if metric.unit != "us" else 1.0), theirs
    )


def met(metric: Any, goal: Any, like: Any, ours: float, theirs: float) -> bool:
    """Whether rounds of these seconds meet a goal."""
    times = {"candidate": (ours,) * 12, "baseline": (theirs,) * 12, "baseline_again": (theirs,) * 12}
    observer = metric.observer()
    observer.after_timing(replace(like, **times))
    return bool(goal.met(observer.value()))


@pytest.fixture
def wait_in_the_trainer(monkeypatch: pytest.MonkeyPatch) -> Wait:
    wait = Wait()

    def slow(*fields: Any) -> StepInfo:
        wait()
        return StepInfo(*fields)

    monkeypatch.setattr("deep5.training.trainer.StepInfo", slow)
    return wait


@pytest.mark.parametrize("name", WITH_TRAINER)
def test_a_wait_planted_in_the_trainer_is_seen_by_the_recipe(name: str, wait_in_the_trainer: Wait) -> None:
    assert sees_the_wait(name, wait_in_the_trainer, steps=2)


def test_a_run_of_a_recipe_that_is_red_is_not_accepted(wait_in_the_trainer: Wait, tmp_path: Path) -> None:
    wait_in_the_trainer.microseconds = 300
    result = execute(shortened("overhead_trainer", steps=100, rounds=12), out=tmp_path)
    assert result.status == "success"
    assert result.accepted is False


@pytest.mark.parametrize("name", OF_RULES)
def test_a_wait_planted_in_the_kernel_is_seen_by_the_recipe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from deep5.training.kernel import RuleKernel

    wait, update = Wait(), RuleKernel.update_from

    def slow(self: RuleKernel, addresses: Any, info: StepInfo) -> None:
        wait()
        update(self, addresses, info)

    monkeypatch.setattr(RuleKernel, "update_from", slow)
    assert sees_the_wait(name, wait, steps=2)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if any(quick in name for quick in QUICK) else pytest.mark.slow)
        for name in WITH_EXECUTOR
    ],
)
def test_a_wait_planted_in_the_executor_is_seen_by_the_recipe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from deep5.networks.executor import NetworkExecutor

    wait, feed = Wait(), NetworkExecutor._feed

    def slow(self: NetworkExecutor, inputs: Any, **options: Any) -> Any:
        if wait.microseconds:
            self.synchronize()  # JAX still computes the previous step, which would hide a shorter wait
            wait()
        return feed(self, inputs, **options)

    monkeypatch.setattr(NetworkExecutor, "_feed", slow)
    # A training of one batch of 64 has too few samples.
    assert sees_the_wait(name, wait, steps=1 if "resnet18" in name else 2)


@pytest.mark.parametrize("name", OF_DATA)
def test_a_wait_planted_in_the_data_is_seen_by_the_recipe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from deep5.training import checkpointer
    from deep5.training.dataset import ArrayDataset

    wait, batches, write = Wait(), ArrayDataset.in_batches, checkpointer.write_checkpoint

    def slow_batches(self: ArrayDataset, order: Any, size: int) -> Any:
        for batch in batches(self, order, size):
            wait()
            yield batch

    def slow_write(*given: Any) -> Any:
        wait()
        return write(*given)

    monkeypatch.setattr(ArrayDataset, "in_batches", slow_batches)
    monkeypatch.setattr(checkpointer, "write_checkpoint", slow_write)
    saves = name == "overhead_checkpoint"
    assert sees_the_wait(name, wait, steps=1 if saves else 2, size="smoke" if saves else "full")


@pytest.mark.parametrize("name", OF_OPERATORS)
def test_a_wait_planted_in_the_operator_is_seen_by_the_recipe(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from deep5.recipes.overhead import operators

    spin = "auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(300);"
    source = operators.Square.source.replace(
        "for (int64_t i", f"{spin} while (std::chrono::steady_clock::now() < end) {{}} for (int64_t i", 1
    )
    monkeypatch.setattr(operators.Square, "source", f"#include <chrono>\n{source}")

    def slow(self: Any, x: Any) -> Any:
        busy(300)
        return x * x

    monkeypatch.setattr(operators.PythonSquare, "forward", slow)
    recipe = shortened(name, steps=10, rounds=2)
    sides = [make_candidate(recipe_parts(recipe), key) for key in ("candidate", "baseline", "baseline")]
    found = time_rounds(*sides, rounds=2, steps=10)
    assert min(found.candidate) >= 10 * 300e-6


# A recipe whose candidate is late by two milliseconds a call on the last rank.
LATE = """
import functools
from time import perf_counter_ns

from deep5.recipe.recipe import load_recipe

OWN = load_recipe({name!r})


@functools.wraps(OWN.fixed["candidate"])
def late(**given):
    work, ranks = OWN.fixed["candidate"](**given), given.get("communicator")

    def waits():
        work()
        end = perf_counter_ns() + 2_000_000
        if ranks is None or ranks.rank == ranks.size - 1:
            while perf_counter_ns() < end:
                pass

    return waits


FIXED = {{**OWN.fixed, "candidate": late}}
MUTABLE = {{**OWN.mutable}}
METRICS = [(metric, None) for metric, _ in OWN.metrics]
(FIXED if "rounds" in FIXED else MUTABLE)["rounds"] = 8
"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name.endswith(("mpi_4_bytes", "single")) else pytest.mark.slow)
        for name in OF_RANKS
    ],
)
def test_a_wait_planted_on_one_rank_is_seen_by_the_recipe(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    (tmp_path / "planted.py").write_text(LATE.format(name=name))
    result = by_command(tmp_path / "planted.py", tmp_path / "out")
    assert result.status == "success"
    ranks = [result.samples(rank=rank) for rank in range(result.rank_count)]
    assert min(row.value for row in ranks[-1]["candidate_time"]) >= 2e-3
    # A round takes as long as its slowest rank.
    slowest = {
        side: [
            max(values) for values in zip(*([row.value for row in rank[f"{side}_time"]] for rank in ranks), strict=True)
        ]
        for side in ("candidate", "baseline", "baseline_again")
    }
    ((metric, _),) = recipe.metrics
    observer = metric.observer()
    counted: Any = {side: tuple(values) for side, values in slowest.items()}
    observer.after_timing(Rounds(**counted, steps=recipe.value("steps"), warmups=0, first_call_s=0.0))
    expected = [sample.value for sample in observer.samples()]
    assert [row.value for row in result.samples()[metric.name]] == pytest.approx(expected)


def test_rounds_keep_every_sample_and_alternate() -> None:
    calls: list[str] = []
    rounds = time_rounds(
        lambda: calls.append("c"), lambda: calls.append("b"), lambda: calls.append("a"), rounds=50, steps=1, seed=3
    )
    counted = calls[1 + 3 * rounds.warmups :]
    assert [len(times) for times in (rounds.candidate, rounds.baseline, rounds.baseline_again)] == [50, 50, 50]
    turns = ["".join(counted[index : index + 3]) for index in range(0, 150, 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) == 6, "each of the six orders comes up within fifty rounds"


def test_a_known_wait_is_measured_as_it_is() -> None:
    rounds = time_rounds(lambda: busy(2000), lambda: busy(1000), lambda: busy(1000), rounds=20, steps=1)
    assert min(rounds.candidate) >= 2000e-6
    assert min(rounds.baseline) >= 1000e-6
