"""The load of a serving benchmark: MLPerf's scenario, its queries and rates, and the batches of the server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from deep5.core.errors import UnknownName, UsageError

__all__ = ["MULTI_STREAM", "OFFLINE", "SCENARIOS", "SERVER", "SINGLE_STREAM", "TRANSPORTS", "ServingPlan"]

SINGLE_STREAM, MULTI_STREAM, SERVER, OFFLINE = "single_stream", "multi_stream", "server", "offline"

SCENARIOS = {SINGLE_STREAM: 90.0, MULTI_STREAM: 99.0, SERVER: 99.0, OFFLINE: 99.0}
"""The scenarios of MLPerf Inference, each with the latency percentile of its metric (offline reports throughput).

Source: MLCommons, MLPerf Inference Rules, section "Scenarios" (github.com/mlcommons/inference_policies); Reddi et al.,
MLPerf Inference Benchmark, ISCA 2020, section III-C.
"""

TRANSPORTS = ("in_process", "http")
"""How requests reach the server: by a call in the same process, or by HTTP to a separate process on 127.0.0.1."""

# The samples of a query of the scenario `multi_stream`.
_STREAMS = 8
# Rows of requests.csv that a run may write; each takes about 100 bytes of memory and of disk.
_MOST = 10_000_000


@dataclass(frozen=True, kw_only=True)
class ServingPlan:
    """The load, and how the server forms batches.

    Attributes:
        scenario: A key of `SCENARIOS`.
        queries: Number of queries at each rate; in the scenario `offline`, of samples in the one query.
        rates: Target queries per second, ascending, of the scenario `server`; empty for the others.
        samples_per_query: Samples of one query; above 1 only in `multi_stream`. Each sample is one request.
        bound_s: Latency bound of the goodput; None: there is none.
        percentile: The percentile that is compared with the bound, above 0 and at most 100.
        max_batch: Most requests in a batch.
        deadline_s: Longest time that the oldest waiting request waits for others while the server is idle.
        timeout_s: Longest time to wait for an answer, after the last query was issued or for each query of a closed
            loop; a request without one is a failure.
        transport: One of `TRANSPORTS`.
        seed: Seed of the arrival times and of the samples.

    Raises:
        UsageError: A value is invalid, or does not fit the scenario.

    >>> ServingPlan(scenario="server", queries=100, rates=(50.0,)).percentile
    99.0
    >>> ServingPlan(scenario="multi_stream", queries=10).samples_per_query
    8
    """

    scenario: str
    queries: int
    rates: tuple[float, ...] = ()
    samples_per_query: int = 0
    bound_s: float | None = None
    percentile: float = 0.0
    max_batch: int = 1
    deadline_s: float = 0.0
    timeout_s: float = 30.0
    transport: str = "in_process"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.scenario not in SCENARIOS:
            raise UnknownName("scenario", self.scenario, SCENARIOS)
        if self.transport not in TRANSPORTS:
            raise UnknownName("transport", self.transport, TRANSPORTS)
        if not self.samples_per_query:
            object.__setattr__(self, "samples_per_query", _STREAMS if self.scenario == MULTI_STREAM else 1)
        if not self.percentile:
            object.__setattr__(self, "percentile", SCENARIOS[self.scenario])
        self._check_rates()
        if self.samples_per_query > 1 and self.scenario != MULTI_STREAM:
            raise UsageError(
                f"samples_per_query is {self.samples_per_query} in the scenario {self.scenario!r}; allowed: 1; remedy: "
                f"scenario={MULTI_STREAM!r}"
            )
        if not 0 < self.percentile <= 100:
            raise UsageError(f"percentile is {self.percentile!r}; allowed: a number above 0 and at most 100")
        for name, least in (("queries", 1), ("samples_per_query", 1), ("max_batch", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)!r}; allowed: an integer of at least {least}")
        if not 0 <= self.deadline_s < math.inf or not 0 < self.timeout_s < math.inf:
            raise UsageError(
                f"deadline is {self.deadline_s!r} s and timeout {self.timeout_s!r} s; allowed: at least 0, and above 0"
            )
        if self.requests > _MOST:
            raise UsageError(
                f"the load has {self.requests} requests; allowed: at most {_MOST}, each a row of requests.csv; remedy: "
                "fewer queries"
            )

    def _check_rates(self) -> None:
        if (self.scenario == SERVER) != bool(self.rates):
            got = "no rate" if not self.rates else f"the rate {self.rates[0]:g}"
            raise UsageError(
                f"the scenario {self.scenario!r} has {got}; allowed: a rate in {SERVER!r}, whose queries arrive at a "
                "rate, and none in the others, whose queries follow from the answers"
            )
        if any(not 0 < rate < math.inf for rate in self.rates) or list(self.rates) != sorted(set(self.rates)):
            raise UsageError(f"rate is {self.rates!r}; allowed: queries per second above 0, in ascending order")

    @property
    def phases(self) -> int:
        """Number of loads, one after another: one per rate."""
        return max(1, len(self.rates))

    @property
    def open_loop(self) -> bool:
        """Whether queries are issued at times that do not depend on the answers."""
        return self.scenario in (SERVER, OFFLINE)

    @property
    def requests_per_phase(self) -> int:
        """Number of requests at each rate."""
        return self.queries * self.samples_per_query

    @property
    def requests(self) -> int:
        """Number of requests of all phases."""
        return self.phases * self.requests_per_phase

    @classmethod
    def from_document(cls, found: dict[str, Any]) -> ServingPlan:
        """The inverse of `dataclasses.asdict`, after JSON.

        Args:
            found: The fields.
        """
        return cls(**{**found, "rates": tuple(found["rates"])})
