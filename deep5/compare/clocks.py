"""`replaced_clock`: whether the functions that read the clock are Python's own."""

from __future__ import annotations

import sys
import time

__all__ = ["replaced_clock"]

# Kept before the process loads any other code.
_NAMES = ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns")
_OWN = {name: getattr(time, name) for name in _NAMES}


def replaced_clock() -> str | None:
    """Which function that reads the clock is not Python's own, in the module `time` or in deep5's; None if all are."""
    for module in [time, *(found for name, found in sys.modules.items() if name.partition(".")[0] == "deep5")]:
        for name, own in _OWN.items():
            found = vars(module).get(name, own)
            if found is not own:
                return f"{module.__name__}.{name} was replaced by {found!r:.200}; allowed: Python's own clock"
    return None
