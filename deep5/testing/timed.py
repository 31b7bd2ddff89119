"""Times of one function by deep5's rules: warm-up, calibrated loops, raw samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from deep5.testing.finishing import finish

__all__ = ["ROUNDS", "Timed", "time_function"]

__tracebackhide__ = True  # pytest shows the line of the test in place of the lines of this module

ROUNDS = 25
"""Number of raw samples: enough for an interval of the median at 95 % whatever the distribution."""

_WARM_UP_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The times of one function.

    Attributes:
        name: Name of the test.
        fullname: Its name with its file.
        samples_s: Raw samples: seconds per call, each the mean over a loop of `calls` calls.
        calls: Calls per sample.
        first_call_s: Seconds of the first call, which may compile.
        warm_ups: Loops before the first sample.
        steady: Whether the times had settled before the first sample.
        others_share: Share of the processors that other programs used meanwhile, 0 to 1; None if it is unknown.
    """

    name: str
    fullname: str
    samples_s: tuple[float, ...]
    calls: int
    first_call_s: float
    warm_ups: int
    steady: bool
    others_share: float | None


def time_function(function: Callable[[], Any], name: str, fullname: str) -> tuple[Any, Timed]:
    """Time a function: a first call, loops long enough for the clock, a warm-up until times settle, then samples.

    Every call includes the time until the arrays in its result are computed.

    Args:
        function: The function; it is called many times.
        name: Name of the test.
        fullname: Its name with its file.

    Returns:
        The result of the last call, and the times.
    """
    from deep5.measuring.loops import Work, calibrate, collector_off, time_loop, warm_up
    from deep5.measuring.machine_load import machine_state, share_of_others

    last: list[Any] = [None]

    def call() -> None:
        last[0] = function()

    work = Work(call=call, synchronize=lambda: finish(last[0]))
    begin = perf_counter()
    call()
    finish(last[0])
    first = perf_counter() - begin
    with collector_off():
        calls, tried = calibrate(work)
        loops, steady = warm_up(work, calls, _WARM_UP_S)
        before = machine_state()
        samples = tuple(time_loop(work, calls) for _ in range(ROUNDS))
        share = share_of_others([(before, machine_state())])
    return last[0], Timed(
        name=name,
        fullname=fullname,
        samples_s=samples,
        calls=calls,
        first_call_s=first,
        warm_ups=len(tried) + len(loops),
        steady=steady,
        others_share=share,
    )
