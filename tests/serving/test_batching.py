"""Batch dispatch in virtual time: no request is lost, duplicated or overtaken, and none waits too long."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deep5.bench.serving.arrivals import arrival_times, drawn_samples
from deep5.bench.serving.batching import BatchQueue, batch_sizes, simulate
from deep5.bench.serving.plan import ServingPlan
from deep5.core.errors import UsageError

GAPS = st.lists(st.floats(0.0, 5.0), min_size=1, max_size=40)


@settings(deadline=None)
@given(gaps=GAPS, max_batch=st.integers(1, 6), deadline_s=st.floats(0.0, 3.0), service_s=st.floats(0.0, 4.0))
def test_every_request_is_served_once_and_in_order(
    gaps: list[float], max_batch: int, deadline_s: float, service_s: float
) -> None:
    arrivals = np.cumsum(gaps).tolist()
    found = simulate(arrivals, lambda size, at: service_s, max_batch=max_batch, deadline_s=deadline_s)
    assert [each.request for each in found] == list(range(len(arrivals)))
    free_s = 0.0
    place = 0
    while place < len(found):
        batch = found[place : place + found[place].batch]
        place += len(batch)
        (started,), (ended,) = {each.started_s for each in batch}, {each.ended_s for each in batch}
        assert 1 <= len(batch) <= max_batch
        assert {each.batch for each in batch} == {len(batch)}
        oldest = batch[0]
        assert started >= max(batch[-1].arrived_s, free_s), "a batch starts when its requests and the server are there"
        due_s = oldest.arrived_s + deadline_s
        if len(batch) == max_batch:
            due_s = min(due_s, batch[-1].arrived_s)
        assert started == max(due_s, free_s), "the oldest waits for the deadline, a full batch or the server only"
        missed = [each for each in found[place:] if each.arrived_s <= started]
        assert not missed or len(batch) == max_batch, "whoever was there by the start is in the batch"
        free_s = ended


def test_a_full_batch_is_due_when_it_is_full() -> None:
    queue = BatchQueue(3, 10.0)
    assert queue.due_s() is None
    for number in range(4):
        queue.add(number, float(number))
    assert queue.due_s() == 2.0
    assert queue.take(1.5) == []
    assert queue.take(2.0) == [0, 1, 2]
    assert (queue.due_s(), queue.take(3.0)) == (13.0, [])
    assert queue.take(3.0, at_once=True) == [3]


def test_a_stall_reaches_every_request_that_arrives_in_it() -> None:
    """One 200 ms stall in a 1 kHz Poisson stream, against Lindley's recursion for a queue with one server."""
    plan = ServingPlan(scenario="server", queries=5000, rates=(1000.0,), seed=7)
    arrivals = arrival_times(plan, 0)
    stalled = iter([False] * 2000 + [True] + [False] * 10_000)

    def service_s(size: int, at: float) -> float:
        return 0.2 if next(stalled) else 0.0002

    found = simulate(arrivals.tolist(), service_s, max_batch=1, deadline_s=0.0)
    latencies = np.array([each.ended_s - each.arrived_s for each in found])
    wait, expected = 0.0, []
    for number, arrived in enumerate(arrivals):
        took = 0.2 if number == 2000 else 0.0002
        gap = arrived - arrivals[number - 1] if number else math.inf
        wait = max(0.0, wait + (0.2 if number == 2001 else 0.0002) - gap) if number else 0.0
        expected.append(wait + took)
    np.testing.assert_allclose(latencies, expected, rtol=0, atol=1e-9)  # sums of float64 times of a few seconds
    above = int((latencies > 0.1).sum())
    assert above == int((np.array(expected) > 0.1).sum())
    # In the first half of the stall about 100 arrive, and each of these waits for more than 100 ms; those served while
    # the queue drains at 5 kHz add some.
    assert 100 <= above <= 160
    # A closed loop sends nothing while it waits, and sees one slow request.
    assert sum(took > 0.1 for took in [0.2] + [0.0002] * 4999) == 1


def test_arrivals_are_poisson_and_repeat() -> None:
    plan = ServingPlan(scenario="server", queries=20_000, rates=(50.0, 400.0), seed=3)
    for phase, rate in enumerate(plan.rates):
        times = arrival_times(plan, phase)
        gaps = np.diff(times, prepend=0.0)
        # Means of 20,000 exponential gaps have a relative standard error of 0.7 %, their variance one of 2 %.
        assert gaps.mean() * rate == pytest.approx(1.0, abs=0.03)
        assert gaps.std() * rate == pytest.approx(1.0, abs=0.06)
        # Exponential: half of the gaps are below ln 2 / rate.
        assert (gaps < math.log(2) / rate).mean() == pytest.approx(0.5, abs=0.02)
        np.testing.assert_array_equal(times, arrival_times(plan, phase))
    other = ServingPlan(scenario="server", queries=20_000, rates=(50.0, 400.0), seed=4)
    assert (arrival_times(other, 0) != arrival_times(plan, 0)).all()
    longer = ServingPlan(scenario="server", queries=30_000, rates=(50.0,), seed=3)
    np.testing.assert_array_equal(arrival_times(longer, 0)[:20_000], arrival_times(plan, 0))
    assert set(drawn_samples(plan, 0, 7).tolist()) == set(range(7))


def test_batches_are_padded_to_powers_of_two() -> None:
    assert [batch_sizes(most) for most in (1, 2, 3, 4, 5, 16)] == [
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 4),
        (1, 2, 4, 5),
        (1, 2, 4, 8, 16),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scenario": "servre"}, "unknown scenario 'servre'; allowed: multi_stream, offline, server, single_stream"),
        ({"transport": "htpp"}, "unknown transport 'htpp'"),
        ({"rates": ()}, "the scenario 'server' has no rate; allowed: a rate in 'server'"),
        ({"scenario": "offline"}, "the scenario 'offline' has the rate 5; allowed: a rate in 'server'"),
        ({"rates": (5.0, 2.0)}, "in ascending order"),
        ({"samples_per_query": 8}, "samples_per_query is 8 in the scenario 'server'; allowed: 1"),
        ({"percentile": 101.0}, "percentile is 101.0; allowed: a number above 0 and at most 100"),
        ({"queries": 0}, "queries is 0; allowed: an integer of at least 1"),
        ({"max_batch": 0}, "max_batch is 0; allowed: an integer of at least 1"),
        ({"timeout_s": 0.0}, "timeout 0.0 s; allowed: at least 0, and above 0"),
        ({"queries": 10**9}, "the load has 1000000000 requests; allowed: at most"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(changes: dict[str, object], message: str) -> None:
    given_load: dict[str, object] = {"scenario": "server", "queries": 10, "rates": (5.0,), **changes}
    with pytest.raises(UsageError) as caught:
        ServingPlan(**given_load)  # type: ignore[arg-type]
    assert message in str(caught.value)
