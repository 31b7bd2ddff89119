"""Argument checks that run before any back-end uses the arguments, in one place for all of them."""

from __future__ import annotations

import functools
import math
import os
from array import array
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, TypeGuard

from deep5.core.errors import Deep5Error, UsageError, brief

__all__ = [
    "THREADS",
    "bounded_threads",
    "check_callable",
    "is_finite",
    "is_whole",
    "most_threads",
    "no_network",
    "of_a_network",
]


THREADS = array("i", [0])
"""Number of threads last requested of a framework, 0 if none was; compiled operators use it."""


def most_threads() -> int:
    """The largest number of threads that may be requested: 64, or four per logical processor if that is more.

    Frameworks start as many threads as requested; too many exhaust the memory or abort the process. At least 64 are
    allowed on every machine, so that a recipe written on a larger one still runs; NumPy's OpenBLAS is built for 64.
    """
    return max(64, 4 * (os.cpu_count() or 1))


def bounded_threads(set_threads: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """Wrap a back-end's `set_threads` so that it checks the number first."""

    @functools.wraps(set_threads)
    def checked(self: Any, threads: int) -> None:
        most = most_threads()
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= most:
            raise UsageError(
                f"got {threads!r:.60} threads; allowed: an integer from 1 to {most}; "
                f"remedy: one per processor, {os.cpu_count() or 1}"
            )
        set_threads(self, threads)
        THREADS[0] = threads

    return checked


def of_a_network(executor: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a back-end's `executor` so that it checks the network first."""

    @functools.wraps(executor)
    def checked(self: Any, network: Any, **options: Any) -> Any:
        # Checked by its attributes: this module imports the class of networks only for annotations.
        if isinstance(network, type) or not all(
            hasattr(network, part) for part in ("inputs", "outputs", "parameter_specs")
        ):
            raise UsageError(no_network(network, "executor"))
        try:
            return executor(self, network, **options)
        except (AssertionError, Deep5Error):
            raise
        except Exception as error:  # operator tables and engines may raise anything on invalid settings
            explained = getattr(network, "refused_by", None)
            if explained is None:  # native code: errors of the user's own code pass through
                raise
            raise explained(self.name, error) from error

    return checked


def no_network(got: object, what: str, which: str = "the network") -> str:
    """The error message for an argument that is not a network.

    Args:
        got: The argument's value.
        what: The function that received it.
        which: What the message calls the argument.
    """
    remedy = "one of deep5.networks, such as deep5.networks.lenet()"
    if isinstance(got, (str, os.PathLike)):
        remedy = f"deep5.networks.Network.from_onnx({str(got)!r:.60}) for a file, {remedy}"
    elif callable(got) and hasattr(got, "__name__"):
        remedy = f"call it: {got.__name__}(…), with parentheses"
    return f"{what}: got {brief(got)} as {which}; allowed: a Network; remedy: {remedy}"


def is_finite(value: object) -> bool:
    """Whether a value is a finite Python or NumPy number that float64 can represent."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a Python or NumPy integer."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_callable(name: str, given: object, form: str) -> None:
    """Check that an optional function can be called.

    Args:
        name: The argument's name.
        given: Its value; None means no function.
        form: The signature that it is called with.

    Raises:
        UsageError: The value is neither None nor callable.
    """
    if given is not None and not callable(given):
        raise UsageError(
            f"{name}: got {brief(given)}; allowed: None or a function; remedy: {name}(…) of the form {form}"
        )
