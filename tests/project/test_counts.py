"""The page of counts: results that ran are added, others stay, and nothing is lost between two JUnit files."""

from __future__ import annotations

from pathlib import Path

import counts
import longest

CASE = '<testcase classname="tests.{}" name="{}" time="{}">{}</testcase>'
FAILED = "<failure/>"
SKIPPED = '<skipped type="pytest.skip" message="Skipped: no such machine"/>'


def junit(folder: Path, name: str, *cases: tuple[str, str, float, str]) -> Path:
    path = folder / name
    inner = "".join(CASE.format(*case) for case in cases)
    path.write_text(f"<testsuites><testsuite>{inner}</testsuite></testsuites>")
    return path


def test_a_part_replaces_its_own_rows_only(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").touch()
    (tmp_path / "test_b.py").touch()
    whole = junit(
        tmp_path,
        "all.xml",
        ("test_a", "test_x[1]", 1.2, ""),
        ("test_a.TestIn", "test_x[1]", 2.0, SKIPPED),
        ("test_b", "test_y", 3.0, FAILED),
        ("test_gone", "test_z", 1.0, ""),
    )
    first = counts.page(counts.ran([whole], "aaaa"))
    assert "4 tests, of which 2 passed, 1 failed, 1 skipped, 0 xfailed" in first
    again = junit(tmp_path, "again.xml", ("test_b", "test_y", 2.0, ""))
    rows = counts.read(first, tmp_path)
    rows |= counts.ran([junit(tmp_path, "b.xml", ("test_b", "test_y", 3.0, FAILED)), again], "bbbb")
    second = counts.page(rows)
    assert "3 tests, of which 2 passed, 0 failed, 1 skipped, 0 xfailed" in second
    for line in (
        "| test_a.py | 1 | 0 | 1 | 0 | 3 | aaaa |",
        "| test_b.py | 1 | 0 | 0 | 0 | 5 | bbbb |",
        "- test_a.py: left out 1 × no such machine",
        "- test_b.py: `test_y`: failed, run again by itself: passed",
    ):
        assert line in second.splitlines()
    assert "test_gone.py" not in second
    assert counts.page(counts.read(second, tmp_path)) == second


def test_the_committed_page_has_no_failures() -> None:
    folder = Path(__file__).parents[1]
    rows = counts.read((folder / "counts.md").read_text(encoding="utf-8"), folder)
    assert rows
    # Its own row does not count: once this test failed, it could never pass again.
    own = f"project/{Path(__file__).name}"
    assert [name for name, row in rows.items() if row.counts["failed"] and name != own] == []


def test_a_long_function_stays_listed_until_it_runs_again_or_is_gone(tmp_path: Path) -> None:
    cases = [("test_counts", "test_quick[1]", 0.1, ""), ("test_a", "test_slow[2]", 3.5, "")]
    cases += [("test_a", f"test_many[{number}]", 0.25 * number, "") for number in range(1, 13)]
    file = junit(tmp_path, "all.xml", *cases, ("test_a", "test_few[1]", 2.9, ""))
    here = f"tests/project/{Path(__file__).name}"
    kept = f"{here}::test_a_part_replaces_its_own_rows_only"
    before = [
        f"4.0 4.00 {here}::test_quick",
        f"5.0 2.50 {kept}",
        f"9.0 9.00 {here}::test_that_is_no_more",
        "7.0 7.00 tests/test_gone.py::test_x",
    ]
    many = "3.0 1.62 tests/test_a.py::test_many"
    assert longest.longest([file], before) == [f"5.0 2.50 {kept}", many, "3.5 3.50 tests/test_a.py::test_slow"]
    cases = [("test_a", f"test_many[{number}]", 0.5, "") for number in range(6)]
    assert longest.longest([junit(tmp_path, "all.xml", *cases)], []) == ["0.5 0.50 tests/test_a.py::test_many"]
    assert longest.longest([junit(tmp_path, "all.xml", *cases[1:])], []) == []


def test_every_listed_function_is_there() -> None:
    lines = (Path(__file__).parents[1] / "long_tests.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not longest.is_there(line.split()[-1])] == []
