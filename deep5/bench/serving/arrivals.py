"""When queries arrive, and which samples they request: drawn from the seed, so that they repeat."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep5.bench.serving.plan import SERVER, ServingPlan
from deep5.core.seeds import generator

__all__ = ["arrival_times", "drawn_samples"]


def arrival_times(plan: ServingPlan, phase: int) -> np.ndarray:
    """Seconds from the start of a phase at which its queries are scheduled; shape (queries,), float64.

    In the scenario `server` the queries are a Poisson process: the gaps between them, and the gap before the first, are
    independent and exponential with the mean 1 / rate. In `offline` all are scheduled at 0. A closed loop has no times
    in advance.

    Args:
        plan: The load.
        phase: Number of the rate.

    References:
        MLCommons, MLPerf Inference Rules, "Server" scenario: arrivals are Poisson.

    >>> plan = ServingPlan(scenario="server", queries=10_000, rates=(100.0,), seed=1)
    >>> times = arrival_times(plan, 0)
    >>> bool((np.diff(times) > 0).all()), round(float(times[-1]))
    (True, 100)
    """
    if plan.scenario != SERVER:
        return np.zeros(plan.queries)
    random: Any = generator(plan.seed, "arrivals", phase)
    gaps: np.ndarray = random.standard_exponential(plan.queries, method="inv")
    return np.asarray(np.cumsum(gaps) / plan.rates[phase])


def drawn_samples(plan: ServingPlan, phase: int, count: int) -> np.ndarray:
    """Index of each request's sample; shape (requests,), int64: uniform, with replacement, as in MLPerf.

    Args:
        plan: The load.
        phase: Number of the rate.
        count: Number of samples to draw from.

    >>> plan = ServingPlan(scenario="multi_stream", queries=2)
    >>> drawn_samples(plan, 0, 10).shape
    (16,)
    """
    random: Any = generator(plan.seed, "samples", phase)
    return np.asarray(random.integers(0, count, plan.requests_per_phase))
