"""Charts of the tables that other commands write into pages: each shows the page's own numbers.

Such a page has a line `<!-- record: {...} -->` with command, date, machine and versions, by the command that writes its
tables, and a line `<!-- chart: KIND SECTION -->` where a chart belongs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from mkdocs.exceptions import PluginError

from deep5.core.charts import PALETTE, PERCENT, WIDTH, altair
from deep5.results.report.theme import INK
from drawn_charts import drawn

RECORD = re.compile(r"^<!-- record: (\{.*\}) -->$", re.MULTILINE)
PLACE = re.compile(r"^<!-- chart: (\w+) ?(.*?) -->$", re.MULTILINE)
ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)
NEEDED = ("command", "date", "machine", "versions")


def table_after(markdown: str, heading: str) -> list[dict[str, str]]:
    """The rows of the first table after a heading, by the names of its columns.

    >>> table_after("## Times\\n\\n| what | s |\\n|---|---:|\\n| a | 1 |\\n", "Times")
    [{'what': 'a', 's': '1'}]

    Raises:
        PluginError: There is no such heading, or no table below it.
    """
    _, found, rest = markdown.partition(f"\n## {heading}\n") if heading else ("", "x", markdown)
    if markdown.startswith(f"## {heading}\n"):
        found, rest = "x", markdown
    block = re.search(r"(?:^\|.*\|\n)+", rest, re.MULTILINE)
    if not found or block is None:
        raise PluginError(f"no table below the heading {heading!r}; remedy: name a heading that a table follows")
    names, _, *rows = ([cell.strip() for cell in line.split("|")] for line in ROW.findall(block.group()))
    return [dict(zip(names, row, strict=True)) for row in rows]


def _number(cell: str) -> float:
    return float(re.sub(r"[^\d.eE-]", "", cell.split(" ", maxsplit=1)[0]))


def _ratios(rows: list[dict[str, str]]) -> Any:
    """Ratios with their intervals; below 1, deep5 is faster."""
    data = []
    for row in rows:
        low, high = (float(each) for each in row["interval"].split(" … "))
        name = row["recipe"].strip("`").removeprefix("overhead_")
        data.append({"recipe": name, "ratio": float(row["ratio"]), "low": low, "high": high})
    alt = altair()
    base = alt.Chart(alt.Data(values=data)).encode(
        y=alt.Y("recipe:N", sort=None, title=None, axis=alt.Axis(labelLimit=260))
    )
    scale = alt.Scale(zero=False)
    bars = base.mark_rule(strokeWidth=3, color=PALETTE[0]).encode(
        x=alt.X("low:Q", scale=scale, title="time with deep5 / time without, 95 % interval"), x2="high:Q"
    )
    points = base.mark_point(filled=True, size=40, color=PALETTE[0]).encode(x=alt.X("ratio:Q", scale=scale))
    one = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeDash=[4, 3], color=INK).encode(x="one:Q")
    return (one + bars + points).properties(width=WIDTH, height=alt.Step(16))


def _passed(rows: list[dict[str, str]]) -> Any:
    """Cases of ONNX's node tests that pass, by framework."""
    column = next(name for name in rows[0] if name.startswith("node, of "))
    most = int(column.removeprefix("node, of "))
    data = [{"framework": row["framework"].strip("`"), "share": int(row[column]) / most} for row in rows]
    alt = altair()
    return (
        alt.Chart(alt.Data(values=data))
        .mark_bar(color=PALETTE[0], size=14)
        .encode(
            x=alt.X(
                "share:Q",
                title=f"cases of ONNX's {most} node tests that pass",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(labelExpr=PERCENT),
            ),
            y=alt.Y("framework:N", sort=None, title=None),
        )
        .properties(width=WIDTH, height=alt.Step(22))
    )


def _outcomes(rows: list[dict[str, str]]) -> Any:
    """Pairs of a file and a back-end, by outcome."""
    kinds = ("works", "refused", "wrong", "fails")
    data = [
        {"part": row["part"], "outcome": kind, "pairs": _number(row[kind]), "place": place}
        for row in rows
        for place, kind in enumerate(kinds)
    ]
    colors = [PALETTE[0], PALETTE[8], PALETTE[1], PALETTE[5]]
    alt = altair()
    return (
        alt.Chart(alt.Data(values=data))
        .mark_bar(size=14)
        .encode(
            x=alt.X("pairs:Q", title="pairs of a file and a back-end"),
            y=alt.Y("part:N", sort=None, title=None),
            color=alt.Color("outcome:N", title=None, scale=alt.Scale(domain=list(kinds), range=colors)),
            order="place:Q",
        )
        .properties(width=WIDTH, height=alt.Step(22))
    )


CHARTS: dict[str, Callable[[list[dict[str, str]]], Any]] = {
    "ratios": _ratios,
    "passed": _passed,
    "outcomes": _outcomes,
}


def record_of(markdown: str, page: str) -> dict[str, str]:
    """The record of a page's numbers.

    Raises:
        PluginError: It has none, or lacks a part.
    """
    found = RECORD.search(markdown)
    record = json.loads(found.group(1)) if found else {}
    if missing := [part for part in NEEDED if not record.get(part)]:
        raise PluginError(
            f"{page} shows a chart and does not state its {', '.join(missing)}; "
            'remedy: a line \'<!-- record: {"command": …, "date": …, "machine": …, "versions": …} -->\''
        )
    return {part: str(record[part]) for part in NEEDED}


def with_charts(markdown: str, page: str) -> str:
    """Draws the charts that a page names, each with the command, machine, versions and date of the page's numbers.

    Raises:
        PluginError: An unknown chart, no table, or no record.
    """

    def draw(found: re.Match[str]) -> str:
        kind, heading = found.groups()
        if kind not in CHARTS:
            raise PluginError(f"{page} has a chart {kind!r}; allowed: {', '.join(CHARTS)}; remedy: one of these")
        record = record_of(markdown, page)
        svg = drawn(CHARTS[kind](table_after(markdown, heading)), f"{kind} of the table below {heading or page}")
        return (
            f'<div class="picture">{svg}</div>\n\n'
            f"```sh\n{record['command']}\n```\n\n"
            f"{record['machine']}; {record['versions']}; {record['date']}.\n{{ .standing }}"
        )

    return PLACE.sub(draw, markdown)
