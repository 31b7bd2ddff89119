"""Timings of operators: loops, caches, asynchronous work, medians, coverage, the recipe of level 0, the command."""

from __future__ import annotations

import json
import mmap
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter, perf_counter_ns, process_time, sleep
from typing import Any

import click
import jsonschema
import numpy as np
import pytest
from rich.console import Console

from deep5.bench.agreement import Results, difference, tolerances
from deep5.bench.candidates import Candidate, prepare
from deep5.bench.measure import _thread_warnings, measure, measure_here
from deep5.bench.peaks import peaks
from deep5.bench.plan import Plan, remarks, workloads
from deep5.bench.recipe import check_operators, plan_of
from deep5.bench.record import OPERATORS
from deep5.bench.report import operator_table
from deep5.bench.summary import OperatorTimes, summarise
from deep5.cli.bench_operator import bench_command, ready_recipe
from deep5.core.errors import Deep5Error, MissingDependency, RecipeError, RunFailed, UsageError
from deep5.core.plugins import framework
from deep5.core.quantities import seconds
from deep5.measuring import loops as timing
from deep5.measuring.loops import Work
from deep5.measuring.samples import median_interval
from deep5.metrics.operator_time import BareRatio, OperatorCost, OperatorCoverage, OperatorTime
from deep5.operators.roofline import Roofline, best_rate, numpy_roofline
from deep5.recipe.experiment import recipe_parts
from deep5.recipe.recipe import Recipe
from deep5.results.result import load
from deep5.results.schema import schema
from deep5.run.execute import execute
from numpy_peaks import measure_for_parent

pytestmark = pytest.mark.usefixtures("warm")

ENGINE = "pytorch"

# Stands in for hand-written framework code: the product of two matrices, and whatever the test adds to a call.
BARE = """
import hashlib, time, threading
import numpy as np
from deep5.core.errors import Unsupported

def busy(seconds):
    end = time.perf_counter_ns() + int(seconds * 1e9)
    while time.perf_counter_ns() < end:
        pass

def product(framework, problem, *, inputs, output_grads, needs, threads, device, wait=0.0):
    if needs:
        raise Unsupported("no gradient by hand here")
    def call():
        busy(wait)
        return (inputs[0] @ inputs[1],)
    return call, lambda: None, list

def spinning(framework, problem, **data):
    return product(framework, problem, **data, wait={SLOW})

def wrong(framework, problem, **data):
    call, wait, read = product(framework, problem, **data)
    return lambda: (1.01 * call()[0],), wait, read

def endless(framework, problem, **data):
    call, wait, read = product(framework, problem, **data)
    return lambda: (call()[0] * np.inf,), wait, read

def broken(framework, problem, **data):
    raise RuntimeError("no such kernel")

def refused(x):
    raise RuntimeError("no such kernel")

def late(framework, problem, *, inputs, **data):
    # Returns at once; a thread fills the output in, and nobody waits for it.
    def call():
        out = np.zeros((inputs[0].shape[0], inputs[1].shape[1]), np.float32)
        def work():
            time.sleep(0.004)
            np.matmul(inputs[0], inputs[1], out=out)
        threading.Thread(target=work).start()
        return (out,)
    return call, lambda: None, list
"""


@pytest.fixture
def bare(tmp_path: Path) -> Callable[[str], str]:
    (tmp_path / "bare.py").write_text(BARE.replace("{SLOW}", "{'pytorch': 1e-3, 'reference': 1.05e-3}[framework]"))
    return lambda name: f"{tmp_path / 'bare.py'}:{name}"


def spin(nanoseconds: int) -> None:
    end = perf_counter_ns() + nanoseconds
    while perf_counter_ns() < end:
        pass


def plan(**changes: Any) -> Plan:
    shapes = ((24, 32), (32, 40))
    return Plan(**{"operator": "MatMul", "shapes": shapes, "frameworks": (ENGINE,), "rounds": 7, **changes})


