"""Dates of a result by the system clock, compared with the clock of its times, which cannot be set."""

from __future__ import annotations

from datetime import UTC, datetime
from time import perf_counter

__all__ = ["Session", "clock_warning", "now"]

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
# Dates are in seconds, and the two clocks are read one after the other; clocks drift, by a share of a long run.
_ROOM_S, _ROOM_SHARE = 5.0, 0.1


def now() -> str:
    """The time by the system clock, UTC, such as "2025-01-31T12:00:00Z"."""
    return datetime.now(UTC).strftime(_FORMAT)


def clock_warning(begun: str, ended: str, lived_s: float, *, paused: bool = False) -> str | None:
    """The warning of a result whose dates are further apart, or closer, than its duration.

    Args:
        begun: First date, as `now` returns it.
        ended: Last date.
        lived_s: Seconds in between, by the monotonic clock.
        paused: Whether the result was interrupted and resumed: then its dates may be any time further apart.

    >>> clock_warning("2025-01-31T12:00:00Z", "2025-01-31T12:01:00Z", 58.7)
    >>> clock_warning("2025-01-31T12:00:00Z", "2025-01-31T11:01:00Z", 60.0)
    'the system clock was set by -3600 s during the run, or the machine was suspended: the dates do not give its length'
    """
    dates_s = (datetime.strptime(ended, _FORMAT) - datetime.strptime(begun, _FORMAT)).total_seconds()
    off_s = dates_s - lived_s
    if abs(off_s) <= _ROOM_S + _ROOM_SHARE * max(dates_s, lived_s) or (paused and off_s > 0):
        return None
    return (
        f"the system clock was set by {off_s:+.0f} s during the run, or the machine was suspended: the dates do not "
        "give its length"
    )


class Session:
    """The part of a result that one process makes; it begins when this object is created.

    Attributes:
        begun: Its first date.
        begin_s: The same moment by `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.begin_s, self.begun = perf_counter(), now()

    def clock_warnings(self, ended: str, begun: str | None = None, lived_s: float = 0.0) -> list[str]:
        """Warnings about the system clock, at the end of the session.

        Args:
            ended: The last date.
            begun: For a result of several sessions, the first date of the first.
            lived_s: Its duration, without the time between the sessions.
        """
        own = clock_warning(self.begun, ended, perf_counter() - self.begin_s)
        # An earlier process may have been killed after the clock was set back.
        earlier = None if begun is None or own else clock_warning(begun, ended, lived_s, paused=True)
        return [warning for warning in (own, earlier) if warning is not None]
