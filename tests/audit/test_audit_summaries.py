"""Summaries that the audit derives by its own code: equal to the writer's, and different where the writer is wrong."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.audit import audit
from deep5.audit.collective_model import MODELED, best_segments, elements_sent, fitted_line, modeled_seconds
from deep5.audit.collective_summary import Calls, bus_bandwidth, constants_of, faults, row_of, segment_sizes
from deep5.audit.finding import Ledger
from deep5.audit.operator_summary import middle, rates
from deep5.audit.studies import _check_scaling
from deep5.audit.target_summary import target_summary
from deep5.bench import summary as operator_summary
from deep5.bench.collective import summary as collective_summary
from deep5.bench.collective.measure import CollectiveTimes, Measured
from deep5.bench.collective.plan import CollectivePlan
from deep5.distributed.collectives import fitting
from deep5.distributed.collectives.algorithms import sent_bytes
from deep5.distributed.collectives.costs import MODELS, Machine, modelled_s, optimal_segments
from deep5.distributed.collectives.fitting import fit_line
from deep5.operators.roofline import Roofline
from deep5.recipe.recipe import Recipe
from deep5.results.study import scaling
from deep5.results.time_to_target import Reached, summary
from deep5.run.ranks import run_with_ranks

RNG = np.random.default_rng(0)
# Both compute in float64, in another order.
CLOSE = 1e-9
BEFORE = Path(__file__).parent.parent / "results" / "before"


def times(count: int, middle_s: float = 0.01, spread: float = 0.1) -> list[float]:
    return (middle_s * np.exp(spread * RNG.standard_normal(count))).tolist()


def alike(found: Any, expected: Any) -> bool:
    """Whether two documents agree, numbers up to rounding: as the audit compares them."""
    ledger = Ledger("a test")
    return ledger.same(9, "documents", found, expected)


# Operators -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [[1], [5], [6], [30], [30, 30], [3, 4, 5, 6, 7, 8, 0]])
def test_the_median_of_an_operator(counts: list[int]) -> None:
    processes = [times(count) for count in counts]
    assert middle(processes) == operator_summary.middle_of(processes)


@pytest.mark.parametrize("flop_s", [None, 1e9, 1e12])
@pytest.mark.parametrize("flops", [None, 10**6, 10**9])
@pytest.mark.parametrize("moved", [None, 0, 10**5, 10**8])
def test_the_rates_of_an_operator(flop_s: float | None, flops: int | None, moved: int | None) -> None:
    roofline: dict[str, Any] = {"flop_s": flop_s, "byte_s": 1e10, "threads": 1, "dtype": "float32", "seen": {}}
    expected = operator_summary.rates_of(0.003, flops, moved, Roofline(**roofline))
    # Without traffic, there is no share of the roofline.
    assert alike(rates(0.003, flops, moved, roofline), expected)


def test_rates_of_a_stored_result() -> None:
    (folder,) = BEFORE.glob("bench_*")
    told = json.loads((folder / "operators.json").read_text())
    assert told["rows"]
    for row in told["rows"]:
        found = rates(row["median_s"], row["flops"], row["bytes"], told["roofline"])
        assert alike(found, {name: row[name] for name in found})


# Collectives ---------------------------------------------------------------------------------------------------------


def test_the_algorithms_are_those_of_the_model() -> None:
    assert set(MODELED) == set(MODELS)


@pytest.mark.parametrize("name", MODELED)
def test_modeled_times_and_sent_elements(name: str) -> None:
    constants = (2e-6, 3e-10, 1e-10)
    machine = Machine(latency_s=constants[0], gap_s_byte=constants[1], reduction_s_byte=constants[2])
    for ranks in range(2, 18):
        for elements in (1, 2, 7, 16, 1000, 65537):
            found = modeled_seconds(name, constants, ranks, 4 * elements, 4096)
            expected = modelled_s(name, machine, ranks, 4 * elements, segment_bytes=4096)
            assert found == pytest.approx(expected, rel=CLOSE)
            sent = [4 * count for count in elements_sent(name, ranks, elements)]
            assert sent == [sent_bytes(name, rank, ranks, elements, 4) for rank in range(ranks)]


@pytest.mark.parametrize("latency_s", [0.0, 1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_optimal_segments(latency_s: float, ranks: int) -> None:
    machine = Machine(latency_s=latency_s, gap_s_byte=3e-10, reduction_s_byte=1e-10)
    for size in (4, 1000, 1 << 20, 1 << 26):
        found = best_segments((latency_s, 3e-10, 1e-10), ranks, size)
        assert optimal_segments(machine, ranks, size)[0] in found
        assert len(found) <= 3


@pytest.mark.parametrize("latency_s", [0.0, 2e-6])
@pytest.mark.parametrize("slope_s", [0.0, 1e-10, 1e-8])
@pytest.mark.parametrize("outlier", [1.0, 30.0])
def test_the_fitted_line(latency_s: float, slope_s: float, outlier: float) -> None:
    measured = {8 * 4**power: times(9, latency_s + 8 * 4**power * slope_s + 1e-9) for power in range(9)}
    measured[8 * 4**4] = [outlier * value for value in measured[8 * 4**4]]
    assert fitted_line(measured) == pytest.approx(fit_line(measured), rel=CLOSE, abs=1e-25)


def measurement(ranks: int, dtype: str, op: Any, rounds: int, wrong: bool = False) -> CollectiveTimes:
    """Times of every algorithm at three sizes; of ring at the first one, the results are wrong."""
    plan = CollectivePlan(sizes_bytes=(64, 4096, 1 << 20), dtype=dtype, op=op, rounds=rounds)
    measured = []
    for size in plan.sizes_bytes:
        for name in plan.algorithms:
            faulty = wrong and (name, size) == ("ring", 64)
            elements = size // plan.itemsize
            sent = [
                sent_bytes(name, rank, ranks, elements, plan.itemsize) if name in MODELS else size
                for rank in range(ranks)
            ]
            measured.append(
                Measured(
                    algorithm=name,
                    size_bytes=size,
                    seconds=tuple(times(rounds, 1e-5)),
                    own_seconds=(),
                    sent_bytes=tuple(count + faulty for count in sent),
                    messages=tuple(range(1, ranks + 1)),
                    largest_error=math.inf if faulty else 0.0,
                    checksums=tuple((1, 2, 1, 2 + (faulty and rank == 1)) for rank in range(ranks)),
                )
            )
    return CollectiveTimes(
        plan=plan,
        ranks=ranks,
        measured=tuple(measured),
        message_s={size: times(20, 1e-6 + size * 1e-10) for size in (8, 64, 512, 4096)},
        addition_s={size: times(20, 1e-7 + size * 1e-10) for size in (8, 64, 512, 4096)},
    )


def calls_of(each: Measured) -> Calls:
    return Calls(
        algorithm=each.algorithm,
        size_bytes=each.size_bytes,
        seconds=each.seconds,
        sent_bytes=each.sent_bytes,
        messages=each.messages,
        largest_error=each.largest_error,
        checksums=each.checksums,
    )


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize(
    ("ranks", "dtype", "op", "rounds"),
    [(2, "float32", "sum", 6), (3, "float16", "prod", 5), (4, "int32", "sum", 20), (5, "float64", "max", 7)],
)
def test_the_summary_of_collectives(ranks: int, dtype: str, op: str, rounds: int, wrong: bool) -> None:
    given = measurement(ranks, dtype, op, rounds, wrong)
    expected = collective_summary.summarise_collectives(given)
    machine = constants_of(given.message_s, given.addition_s)
    assert alike(machine, vars(expected.machine))
    for size, segment in expected.optimal_segment_bytes.items():
        assert segment in segment_sizes(machine, ranks, size)
    rows = [row_of(calls_of(each), given.plan, ranks, machine) for each in given.measured]
    assert alike(rows, [vars(row) for row in expected.rows])
    found = [sentence for each in given.measured for sentence in faults(calls_of(each), given.plan, ranks)]
    assert found == list(expected.wrong)
    assert len(found) == 3 * wrong


def collectives(out: Path) -> Path:
    fixed = {
        "collective": "all_reduce", "sizes": "64,4K", "algorithms": "ring,library", "rounds": 6, "launcher": "threads",
    }  # fmt: skip
    recipe = Recipe.make(fixed, {"seed": 3}, [(d5.RightResults(), 100)], name="threads")
    result, _ = run_with_ranks(recipe, None, None, [], out=out, quiet=True)
    assert result is not None
    return result.folder


def one_percent_more(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: 1.01 * function(*args, **kwargs)


@pytest.mark.parametrize(
    ("module", "name", "fault", "what"),
    [
        (collective_summary, "bus_gbyte_s", one_percent_more, "bus_gbyte_s of ring at 4096 bytes"),
        (collective_summary, "modelled_s", one_percent_more, "modelled_s of ring at 64 bytes"),
        (collective_summary, "median", one_percent_more, "median_s of library at 64 bytes"),
        (collective_summary, "is_right", lambda _: lambda *given: False, "right of ring at 64 bytes"),
        # A larger one would change nothing where no time is an outlier.
        (fitting, "_HUBER", lambda value: value / 100, "machine of collective.json"),
    ],
)
def test_a_wrong_summary_of_collectives_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, fault: Callable[[Any], Any], what: str
) -> None:
    monkeypatch.setattr(module, name, fault(getattr(module, name)))
    found = [str(finding) for finding in audit([collectives(tmp_path)]).findings]
    assert any(what in finding for finding in found), found
    monkeypatch.undo()
    assert not audit([collectives(tmp_path / "right")]).findings


def test_a_wrong_summary_of_operators_is_found(tmp_path: Path) -> None:
    """As the writer would derive it with the mean, and with a peak of another unit."""
    (folder,) = BEFORE.glob("bench_*")
    before = {finding.what for finding in audit([folder]).findings}
    shutil.copytree(folder, tmp_path / folder.name)
    path = tmp_path / folder.name / "operators.json"
    told = json.loads(path.read_text())
    for row in told["rows"]:
        row["median_s"] *= 1.001
        row["share_of_peak"] *= 1e-9
    path.write_text(json.dumps(told))
    added = {finding.what for finding in audit([tmp_path / folder.name]).findings} - before
    for field in ("median_s", "share_of_peak"):
        assert any(what.startswith(f"{field} of ") for what in added), added


# Scaling -------------------------------------------------------------------------------------------------------------


def run(ranks: int, throughput: float | None, seed: int = 0, processors: int | None = 8, **parts: Any) -> Any:
    """What scaling reads of a run."""
    affinity = None if processors is None else list(range(processors))
    return SimpleNamespace(
        verdicts=(SimpleNamespace(name="throughput", value=throughput),),
        document={
            "recipe": {"fixed": {"model": "lenet"}, "mutable": {"batch_size": 64, "ranks": ranks, **parts}},
            "ranks": ranks,
            "seeds": {"run": seed},
            "threads": {"framework": 1},
            "system": {"before": {"affinity": affinity}},
        },
    )


def several(ranks: int, seeds: int = 7, **parts: Any) -> list[Any]:
    return [run(ranks, 1000 * value, seed, **parts) for seed, value in enumerate(times(seeds, ranks**0.8))]


STUDIES: dict[str, dict[str, Sequence[Any]]] = {
    "none": {},
    "one number of ranks": {"1": several(1), "1 again": several(1)},
    "strong": {"4": several(4), "1": several(1), "2": several(2)},
    "weak": {"1": several(1), "2": several(2, batch_size=128), "4": several(4, batch_size=256), "odd": several(3)},
    "few seeds": {"2": several(2, 3), "1": several(1, 5), "8": several(8, 1, processors=2)},
    "other seeds": {"1": [run(1, 9.0, 3)], "2": [run(2, 9.0, 4)], "4": [run(4, 9.0, 3, processors=None)]},
    "from two ranks": {"2": several(2), "8": several(8), "gossip": several(4, scheme="gossip")},
    "other rates": {"1": several(1, optimizer_kwargs={"lr": 1}), "2": several(2, optimizer_kwargs={"lr": 2})},
    "twice": {
        "1": several(1, optimizer_kwargs={"lr": 1}), "2": several(2, optimizer_kwargs={"lr": 2}),
        "2 too": several(2, optimizer_kwargs={"lr": 1}),
    },
    "accumulated": {"1": several(1, accumulate=2), "2": several(2, batch_size=128), "4": several(4, batch_size=512)},
    "growing": {"1": several(1), "2": several(2, batch_size={"object": "GrowingBatches"}), "4": [run(4, None)]},
    "crowded": {"1": several(1, processors=1), "2": several(2, processors=1)},
}  # fmt: skip


def check_study(runs: dict[str, Sequence[Any]], stored: Any) -> list[str]:
    """Findings about the scaling that a study states."""
    candidates = {name: {"runs": [f"{name}/{place}" for place in range(len(own))]} for name, own in runs.items()}
    found = {f"{name}/{place}": each for name, own in runs.items() for place, each in enumerate(own)}
    ledger = Ledger("a study")
    _check_scaling(ledger, {"candidates": candidates, "scaling": stored}, found)
    return [finding.what for finding in ledger.findings]


@pytest.mark.parametrize("name", STUDIES)
def test_scaling(name: str) -> None:
    runs = STUDIES[name]
    expected = [made.document() for made in scaling.scaling_of(runs)]
    assert check_study(runs, expected) == []
    empty = {"none", "one number of ranks", "growing"}
    assert bool(expected) is (name not in empty)


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        ("paired_ratios", lambda ours, theirs: np.array(theirs) / np.array(ours)),
        ("median", lambda values: float(np.mean(list(values)))),
        ("_NO_WORK", frozenset(("ranks", "seed"))),
        ("counted", lambda count, what: f"{count + 1} {what}s"),
    ],
)
def test_a_wrong_scaling_is_found(planted: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"1": several(1), "2": several(2), "4": several(4, batch_size=256, processors=3)}
    right = [made.document() for made in scaling.scaling_of(runs)]
    assert [made["kind"] for made in right] == ["strong", "weak"]
    assert check_study(runs, right) == []
    monkeypatch.setattr(scaling, planted, fault)
    assert check_study(runs, [made.document() for made in scaling.scaling_of(runs)])


@pytest.mark.parametrize("count", [0, 1, 5, 6, 9, 20])
@pytest.mark.parametrize("failed", [0.0, 0.4, 1.0])
def test_times_to_a_target(count: int, failed: float) -> None:
    reached = {
        seed: Reached.never("it diverged")
        if RNG.random() < failed
        else Reached(seconds=value, epochs=seed + 1, steps=10 * seed + 10)
        for seed, value in enumerate(times(count))
    }
    assert alike(target_summary(reached), summary(reached))


def test_bus_bandwidth() -> None:
    for ranks in range(2, 10):
        expected = collective_summary.bus_gbyte_s(12345, 0.017, ranks)
        assert bus_bandwidth(12345, 0.017, ranks) == pytest.approx(expected, rel=CLOSE)
