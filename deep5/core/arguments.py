"""Arguments: what is looked at before anything uses it, in one place for every back-end."""

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
"""How many threads the framework was asked for that was asked last, 0 where none was: what compiled operators use."""


def most_threads() -> int:
    """The largest number of threads that a framework is asked for: 64, or four a logical processor where that is more.

    Frameworks start as many threads as they are told, and those that are told too many take all memory or end the
    process. 64 on every machine: a recipe that was written on a larger one still runs, and it is what OpenBLAS, which
    NumPy brings, is built for.
    """
    return max(64, 4 * (os.cpu_count() or 1))


def bounded_threads(set_threads: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """A back-end's `set_threads`, behind a look at the number."""

    @functools.wraps(set_threads)
    def checked(self: Any, threads: int) -> None:
        most = most_threads()
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= most:
            raise UsageError(
                f"got {threads!r:.60} threads; allowed: a whole number of at least 1 and, here, at most {most}; "
                f"remedy: one a processor, {os.cpu_count() or 1}"
            )
        set_threads(self, threads)
        THREADS[0] = threads

    return checked


def of_a_network(executor: Callable[..., Any]) -> Callable[..., Any]:
    """A back-end's `executor`, behind a look at the network."""

    @functools.wraps(executor)
    def checked(self: Any, network: Any, **options: Any) -> Any:
        # By what it has: this module knows the class of networks for its types alone.
        if isinstance(network, type) or not all(
            hasattr(network, part) for part in ("inputs", "outputs", "parameter_specs")
        ):
            raise UsageError(no_network(network, "executor"))
        try:
            return executor(self, network, **options)
        except (AssertionError, Deep5Error):
            raise
        except Exception as error:  # whatever a table of operators or an engine raises of odd settings
            explained = getattr(network, "refused_by", None)
            if explained is None:  # native code: what its author's own code raises is its author's
                raise
            raise explained(self.name, error) from error

    return checked


def no_network(got: object, what: str, which: str = "the network") -> str:
    """What is wrong with something that stands where a network belongs.

    Args:
        got: It.
        what: The function that was given it.
        which: The argument.
    """
    remedy = "one of deep5.networks, such as deep5.networks.lenet()"
    if isinstance(got, (str, os.PathLike)):
        remedy = f"deep5.networks.Network.from_onnx({str(got)!r:.60}) for a file, {remedy}"
    elif callable(got) and hasattr(got, "__name__"):
        remedy = f"call it: {got.__name__}(…), with parentheses"
    return f"{what}: got {brief(got)} as {which}; allowed: a Network; remedy: {remedy}"


def is_finite(value: object) -> bool:
    """Whether something is a finite number, of Python's or NumPy's, that has a place in float64."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False


def is_whole(value: object) -> TypeGuard[int]:
    """Whether something is a whole number, of Python's or NumPy's."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_callable(name: str, given: object, form: str) -> None:
    """Refuse what cannot be called where a function may stand.

    Args:
        name: Of the argument.
        given: Its value; None is none.
        form: How it is called.

    Raises:
        UsageError: It is something else.
    """
    if given is not None and not callable(given):
        raise UsageError(
            f"{name}: got {brief(given)}; allowed: None or a function; remedy: {name}(…) of the form {form}"
        )
