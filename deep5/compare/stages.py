"""The stages of a timed process, as its parent sees them: how long the samples took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["CHECKS", "disagreement"]

CHECKS = "the checks of what was timed"
"""Report of the stage after the samples, whose memory is not the candidate's."""
# The parent notices reports late if other programs use the processors.
_LATE_S, _LATE = 0.25, 0.05


def disagreement(workloads: list[dict[str, Any]], stages: Mapping[str, float]) -> str | None:
    """How a process's clock disagrees with that of its parent about the time of the samples; None if it does not.

    Args:
        workloads: Of its answer: `stage` is the name of the stage that takes the samples; the sample times are seconds
            since an origin, and at `stage_begin_s` the stage began.
        stages: Duration of each stage by the clock of this process, in seconds.
    """
    for own in workloads:
        if not own["samples"]:
            continue
        seconds, known = own["samples"][-1][0] - own["stage_begin_s"], stages.get(own["stage"])
        if known is None or not abs(seconds - known) <= _LATE_S + _LATE * known:
            took = "an unknown time" if known is None else f"{known:.3g} s"
            return f"its clock is wrong: {own['stage']} took {took}, and {seconds:.3g} s by its own clock"
    return None
