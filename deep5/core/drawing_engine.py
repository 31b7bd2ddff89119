"""Whether the drawing engine runs under this process' limit of address space: it ends the process where it does not."""

from __future__ import annotations

import functools
import resource

import psutil

from deep5.core.errors import MissingDependency
from deep5.core.python_child import run_function

__all__ = ["check_engine", "draw_within"]

_TIME_LIMIT_S = 120.0
# What a large chart may need beyond the smallest one.
_RESERVE_BYTES = 256 << 20
_SMALLEST = '{"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "data": {"values": []}, "mark": "point"}'


def check_engine() -> None:
    """Reject the drawing engine if it cannot run here.

    It contains a JavaScript engine, which reserves gigabytes of address space at its start and aborts if it does not
    get them. Without a limit there is nothing to check; with one, a separate process draws a chart in what is left.

    Raises:
        MissingDependency: The address space is limited too tightly.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and not _draws(limit):
        raise MissingDependency(
            f"pictures need the drawing engine vl-convert, which does not run in an address space limited to {limit} "
            "bytes; allowed: no limit, since the engine reserves more than it uses; remedy: 'ulimit -v unlimited', or "
            "draw where there is no limit"
        )


@functools.cache
def _draws(limit: int) -> bool:
    left = limit - psutil.Process().memory_info().vms - _RESERVE_BYTES
    if left <= 0:
        return False
    return run_function(draw_within, left, time_limit_s=_TIME_LIMIT_S).fault(answered=True) is None


def draw_within(left_bytes: int) -> None:
    """Draw a chart in this process, which gets so much more address space and no more.

    Args:
        left_bytes: Bytes beyond those that this process has.
    """
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + left_bytes, most))
    import vl_convert

    vl_convert.vegalite_to_svg(_SMALLEST)
