"""The ranks of a run: each one's machine, traffic and waiting time."""

from __future__ import annotations

from collections.abc import Sequence

from deep5.core.terminal import counted
from deep5.results.markup import Markup, element, named
from deep5.results.ranks_file import RankRow
from deep5.results.report.numbers import as_float, percent, size
from deep5.results.report.tables import Cell, table
from deep5.results.result import Result

__all__ = ["ranks_part"]

_LISTED = 5


def ranks_part(run: Result) -> Markup | None:
    """A sentence and a table on the ranks of a run; None for a run of one process.

    Args:
        run: The run.

    Raises:
        UsageError: ranks.json is not in deep5's format.
    """
    if run.rank_count == 1:
        return None
    rows = run.ranks()
    if not rows:
        said = f"{run.rank_count} ranks; the run ended before they combined their records."
        return element("div", _head(run), element("p", said, class_="quiet"))
    wall_s = as_float((run.document["resources"] or {}).get("wall_time_s"))
    return element("div", _head(run), element("p", _said(rows), class_="quiet"), _table(rows, wall_s))


def _head(run: Result) -> Markup:
    return element("h3", "Ranks of ", named(run.folder.name))


def _said(rows: Sequence[RankRow]) -> str:
    """For example: 2 ranks on 1 host (a), started by torchrun, over ProcessGroupCommunicator."""
    hosts = list(dict.fromkeys(row.host for row in rows))
    launchers = list(dict.fromkeys(row.launcher or "nothing: threads of one process" for row in rows))
    over = list(dict.fromkeys(row.communicator for row in rows))
    return (
        f"{counted(len(rows), 'rank')} on {counted(len(hosts), 'host')} ({_first(hosts)}), started by "
        f"{_first(launchers)}, over {_first(over)}"
    )


def _first(texts: Sequence[str]) -> str:
    more = len(texts) - _LISTED
    return ", ".join(texts[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _table(rows: Sequence[RankRow], wall_s: float | None) -> Markup:
    cells = [
        [
            Cell.number(row.rank),
            named(row.host),
            Cell.number(row.steps),
            Cell(shown=size(row.sent_bytes), order=float(row.sent_bytes)),
            Cell.number(row.messages),
            Cell.seconds(row.waited_s),
            _share(row.waited_s, wall_s),
            Cell.number(row.threads),
            named("; ".join(row.warnings) or "-", 200),
        ]
        for row in rows
    ]
    columns = ["rank", "host", "steps", "sent", "messages", "waited", "of the whole run", "threads", "warnings"]
    return table("What each rank did, sent and waited for, from beginning to end", columns, cells)


def _share(waited_s: float, wall_s: float | None) -> Cell:
    if not wall_s:
        return Cell.number(None)
    return Cell(shown=percent(waited_s / wall_s), order=waited_s / wall_s)
