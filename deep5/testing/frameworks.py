"""The frameworks on which a user's test runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deep5.core.errors import MissingDependency, UnknownName
from deep5.core.plugins import framework, registered

__all__ = ["chosen_frameworks", "skip_unless_installed"]


def chosen_frameworks(marked: Sequence[str] | None, chosen: Sequence[str] | None) -> list[str]:
    """The names of the frameworks on which a test runs.

    Args:
        marked: The names that its marker has; None: all registered ones.
        chosen: The names given on pytest's command line; None: no restriction.

    Raises:
        pytest.UsageError: One of them is not registered.
    """
    known = registered("frameworks")
    for name in (*(marked or ()), *(chosen or ())):
        if name not in known:
            raise pytest.UsageError(str(UnknownName("framework", str(name), known)))
    names = list(marked) if marked else sorted(known)
    return [name for name in names if chosen is None or name in chosen]


def skip_unless_installed(name: str) -> None:
    """Skip the test, with the reason, where a framework is registered and not installed."""
    try:
        framework(name)
    except MissingDependency as error:
        pytest.skip(str(error))
