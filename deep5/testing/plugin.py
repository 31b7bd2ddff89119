"""What pytest loads in every run of a user's tests: options, a marker and fixtures; it imports nothing heavy.

References:
    https://docs.pytest.org/en/stable/how-to/writing_plugins.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from deep5.testing.benchmark import Benchmark, Session
    from deep5.testing.checks import Checks

__all__ = ["deep5_benchmark", "deep5_check", "deep5_framework"]

_SESSION: pytest.StashKey[Session] = pytest.StashKey()
_MARKER = "deep5_frameworks"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, which all begin with --deep5-."""
    group = parser.getgroup("deep5", "deep5: checks and benchmarks of deep learning")
    group.addoption(
        "--deep5-framework",
        action="append",
        default=None,
        metavar="NAME",
        help="Run tests with the fixture deep5_framework only on this framework; repeatable.",
    )
    group.addoption(
        "--deep5-storage",
        default=".benchmarks",
        metavar="DIR",
        help="Where deep5_benchmark stores its times, as pytest-benchmark does (default: %(default)s).",
    )
    group.addoption(
        "--deep5-benchmark-disable",
        action="store_true",
        help="Let deep5_benchmark call its function once, without timing it.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and check the names of the option --deep5-framework."""
    config.addinivalue_line(
        "markers", f"{_MARKER}(*names): the frameworks on which a test with the fixture deep5_framework runs"
    )
    if config.getoption("--deep5-framework"):
        from deep5.testing.frameworks import check_chosen

        check_chosen(config.getoption("--deep5-framework"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the fixture `deep5_framework` once for every framework."""
    if "deep5_framework" not in metafunc.fixturenames:
        return
    from deep5.testing.frameworks import chosen_frameworks

    marker = metafunc.definition.get_closest_marker(_MARKER)
    wanted = None if marker is None else marker.args
    names = chosen_frameworks(wanted, metafunc.config.getoption("--deep5-framework"))
    metafunc.parametrize("deep5_framework", names, indirect=True, ids=str)


@pytest.fixture
def deep5_framework(request: pytest.FixtureRequest) -> Any:
    """The name of a framework: the test runs once for every registered one, and is skipped for those not installed."""
    from deep5.testing.frameworks import skip_unless_installed

    skip_unless_installed(request.param)
    return request.param


@pytest.fixture
def deep5_check() -> Checks:
    """deep5's checks, as methods: `operator`, `optimizer`, `executor`, `communicator`, `scheme`.

    A check that fails fails the test with the check's table in place of a traceback; what this machine or framework
    does not support skips it, with the reason.
    """
    from deep5.testing.checks import Checks

    return Checks()


@pytest.fixture
def deep5_benchmark(request: pytest.FixtureRequest) -> Benchmark:
    """Times a function by deep5's rules: `result = deep5_benchmark(function, *arguments)`; one call per test."""
    from deep5.testing.benchmark import Benchmark, Session

    config = request.config
    session = config.stash.setdefault(_SESSION, Session(storage=config.rootpath / config.getoption("--deep5-storage")))
    why = "--deep5-benchmark-disable" if config.getoption("--deep5-benchmark-disable") else ""
    if hasattr(config, "workerinput"):  # a process of pytest-xdist, beside others
        why = "pytest-xdist, whose processes disturb each other"
    return Benchmark(session, request.node.name, request.node.nodeid, disabled=why)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Store the times of this run."""
    measured = session.config.stash.get(_SESSION, None)
    if measured is not None:
        measured.store()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the times, and how they differ from those stored before."""
    measured = config.stash.get(_SESSION, None)
    for line in () if measured is None else measured.summary():
        terminalreporter.write_line(line)
