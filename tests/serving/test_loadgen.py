"""The load generator compared with MLPerf's own (`mlcommons-loadgen`), each against the same server."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from deep5.bench.serving.generator import generate_load
from deep5.bench.serving.plan import ServingPlan
from deep5.bench.serving.records import OK
from deep5.bench.serving.summary import nearest_rank, query_latencies, summarise_load
from deep5.bench.serving.system import BatchServer
from planted import Planted, on_a_quiet_moment

# One in ten requests takes 20 ms, the others 4 ms: the 50th and the 95th percentile are those.
SAMPLES = [0.004] * 9 + [0.02]
QUERIES = 60
SCENARIOS = {
    "single_stream": ("SingleStream", {}),
    "multi_stream": ("MultiStream", {}),
    "server": ("Server", {"server_target_qps": 60.0, "server_target_latency_ns": 10**9}),
    "offline": ("Offline", {"offline_expected_qps": 1.0}),
}


def server_of(scenario: str, planted: Planted) -> BatchServer:
    # The eight samples of a query of the multi stream are one batch.
    size = 8 if scenario == "multi_stream" else 1
    return BatchServer(planted, max_batch=size, deadline_s=0.5 if size > 1 else 0.0)


def by_mlperf(scenario: str, folder: Path) -> tuple[dict[str, Any], list[float], Planted]:
    """What MLPerf's generator reports, by the server's clock the latency of each query, and the server's log."""
    loadgen = pytest.importorskip("mlperf_loadgen", reason="mlcommons-loadgen is not installed")
    name, changes = SCENARIOS[scenario]
    settings = loadgen.TestSettings()
    settings.scenario, settings.mode = getattr(loadgen.TestScenario, name), loadgen.TestMode.PerformanceOnly
    settings.min_query_count, settings.min_duration_ms = QUERIES, 0
    if scenario != "offline":
        settings.max_query_count = QUERIES
    for key, value in changes.items():
        setattr(settings, key, value)
    planted, seen = Planted(), list[list[float]]()
    server = server_of(scenario, planted)

    def issue(query: Sequence[Any]) -> None:
        own: list[float] = []
        seen.append(own)
        for sample in query:
            server.submit(SAMPLES[sample.index], _answering(loadgen, sample.id, perf_counter(), own))

    under_test = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(len(SAMPLES), len(SAMPLES), lambda _: None, lambda _: None)
    log = loadgen.LogSettings()
    log.log_output.outdir, log.log_output.prefix = str(folder), ""
    log.enable_trace = False
    loadgen.StartTestWithLogSettings(under_test, library, settings, log)
    server.close()
    loadgen.DestroyQSL(library)
    loadgen.DestroySUT(under_test)
    lines = (folder / "detail.txt").read_text().splitlines()
    found = [json.loads(line.partition(":::MLLOG ")[2]) for line in lines]
    return {entry["key"]: entry["value"] for entry in found}, [max(own) for own in seen], planted


def _answering(loadgen: Any, number: int, issued_s: float, own: list[float]) -> Callable[[Any], None]:
    def done(answer: Any) -> None:
        assert answer.status == OK
        own.append(perf_counter() - issued_s)
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(number, 0, 0)])

    return done


def by_deep5(scenario: str) -> tuple[Any, Planted]:
    plan = ServingPlan(
        scenario=scenario, queries=QUERIES, rates=(60.0,) if scenario == "server" else (), seed=11, timeout_s=60.0
    )
    planted = Planted()
    with server_of(scenario, planted) as server:
        return generate_load(plan, server, SAMPLES), planted


def mlperf_rank(values: Sequence[float], percent: float) -> float:
    """A percentile as MLPerf's generator takes it: one rank above the nearest one, where the two differ."""
    ordered = sorted(values)
    return ordered[min(math.floor(len(ordered) * percent / 100), len(ordered) - 1)]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_both_make_the_same_number_of_queries_and_samples(scenario: str, tmp_path: Path) -> None:
    theirs, _, their_server = by_mlperf(scenario, tmp_path)
    load, our_server = by_deep5(scenario)
    (phase,) = summarise_load(load)
    assert phase.failures == 0
    samples = [sum(len(batch) for batch, _, _ in server.log) for server in (their_server, our_server)]
    assert samples[0] == samples[1] == phase.requests == QUERIES * (8 if scenario == "multi_stream" else 1)
    if scenario != "offline":  # one query with all samples in MLPerf's, one request per sample in ours
        assert theirs["result_query_count"] == phase.queries == QUERIES
    assert theirs["effective_samples_per_query"] == (
        QUERIES if scenario == "offline" else len(load.requests) // QUERIES
    )


@pytest.mark.parametrize("scenario", ["single_stream", "multi_stream", "server"])
def test_both_recover_the_planted_percentiles(scenario: str, tmp_path: Path) -> None:
    """Each generator's 50th and 90th percentile is within 1 ms of what the server's own clock says.

    The server's clock, not the planted number: on a busy machine a sleep of 4 ms may take 6 ms.
    """
    attempts = iter(range(100))

    def attempt() -> list[str]:
        folder = tmp_path / str(next(attempts))
        folder.mkdir()
        theirs, seen, _ = by_mlperf(scenario, folder)
        which = "per_query_latency_ns" if scenario == "multi_stream" else "latency_ns"
        wrong = []
        for percent in (50, 90):
            found = theirs[f"result_{percent}.00_percentile_{which}"] / 1e9
            expected = mlperf_rank(seen, percent)
            if abs(found - expected) > 1e-3:
                wrong.append(f"MLPerf's p{percent} is {found:.4f} s, by the server {expected:.4f} s")
        load, planted = by_deep5(scenario)
        each = load.plan.samples_per_query
        zero_s = min(end_s - row.last_s for row, end_s in zip(load.requests, planted.ends(), strict=True))
        ends = [end_s - zero_s for end_s in planted.ends()]
        waits = [
            max(ends[query * each : (query + 1) * each]) - load.requests[query * each].scheduled_s
            for query in range(QUERIES)
        ]
        for percent in (50, 90):
            found, expected = nearest_rank(query_latencies(load.requests), percent), nearest_rank(waits, percent)
            if abs(found - expected) > 1e-3:
                wrong.append(f"our p{percent} is {found:.4f} s, by the server {expected:.4f} s")
        return wrong

    on_a_quiet_moment(attempt)


def test_both_see_the_same_tail(tmp_path: Path) -> None:
    """With the server's own variation taken out, the two generators' percentiles agree within 1 ms."""
    attempts = iter(range(100))

    def attempt() -> list[str]:
        folder = tmp_path / str(next(attempts))
        folder.mkdir()
        theirs, _, their_server = by_mlperf("single_stream", folder)
        load, our_server = by_deep5("single_stream")
        took = [[end_s - start_s for _, start_s, end_s in server.log] for server in (their_server, our_server)]
        added = [
            theirs["result_50.00_percentile_latency_ns"] / 1e9 - mlperf_rank(took[0], 50),
            nearest_rank(query_latencies(load.requests), 50) - nearest_rank(took[1], 50),
        ]
        return [] if abs(added[0] - added[1]) < 1e-3 else [f"the generators add {added} s to the service time"]

    on_a_quiet_moment(attempt)
