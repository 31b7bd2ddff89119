"""Rule 13: what other programs took of the processors, recomputed from the readings around each timed process.

Independent of `deep5.measuring.machine_load`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from deep5.audit.finding import Ledger

__all__ = ["check_machines"]

_READINGS = ("at_s", "busy_s", "own_s")
# The system counts in ticks of 10 ms, one per processor and counter, and its counters advance one after the other.
_TICKS_S, _SHARE = 0.1, 0.02
# Shorter spans have no share: the ticks are too coarse.
_LEAST_S = 1.0


def check_machines(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Check each process's readings of its machine, and the share of others that follows from them.

    Args:
        ledger: Receives the findings.
        document: comparison.json.
    """
    total = ((document["system"]["before"] or {}).get("memory_bytes") or {}).get("total")
    for number, row in enumerate(document["processes"]):
        machine = row["machine"]
        if machine is None:
            continue
        name = f"process {number}, {row['candidate']}"
        before, after = machine["before"], machine["after"]
        passed, busy, own = (float(after[key]) - float(before[key]) for key in _READINGS)
        processors = after["processors"]
        ledger.same(13, f"{name}: its processors before and after", before["processors"], processors)
        if row["job"] == "time":
            pinned = len(document["measurement"]["processors"])
            ledger.same(3, f"{name}: the number of processors, by the measurement", processors, pinned)
        room = _TICKS_S * processors + _SHARE * passed * processors
        ledger.hold(
            13,
            # The system counts by ticks and a process by its clock: it may have used more than the system counted.
            0 < passed <= row["wall_s"] and min(own, busy) >= 0 and max(own, busy) <= passed * processors + room,
            f"{name}: its {processors} processors were busy for {busy:.4g} s, {own:.4g} s of them with itself, within "
            f"{passed:.4g} s of the {row['wall_s']:.4g} s that it took; allowed: no part above the whole",
        )
        share = None
        if passed >= _LEAST_S:
            share = min(1.0, max(0.0, (busy - own) / (passed * processors)))
        ledger.same(13, f"{name}: what other programs took, by its readings", machine["others_share"], share)
        for reading in (before, after):
            _check_reading(ledger, name, reading, total)


def _check_reading(ledger: Ledger, name: str, reading: Mapping[str, Any], total: Any) -> None:
    free, clock, load = reading["available_bytes"], reading["clock_mhz"], reading["load_average"] or ()
    ledger.hold(
        8,
        0 <= free <= (total or math.inf)
        and (clock is None or 0 <= clock < math.inf)
        and all(0 <= value < math.inf for value in load),
        f"{name}: {free} bytes free, {clock} MHz, a load of {load!r:.60}; allowed: numbers of at least 0, and no more "
        f"than the machine's {total} bytes",
    )
