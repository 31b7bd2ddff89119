"""What a terminal gets: no codes for color and weight where they would be read as text."""

from __future__ import annotations

import io
import json
import sys
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

import report_cases as cases
from deep5.core.terminal import printed, styled_where_fit
from deep5.results.result import load
from deep5.results.table import verdict_table


def heading() -> str:
    """A heading on a terminal that supports colors."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=70)
    console = styled_where_fit(console)
    console.print("[bold red]metric[/]")
    assert console.width == 70
    return out.getvalue()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that no launcher started, and without a request for plain text."""
    of_ranks = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "TORCHELASTIC_RUN_ID")
    for name in ("NO_COLOR", "DEEP5_LAUNCH", *of_ranks):
        monkeypatch.delenv(name, raising=False)


def test_a_terminal_gets_colours() -> None:
    assert "\x1b[" in heading()


def test_who_asks_for_no_colour_gets_no_weight_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert heading() == "metric\n"


def test_a_rank_of_another_launcher_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert heading() == "metric\n"


@pytest.mark.parametrize(("ranks", "told"), [(1, []), (2, ["2 ranks, AllReduce"])])
def test_a_result_says_of_how_many_ranks_it_is(tmp_path: Path, ranks: int, told: list[str]) -> None:
    folder = cases.run(tmp_path)
    document = json.loads((folder / "result.json").read_text("utf-8"))
    document |= {"ranks": ranks, "components": {"optimizer": {"scheme": "AllReduce"}}}
    (folder / "result.json").write_text(json.dumps(document), "utf-8")
    out = io.StringIO()
    verdict_table(load(folder), Console(file=out, width=100))
    assert [line for line in out.getvalue().splitlines() if "AllReduce" in line] == told


class Screen(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def write(console: Console) -> None:
    """A table with a long cell, and a long sentence."""
    table = Table()
    table.add_column("name", overflow="fold")
    table.add_column("words", overflow="fold")
    table.add_row("long", "word " * 100)
    table.add_row("short", "word")
    console.print(table)
    console.print(Text("word " * 100), overflow="fold")
    console.print()


def test_a_row_is_one_line_where_no_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = printed(write).splitlines()
    assert len(lines) == 7
    assert not any(line != line.rstrip() for line in lines)
    assert sum("word " * 99 in line for line in lines) == 2
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, printed(write).splitlines())) <= 80


def test_a_terminal_gets_lines_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    lines = printed(write).splitlines()
    assert len(lines) > 14
    assert max(map(len, lines)) <= 80
    assert not any(line != line.rstrip() for line in lines)


def test_a_value_and_its_interval_are_on_one_line_where_no_terminal_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cases.run(tmp_path)
    document = json.loads((folder / "result.json").read_text("utf-8"))
    document["metrics"][0] |= {"interval": {"low": 0.5, "high": 1.5, "confidence": 0.95}, "value": 1.0}
    (folder / "result.json").write_text(json.dumps(document), "utf-8")
    result = load(folder)
    intervals = [verdict for verdict in result.verdicts if verdict.interval is not None]
    assert intervals
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = printed(partial(verdict_table, result)).splitlines()
    assert sum(" … " in line for line in lines) == len(intervals)
    assert all(line.startswith(tuple(each.label for each in result.verdicts)) for line in lines if " … " in line)
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(partial(verdict_table, result)).splitlines()
    assert all(line.startswith(" ") for line in lines if " … " in line)
