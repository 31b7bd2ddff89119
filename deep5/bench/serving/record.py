"""The document of a served load: serving.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from deep5.bench.serving.records import ServedLoad
from deep5.bench.serving.summary import PhaseSummary
from deep5.results.validation import encode

__all__ = ["SERVING", "serving_document"]

SERVING = "serving.json"
"""File in the folder with the plan and one summary per rate."""

_VERSION = 1
_CLOCK = "time.perf_counter of the generator, from the scheduled time of a query to the end of its answer"
_SOURCE = "scenarios and percentiles: MLCommons, MLPerf Inference Rules; percentiles by the nearest rank"


def serving_document(load: ServedLoad, phases: Sequence[PhaseSummary], about: dict[str, Any]) -> dict[str, Any]:
    """The content of serving.json, in JSON types.

    Args:
        load: The load.
        phases: Its summaries.
        about: How the server ran: the sizes of its batches, and what its transport is.
    """
    return dict(
        encode(
            {
                "version": _VERSION,
                "plan": asdict(load.plan),
                "clock": _CLOCK,
                "source": _SOURCE,
                "server": about,
                "begins_s": list(load.begins_s),
                "phases": [asdict(phase) for phase in phases],
            }
        )
    )
