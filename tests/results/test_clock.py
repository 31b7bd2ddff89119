"""The warning of a result whose dates do not give its duration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deep5.results import clock
from deep5.results.clock import Session, clock_warning, now

BEGUN = "2026-01-31T12:00:00Z"


def _at(seconds: float) -> str:
    return f"{datetime(2026, 1, 31, 12, tzinfo=UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def test_now_is_a_date_of_results() -> None:
    assert abs((datetime.fromisoformat(now()) - datetime.now(UTC)).total_seconds()) < 60


@pytest.mark.parametrize(
    ("by_dates_s", "lived_s", "said"),
    [
        (60, 60.0, None),
        (64, 60.0, None),  # dates are in seconds, and reading the machine takes some
        (59, 70.0, None),
        (0, 0.5, None),
        (1000, 1090.0, None),  # a tenth of a long run
        (3660, 60.0, "+3600"),
        (-3540, 60.0, "-3600"),
        (1000, 1200.0, "-200"),
        (86_400 * 366, 60.0, f"+{86_400 * 366 - 60}"),
    ],
)
def test_dates_that_do_not_give_the_duration(by_dates_s: int, lived_s: float, said: str | None) -> None:
    found = clock_warning(BEGUN, _at(by_dates_s), lived_s)
    assert found == (
        said
        and f"the system clock was set by {said} s during the run, or the machine was suspended: the dates do not give "
        "its length"
    )


def test_a_pause_may_take_any_time() -> None:
    assert clock_warning(BEGUN, _at(86_400), 60.0, paused=True) is None
    assert clock_warning(BEGUN, _at(40), 60.0, paused=True) is not None


def test_a_session_compares_its_own_dates_and_those_of_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: _at(0))
    session = Session()
    assert session.begun == BEGUN
    assert session.clock_warnings(_at(0)) == []
    (own,) = session.clock_warnings(_at(900))
    assert "set by +900 s" in own
    # The result began later than this session ended: the clock was set back in an earlier process.
    (earlier,) = session.clock_warnings(_at(0), _at(3600), 10.0)
    assert "set by -3610 s" in earlier
    assert session.clock_warnings(_at(0), _at(-86_400), 10.0) == []
