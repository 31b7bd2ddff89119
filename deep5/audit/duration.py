"""Rule 8: a result's dates and its duration agree, or it reports that the system clock was set in between."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from deep5.audit.finding import Ledger

__all__ = ["check_duration"]

# Dates are in seconds, and clocks drift: a share of a long run.
_ROOM_S, _ROOM_SHARE = 5.0, 0.1
# The warning of a run whose dates and clock differ, with the difference.
_SET = re.compile(r"the system clock was set by ([+-]\d{1,12}) s during the run\b")


def check_duration(ledger: Ledger, document: Mapping[str, Any], wall_s: float, *, before_s: float = 0.0) -> None:
    """Compare the time between start and end with the duration by the monotonic clock.

    Args:
        ledger: Receives the findings.
        document: result.json or comparison.json, finished.
        wall_s: The duration.
        before_s: Part of it that may lie before the start, in results of older versions.
    """
    begun, ended = document["started"], document["finished"]
    lived = (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds()
    room = _ROOM_S + _ROOM_SHARE * max(lived, wall_s)
    off = lived - wall_s
    resumed = bool(document["resumed"])
    reported = [float(found[1]) for said in document["warnings"] if (found := _SET.match(said))]
    if reported:
        # A resumed result has no process between an interruption and its resumption: only that it reports is known.
        right = resumed or any(abs(off - each) <= _ROOM_S + _ROOM_SHARE * wall_s for each in reported)
    else:
        # Between an interruption and a resumption, any time may pass.
        right = -room - before_s <= off and (resumed or off <= room)
    ledger.hold(
        8,
        right,
        f"it took {lived:g} s by its dates and {wall_s:.3g} s by its clock; allowed: a difference of {room:.3g} s"
        + (f", or of the {reported[0]:+g} s by which it reports that the system clock was set" if reported else ""),
    )
