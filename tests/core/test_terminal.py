"""What a terminal gets: no codes for color and weight where they would be read as text."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import report_cases as cases
from deep5.core.terminal import styled_where_fit
from deep5.results.result import load
from deep5.results.table import verdict_table


def printed() -> str:
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
    assert "\x1b[" in printed()


def test_who_asks_for_no_colour_gets_no_weight_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed() == "metric\n"


def test_a_rank_of_another_launcher_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert printed() == "metric\n"


@pytest.mark.parametrize(("ranks", "told"), [(1, []), (2, ["2 ranks, AllReduce"])])
def test_a_result_says_of_how_many_ranks_it_is(tmp_path: Path, ranks: int, told: list[str]) -> None:
    folder = cases.run(tmp_path)
    document = json.loads((folder / "result.json").read_text("utf-8"))
    document |= {"ranks": ranks, "components": {"optimizer": {"scheme": "AllReduce"}}}
    (folder / "result.json").write_text(json.dumps(document), "utf-8")
    out = io.StringIO()
    verdict_table(load(folder), Console(file=out, width=100))
    assert [line for line in out.getvalue().splitlines() if "AllReduce" in line] == told
