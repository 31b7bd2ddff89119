"""The frameworks on which a user's test runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deep5.core.errors import MissingDependency, UnknownName
from deep5.core.plugins import framework, registered

__all__ = ["check_chosen", "chosen_frameworks", "skip_unless_installed"]


def check_chosen(chosen: Sequence[str]) -> None:
    """Check the names given on pytest's command line.

    Args:
        chosen: The names.

    Raises:
        pytest.UsageError: One of them is not registered.
    """
    known = registered("frameworks")
    for name in chosen:
        if name not in known:
            raise pytest.UsageError(str(UnknownName("framework", name, known)))


def chosen_frameworks(marked: Sequence[object] | None, chosen: Sequence[str] | None) -> list[object]:
    """The names of the frameworks on which a test runs.

    Args:
        marked: The names that its marker has; None: all registered ones. One that is not registered is among the names
            in any case, so that its test reports it and others run.
        chosen: The names given on pytest's command line; None: no restriction.
    """
    known = registered("frameworks")
    names: list[object] = [*marked] if marked else [*sorted(known)]
    return [name for name in names if chosen is None or name in chosen or not _is_known(name)]


def _is_known(name: object) -> bool:
    return isinstance(name, str) and name in registered("frameworks")


def skip_unless_installed(name: object) -> None:
    """Skip the test, with the reason, where a framework is registered and not installed.

    Args:
        name: Its name; the test fails with only the message if there is none of this name.
    """
    if not isinstance(name, str) or name not in registered("frameworks"):
        pytest.fail(str(UnknownName("framework", str(name), registered("frameworks"))), pytrace=False)
    try:
        framework(name)
    except MissingDependency as error:
        pytest.skip(str(error))
