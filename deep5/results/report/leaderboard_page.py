"""The page of a leaderboard: one file, without other files and programs of others."""

from __future__ import annotations

from deep5.results.leaderboard import DIVISIONS, Leaderboard, summary
from deep5.results.markup import element
from deep5.results.report.page import whole_page
from deep5.results.report.tables import Cell, table

__all__ = ["leaderboard_page"]


def leaderboard_page(board: Leaderboard) -> str:
    """The page.

    Args:
        board: The leaderboard.
    """
    heading = element(
        "header",
        element("h1", f"Leaderboard of {board.recipe}"),
        element("p", f"Size {board.size}, by {board.metric}, {board.direction} is better: {summary(board)}."),
        element("p", f"Each run was audited. Fixed part {board.hash[:12]}.", class_="quiet"),
    )
    parts = []
    for division in DIVISIONS:
        if rows := board.rows(division):
            shown = [
                [Cell(shown=row[0], order=own.rank), row[1], Cell(shown=row[2], order=own.median), *row[3:]]
                for row, own in zip(rows, board.of(division), strict=True)
            ]
            title = f"{division.capitalize()} division"
            parts.append(element("section", element("h2", title), table(title, board.columns, shown)))
    said = [element("li", line) for line in board.remarks()]
    main = element("main", parts, element("ul", said) if said else None, id="main")
    return whole_page(f"leaderboard of {board.recipe}", heading, None, main)
