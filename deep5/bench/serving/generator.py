"""The load generator: issues queries by MLPerf's scenarios, and records what becomes of every request.

A server that is slow or dead never makes the generator lose a request: each has a row, and the waits are bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import perf_counter, sleep
from typing import Any

from deep5.bench.serving.arrivals import arrival_times, drawn_samples
from deep5.bench.serving.plan import ServingPlan
from deep5.bench.serving.records import OK, Request, ServedLoad
from deep5.bench.serving.system import Answer, System

__all__ = ["generate_load"]

# Sleeps end late by up to this on a quiet machine: what remains is waited for in a loop that yields the processor.
_SLEEP_S = 0.0002


def generate_load(
    plan: ServingPlan, system: System, samples: Sequence[Any], *, on_query: Callable[[int], None] = lambda query: None
) -> ServedLoad:
    """Issue a load to a system, phase after phase, and wait for all answers.

    `server` and `offline` are open loops: a query is issued at its scheduled time, whether or not earlier ones were
    answered. `single_stream` and `multi_stream` are closed loops: the next query is scheduled when the previous one is
    answered, so a stall delays only one query there. That is their definition.

    Args:
        plan: The load.
        system: The system under test. It is not closed.
        samples: What can be asked; requests draw from it.
        on_query: Called with the number of each query after it was issued or, in a closed loop, answered.

    Returns:
        One entry per request, failures included. Times count from the call of this function.

    >>> from deep5.bench.serving.system import BatchServer
    >>> plan = ServingPlan(scenario="offline", queries=5, max_batch=2)
    >>> with BatchServer(lambda batch: batch, max_batch=2, deadline_s=0.0) as server:
    ...     load = generate_load(plan, server, ["a", "b"])
    >>> [each.status for each in load.requests], all(each.batch <= 2 for each in load.requests)
    (['ok', 'ok', 'ok', 'ok', 'ok'], True)
    """
    zero_s = perf_counter()
    begins, requests = list[float](), list[Request]()
    for phase in range(plan.phases):
        book = _Book(plan, phase, zero_s, drawn_samples(plan, phase, len(samples)).tolist())
        begins.append(book.begin_s - zero_s)
        if plan.open_loop:
            _open_loop(plan, book, system, samples, arrival_times(plan, phase).tolist(), on_query)
        else:
            _closed_loop(plan, book, system, samples, on_query)
        requests += book.finished()
    return ServedLoad(plan=plan, requests=tuple(requests), begins_s=tuple(begins))


def _open_loop(
    plan: ServingPlan, book: _Book, system: System, samples: Sequence[Any], times_s: Sequence[float],
    on_query: Callable[[int], None],
) -> None:  # fmt: skip
    for place, time_s in enumerate(times_s):
        due_s = book.begin_s + time_s
        _wait_until(due_s)
        book.issue(place, due_s, system, samples)
        on_query(place)
    if not book.wait(len(times_s), plan.timeout_s):
        book.fail_rest(f"no answer within {plan.timeout_s:g} s after the last query")


def _closed_loop(
    plan: ServingPlan, book: _Book, system: System, samples: Sequence[Any], on_query: Callable[[int], None]
) -> None:
    size, due_s = plan.samples_per_query, book.begin_s
    for query in range(plan.queries):
        for place in range(query * size, (query + 1) * size):
            book.issue(place, due_s, system, samples)
        if not book.wait((query + 1) * size, plan.timeout_s):
            book.fail_rest(f"no answer within {plan.timeout_s:g} s to query {query}, so that no further one was issued")
            return
        due_s = book.last_of(query)
        on_query(query)


def _wait_until(due_s: float) -> None:
    while (left_s := due_s - perf_counter()) > 0:
        sleep(left_s - _SLEEP_S if left_s > 2 * _SLEEP_S else 0.0)


class _Book:
    """The requests of a phase while they are served; answers arrive from other threads."""

    def __init__(self, plan: ServingPlan, phase: int, zero_s: float, samples: Sequence[int]) -> None:
        self._plan, self._phase, self._zero_s, self._samples = plan, phase, zero_s, samples
        count = len(samples)
        self._scheduled: list[float | None] = [None] * count
        self._issued: list[float | None] = [None] * count
        self._answers: list[Answer | None] = [None] * count
        self._left, self._answered = count, 0
        self._wakes = threading.Condition()
        self._awaited = 0
        self.begin_s = perf_counter()

    def issue(self, place: int, due_s: float, system: System, samples: Sequence[Any]) -> None:
        self._scheduled[place], self._issued[place] = due_s, perf_counter()
        system.submit(samples[self._samples[place]], lambda answer: self._note(place, answer))

    def _note(self, place: int, answer: Answer) -> None:
        with self._wakes:
            if self._answers[place] is None:  # a late answer does not undo a failure
                self._answers[place] = answer
                self._answered += 1
                if self._answered >= self._awaited:
                    self._wakes.notify()

    def wait(self, count: int, timeout_s: float) -> bool:
        """Wait until as many requests are answered; whether they are."""
        with self._wakes:
            self._awaited = count
            return self._wakes.wait_for(lambda: self._answered >= count, timeout_s)

    def last_of(self, query: int) -> float:
        size = self._plan.samples_per_query
        return max(each.last_s for each in self._answers[query * size : (query + 1) * size] if each is not None)

    def fail_rest(self, reason: str) -> None:
        now_s = perf_counter()
        for place in range(len(self._answers)):
            self._note(place, Answer(now_s, reason))

    def finished(self) -> list[Request]:
        return [self._request(place) for place in range(len(self._answers))]

    def _request(self, place: int) -> Request:
        answer, issued = self._answers[place], self._issued[place]
        assert answer is not None  # noqa: S101 - all are answered or failed
        scheduled = self._scheduled[place]
        number = self._phase * len(self._answers) + place
        whole = answer.status == OK

        def since(at_s: float | None) -> float | None:
            return None if at_s is None else at_s - self._zero_s

        return Request(
            request=number,
            query=number // self._plan.samples_per_query,
            phase=self._phase,
            sample=self._samples[place],
            scheduled_s=(answer.last_s if scheduled is None else scheduled) - self._zero_s,
            issued_s=since(issued),
            started_s=since(answer.started_s),
            first_s=since(answer.last_s if answer.first_s is None else answer.first_s) if whole else None,
            last_s=answer.last_s - self._zero_s,
            batch=answer.batch,
            status=answer.status,
        )