@pytest.fixture(autouse=True)
def quick_roofline(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The machine's peaks take seconds to measure: most tests take NumPy's, which were measured once."""
    if "real_roofline" not in request.keywords and "real_roofline" not in request.node.name:
        monkeypatch.setattr("deep5.bench.measure.peaks", lambda plan, names, before=None: _peaks())
        monkeypatch.setattr("deep5.bench.measure._measure_for_parent", measure_for_parent)


def _peaks(found: list[Roofline] = []) -> Roofline:  # noqa: B006 - measured once
    if not found:
        found.append(numpy_roofline(1))
    return found[0]


# Loops


def test_a_sample_is_well_above_the_resolution_of_the_clock() -> None:
    assert 0 < timing.clock_resolution_s() < timing.LEAST_SAMPLE_S / 1000
    calls, tried = timing.calibrate(Work(call=lambda: None))
    assert calls & (calls - 1) == 0, "found by doubling"
    assert tried[-1] * calls >= timing.LEAST_SAMPLE_S
    assert timing.calibrate(Work(call=sleep, arguments=(0.003,)))[0] == 1
    assert 1e-9 < timing.loop_overhead_s() < 1e-5


def test_a_delayed_loop_does_not_end_the_search_for_the_number_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = iter([0.5, 0.0, 0.0, 0.5, 0.5] + [0.0] * 1000)
    monkeypatch.setattr(timing, "time_loop", lambda work, calls: 1e-4 + next(delays) / calls)
    calls, tried = timing.calibrate(Work(call=lambda: None))
    assert calls == 32
    assert 1e-4 * calls >= timing.LEAST_SAMPLE_S
    assert len(tried) == 11


def test_warm_up_ends_when_times_stand_still_or_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    still = iter([9.0, 5.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(timing, "time_loop", lambda work, calls: next(still))
    assert timing.warm_up(Work(call=lambda: None), 1, 60.0) == ([9.0, 5.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0], True)
    longer, clock = (2.0**number for number in range(1000)), iter(range(1000))
    monkeypatch.setattr(timing, "time_loop", lambda work, calls: next(longer))
    monkeypatch.setattr(timing, "perf_counter", lambda: next(clock))
    times, settled = timing.warm_up(Work(call=lambda: None), 1, 20.0)
    assert (len(times), settled) == (20, False)


def test_what_is_synchronised_is_on_the_clock() -> None:
    seen = timing.time_loop(Work(call=lambda: None, synchronize=lambda: sleep(2e-3)), 3)
    assert seen >= 2e-3


def test_self_test_catches_a_timer_that_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    timing.self_test()
    whole = timing.time_loop

    def careless(work: Work, calls: int) -> float:
        return whole(Work(call=work.call, arguments=work.arguments), calls)

    monkeypatch.setattr(timing, "time_loop", careless)
    with pytest.raises(Deep5Error, match="self-test of the timer: an asynchronous call of 5 ms was measured as"):
        timing.self_test()
    with pytest.raises(Deep5Error, match="self-test"):
        measure_here(plan())


class Late:
    """Work that continues in a thread after the call; `read` waits for it if `waits` is set."""

    def __init__(self, *, seconds: float, honest: bool, waits: bool) -> None:
        self.seconds, self.honest, self.waits = seconds, honest, waits
        self.thread = Thread()

    def call(self) -> Any:
        out = np.zeros(4)

        def work() -> None:
            sleep(self.seconds)
            out[:] = 1

        self.thread = Thread(target=work)
        self.thread.start()
        return out, self.thread

    def synchronize(self) -> None:
        if self.honest:
            self.thread.join()

    def read(self, outputs: Any) -> list[Any]:
        if self.waits:
            outputs[1].join()
        return [outputs[0]]


def test_threads_that_compute_on_are_caught() -> None:
    threads: list[Thread] = []

    def call() -> Any:
        threads.append(Thread(target=spin, args=(200_000_000,)))
        threads[-1].start()
        return ()

    found: str | None = None
    for _ in range(10):  # on a busy machine such a thread may get no processor
        found = found or timing.untimed_work(Work(call=call), list)
        for thread in threads:
            thread.join()
    assert re.search("its threads keep .* processors busy", found or "")


@pytest.mark.parametrize(("waits", "sign"), [(False, "its outputs change after"), (True, "reading its outputs waits")])
@pytest.mark.parametrize("seconds", [4e-3, 0.03])
def test_asynchronous_work_that_nobody_waits_for_is_caught(seconds: float, waits: bool, sign: str) -> None:
    late = Late(seconds=seconds, honest=False, waits=waits)
    found: str | None = None
    for _ in range(10):  # on a busy machine the work may be over before its outputs are read
        found = found or timing.untimed_work(Work(call=late.call, synchronize=late.synchronize), late.read)
    assert sign in (found or "")
    late = Late(seconds=seconds, honest=True, waits=waits)
    assert timing.untimed_work(Work(call=late.call, synchronize=late.synchronize), late.read) is None


def test_a_candidate_that_does_not_wait_gets_no_time(bare: Callable[[str], str]) -> None:
    # It runs first and without others, so that no other result reveals it.
    raw = measure_here(plan(bare=bare("late"), frameworks=(ENGINE,)))
    (entry,) = [entry for entry in raw["left_out"] if entry["candidate"] == "pytorch (bare)"]
    assert re.search("invalid: .*its work is not on the clock|differs from that of pytorch by", entry["reason"])
    assert [series["candidate"] for series in raw["series"]] == ["pytorch"]


def test_an_eviction_streams_over_more_than_the_largest_cache() -> None:
    assert timing.last_level_cache_bytes() >= 1 << 20
    evictor = timing.Evictor(2)
    assert evictor.buffer_bytes >= 2 * timing.last_level_cache_bytes()
    before = process_time()
    evictor()
    # More than a hundredth of a nanosecond per byte: the eviction took place.
    assert process_time() - before > evictor.buffer_bytes * 1e-11
    evictor.close()


def test_a_cold_call_comes_after_an_eviction() -> None:
    seen: list[str] = []

    class Watched(timing.Evictor):
        def __call__(self) -> None:
            super().__call__()
            seen.append("eviction")

    evictor = Watched()
    assert evictor.time(Work(call=lambda: seen.append("call"))) > 0
    evictor.time(Work(call=lambda: seen.append("call")))
    evictor.close()
    assert seen == ["eviction", "call"] * 2


@pytest.mark.parametrize("nanoseconds", [1_000_000, 4_000_000])
def test_the_timer_sees_all_that_a_call_takes_and_reads_the_clock_twice_a_loop(
    nanoseconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, readings = [0], []

    def operator() -> None:
        begin = perf_counter_ns()
        spin(nanoseconds)
        taken[0] += perf_counter_ns() - begin

    def clock() -> int:
        readings.append(perf_counter_ns())
        return readings[-1]

    monkeypatch.setattr(timing, "perf_counter_ns", clock)
    measured = timing.time_loop(Work(call=operator), 5) * 5
    assert measured * 1e9 * (1 + 1e-12) >= taken[0] >= 5 * nanoseconds
    assert len(readings) == 2


def test_memory_that_a_call_takes_shows() -> None:
    def take() -> None:
        # From the system, not from memory that an earlier test left to the allocator.
        np.frombuffer(mmap.mmap(-1, 32 << 20), np.uint8).fill(1)

    grown = timing.peak_growth_bytes(take)
    if grown is None:
        pytest.skip("this system does not let the mark be set back")
    assert 31 << 20 <= grown < 64 << 20
    freed = timing.peak_growth_bytes(lambda: None)
    assert freed is not None
    assert freed < 4 << 20


# Rooflines


def test_roofline_is_the_lower_of_two_lines() -> None:
    roof = Roofline(flop_s=100.0, byte_s=10.0, threads=1, dtype="float32", seen={})
    assert [roof.attainable(work, 10) for work in (20, 100, 1000)] == [20.0, 100.0, 100.0]
    better = roof.with_library("fast", 150.0, None)
    assert (better.flop_s, better.byte_s, dict(better.seen)) == (150.0, 10.0, {"fast": (150.0, None)})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_peak_is_of_the_product_in_the_plans_element_type(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deep5.bench.peaks.PRODUCT", 128)
    found = peaks(plan(dtype=dtype), (ENGINE, "reference"))
    assert found.dtype == dtype
    own = {name: flop_s for name, (flop_s, _) in found.seen.items()}
    # NumPy has no half-precision product; the reference computes in float32 and rounds; PyTorch has its own product.
    assert (own["numpy"] is None) == dtype.endswith("16")
    assert own["reference"] is not None
    assert found.flop_s == max(rate for rate in own.values() if rate is not None)
    assert all(byte_s for _, byte_s in found.seen.values())


@pytest.mark.parametrize("names", [("reference",), ("reference", "onnxruntime"), (f"{ENGINE}:eager",)])
def test_the_peak_is_that_of_onnx_runtime_too_whoever_is_timed(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deep5.bench.peaks.PRODUCT", 128)
    found = peaks(plan(), names)
    assert set(found.seen) == {"numpy", "onnxruntime", *names}
    flop_s, byte_s = found.seen["onnxruntime"]
    assert flop_s is not None
    assert byte_s is not None
    assert found.flop_s is not None
    assert found.flop_s >= flop_s


@pytest.mark.parametrize("fastest", ["numpy", "onnxruntime"])
def test_a_second_measurement_copies_with_the_fastest_library_only(
    fastest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deep5.bench.peaks.PRODUCT", 128)
    for module in ("deep5.measuring.loops", "deep5.operators.roofline"):
        monkeypatch.setattr(f"{module}.last_level_cache_bytes", lambda: 1 << 20)
    names = ("numpy", "onnxruntime", "reference")
    seen = {name: (1e3, 2.0 if name == fastest else 1.0) for name in names}
    before = Roofline(flop_s=1e3, byte_s=2.0, threads=1, dtype="float32", seen=seen)
    after = peaks(plan(), ("reference", "onnxruntime"), before)
    assert {name for name, (_, byte_s) in after.seen.items() if byte_s is not None} == {fastest}
    assert all(flop_s is not None for flop_s, _ in after.seen.values())
    merged = before.merged(after)
    assert merged.byte_s == merged.seen[fastest][1] == after.byte_s > 2
    assert all(merged.seen[name][1] == 1.0 for name in names if name != fastest)


def test_a_peak_with_other_threads_or_without_the_package_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deep5.bench.peaks.PRODUCT", 128)
    for module in ("deep5.measuring.loops", "deep5.operators.roofline"):
        monkeypatch.setattr(f"{module}.last_level_cache_bytes", lambda: 1 << 20)
    engine = framework("onnxruntime")
    for error in (UsageError("threads are fixed"), MissingDependency("not installed")):

        def refuse(threads: int, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(type(engine), "set_threads", staticmethod(refuse))
        assert set(peaks(plan(), ("reference",)).seen) == {"numpy", "reference"}


def test_the_table_names_the_library_that_set_each_peak() -> None:
    seen = {"numpy": (4e9, 3e9), "fast": (8e9, 1e9), "none": (None, None)}
    peak = {"flop_s": 8e9, "byte_s": 3e9, "threads": 1, "dtype": "float32", "seen": seen}
    told = " ".join(table(summarise([{**raw(0, [1e-3] * 7), "roofline": peak}])).split())
    assert "8 GFLOP/s (product in float32, fast) and 3 GB/s (copy, numpy)" in told


@pytest.mark.slow
def test_without_a_product_there_is_no_share_and_the_table_says_so() -> None:
    assert peaks(plan(dtype="int64"), ("reference",)).flop_s is None
    assert numpy_roofline(1, "float16").flop_s is None
    no_peak = {"flop_s": None, "byte_s": 1e9, "threads": 1, "dtype": "int64", "seen": {"numpy": (None, 1e9)}}
    times = summarise([{**raw(0, [1e-3] * 7), "roofline": no_peak}])
    (row,) = times.rows
    assert row["gflop_s"] == pytest.approx(2)
    assert row["share_of_peak"] is None
    assert row["share_of_roofline"] is None
    assert "of peak: - without a matrix product in int64 to compare with" in table(times)


def test_a_peak_of_a_slow_product_is_not_waited_for() -> None:
    calls = []

    def slow() -> None:
        calls.append(sleep(0.05))

    assert best_rate(Work(call=slow), 1.0, most_s=0.01) <= 20
    assert len(calls) <= 4


def test_of_two_measurements_of_peaks_each_librarys_better_one_is_taken() -> None:
    roof = Roofline(flop_s=4.0, byte_s=3.0, threads=1, dtype="float32", seen={"a": (4.0, 1.0), "b": (None, 3.0)})
    other = Roofline(flop_s=6.0, byte_s=2.0, threads=1, dtype="float32", seen={"a": (2.0, 2.0), "c": (6.0, None)})
    best = roof.merged(other)
    assert (best.flop_s, best.byte_s) == (6.0, 3.0)
    assert dict(best.seen) == {"a": (4.0, 2.0), "b": (None, 3.0), "c": (6.0, None)}


def test_peaks_are_measured_before_and_after_and_what_moved_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Roofline(flop_s=5e10, byte_s=1e10, threads=1, dtype="float32", seen={"numpy": (5e10, 1e10)})
    fast = Roofline(flop_s=2e11, byte_s=1e10, threads=1, dtype="float32", seen={"numpy": (2e11, 1e10)})
    for order, wanted in (
        ((slow, fast), "the measured peak varies from 50 GFLOP/s to 200 GFLOP/s"),
        ((fast, fast), ""),
    ):
        left = list(order)
        monkeypatch.setattr("deep5.bench.measure.peaks", lambda plan, names, before=None, left=left: left.pop(0))
        times = summarise(measure(plan()))
        assert times.roofline.flop_s == 2e11
        assert wanted in " ".join(times.warnings)
        assert bool(times.warnings) == bool(wanted)


def test_a_rate_is_amount_over_time() -> None:
    assert 80 < best_rate(Work(call=sleep, arguments=(0.01,)), 1.0, most_s=0.03) <= 100


# Measuring


def test_quick_measurement_holds_every_raw_time() -> None:
    times = summarise(measure(plan(backward=True, cold=True)))
    assert [(row["direction"], row["candidate"]) for row in times.rows] == [("forward", ENGINE), ("backward", ENGINE)]
    assert dict(times.coverage) == {ENGINE: {"measured": 2, "of": 2}}
    for row, series in zip(times.rows, times.raw[0]["series"], strict=True):
        values = [value for _, value in series["samples"]]
        assert len(values) == row["samples"] == 7
        assert row["median_s"] == median(values)
        interval = median_interval(values)
        assert (row["low_s"], row["high_s"]) == (interval.low, interval.high)
        assert len(series["cold"]) == row["cold"]["samples"] >= 1
        assert row["first_call_s"] > 0
        assert series["warm_ups"]
        ends = [at for at, _ in series["warm_ups"] + series["samples"] + series["cold"]]
        assert ends == sorted(ends)
    forward, backward = times.rows
    assert forward["flops"] == 2 * 24 * 32 * 40
    assert backward["flops"] == 3 * forward["flops"]
    assert forward["gflop_s"] == pytest.approx(forward["flops"] / forward["median_s"] / 1e9)
    assert forward["gbyte_s"] == pytest.approx(4 * (24 * 32 + 32 * 40 + 24 * 40) / forward["median_s"] / 1e9)
    assert forward["share_of_peak"] == pytest.approx(forward["gflop_s"] * 1e9 / times.roofline.flop_s)
    assert forward["share_of_peak"] <= forward["share_of_roofline"]


# `Greedy` is slow and allocates much memory at an instance's first call; `Largest` only reads its input.
FIRST = """
import time
import numpy as np
import deep5 as d5

class Greedy(d5.Operator):
    def specs(self, x): return (x,)
    def forward(self, x):
        if not hasattr(self, "held"):
            time.sleep(0.3)
            self.held = np.ones(1 << 23).nbytes
        return 2 * x
    def backward(self, output_grads, inputs, outputs, needs): return (2 * output_grads[0],)

class Largest(d5.Operator):
    def specs(self, x): return (d5.TensorSpec(shape=(), dtype=x.dtype),)
    def forward(self, x): return x.max()
    def backward(self, output_grads, inputs, outputs, needs): raise NotImplementedError
"""


def of_file(folder: Path, name: str, shape: tuple[int, ...], **changes: Any) -> Plan:
    (folder / "first.py").write_text(FIRST)
    return plan(operator=f"{folder / 'first.py'}:{name}", shapes=(shape,), frameworks=("reference",), **changes)


def test_time_and_memory_of_the_first_call_are_those_it_took(tmp_path: Path) -> None:
    # In a fresh process: one that earlier tests have used may hold as many free pages.
    (raw,) = measure(of_file(tmp_path, "Greedy", (8, 8)))
    (series,) = raw["series"]
    assert series["first_call_s"] >= 0.3
    (row,) = summarise([raw]).rows
    assert row["median_s"] < series["first_call_s"]  # a later call does not sleep
    assert row["first_call_s"] == series["first_call_s"]
    if timing.peak_growth_bytes(lambda: None) is None:
        pytest.skip("this system does not let the mark of memory be set back")
    # 64 MiB are allocated; pages that the process had free before may cover some of them.
    assert series["memory_bytes"] is not None
    assert 60 << 20 <= series["memory_bytes"] < 128 << 20
    assert row["memory_bytes"] == series["memory_bytes"]


def test_cold_calls_of_a_plan_come_after_as_many_evictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evicted: list[int] = []
    whole = timing.Evictor.__call__

    def counted(self: timing.Evictor) -> None:
        evicted.append(self.buffer_bytes)
        whole(self)

    monkeypatch.setattr(timing.Evictor, "__call__", counted)
    (row,) = summarise([measure_here(of_file(tmp_path, "Largest", (1 << 17,), cold=True))]).rows
    assert row["cold"]["samples"] >= 1  # a slow machine has time for few samples
    assert len(evicted) >= row["cold"]["samples"]


def test_a_sample_has_as_many_calls_as_were_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "calibrate", lambda work, *limits: (3, [1e-3, 1e-3]))
    for row in summarise([measure_here(plan(backward=True))]).rows:
        assert row["calls"] == 3


@pytest.mark.slow
def test_real_roofline_holds_the_frameworks_own_peaks() -> None:
    (raw,) = measure(plan())
    assert set(raw["roofline"]["seen"]) == {"numpy", ENGINE, "onnxruntime"}
    for flop_s, byte_s in raw["roofline"]["seen"].values():
        assert flop_s > 1e8
        assert byte_s > 1e8
    assert raw["roofline"]["flop_s"] == max(flop_s for flop_s, _ in raw["roofline"]["seen"].values())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wrong", r"its result 0 differs from that of pytorch by 0\.01; allowed"),
        ("endless", "its result 0 is not finite"),
        ("broken", "raised RuntimeError: no such kernel"),
    ],
)
def test_what_computes_something_else_is_left_out(bare: Callable[[str], str], name: str, reason: str) -> None:
    times = summarise(measure(plan(bare=bare(name))))
    (entry,) = times.left_out
    assert re.search(reason, entry["reason"])
    assert dict(times.coverage["pytorch (bare)"]) == {"measured": 0, "of": 1}


def test_tolerance_follows_from_dtype_and_work() -> None:
    (single,), _ = workloads(plan())
    (double,), _ = workloads(plan(dtype="float64"))
    (whole,), _ = workloads(plan(dtype="int64"))
    # 64 units in the last place times the square root of the 32 products in a sum.
    for dtype in ("float16", "float64", "int64"):  # the returned element type does not change the tolerance
        results = [np.zeros((24, 40), dtype)]
        assert tolerances(single, results) == [pytest.approx(64 * 2**-23 * 32**0.5)]
        assert tolerances(double, results) == [pytest.approx(64 * 2**-52 * 32**0.5)]
        assert tolerances(whole, results) == [0]
    unsaid = replace(single, outputs=None)
    assert tolerances(unsaid, [np.zeros((24, 40), "float16")]) == [0.1]
    assert tolerances(unsaid, [np.zeros((24, 40), int)]) == [0]


def test_a_result_of_another_element_type_is_another_result() -> None:
    """A gradient must have its input's element type. Hand-written code reads any type within the same tolerance."""
    (forward, backward), _ = workloads(plan(backward=True))
    right = [np.ones(shape, np.float32) for shape in ((24, 40), (24, 32), (32, 40))]

    def told(work: Any, arrays: list[Any], *, bare: bool = False) -> str | None:
        return difference(work, Results(label="a", bare=bare, arrays=arrays), None)

    assert told(forward, right[:1]) is None
    assert told(backward, right) is None
    assert told(forward, [right[0].astype(np.float16)]) == "its result 0 is float16; allowed: float32"
    assert told(backward, [*right[:2], right[2].astype(float)]) == "its result 2 is float64; allowed: float32"
    assert told(forward, [right[0].astype(np.float64)], bare=True) is None
    rough = Results(label="a", bare=True, arrays=[(right[0] * 1.002).astype(np.float16)])
    standard = Results(label="b", bare=False, arrays=right[:1])
    assert re.search(r"differs from that of b by 0\.00", difference(forward, rough, standard) or "")
    assert told(replace(forward, outputs=None), [right[0].astype(np.float16)]) is None  # no expected outputs


def test_operators_on_whole_numbers_are_timed_and_must_agree_exactly() -> None:
    times = summarise(measure(plan(operator="Add", shapes=((3, 4), (3, 4)), dtype="int32")))
    assert dict(times.coverage[ENGINE]) == {"measured": 1, "of": 1}


def test_an_accelerators_numerics_that_cannot_be_set_any_more_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, deterministic: bool, tf32: bool) -> None:
        raise UsageError("it has started")

    monkeypatch.setattr(type(framework(ENGINE)), "_set_numerics", refuse)
    (warning,) = measure_here(plan(device="cuda:0"))["warnings"]
    assert warning == (
        f"{ENGINE} does not run with bit-identical results and without TF32: it has started; remedy: --rigorous, "
        "which starts fresh processes"
    )
    assert measure_here(plan())["series"]  # the host has no such setting


