"""The document of a served load: serving.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from deep5.bench.serving.records import ServedLoad
from deep5.bench.serving.summary import PhaseSummary
from deep5.results.validation import encode

__all__ = ["SERVING", "serving_document", "serving_pictures"]

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


def serving_pictures(document: Mapping[str, Any]) -> dict[str, bytes]:
    """The chart of a load, by file name.

    Args:
        document: Result of `serving_document`.

    Raises:
        MissingDependency: The drawing package is not installed.
        UsageError: There is nothing to draw.
    """
    from deep5.core.charts import files
    from deep5.results.charts.serving import serving_chart, serving_title

    plan = document["plan"]
    return files("serving", serving_chart(document["phases"], plan["bound_s"], serving_title(plan)))
