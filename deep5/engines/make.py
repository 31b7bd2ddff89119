"""`make_engine`: an engine by its registered name."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import cast

from deep5.core.errors import UsageError
from deep5.core.plugins import load

__all__ = ["LOCAL", "make_engine"]

LOCAL = "local"
"""The engine that is used unless another one is named."""


def make_engine(text: str, *, workers: int, processors_each: int) -> Executor:
    """An engine, which carries out calls in the order in which they are submitted, several at the same time.

    Args:
        text: A name of the entry points `deep5.engines`, or NAME:OPTIONS.
        workers: Number of calls at the same time.
        processors_each: Number of processors of each call.

    Raises:
        UnknownName: There is no such engine.
        UsageError: It cannot have so many workers, does not accept the options, or is not an executor.
        MissingDependency: A package that it needs is not installed.
    """
    name, _, options = text.partition(":")
    made = load("engines", name)(workers=workers, processors_each=processors_each, options=options)
    lacking = [method for method in ("submit", "shutdown") if not callable(getattr(made, method, None))]
    if lacking:
        raise UsageError(
            f"the engine {name!r} has no method {lacking[0]}; allowed: the interface of concurrent.futures.Executor"
        )
    return cast("Executor", made)