def test_settings_are_those_of_what_has_run() -> None:
    """ONNX Runtime's provider belongs to a session, which exists only after a run."""
    raw = measure_here(plan(frameworks=("onnxruntime",)))
    assert raw["settings"]["onnxruntime"]["provider"] == "CPUExecutionProvider"


def test_threads_are_read_back_and_another_number_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    (raw,) = measure(plan())
    assert raw["settings"][ENGINE]["threads"] == 1
    assert raw["warnings"] == []
    monkeypatch.setattr("deep5.frameworks.pytorch.framework.PyTorch.set_threads", lambda self, threads: None)
    (raw,) = measure(plan(threads=2))
    assert raw["warnings"] == ["the run requested 2 threads and pytorch has 1"]

    def refuse(self: Any, threads: int) -> None:
        raise UsageError("it has started")

    monkeypatch.setattr("deep5.frameworks.pytorch.framework.PyTorch.set_threads", refuse)
    assert (
        "pytorch does not run with 2 threads: it has started; remedy: --rigorous"
        in measure(plan(threads=2))[0]["warnings"][0]
    )


@pytest.mark.parametrize("code", ["product", "broken"])
def test_settings_are_those_of_deep5_whoever_comes_first(
    bare: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    wanted = measure(plan())[0]["settings"]
    assert wanted[ENGINE]["threads"] == 1
    order = [Candidate(framework=ENGINE, bare=True), Candidate(framework=ENGINE)]
    monkeypatch.setattr("deep5.bench.measure.candidates", lambda plan: order)
    assert measure(plan(bare=bare(code)))[0]["settings"] == wanted


def test_processors_beyond_the_threads_are_told_of_code_by_hand_too() -> None:
    found = [{"candidate": "a", "processors": 1.02}, {"candidate": "a (bare)", "processors": None}]
    assert _thread_warnings(plan(), {}, found) == []
    found += [{"candidate": "a (bare)", "processors": 1.94}, {"candidate": "a (bare)", "processors": 1.5}]
    assert _thread_warnings(plan(), {}, found) == ["the run requested 1 threads and a (bare) keeps 1.9 processors busy"]
    assert _thread_warnings(plan(threads=2), {}, found) == []


def test_who_keeps_more_processors_busy_than_it_was_given_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares the processor's clock with the wall clock: here one that runs three times as fast."""
    monkeypatch.setattr("deep5.bench.series.process_time", lambda: 3 * perf_counter())
    (said,) = measure_here(plan())["warnings"]
    assert re.fullmatch(r"the run requested 1 threads and pytorch keeps \d+\.?\d* processors busy", said)


def test_first_calls_come_in_another_order_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []

    def noted(candidate: Candidate, *others: Any) -> Any:
        orders[-1].append(candidate.framework)
        return prepare(candidate, *others)

    monkeypatch.setattr("deep5.bench.measure.prepare", noted)
    for process in range(5):
        orders.append([])
        found = measure_here(plan(frameworks=(ENGINE, "reference")), process)
        assert [series["framework"] for series in found["series"]] == [ENGINE, "reference"], "told in the plan's order"
    assert {tuple(order) for order in orders} == {(ENGINE, "reference"), ("reference", ENGINE)}


def test_gradients_that_a_problem_has_not_are_told() -> None:
    products = Plan(problems="deepbench.gemm", backward=True, limit_gflop=0.01, take=2, frameworks=("reference",))
    assert remarks(products, *workloads(products)) == [
        "gradients are requested, and 2 of 2 problems have only a forward pass (use inference_server, training)"
    ]
    assert measure(replace(products, rounds=1))[0]["warnings"] == remarks(products, *workloads(products))
    without = replace(products, backward=False)
    assert remarks(without, *workloads(without)) == []
    trained = Plan(problems="deepbench.conv", uses=("training",), backward=True, take=2)
    assert remarks(trained, *workloads(trained)) == []
    whole = plan(operator="Add", shapes=((2,), (2,)), dtype="int64", backward=True)
    alone = ["gradients are requested, and 1 of 1 problems have only a forward pass"]
    assert remarks(whole, *workloads(whole)) == alone
    made = recipe({"problems": "deepbench.gemm", "operator": None, "shapes": (), "backward": True}, {"take": 2})
    assert any("have only a forward pass" in note for note in check_operators(recipe_parts(made)))


def test_gradients_beyond_the_limit_are_told() -> None:
    # 2 * 24 * 32 * 40 operations forward, three times that with gradients.
    limited = plan(backward=True, limit_gflop=1e-4)
    works, left_out = workloads(limited)
    assert [work.direction.name for work in works] == ["forward"]
    (said,) = remarks(limited, works, left_out)
    assert (
        "1 directions with gradients of problems whose forward pass runs are left out, such as MatMul, backward: its "
        "work is 184 kFLOP" in said
    )
    within = replace(limited, limit_gflop=1e-3)
    assert remarks(within, *workloads(within)) == []


def test_recurrent_layers_by_hand_are_told_to_be_another_implementation(bare: Callable[[str], str]) -> None:
    layers = Plan(problems="deepbench.rnn", take=1, bare=bare("product"))
    (said,) = remarks(layers, *workloads(layers))
    assert "their ratio compares implementations and is not the overhead of deep5" in said
    products = replace(layers, problems="deepbench.gemm")
    assert remarks(products, *workloads(products)) == []


def test_what_is_faster_than_by_hand_is_another_implementation() -> None:
    def warnings(ours: float, by_hand: float) -> tuple[str, ...]:
        found = raw(0, [])
        # Six sizes: fewer allow no interval of the median ratio.
        sizes = [
            {**raw(0, [time] * 7, problem=f"p{size}", bare=bare)["series"][0], "candidate": f"a{' (bare)' * bare}"}
            for size in range(6)
            for bare, time in ((False, ours), (True, by_hand))
        ]
        return summarise([{**found, "series": sizes}]).warnings

    (said,) = warnings(0.5e-3, 1e-3)
    assert said.startswith(
        "a takes 0.50 times as long through deep5 as in hand-written code (median of 6): the implementations differ"
    )
    assert warnings(0.95e-3, 1e-3) == ()
    assert warnings(1.5e-3, 1e-3) == ()


def test_what_a_framework_has_not_is_listed(bare: Callable[[str], str]) -> None:
    times = summarise(measure(plan(bare=bare("product"), backward=True)))
    assert {row["candidate"] for row in times.rows if row["direction"] == "backward"} == {ENGINE}
    assert [(entry["direction"], entry["candidate"], entry["reason"]) for entry in times.left_out] == [
        ("backward", "pytorch (bare)", "no gradient by hand here")
    ]
    ((through, by_hand),) = times.pairs()
    assert (through["candidate"], by_hand["candidate"]) == ("pytorch", "pytorch (bare)")


@pytest.mark.slow
def test_nothing_measured_is_a_failure(bare: Callable[[str], str]) -> None:
    with pytest.raises(RunFailed, match=r"no candidate could be timed; the first reason: .*no such kernel"):
        measure(Plan(operator=bare("refused"), shapes=((2, 2),), frameworks=(ENGINE,)))


def test_planted_waits_are_measured(bare: Callable[[str], str]) -> None:
    """Each call takes at least the planted wait: 1 ms on PyTorch, 1.05 ms on the reference."""
    times = summarise(measure(plan(bare=bare("spinning"), frameworks=("pytorch", "reference"), rounds=7)))
    least = {row["framework"]: row["low_s"] for row in times.rows if row["bare"]}
    assert least["pytorch"] >= 1e-3
    assert least["reference"] >= 1.05e-3


# Statistics on raw samples


def raw(process: int, samples: list[float], **changes: Any) -> dict[str, Any]:
    series = {
        "problem": "p", "title": "t", "use": "", "direction": "forward", "candidate": "a", "framework": "a",
        "bare": False, "flops": 2_000_000, "bytes": 1_000_000, "calls": 1, "first_call_s": 1.0, "memory_bytes": None,
        "settled": True, "spent_s": 0.1, "processors": 1.0, "warm_ups": [(0.0, 1.0)], "cold": [],
        "samples": [(0.1 * n, s) for n, s in enumerate(samples)], **changes,
    }  # fmt: skip
    roofline = {"flop_s": 4e9, "byte_s": 1e9, "threads": 1, "dtype": "float32", "seen": {"numpy": (4e9, 1e9)}}
    return {
        "process": process, "series": [series], "left_out": [], "warnings": [], "settings": {}, "resolution_s": 1e-7,
        "overhead_s": 1e-7, "roofline": roofline, "peaks_flop_s": [4e9, 4e9],
    }  # fmt: skip


def test_one_process_gives_the_interval_of_its_samples() -> None:
    times = summarise([raw(0, [1e-3, 1.1e-3, 1.2e-3, 1.3e-3, 1.4e-3, 1.5e-3])])
    (row,) = times.rows
    assert (row["median_s"], row["low_s"], row["high_s"]) == (pytest.approx(1.25e-3), 1e-3, 1.5e-3)
    assert row["gflop_s"] == pytest.approx(2 / 1.25)
    # Two operations a byte at 1 GB/s: at most 2 GFLOP/s of the 4 that a product reaches.
    assert row["share_of_peak"] == pytest.approx(1.6 / 4)
    assert row["share_of_roofline"] == pytest.approx(1.6 / 2)
    assert any("the interval is 0.80 to 1.20 of the median" in text for text in row["warnings"])


def test_several_processes_give_the_interval_of_their_medians() -> None:
    # Each process is quiet, but they differ: many samples per process do not make the interval narrow.
    found = [raw(number, [1e-3 * (1 + number / 10)] * 30) for number in range(8)]
    (row,) = summarise(found).rows
    assert row["samples"] == 240
    assert row["processes"] == 8
    interval = median_interval([1e-3 * (1 + number / 10) for number in range(8)])
    assert (row["low_s"], row["high_s"]) == (interval.low, interval.high)


def test_too_few_samples_give_no_interval_and_a_warning() -> None:
    (row,) = summarise([raw(0, [1e-3] * 5)]).rows
    assert row["low_s"] is None
    assert any("5 samples allow no interval" in text for text in row["warnings"])


def test_drift_an_unsettled_start_and_a_short_call_are_said() -> None:
    drifting = [1e-6] * 10 + [1.2e-6] * 10
    (row,) = summarise([raw(0, drifting, settled=False)]).rows
    said = " ".join(row["warnings"])
    assert "the times drift: the second half takes +20 % relative to the first; remedy: --rigorous" in said
    assert "had not settled" in said
    assert "the loop itself takes 9 % of a call (100 ns)" in said
    (row,) = summarise([raw(0, [1e-3] * 20)]).rows
    assert row["warnings"] == []


# The recipe of level 0


def recipe(fixed: dict[str, Any] | None = None, mutable: dict[str, Any] | None = None, metrics: Any = ()) -> Recipe:
    base = {"operator": "MatMul", "shapes": ((24, 32), (32, 40))}
    return Recipe.make({**base, **(fixed or {})}, {"frameworks": (ENGINE,), "rounds": 7, **(mutable or {})}, metrics)


METRICS = [(OperatorTime(), "< 1000 ms"), (BareRatio(), None), (OperatorCost(), None), (OperatorCoverage(), ">= 100 %")]


def test_a_recipe_of_level_0_gives_a_valid_result(bare: Callable[[str], str], tmp_path: Path) -> None:
    made = recipe({"bare": bare("product")}, {"cold": True}, METRICS)
    result = execute(made, out=tmp_path / "out", quiet=True)
    jsonschema.Draft202012Validator(schema()).validate(result.document)
    document = load(result.folder).document
    assert document["level"] == 0
    assert document["measurement"]["mode"] == "quick"
    assert document["measurement"]["cache_state"] == "warm, cold"
    assert document["framework"]["name"] == ENGINE
    assert result.accepted
    samples = result.samples()
    told = json.loads((result.folder / OPERATORS).read_text())
    assert {row["candidate"] for row in told["rows"]} == {"pytorch", "pytorch (bare)"}
    for row in told["rows"]:
        (name,) = row["series"]
        assert median(sample.value for sample in samples[name]) == row["median_s"]
    assert {"warm", "warm-up", "cold"} == {name.split(" | ")[3] for name in samples if name.startswith("time[")}
    through, by_hand = (median(s.value for s in samples[row["series"][0]]) for row in told["rows"])
    assert result.metric("operator_time") == pytest.approx(through * 1e3)
    ours, theirs = ([s.value for s in samples[row["series"][0]]] for row in told["rows"])
    assert result.metric("bare_ratio") == pytest.approx(median(a / b for a, b in zip(ours, theirs, strict=True)))
    assert by_hand > 0


def test_pictures_are_drawn_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe({"box": "MatMul"}, {"pictures": True, "frameworks": f"{ENGINE},reference"})
    result = execute(made, out=tmp_path, quiet=True)
    for name in ("violin", "box"):
        assert (result.folder / f"{name}.svg").read_text().startswith("<svg")
        assert (result.folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "altair", None)
    result = execute(made, out=tmp_path, quiet=True)
    assert result.status == "success"
    assert any("no pictures were drawn: " in text for text in result.document["warnings"])
    assert not list(result.folder.glob("*.svg"))


def test_metrics_of_operators() -> None:
    fast, slow = [1e-3] * 7, [1.5e-3] * 7
    found = raw(0, slow)
    found["series"].append({**raw(0, fast)["series"][0], "bare": True, "candidate": "a (bare)"})
    found["left_out"] = [{**found["series"][0], "problem": "q", "reason": "too large"}]
    times: OperatorTimes = summarise([found])
    values = {}
    for metric in (OperatorTime(), OperatorTime("b"), BareRatio(), OperatorCost(), OperatorCoverage()):
        observer = metric.observer()
        assert observer.value() is None
        observer.after_timing(times)
        values[repr(metric)] = observer.value()
    assert values == {
        "OperatorTime(framework=None)": pytest.approx(1.5),
        "OperatorTime(framework='b')": None,
        "BareRatio()": pytest.approx(1.5),
        "OperatorCost()": pytest.approx(500),
        "OperatorCoverage()": 50,
    }


@pytest.mark.parametrize(
    ("fixed", "mutable", "message"),
    [
        ({"operator": "Cnv"}, {}, "Cnv"),
        ({"operator": None}, {}, "names neither 'operator' nor 'problems'"),
        ({"shapes": ()}, {}, "the inputs of MatMul are not known; remedy: --shape"),
        ({"shapes": ((2, 3), (4, 5))}, {}, "MatMul"),
        ({"shapes": "64x64"}, {}, "'shapes' is '64x64'; allowed: a shape an input"),
        ({"problems": "deepbench.conv", "shapes": ()}, {}, "are of Conv; got the operator 'MatMul'"),
        ({"problems": "deepbench.gemm", "operator": "Gemm"}, {}, "problems and shapes are both given"),
        ({"box": ""}, {}, "'box' is ''; allowed: a string"),
        ({"problems": "deepbench.gemm", "operator": "Gemm", "shapes": (), "box": "gemm-0"}, {}, "'box' is 'gemm-0'"),
        ({"attributes": [1]}, {}, "'attributes' is \\[1\\]; allowed: a dict"),
        ({}, {"frameworks": ("pytroch",)}, "unknown framework 'pytroch'; allowed: .*did you mean 'pytorch'"),
        (
            {},
            {"frameworks": ("pytorch:fast",)},
            "unknown pytorch mode 'fast'; allowed: compiled, exported; remedy: 'pytorch'",
        ),
        ({}, {"frameworks": ()}, "'frameworks' is \\(\\); allowed: a tuple of names"),
        ({}, {"frameworks": ("pytorch", "pytorch")}, "a framework twice"),
        ({}, {"limit_gflop": 0}, "'limit_gflop' is 0; allowed: a number of GFLOP above 0"),
        ({}, {"take": 0}, "'take' is 0; allowed: an integer of at least 1"),
        ({}, {"rigorous": 1}, "'rigorous' is 1; allowed: True or False"),
        ({}, {"epochs": 1}, "unknown key 'epochs' in MUTABLE; allowed: operator, problems"),
        ({}, {"limit_gflop": "abc"}, "'limit_gflop' is 'abc'; allowed: a number of GFLOP above 0, or None"),
        # 2 * 24 * 32 * 40 operations.
        ({"limit_gflop": 1e-6}, {}, "no problem is left to run; got limit_gflop=1e-06; allowed: at least 6.15e-05,"),
        ({"dtype": "float99"}, {}, "got the element type 'float99'; allowed: .*'float32'"),
        (
            {"problems": "deepbench.gemm", "operator": None, "shapes": ()},
            {"uses": "training,foo"},
            "unknown use of a problem 'foo'; allowed: .*inference_server",
        ),
        ({"operator": "Conv", "shapes": ((1, 3, 8, 8), (4, 5, 3, 3))}, {}, "got 3 channels and filters over 5 in 1"),
        ({}, {"bare": 3}, "'bare' is 3; allowed"),
    ],
)
def test_a_recipe_that_is_wrong_is_told_what(fixed: Any, mutable: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_operators(recipe_parts(recipe(fixed, mutable)))


def test_the_smallest_limit_that_is_told_leaves_something() -> None:
    small = recipe({"problems": "deepbench.conv", "operator": None, "shapes": (), "limit_gflop": 1e-7})
    with pytest.raises(RecipeError, match=r"allowed: at least ([\d.e-]+)") as told:
        check_operators(recipe_parts(small))
    least = float(re.search(r"at least ([\d.e-]+),", str(told.value))[1])  # type: ignore[index]
    enough = replace(plan_of(recipe_parts(small)), limit_gflop=least)
    assert workloads(enough)[0]
    assert not workloads(replace(enough, limit_gflop=0.99 * least))[0]


def test_a_workload_that_may_change_makes_a_run_open() -> None:
    made = recipe()
    assert made.division == "closed"
    assert made.with_settings({"rounds": 8, "frameworks": "reference"}).division == "closed"
    for key, value in {"take": 6, "limit_gflop": 0.3, "uses": "training", "dtype": "float64", "backward": True}.items():
        changed = made.with_settings({key: value})
        assert changed.fixed_hash() == made.fixed_hash()
        assert changed.division == "open", key
    assert recipe({}, {"take": 6}).division == "open", "a recipe that lets it change is open itself"


def test_a_recipe_hands_its_plan_to_other_processes(tmp_path: Path, bare: Callable[[str], str]) -> None:
    made = recipe({"bare": bare("product"), "attributes": {}}, {"rigorous": True, "take": 3, "limit_gflop": 0.5})
    there = plan_of(recipe_parts(made))
    assert Plan.from_json(there.to_json()) == there
    assert there.mode == "rigorous"
    assert check_operators(recipe_parts(made)) == ["1 of 1 problems and directions would be run"]


def test_rigorous_measures_in_fresh_processes(bare: Callable[[str], str]) -> None:
    found = measure(plan(mode="rigorous", processes=2, bare=bare("product"), frameworks=("reference",)))
    assert [raw["process"] for raw in found] == [0, 1]
    times = summarise(found)
    assert {row["processes"] for row in times.rows} == {2}
    assert len({name for name, _ in times.samples()}) == 2 * 2 * 2  # processes, candidates, warm-ups and samples


@pytest.mark.slow
def test_a_fresh_process_finds_the_package_beside_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep5").mkdir()  # like a clone
    monkeypatch.chdir(tmp_path)
    (raw,) = measure(plan(mode="rigorous", processes=1, frameworks=("reference",)))
    assert raw["series"]


# The command


@contextmanager
def _plain(debug: bool, as_json: bool) -> Iterator[Callable[[str], None]]:
    yield click.echo


def bench(*arguments: str) -> None:
    bench_command(_plain).main(["operator", *arguments], standalone_mode=False)


def test_the_command_prints_a_table_and_keeps_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ("--shape", "24x32", "--shape", "32x40", "--frameworks", ENGINE, "--out", str(tmp_path))
    bench("MatMul", *shapes)
    printed = capsys.readouterr().out
    assert "24x32, 32x40, forward" in printed
    assert "pytorch: 1 of 1 measured" in printed
    (folder,) = tmp_path.iterdir()
    assert str(folder) in printed
    bench("MatMul", *shapes, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["rows"][0]["median_s"] > 0


OPERATOR = """
import deep5 as d5

class Twice(d5.Operator):
    def __init__(self, factor=2.0): self.factor = factor
    def specs(self, x): return (x,)
    def forward(self, x): return self.factor * x
    def backward(self, output_grads, inputs, outputs, needs): return (self.factor * output_grads[0],)
    def flops(self, x): return x.size

def double(x): return x + x
made = d5.NativeOperator(double, framework="pytorch")
told = d5.NativeOperator(double, framework="pytorch", specs=lambda x: (x,))
number = 3
"""


@pytest.mark.parametrize(
    ("name", "flops", "moved"),
    [
        ("Twice", 64, 512),
        pytest.param("double", None, None, marks=pytest.mark.slow),
        pytest.param("made", None, None, marks=pytest.mark.slow),
        ("told", None, 512),
    ],
)
def test_the_command_takes_an_operator_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, flops: int | None, moved: int | None
) -> None:
    (tmp_path / "mine.py").write_text(OPERATOR)
    where = ("--shape", "8x8", "--frameworks", ENGINE, "--out", str(tmp_path / "out"), "--json")
    bench(f"{tmp_path / 'mine.py'}:{name}", *where, "--backward")
    told = json.loads(capsys.readouterr().out)
    assert [row["direction"] for row in told["rows"]] == ["forward", "backward"], told["left_out"]
    assert (told["rows"][0]["flops"], told["rows"][0]["bytes"]) == (flops, moved)
    operator_table(told, Console(width=130))
    assert ("GB/s: - without specs" in capsys.readouterr().out) == (moved is None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("MatMul",), "the inputs of MatMul are not known"),
        (("MatMul", "--shape", "2,3"), "got the shape '2,3'; allowed: sizes such as 3x4"),
        (("MatMul", "--shape", "2x3", "--shape", "4x5"), "MatMul with float32\\[2, 3\\], float32\\[4, 5\\]: "),
        (("Conv", "--problems", "deepbench.con"), "unknown problem set 'deepbench.con'.*did you mean"),
        (("Conv", "--problems", "deepbench.conv", "--use", "test"), "unknown use of a problem 'test'"),
        (("MatMul", "--shape", "2x2", "--frameworks", "torch"), "unknown framework 'torch'"),
        (("MatMull", "--shape", "2x2"), "unknown operator 'MatMull'.*such as Conv; did you mean 'MatMul'"),
        (("org.example.None", "--shape", "2x2"), "unknown operator 'org.example.None'; allowed: .*deep5.CTCLoss"),
        (("FILE:Twice:8", "--shape", "2x2"), "mine.py:Twice:8"),
        (("FILE:number", "--shape", "2x2"), "got 3; allowed: a class of d5.Operator, an operator, or a function"),
        (
            ("FILE:Twice", "--shape", "2x2", "--set", "factr=1"),
            "Twice has no argument 'factr'; allowed: factor; did you mean 'factor'",
        ),
        (("MatMul", "--shape", "2x2", "--set", "a"), "cannot read the setting 'a'"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "mine.py").write_text(OPERATOR)
    given = [word.replace("FILE", str(tmp_path / "mine.py")) for word in arguments]
    with pytest.raises(UsageError, match=message):
        bench(*given, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists(), "nothing is left behind"


def test_without_frameworks_all_that_are_installed_are_taken() -> None:
    made = ready_recipe("MatMul", shapes=("2x2", "2x2"))
    assert {"pytorch", "reference"} <= set(made.value("frameworks"))


def table(times: OperatorTimes, width: int = 130) -> str:
    """The printed text without its line breaks."""
    import io

    from deep5.bench.record import operators_document

    out = io.StringIO()
    operator_table(operators_document(times), Console(file=out, width=width))
    return " ".join(out.getvalue().split())


def test_marks_and_empty_places_are_explained() -> None:
    plain = table(summarise([raw(0, [1e-3] * 7)]))
    assert "product in float32" in plain
    for text in (
        "!: the number may be unstable",
        "GFLOP/s: -",
        "memory: growth of this process's memory",
        "backward: the",
    ):
        assert text not in plain, "nothing of the kind is in the table"
    odd = {"flops": None, "direction": "backward by data", "memory_bytes": 3 << 20}
    told = table(summarise([raw(0, [1e-3] * 5, **odd)]))
    assert " 3 MiB" in told
    assert "1 ms! - - 1 -" in told
    assert "!: the number may be unstable, for the reasons below; - as interval: too few samples" in told
    assert "! 1 of 1: 5 samples allow no interval; remedy: --rigorous" in told
    assert "GFLOP/s: - without a formula for the operations" in told
    assert "memory: growth of this process's memory in the first call, including compiled code" in told
    assert "backward: the forward pass and the gradients, in time and in operations" in told


def test_reasons_that_are_alike_or_long_are_told_in_short() -> None:
    found = raw(0, [1e-3] * 7)
    (series,) = found["series"]
    work = [{**series, "problem": f"q{n}", "reason": f"its work is {n}.5 GFLOP (limit_gflop=1)"} for n in (2, 3)]
    found["left_out"] = [*work, {**series, "problem": "r", "reason": "x" * 1000}]
    told = table(summarise([found]))
    assert "left out, 2 of a, such as: its work is 2.5 GFLOP (limit_gflop=1)" in told
    assert re.search("left out, 1 of a: x+ … \\(the rest is in operators.json\\)", told.replace("x x", "xx"))
    assert told.count("x") < 300
    other = {**series, "candidate": "b"}
    found["left_out"] = [{**entry, "problem": "q", "reason": "too large"} for entry in (series, other)]
    assert "left out, 1 of every candidate: too large" in table(summarise([found]))


def test_times_are_told_in_three_digits() -> None:
    told = [seconds(value) for value in (2.5, 1e-3, 1.234e-3, 9.87e-7, None)]
    assert told == ["2.5 s", "1 ms", "1.23 ms", "987 ns", "-"]


def test_the_table_is_readable_at_80_columns() -> None:
    import io

    from deep5.bench.record import operators_document

    out = io.StringIO()
    times = summarise([raw(0, [1e-3] * 7, title="N=16 C=3 H=224 W=224 K=64 3x3")])
    operator_table(operators_document(times), Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(re.search(r"^ *a +1 ms +1-1 ms +2 +1 +100 %", line) for line in lines), out.getvalue()


def test_measuring_leaves_the_machine_as_it_was() -> None:
    import gc

    frozen = gc.get_freeze_count()
    measure(plan())
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


@pytest.mark.slow
def test_whoever_comes_first_is_not_right_for_that(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "import numpy as np\nimport deep5 as d5\nclass Odd(d5.Operator):\n    def specs(self, x): return (x,)\n"
        "    def forward(self, x): return x + (1 if isinstance(x, np.ndarray) else 0)\n"
        "    def backward(self, output_grads, inputs, outputs, needs): return (output_grads[0],)\n"
    )
    given = Plan(operator=f"{tmp_path}/odd.py:Odd", shapes=((8,),), frameworks=("reference", "pytorch", "jax"))
    (raw,) = measure(given)
    assert [entry["candidate"] for entry in raw["left_out"]] == ["reference"]
    assert "differs from that of pytorch" in raw["left_out"][0]["reason"]
    with pytest.raises(RunFailed, match="no two of reference, pytorch give the same results"):
        measure(replace(given, frameworks=("reference", "pytorch")))
